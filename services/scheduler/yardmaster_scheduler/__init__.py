"""The scheduler service: runs the scheduling machine and relays its decisions to the nodes.

Start reading at `main`, then `relay`. Must not import another service; the relay must not decide.
"""
