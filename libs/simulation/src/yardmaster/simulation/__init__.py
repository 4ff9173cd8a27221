"""The real machines on made-up clusters."""
