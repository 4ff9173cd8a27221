"""`yard demo`: the cluster it runs on, and the steps it shows."""
