"""Chance as a port: names that must not clash come from here, keyed by what they are for."""

import hashlib
import secrets
from typing import Protocol


class Chance(Protocol):
    """A source of names."""

    def hex(self, purpose: str, digits: int) -> str:
        """`digits` hexadecimal digits that nobody guesses; `purpose` says what for."""


class SystemChance:
    """The machine's own entropy."""

    def hex(self, purpose: str, digits: int) -> str:
        """Digits from the operating system; `purpose` does not matter."""
        return secrets.token_hex((digits + 1) // 2)[:digits]


class SeededChance:
    """The same names for the same seed; each purpose has a sequence of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[str, int] = {}

    def hex(self, purpose: str, digits: int) -> str:
        """The next digits of the purpose's sequence."""
        count = self._drawn.get(purpose, 0)
        self._drawn[purpose] = count + 1
        out = ""
        block = 0
        while len(out) < digits:
            out += hashlib.sha256(f"{self._seed}/{purpose}/{count}/{block}".encode()).hexdigest()
            block += 1
        return out[:digits]
