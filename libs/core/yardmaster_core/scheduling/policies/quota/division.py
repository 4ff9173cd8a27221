"""The division of one resource among sibling queues: first what they deserve, then the rest.

The rules are those of KAI-Scheduler at d5bc503a (plugins/proportion/resource_division), in integers
where KAI computes with floating-point numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

#: The usage of a queue, and the weight of usages, where decayed usages do not count.
NO_USAGE: Final = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """The demand of a queue for one resource, and the settings for its share.

    Attributes:
        rank: the rest goes to queues of a higher rank before queues of a lower rank.
        deserved: the quota of the queue; None: unlimited.
        demand: the amount that its tasks hold and request, within its limit.
        weight: the part of the rest that the queue gets, relative to queues of its rank; 0: none.
        age: of equal queues, the one with the smaller number comes first.
        usage: the decayed usage of the queue, as a part of the pool's total (`decayed_usage.py`).
    """

    name: str
    rank: int
    deserved: int | None
    demand: int
    weight: int
    age: int
    usage: Fraction = NO_USAGE


@dataclass(frozen=True, slots=True)
class Division:
    """The fair share of each queue, by name, and the rest that no queue gets."""

    shares: Mapping[str, int]
    left: int


def divide(
    total: int, queues: Sequence[QueueDemand], unit: int, usage_weight: Fraction = NO_USAGE
) -> Division:
    """Divide `total` among siblings.

    Each queue gets what it deserves and requests, even if the sum exceeds `total`; the rest of
    `total` is divided by `divide_rest`.

    Args:
        total: the amount of the resource, in the unit of all amounts here.
        queues: the siblings, with different names.
        unit: where a demand is not met, the share beyond what is deserved is a multiple of it.
        usage_weight: how much usages count in the weights (`_parts`).
    """
    shares = {
        # rule: shares: deserved first
        # rule: shares: no more than requested
        queue.name: min(total if queue.deserved is None else queue.deserved, queue.demand)
        for queue in queues
    }
    rest = max(0, total - sum(shares.values()))
    return divide_rest(rest, queues, shares, unit, usage_weight)


def divide_rest(
    rest: int,
    queues: Sequence[QueueDemand],
    shares: Mapping[str, int],
    unit: int,
    usage_weight: Fraction = NO_USAGE,
) -> Division:
    """Divide `rest` among queues that already have `shares`: by rank, then by weight.

    The amount that remains after rounding goes out in units, to the queues with the largest
    remainders first. Each round of a rank, except the last, meets the demand of a queue. A round
    costs one step per queue.
    """
    dealt = dict(shares)
    remainders: dict[str, Fraction] = {}
    ranks: dict[int, list[QueueDemand]] = {}
    for queue in queues:
        # rule: shares: the rank
        ranks.setdefault(queue.rank, []).append(queue)
    # rule: shares: higher rank first
    for rank in sorted(ranks, reverse=True):
        again = True
        while again and rest:
            rest, again = _round(rest, ranks[rank], dealt, remainders, unit, usage_weight)
    for queue in sorted(
        (queue for queue in queues if queue.name in remainders),
        # rule: shares: largest remainder
        key=lambda queue: (-queue.rank, -remainders[queue.name], queue.age, queue.name),
    ):
        # rule: shares: remainders go out
        part = min(unit, rest)
        dealt[queue.name] += part
        rest -= part
    return Division(dealt, rest)


def _round(
    rest: int,
    queues: Sequence[QueueDemand],
    dealt: dict[str, int],
    remainders: dict[str, Fraction],
    unit: int,
    usage_weight: Fraction,
) -> tuple[int, bool]:
    """Offer `rest` to queues of one rank by weight; return the rest after it, and whether a queue
    took less than it was offered.
    """
    give, again = rest, False
    unmet = [queue for queue in queues if queue.demand > dealt[queue.name]]
    parts = _parts(unmet, usage_weight)
    weights = sum(parts)
    for queue, weight in zip(unmet, parts, strict=True):
        # rule: shares: weight 0 gets nothing
        if not weight or not rest:
            continue
        wanted = queue.demand - dealt[queue.name]
        # rule: shares: the weight
        offered = Fraction(give * weight, weights)
        if wanted <= offered:
            part = wanted
            remainders.pop(queue.name, None)
            # rule: shares: unused parts are shared
            again = again or wanted < offered
        else:
            # rule: shares: whole units
            part = offered // unit * unit
            if offered > part:
                remainders[queue.name] = offered - part
        dealt[queue.name] += part
        rest -= part
    return rest, again


def _parts(queues: Sequence[QueueDemand], usage_weight: Fraction) -> list[int | Fraction]:
    """Return the weights of queues, relative to each other.

    A queue that used more than its part in the past gets less now. With `w` as its part of the sum
    of all weights, its weight becomes `max(0, w + usage_weight * (w - usage))`, times that sum.
    """
    # rule: shares: past use
    if not usage_weight:
        return [queue.weight for queue in queues]
    total = sum(queue.weight for queue in queues)
    parts: list[int | Fraction] = []
    for queue in queues:
        part = queue.weight + usage_weight * (queue.weight - queue.usage * total)
        parts.append(part if part > 0 else 0)
    return parts
