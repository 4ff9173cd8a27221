"""The division of one resource among sibling queues: first what they deserve, then the rest.

The rules are those of KAI-Scheduler at d5bc503a (plugins/proportion/resource_division), in integers
where KAI computes with floating-point numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """A queue's request of one resource, and the rules for its share.

    Attributes:
        rank: queues with a higher rank share what is left before those with a lower one.
        deserved: its quota; None: unlimited.
        wish: what its tasks hold and request, within its limit.
        weight: its part of what is left, relative to queues of its rank; 0: none.
        age: of equal queues, the one with the smaller number comes first.
    """

    name: str
    rank: int
    deserved: int | None
    wish: int
    weight: int
    age: int


@dataclass(frozen=True, slots=True)
class Division:
    """The fair share of each queue, by name, and what no queue gets."""

    shares: Mapping[str, int]
    left: int


def divide(total: int, queues: Sequence[QueueDemand], unit: int) -> Division:
    """Divide `total` among siblings.

    Each queue gets what it deserves and requests, even if the sum exceeds `total`; the rest of
    `total` is divided by `divide_rest`.

    Args:
        total: the amount of the resource, in the unit of all amounts here.
        queues: with different names.
        unit: shares beyond what is deserved are multiples of it where a wish is not met.
    """
    shares = {
        queue.name: min(total if queue.deserved is None else queue.deserved, queue.wish)
        for queue in queues
    }
    return divide_rest(max(0, total - sum(shares.values())), queues, shares, unit)


def divide_rest(
    rest: int, queues: Sequence[QueueDemand], shares: Mapping[str, int], unit: int
) -> Division:
    """Divide `rest` among queues that already have `shares`: by rank, then by weight.

    What remains after rounding goes out in units, to the largest remainders first. Each round of a
    rank satisfies a queue, except the last; a round costs one step per queue.
    """
    dealt = dict(shares)
    remainders: dict[str, Fraction] = {}
    ranks: dict[int, list[QueueDemand]] = {}
    for queue in queues:
        ranks.setdefault(queue.rank, []).append(queue)
    for rank in sorted(ranks, reverse=True):
        again = True
        while again and rest:
            rest, again = _round(rest, ranks[rank], dealt, remainders, unit)
    for queue in sorted(
        (queue for queue in queues if queue.name in remainders),
        key=lambda queue: (-queue.rank, -remainders[queue.name], queue.age, queue.name),
    ):
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
) -> tuple[int, bool]:
    """Offer `rest` by weight; return what is left, and whether a queue took less than its part."""
    give, again = rest, False
    unmet = [queue for queue in queues if queue.wish > dealt[queue.name]]
    weights = sum(queue.weight for queue in unmet)
    for queue in unmet:
        if not queue.weight or not rest:
            continue
        wanted = queue.wish - dealt[queue.name]
        offered = Fraction(give * queue.weight, weights)
        if wanted <= offered:
            part = wanted
            remainders.pop(queue.name, None)
            again = again or wanted < offered
        else:
            part = offered // unit * unit
            if offered > part:
                remainders[queue.name] = offered - part
        dealt[queue.name] += part
        rest -= part
    return rest, again
