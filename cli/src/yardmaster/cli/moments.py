"""Moments in a log as people write them: a position, a time, `-2h`, `cycle:88121`."""

from dataclasses import dataclass

from yardmaster.cli.cells import parse_time
from yardmaster.cli.errors import BadUsage
from yardmaster.cli.logorder import Entry
from yardmaster.schemas.events.machine import CycleCommittedV1
from yardmaster.schemas.position import Position
from yardmaster.schemas.quantities import duration_s
from yardmaster.schemas.topics import DECISIONS


@dataclass(frozen=True, slots=True)
class Moment:
    """Exactly one of the three is given."""

    position: Position | None = None
    at_ms: int | None = None
    cycle: int | None = None

    def passed(self, entry: Entry) -> bool:
        """Whether the log up to and with `entry` has reached this moment."""
        if self.position is not None:
            return entry.position.covers(self.position)
        if entry.envelope is None:
            return False
        if self.at_ms is not None:
            return entry.envelope.time_ms >= self.at_ms
        data = entry.envelope.data
        return (
            entry.topic == DECISIONS.name
            and isinstance(data, CycleCommittedV1)
            and self.cycle is not None
            and data.cycle >= self.cycle
        )


def parse_moment(text: str, now_ms: int, option: str) -> Moment:
    """The moment that `text`, given for `option`, names.

    Raises:
        BadUsage: it names none.
    """
    if text.startswith("cycle:") and text[6:].isdecimal():
        return Moment(cycle=int(text[6:]))
    if "@" in text.rstrip("@"):
        try:
            return Moment(position=Position.parse(text))
        except ValueError as error:
            raise BadUsage(f"{option}: {error}") from None
    if text.startswith("-"):
        try:
            return Moment(at_ms=now_ms - 1000 * duration_s(text[1:]))
        except ValueError as error:
            raise BadUsage(f"{option}: {error}") from None
    at_ms = parse_time(text)
    if at_ms is None or "T" not in text:
        raise BadUsage(
            f"{option}: {text} is no moment of a log",
            hint="write main@d3021, 2026-01-31T12:00:00Z, -2h or cycle:88121",
        )
    return Moment(at_ms=at_ms)
