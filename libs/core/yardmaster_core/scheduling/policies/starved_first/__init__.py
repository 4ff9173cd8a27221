"""The policy `starved_first`: owners by the GPUs that they hold, those with the fewest first.

Start reading at `starved_first`; `index` computes the equal parts, `preempt` says which tasks may
be preempted. Must not change the state.
"""
