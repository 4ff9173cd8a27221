"""The usage of a pool by projects in the past, where recent time counts more.

Kept under policies whose index has a half-life. The *decayed usage* of a project is the average of
the GPUs that its tasks held (with those that are stopping): what it held one half-life ago counts
half as much as now. If the held amount never changes, the usage equals it.

Between two changes of the held amount, `usage(t) = held + (usage(0) - held) * 2^-(t / half-life)`.
So the usage is computed at the end of a cycle that changed the held amount, and once a minute
(`appliers/usages.py`). Shares use the value of the minute, so they move at most once a minute.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Final

#: Averages are in gpu_milli times 2^32, factors times 2^48.
AVERAGE_BITS: Final = 32
FACTOR_BITS: Final = 48
#: A half-life is divided into 2^40 parts.
PARTS_BITS: Final = 40
#: A smaller average is nothing: a millionth of a GPU.
LEAST: Final = 1 << (AVERAGE_BITS - 10)


def _factors() -> tuple[int, ...]:
    """2^-(1/2), 2^-(1/4) and so on, times 2^48: each is the square root of the one before."""
    factor, found = 1 << (FACTOR_BITS - 1), []
    for _ in range(PARTS_BITS):
        factor = isqrt(factor << FACTOR_BITS)
        found.append(factor)
    return tuple(found)


_FACTORS: Final = _factors()


def decay(elapsed_ms: int, half_life_ms: int) -> int:
    """Return 2^-(elapsed / half-life), times 2^48.

    The error is below 2^-39 of the result, plus 1: each of up to 40 factors and products is rounded
    down by less than 2^-47 of it, and the elapsed time to 2^-40 of a half-life.
    """
    whole, rest = divmod(elapsed_ms, half_life_ms)
    parts = (rest << PARTS_BITS) // half_life_ms
    factor = 1 << FACTOR_BITS
    for at, each in enumerate(_FACTORS, 1):
        if parts >> (PARTS_BITS - at) & 1:
            factor = factor * each >> FACTOR_BITS
    return factor >> whole


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """The decayed usage of a project in a pool.

    Attributes:
        average: at `at_ms`, in gpu_milli times 2^32.
        held_milli: what the project holds since then (gpu_milli).
        counted_milli: the average at the last whole minute (gpu_milli), which shares use.
    """

    average: int
    held_milli: int
    at_ms: int
    counted_milli: int = 0

    def average_at(self, now_ms: int, half_life_ms: int) -> int:
        """Return the average at a later time."""
        held = self.held_milli << AVERAGE_BITS
        factor = decay(now_ms - self.at_ms, half_life_ms)
        # rule: shares: past use decays
        return held + ((self.average - held) * factor >> FACTOR_BITS)

    def facts(self) -> tuple[int, int, int, int]:
        """The facts in the state's digest and in snapshots."""
        return self.average, self.held_milli, self.at_ms, self.counted_milli
