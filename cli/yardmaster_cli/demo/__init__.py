"""`yard demo`: the cluster that the demo runs on, and the steps that it shows."""
