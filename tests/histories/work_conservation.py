"""Work conservation: a task that fits on idle capacity that is not reserved, and that no stated
rule of its policy keeps waiting (`stated_rules.py`), starts.
"""

from tests.histories.free_capacity import fits, is_simple
from tests.histories.stated_rules import code_of, pending_groups, waits_by_rule
from yardmaster_core.scheduling.state.cluster import ClusterState


def assert_idle_capacity_is_used(state: ClusterState) -> None:
    """Assert it in every pool; the state must be idle."""
    for pool in state.pools.values():
        if pool.config is None:
            continue
        for group in pending_groups(pool):
            task = group.queue.first
            if not is_simple(task) or not fits(state, pool, task):
                continue
            assert waits_by_rule(state, pool, group), (
                f"{task.id} fits in {pool.name}, but waits: {code_of(pool, group)}"
            )
