"""The level up to which a pool is divided equally."""

from collections.abc import Iterable


def equal_level(total: int, owners: Iterable[tuple[int, int]]) -> int:
    """Return the largest level L at which the parts of all owners are no more than `total`.

    `owners`: by owner, the amount that its tasks that cannot be preempted hold (non_preemptible),
    and the amount that all its tasks hold and request (demand). The part of an owner is L, but at
    least non_preemptible and at most demand. So an amount that an owner does not request goes to
    the other owners, and an amount that an owner cannot lose is taken from their parts. Returns
    `total` if all demands are met, and 0 if tasks that cannot be preempted hold more than `total`.
    """
    edges: list[tuple[int, int]] = []
    left = total
    for non_preemptible, demand in owners:
        left -= non_preemptible
        if non_preemptible < demand:
            edges += ((non_preemptible, 1), (demand, -1))
    if left < 0:
        return 0
    edges.sort()
    # `rising` is the number of owners whose parts rise with the level.
    level = rising = 0
    for edge, change in edges:
        needed = (edge - level) * rising
        if needed > left:
            return level + left // rising
        left -= needed
        level = edge
        rising += change
    return max(total, level)
