"""Random numbers that are equal on every machine and in every replay.

They come from a hash of a seed, which is in the log, and of the purpose of the draw.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeVar

T = TypeVar("T")

#: Bytes of one number. No pool has so many nodes that the bias against 2^64 matters.
_DRAW: Final = 8


class SeededRandom:
    """An endless sequence of random numbers, determined by `key`."""

    __slots__ = ("_blocks", "_key", "_left")

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._blocks = 0
        self._left = b""

    def below(self, number: int) -> int:
        """Return the next number: uniform from 0 to `number` - 1."""
        if not self._left:
            block = self._blocks.to_bytes(8, "big")
            self._left = blake2b(self._key, digest_size=64, salt=block).digest()
            self._blocks += 1
        draw, self._left = self._left[:_DRAW], self._left[_DRAW:]
        return int.from_bytes(draw, "big") * number >> 8 * _DRAW


def shuffled(seed: int, purpose: str, things: Iterable[T]) -> Iterator[T]:
    """Yield `things` in random order, each once; costs one step per item that is taken."""
    draws = SeededRandom(f"{seed}/{purpose}")
    left = list(things)
    while left:
        at = draws.below(len(left))
        left[at], left[-1] = left[-1], left[at]
        yield left.pop()


def nth_bit(mask: int, n: int) -> int:
    """Return the position of the `n`-th set bit of `mask`; both count from 0, lowest first."""
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
