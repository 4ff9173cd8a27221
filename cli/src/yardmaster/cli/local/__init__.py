"""A whole cluster on this machine without containers: broker, Redis and every service a process."""
