"""SeededRandom that are the same on every machine and in every replay: from a seed in the log and
what they are for, through a hash.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeVar

T = TypeVar("T")

#: Bytes of one draw: against 2^64 no number of rooms is so large that some would come more often.
_DRAW: Final = 8


class SeededRandom:
    """An endless row of draws, all of it settled by `key`."""

    __slots__ = ("_blocks", "_key", "_left")

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._blocks = 0
        self._left = b""

    def below(self, number: int) -> int:
        """The next draw: from 0 to less than `number`, each as likely."""
        if not self._left:
            block = self._blocks.to_bytes(8, "big")
            self._left = blake2b(self._key, digest_size=64, salt=block).digest()
            self._blocks += 1
        draw, self._left = self._left[:_DRAW], self._left[_DRAW:]
        return int.from_bytes(draw, "big") * number >> 8 * _DRAW


def shuffled(seed: int, purpose: str, things: Iterable[T]) -> Iterator[T]:
    """`things` one after another by lot, each once; a step for each that is shuffled."""
    draws = SeededRandom(f"{seed}/{purpose}")
    left = list(things)
    while left:
        at = draws.below(len(left))
        left[at], left[-1] = left[-1], left[at]
        yield left.pop()


def nth_bit(mask: int, n: int) -> int:
    """The position of the `n`-th bit that is set in `mask`, counted from 0 and from below."""
    at = 0
    width = mask.bit_length()
    while width > 1:
        half = width >> 1
        low = mask & ((1 << half) - 1)
        count = low.bit_count()
        if n < count:
            mask, width = low, half
        else:
            n -= count
            at += half
            mask >>= half
            width -= half
    return at
