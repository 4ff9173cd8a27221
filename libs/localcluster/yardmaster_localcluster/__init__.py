"""A whole cluster on one machine without containers: broker, Redis and services as processes.

Start reading at `plan`, then `fleet` and `supervisor`. Must not import a service or the CLI:
services are started as programs.
"""
