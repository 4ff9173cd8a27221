"""The policy `fair_share`: divides a pool by weight among its jobs or among its projects.

Start reading at `fair_share`; `division` computes the shares. Must not change the state.
"""
