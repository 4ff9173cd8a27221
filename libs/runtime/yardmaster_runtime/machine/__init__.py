"""The life of one machine on a log: restore, stand by, lead, take snapshots.

Start reading at `candidate`, then `cycle` (the leader) and `fold` (what every reader does).
"""
