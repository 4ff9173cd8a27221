"""The users of a cell: how a token becomes a caller, and which actions roles allow.

No file here knows HTTP or the gateway.
"""
