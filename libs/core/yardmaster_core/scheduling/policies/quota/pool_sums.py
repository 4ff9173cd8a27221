"""The sums of what a project deserves and has in all its pools.

A project is guaranteed what it deserves in a pool only while it stays within this sum. Pools with
other policies do not count. With one pool there is nothing to add up.
"""

from dataclasses import dataclass

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    SUFFIXES,
    Amounts,
    Bounds,
    exceeded,
    minus,
    plus,
)
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex
from yardmaster_core.scheduling.policies.quota.queues import added
from yardmaster_core.scheduling.state.projects import Project


@dataclass(frozen=True, slots=True)
class PoolSum:
    """Sums over the pools of a project; see `Queue`. Unlimited in one pool: unlimited in all."""

    deserved: Bounds
    standing: Amounts
    firm: Amounts

    def numbers(self, resource: int, counted: Amounts) -> dict[str, int]:
        """Return the sum of a resource and what counts towards it, for a wait, stop or start."""
        deserved, suffix = self.deserved[resource], SUFFIXES[resource]
        numbers = {f"used_in_all_{suffix}": counted[resource]}
        return numbers if deserved is None else {f"deserved_in_all_{suffix}": deserved, **numbers}


def sum_over_pools(view: PoolView, project: Project) -> PoolSum | None:
    """Return the sums of a project; None: only one pool has this policy."""
    indexes = _indexes(view)
    if len(indexes) == 1:
        return None
    queues = [index.queue_of(view.state, project) for index in indexes]
    standing = firm = NOTHING
    for queue in queues:
        standing, firm = plus(standing, queue.standing), plus(firm, queue.firm)
    return PoolSum(added(queues), standing, firm)


def _indexes(view: PoolView) -> list[QuotaIndex]:
    """The indexes of the pools with this policy; configurations stay in a cycle."""
    found: list[QuotaIndex] | None = view.memo.get("indexes")
    if found is None:
        pools = (pool for _, pool in sorted(view.state.pools.items()))
        found = view.memo["indexes"] = [
            pool.index for pool in pools if isinstance(pool.index, QuotaIndex)
        ]
    return found


def stays_within_sum(view: PoolView, project: Project, more: Amounts) -> bool:
    """Whether a project with `more` has no more than it deserves in all its pools together."""
    sums = sum_over_pools(view, project)
    return sums is None or exceeded(plus(sums.standing, more), sums.deserved) is None


def excess_over_sum(view: PoolView, project: Project, taken: Amounts = NOTHING) -> Amounts:
    """Return what a project without `taken` has beyond what it deserves in all its pools."""
    sums = sum_over_pools(view, project)
    if sums is None:
        return NOTHING
    left = minus(sums.standing, taken)
    gpu, cpu, memory = (
        0 if bound is None else max(0, left[i] - bound) for i, bound in enumerate(sums.deserved)
    )
    return gpu, cpu, memory
