"""Metrics, logs and traces of a service, and its health endpoint.

Start reading at `port`. Holds no global state: each service receives its own telemetry.
"""
