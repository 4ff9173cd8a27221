"""The users of a cell: how a token becomes a caller, and which actions roles allow.

No file here may depend on HTTP or on the rest of the gateway.
"""
