"""Views and metered usage as pure functions over events, and the stores that hold them.

Start reading at `projection`, then `store` and `queries`. Must not decide anything or read the log.
"""
