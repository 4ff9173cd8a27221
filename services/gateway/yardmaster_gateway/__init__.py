"""The gateway: the REST and SSE interface.

Start reading at `app`, then the router of one resource; only `problems` knows status codes. Must
not decide, import another service, or answer before the request is in the log.
"""
