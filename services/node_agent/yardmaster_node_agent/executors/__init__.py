"""The executor port and its adapters: real processes, and simulated ones. See `port`."""
