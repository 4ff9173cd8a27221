"""The policy `quota`: departments and projects with guaranteed quotas, and moves of tasks.

Start reading at `quota`. `start` says why a task starts or waits, `shares` computes the shares;
`preempt`, `reclaim` and `consolidation` say which tasks may be preempted or moved, `wake` which
groups are considered again. Must not change the state.
"""
