"""The policy `quota`: departments and projects with guaranteed quotas, and moves of tasks.

Start reading at `quota`; `shares` computes the shares, `claims` says which tasks may be preempted.
Must not change the state.
"""
