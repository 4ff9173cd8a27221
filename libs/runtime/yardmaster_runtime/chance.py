"""Random values as a port: unique names, each drawn for a purpose."""

import hashlib
import secrets
from typing import Protocol


class Chance(Protocol):
    """A source of random hexadecimal digits, from which names are made."""

    def hex(self, purpose: str, digits: int) -> str:
        """Return `digits` hexadecimal digits; each call returns different digits.

        `purpose` says what the digits name; an implementation for tests may depend on it.
        """


class SystemChance:
    """Unpredictable digits from the operating system."""

    def hex(self, purpose: str, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]


class SeededChance:
    """Hexadecimal digits that depend only on the seed, the purpose and the number of earlier calls
    for that purpose.
    """

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
