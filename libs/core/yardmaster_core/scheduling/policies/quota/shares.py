"""The shares of all queues: the pool's total is divided among the departments, the share of each
among the queues below it.

Each resource is divided by itself. Siblings are divided again only if their total or a wish
changed; a wish that stays above its share changes nothing.
"""

from fractions import Fraction

from yardmaster_core.scheduling.policies.claiming.amounts import GPU, RESOURCES, UNITS, Amounts
from yardmaster_core.scheduling.policies.quota.division import NO_USAGE, QueueDemand, divide
from yardmaster_core.scheduling.policies.quota.queues import Queue


def divide_tree(
    queue: Queue, total: Amounts, unranked: dict[Queue, None], usage_weight: Fraction = NO_USAGE
) -> None:
    """Divide the share of `queue` among the queues below it.

    `total` is the pool's, and `usage_weight` counts for its GPUs. The queues with another share, or
    another most that they may hold, are added to `unranked`.
    """
    if not queue.divide_below:
        return
    queue.divide_below = False
    if not queue.divided and queue.children:
        queue.divided = True
        used = usage_weight, total[GPU]
        wishes = [child.wish for child in queue.children]
        shares = [
            _shares(queue, [wish[i] for wish in wishes], i, used if i == GPU else (NO_USAGE, 0))
            for i in RESOURCES
        ]
        for at, child in enumerate(queue.children):
            fair = (shares[0][at], shares[1][at], shares[2][at])
            if fair != child.fair:
                child.fair = fair
                child.divided = False
                child.divide_below = True
                unranked[child] = None
            allocatable = _allocatable(child, total)
            if allocatable != child.allocatable:
                child.allocatable = allocatable
                unranked[child] = None
    for child in queue.children:
        divide_tree(child, total, unranked, usage_weight)


def _shares(
    parent: Queue, wishes: list[int], resource: int, used: tuple[Fraction, int]
) -> list[int]:
    children = parent.children
    total = parent.fair[resource]
    usage_weight, whole = used
    unmet = [
        wish > deserved
        for child, wish in zip(children, wishes, strict=True)
        if (deserved := child.deserved[resource]) is not None
    ]
    if not any(unmet):
        # The frequent case: no queue requests more than it deserves.
        return [
            wish if child.deserved[resource] is not None else min(total, wish)
            for child, wish in zip(children, wishes, strict=True)
        ]
    demands = [
        QueueDemand(
            name=str(at),
            rank=child.rank,
            deserved=child.deserved[resource],
            wish=wish,
            weight=child.weights[resource],
            age=at,
            usage=Fraction(child.usage_milli, whole) if usage_weight and whole else NO_USAGE,
        )
        for at, (child, wish) in enumerate(zip(children, wishes, strict=True))
    ]
    found = divide(total, demands, UNITS[resource], usage_weight).shares
    return [found[demand.name] for demand in demands]


def _allocatable(queue: Queue, total: Amounts) -> Amounts:
    def of(resource: int) -> int:
        deserved, limit = queue.deserved[resource], queue.limit[resource]
        most = total[resource] if deserved is None else max(deserved, queue.fair[resource])
        return most if limit is None else min(most, limit)

    return of(0), of(1), of(2)
