"""The pure state machines: scheduling, admission, and the audit of the log.

Start reading at `scheduling.machine`, then `scheduling.planner.plan`. Nothing here uses a clock,
randomness, I/O or asyncio: times and ids arrive in events.
"""
