"""Randomness as a port: unique names, keyed by their purpose."""

import hashlib
import secrets
from typing import Protocol


class Chance(Protocol):
    """A source of random names."""

    def hex(self, purpose: str, digits: int) -> str:
        """Return `digits` unpredictable hexadecimal digits for `purpose`."""


class SystemChance:
    """The operating system's entropy."""

    def hex(self, purpose: str, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]


class SeededChance:
    """Returns the same names for the same seed; each purpose has its own sequence."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[str, int] = {}

    def hex(self, purpose: str, digits: int) -> str:
        count = self._drawn.get(purpose, 0)
        self._drawn[purpose] = count + 1
        out = ""
        block = 0
        while len(out) < digits:
            out += hashlib.sha256(f"{self._seed}/{purpose}/{count}/{block}".encode()).hexdigest()
            block += 1
        return out[:digits]
