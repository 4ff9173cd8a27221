"""The scheduler's state of one cell and the appliers, the only code that changes it.

Start reading at `tasks`, `nodes`, `pools` and `cluster`, then `apply`. Must not import the planner
or a policy.
"""
