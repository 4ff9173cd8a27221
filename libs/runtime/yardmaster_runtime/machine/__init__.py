"""The life of one machine on a log: restore, stand by, lead, take snapshots.

Start reading at `candidate`, then `leader` (its cycles) and `fold` (what every reader does).
"""
