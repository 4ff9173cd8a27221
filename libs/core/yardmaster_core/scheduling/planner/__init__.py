"""Decides which tasks start, which are preempted, and why the others stay pending.

Start reading at `plan`; `policy` defines what a policy supplies. Must not import a policy, and
changes state only through `draft`.
"""
