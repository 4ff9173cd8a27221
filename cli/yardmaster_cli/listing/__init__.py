"""The content of `yard ls`: filters and rows."""
