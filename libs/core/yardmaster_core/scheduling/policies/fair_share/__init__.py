"""The policy `fair_share`: divides a pool by weight among its jobs or among its projects.

Start reading at `policy`; `max_min` holds the division. Must not change the state.
"""
