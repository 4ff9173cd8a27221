"""The content of `yard ls`: filters, rows, and the order of a queue."""
