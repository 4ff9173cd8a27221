"""The log: a small port, its adapters, and the codec between events and bytes. Start at `port`."""
