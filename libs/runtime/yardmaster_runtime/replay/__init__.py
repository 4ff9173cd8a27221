"""Replay of a recorded log: the state at any moment, explanations, the proof of every decision.

Start reading at `rebuild`, then `verify`. Must not write to the log.
"""
