"""The shares of all queues: the total of the pool is divided among the departments, and the share
of a department among the queues below it.

Each resource is divided by itself. The share of a queue is divided again only if it changed or the
demand of a child changed. A demand that stays above the share changes nothing.
"""

from fractions import Fraction

from yardmaster_core.scheduling.policies.claiming.amounts import GPU, RESOURCES, UNITS, Amounts
from yardmaster_core.scheduling.policies.quota.division import NO_USAGE, QueueDemand, divide
from yardmaster_core.scheduling.policies.quota.queues import Queue


def divide_tree(
    queue: Queue, total: Amounts, changed: dict[Queue, None], usage_weight: Fraction = NO_USAGE
) -> None:
    """Divide the share of `queue` among the queues below it.

    Args:
        queue: the queue whose share is divided.
        total: the amounts of the pool.
        changed: gets the queues whose share, or the most that they may hold, changed.
        usage_weight: how much decayed usages count when GPUs are divided.
    """
    if not queue.needs_division_below:
        return
    queue.needs_division_below = False
    if not queue.divided and queue.children:
        queue.divided = True
        used = usage_weight, total[GPU]
        demands = [child.demand for child in queue.children]
        shares = [
            _shares(
                queue, [demand[i] for demand in demands], i, used if i == GPU else (NO_USAGE, 0)
            )
            for i in RESOURCES
        ]
        for at, child in enumerate(queue.children):
            fair = (shares[0][at], shares[1][at], shares[2][at])
            if fair != child.fair:
                child.fair = fair
                child.divided = False
                child.needs_division_below = True
                changed[child] = None
            allocatable = _allocatable(child, total)
            if allocatable != child.allocatable:
                child.allocatable = allocatable
                changed[child] = None
    for child in queue.children:
        divide_tree(child, total, changed, usage_weight)


def _shares(
    parent: Queue, demands: list[int], resource: int, used: tuple[Fraction, int]
) -> list[int]:
    """Return each child's share of one resource.

    `used`: the weight of usages, and the total of the pool that usages are parts of.
    """
    children = parent.children
    # rule: shares: level by level
    total = parent.fair[resource]
    usage_weight, pool_total = used
    beyond_deserved = [
        demand > deserved
        for child, demand in zip(children, demands, strict=True)
        if (deserved := child.deserved[resource]) is not None
    ]
    if not any(beyond_deserved):
        # The frequent case: no queue requests more than it deserves.
        return [
            demand if child.deserved[resource] is not None else min(total, demand)
            for child, demand in zip(children, demands, strict=True)
        ]
    queues = [
        QueueDemand(
            name=str(at),
            rank=child.rank,
            deserved=child.deserved[resource],
            demand=demand,
            weight=child.weights[resource],
            age=at,
            usage=(
                Fraction(child.usage_milli, pool_total) if usage_weight and pool_total else NO_USAGE
            ),
        )
        for at, (child, demand) in enumerate(zip(children, demands, strict=True))
    ]
    shares = divide(total, queues, UNITS[resource], usage_weight).shares
    return [shares[queue.name] for queue in queues]


def _allocatable(queue: Queue, total: Amounts) -> Amounts:
    """Return the most that a queue may hold before other queues may reclaim from it."""

    def of(resource: int) -> int:
        deserved, limit = queue.deserved[resource], queue.limit[resource]
        most = total[resource] if deserved is None else max(deserved, queue.fair[resource])
        # rule: shares: what a queue keeps is no more than its limit
        return most if limit is None else min(most, limit)

    return of(0), of(1), of(2)
