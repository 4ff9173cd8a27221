"""The gateway: the REST and SSE interface.

Start reading at `app`, then at the router of one resource, for example `jobs`. The gateway makes no
scheduling decision, imports no other service, and answers a write only after it is in the log.
"""
