"""The scheduler's state machine, in four parts: `state`, `planner`, `policies` and `machine`.

Start reading at `machine`, then `planner.plan`. `state` imports neither the planner nor a policy,
and the planner imports no policy: `machine` passes the registry of policies to both.
"""
