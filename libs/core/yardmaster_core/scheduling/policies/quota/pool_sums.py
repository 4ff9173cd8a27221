"""The sums of the amounts that a project deserves and holds in all its pools.

What a project deserves in a pool is guaranteed only while the project holds no more in all its
pools than it deserves in these pools together. Pools with other policies do not count. With a
single pool there is no sum.
"""

from dataclasses import dataclass

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    SUFFIXES,
    Amounts,
    Bounds,
    first_exceeded,
    minus,
    plus,
)
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex
from yardmaster_core.scheduling.policies.quota.queues import Queue, added
from yardmaster_core.scheduling.state.projects import Project


@dataclass(frozen=True, slots=True)
class PoolSum:
    """Sums of amounts of a project's queues. If one pool is unlimited, the sum is unlimited."""

    deserved: Bounds
    allocated: Amounts
    non_preemptible: Amounts

    def numbers(self, resource: int, counted: Amounts) -> dict[str, int]:
        """Return the deserved sum of a resource and the amount compared with it (`counted`), as
        numbers of a wait, stop or start.
        """
        deserved, suffix = self.deserved[resource], SUFFIXES[resource]
        numbers = {f"used_in_all_{suffix}": counted[resource]}
        return numbers if deserved is None else {f"deserved_in_all_{suffix}": deserved, **numbers}


@dataclass(slots=True)
class _KnownSums:
    """The sums of projects at given numbers of changes of the indexes of all pools."""

    indexes: list[QuotaIndex]
    changes: list[int]
    sums: dict[Project, PoolSum]


def sum_over_pools(view: PoolView, project: Project) -> PoolSum | None:
    """Return the sums of a project; None if only one pool has this policy.

    A sum costs a step per pool, once after each change of what any project holds.
    """
    indexes = _indexes(view)
    if len(indexes) == 1:
        return None
    changes = [index.amount_changes for index in indexes]
    known: _KnownSums | None = indexes[0].known_sums
    if known is None or known.changes != changes or known.indexes != indexes:
        known = indexes[0].known_sums = _KnownSums(indexes, changes, {})
    found = known.sums.get(project)
    if found is None:
        found = known.sums[project] = _sum(view, indexes, project)
    return found


def _sum(view: PoolView, indexes: list[QuotaIndex], project: Project) -> PoolSum:
    queues = [index.queue_of(view.state, project) for index in indexes]
    allocated = non_preemptible = NOTHING
    for queue in queues:
        allocated, non_preemptible = (
            plus(allocated, queue.allocated),
            plus(non_preemptible, queue.non_preemptible),
        )
    # rule: sum over pools: unlimited in one pool
    return PoolSum(added(queues), allocated, non_preemptible)


def _indexes(view: PoolView) -> list[QuotaIndex]:
    """Return the indexes of the pools with this policy. Policies do not change within a cycle."""
    found: list[QuotaIndex] | None = view.memo.get("indexes")
    if found is None:
        pools = (pool for _, pool in sorted(view.state.pools.items()))
        found = view.memo["indexes"] = [
            pool.index for pool in pools if isinstance(pool.index, QuotaIndex)
        ]
    return found


def stays_within_sum(view: PoolView, project: Project, more: Amounts) -> bool:
    """Whether a project with `more` amounts holds no more than it deserves in all its pools."""
    sums = sum_over_pools(view, project)
    # rule: sum over pools: is all that is guaranteed
    return sums is None or first_exceeded(plus(sums.allocated, more), sums.deserved) is None


def excess_over_sum(view: PoolView, queue: Queue, taken: Amounts = NOTHING) -> Amounts:
    """Return the amounts that a project, without `taken`, holds beyond what it deserves in all its
    pools; nothing for a department, because departments have no sum over pools.
    """
    project = view.state.projects.get(queue.name) if queue.is_project else None
    sums = None if project is None else sum_over_pools(view, project)
    if sums is None:
        return NOTHING
    left = minus(sums.allocated, taken)
    gpu, cpu, memory = (
        # rule: sum over pools: what exceeds it is reclaimed
        0 if bound is None else max(0, left[i] - bound)
        for i, bound in enumerate(sums.deserved)
    )
    return gpu, cpu, memory
