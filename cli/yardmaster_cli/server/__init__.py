"""The connection to a gateway: plain JSON reads, and typed calls."""
