"""How a replica is run: the port, real processes, and ones that only take time. See `port`."""
