"""The quota service's machine, which judges every request.

Start reading at `machine`, then `decide`. Must not import the scheduler's state machine.
"""
