"""Whether a task could ever run in a pool: whether it fits without the pool's preemptible tasks.

Policies check this before they search victims or count demand.
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.planner.placement import any_placement, idle_sizes
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Shape


def could_fit(pool: Pool, shape: Shape) -> bool:
    """Whether a task would fit if every preemptible task of the pool released its slots."""
    assert pool.config is not None
    key = ("could_fit", shape.fit)
    known = pool.policy_cache.get(key)
    now = (pool.topology, pool.max_free_changes)
    if known is not None:
        then, fits, capacity = known
        if then == now:
            return bool(fits)
        # The node that fitted before may still fit, whatever changed on other nodes.
        if (
            capacity is not None
            and then[0] == now[0]
            and capacity.available
            and capacity.holds(shape)
        ):
            pool.policy_cache[key] = (now, True, capacity)
            return True
    placement = any_placement(pool.max_free, shape, pool.config)
    fits = placement is not None
    if not fits and shape.whole_nodes and pool.config.unequal_gangs:
        # With unequal gangs, a subset of the free nodes may fit where all of them do not.
        fits = has_exact_sum(shape.gpus, idle_sizes(pool.max_free, shape))
    capacity = (
        placement[0][0] if placement is not None and shape.replicas == len(placement) == 1 else None
    )
    pool.policy_cache[key] = (now, fits, capacity)
    return fits


def could_fit_after_stops(pool: Pool, shape: Shape) -> bool:
    """Whether a task may fit if every preemptible task of the pool, and every task that stops,
    released its slots; also if it is not known, because a task stops that could not be preempted:
    more will be free than `could_fit` counts.
    """
    return pool.stopping_non_preemptible > 0 or could_fit(pool, shape)


def has_exact_sum(gpus: int, counts: Mapping[int, int]) -> bool:
    """Whether some of the nodes, `counts` of each size, have exactly `gpus` GPUs together."""
    # Bit n is set if some of the nodes have n GPUs together. If only those are idle, taking the
    # largest first succeeds, even where it fails with more idle nodes.
    sums = 1
    for size, count in counts.items():
        for _ in range(min(count, gpus // size)):
            sums |= sums << size
        sums &= (2 << gpus) - 1
    return bool(sums >> gpus & 1)
