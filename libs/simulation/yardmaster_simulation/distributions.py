"""Random numbers of given distributions that are the same on every machine.

Normal numbers are drawn from a table of weights that `decimal` computes: its functions are rounded
correctly on every machine, which is not guaranteed for the C library's.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Final

_BITS: Final = 64
_DECIMAL: Final = Context(prec=20)
#: Values more than this many deviations from the mean are never drawn.
_FAR: Final = 12
#: Number of points at which the density of one step is evaluated.
_POINTS: Final = 4


class Chance:
    """Random draws for one seed, in any order: a draw is a hash of the seed and its purpose."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def bits(self, *purpose: object) -> int:
        """64 random bits."""
        return int.from_bytes(blake2b(self._key(purpose), digest_size=_BITS // 8).digest(), "big")

    def below(self, limit: int, *purpose: object) -> int:
        """A uniformly distributed integer from 0 to `limit` - 1."""
        return self.bits(*purpose) * limit >> _BITS

    def exponential(self, mean: int, *purpose: object) -> int:
        """An exponentially distributed integer of at least 1."""
        part = _DECIMAL.divide(self.bits(*purpose) + 1, 1 << _BITS)
        return max(1, round(-mean * _DECIMAL.ln(part)))

    def normal(self, of: "Normal", *purpose: object) -> int:
        """An integer number of steps from a truncated normal distribution."""
        first, ends = _table(of)
        return first + bisect_right(ends, self.below(ends[-1], *purpose))

    def hex(self, digits: int, *purpose: object) -> str:
        """Hex digits, at most 128."""
        return blake2b(self._key(purpose)).hexdigest()[:digits]

    def shuffled(self, count: int, *purpose: object) -> list[int]:
        """0 to `count` - 1 in random order."""
        order = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1, *purpose, last)
            order[last], order[other] = order[other], order[last]
        return order

    def _key(self, purpose: tuple[object, ...]) -> bytes:
        return "/".join(map(str, (self._seed, *purpose))).encode()


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution truncated at `low` and `high`; each unit has `steps` steps."""

    mean: Decimal
    deviation: Decimal
    low: int
    high: int
    steps: int = 1

    def times(self, factor: Decimal) -> "Normal":
        """The same distribution with mean and deviation times `factor`, within the same limits."""
        return Normal(self.mean * factor, self.deviation * factor, self.low, self.high, self.steps)


@lru_cache(maxsize=64)
def _table(of: Normal) -> tuple[int, Sequence[int]]:
    """The first step, and the cumulative weight at the end of each step."""
    if not of.deviation:
        return min(max(of.low * of.steps, round(of.mean * of.steps)), of.high * of.steps), [1]
    far = of.deviation * _FAR
    first = max(of.low, int(of.mean - far)) * of.steps
    last = min(of.high, int(of.mean + far) + 1) * of.steps
    weights = [_weight(of, step) for step in range(first, last + 1)]
    return first, list(accumulate(weights))


def _weight(of: Normal, step: int) -> int:
    total = Decimal(0)
    for point in range(_POINTS):
        at = step + (Decimal(2 * point + 1) / (2 * _POINTS) - Decimal("0.5"))
        away = (at / of.steps - of.mean) / of.deviation
        total += _DECIMAL.exp(-away * away / 2)
    return int(total.scaleb(12))
