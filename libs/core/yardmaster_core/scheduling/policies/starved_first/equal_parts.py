"""The level up to which a pool is divided equally."""

from collections.abc import Iterable


def equal_level(total: int, owners: Iterable[tuple[int, int]]) -> int:
    """Return the largest level L at which the parts of all owners are no more than `total`.

    `owners`: what tasks of an owner that cannot be preempted hold (firm), and what all its tasks
    hold and request (wish). Its part is L, but at least firm and at most wish. So what an owner
    does not request, or another one cannot lose, is divided among the others. `total` if all
    wishes are met; 0 if tasks that cannot be preempted hold more than `total`.
    """
    edges: list[tuple[int, int]] = []
    left = total
    for firm, wish in owners:
        left -= firm
        if firm < wish:
            edges += ((firm, 1), (wish, -1))
    if left < 0:
        return 0
    edges.sort()
    # `rising` owners get more as the level rises.
    level = rising = 0
    for edge, change in edges:
        needed = (edge - level) * rising
        if needed > left:
            return level + left // rising
        left -= needed
        level = edge
        rising += change
    return max(total, level)
