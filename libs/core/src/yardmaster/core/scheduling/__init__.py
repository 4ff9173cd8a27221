"""The scheduling machine: state, appliers, policies and the planner. Start at `machine`, then
`plan`.
"""
