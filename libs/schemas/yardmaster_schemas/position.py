"""Positions: how much of a cell's log an answer covers, `main@r4711.a4709.n1892.d3021`."""

import re
from dataclasses import dataclass, replace
from typing import Final

from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS

#: Letter of each topic in a position's text, in the order in which a cycle applies its inputs.
LETTERS: Final = {
    REQUESTS.name: "r",
    ADMISSIONS.name: "a",
    NODE_EVENTS.name: "n",
    DECISIONS.name: "d",
}
_NUMBER: Final = "[0-9]{1,15}"
#: Offsets in the order of `LETTERS`, a dot between two of them.
_OFFSETS: Final = "|".join(
    f"{first}{_NUMBER}" + "".join(rf"(\.{later}{_NUMBER})?" for later in "rand"[place + 1 :])
    for place, first in enumerate("rand")
)
POSITION_PATTERN: Final = rf"^[a-z0-9]([a-z0-9._-]{{0,61}}[a-z0-9])?@({_OFFSETS})?$"
_FIELDS: Final = {"r": "requests", "a": "admissions", "n": "node_events", "d": "decisions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The next offset of each topic of a cell; the position covers all earlier records.

    An offset of None is unknown.
    """

    cell: str
    requests: int | None = None
    admissions: int | None = None
    node_events: int | None = None
    decisions: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse a position.

        Raises: ValueError when `text` is not a position.
        """
        if re.fullmatch(POSITION_PATTERN, text) is None:
            raise ValueError(f"{text[:64]!r} is not a position; write one like main@r12.a11.n4.d9")
        cell, _, parts = text.partition("@")
        offsets = {_FIELDS[part[0]]: int(part[1:]) for part in parts.split(".") if part}
        return cls(cell=cell, **offsets)

    @classmethod
    def start(cls, cell: str) -> "Position":
        """Return the position before every record of the cell."""
        return cls(cell=cell, requests=0, admissions=0, node_events=0, decisions=0)

    def of(self, topic: str) -> int | None:
        """Return the next offset of a topic; None when unknown."""
        value: int | None = getattr(self, _FIELDS[LETTERS[topic]])
        return value

    def parts(self) -> list[tuple[str, int]]:
        """Return each topic with a known next offset, and that offset."""
        found = ((topic, self.of(topic)) for topic in LETTERS)
        return [(topic, offset) for topic, offset in found if offset is not None]

    def at(self, topic: str, offset: int) -> "Position":
        """Return the position with one topic's next offset replaced."""
        match LETTERS[topic]:
            case "r":
                return replace(self, requests=offset)
            case "a":
                return replace(self, admissions=offset)
            case "n":
                return replace(self, node_events=offset)
            case _:
                return replace(self, decisions=offset)

    def covers(self, other: "Position") -> bool:
        """Tell whether this position covers `other`; it never covers a position of another cell."""
        if self.cell != other.cell:
            return False
        for topic in LETTERS:
            wanted, reached = other.of(topic), self.of(topic)
            if wanted is not None and (reached or 0) < wanted:
                return False
        return True

    def __str__(self) -> str:
        parts = [
            f"{letter}{offset}"
            for topic, letter in LETTERS.items()
            if (offset := self.of(topic)) is not None
        ]
        return f"{self.cell}@{'.'.join(parts)}"
