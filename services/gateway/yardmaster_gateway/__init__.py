"""The gateway: the REST and SSE interface.

Start reading at `app`, then at one resource in `routes`, for example `jobs`. The gateway makes no
scheduling decision, imports no other service, and answers a write only after it is in the log.
"""
