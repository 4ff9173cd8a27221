"""Moments in a log on a command line: a time (see `times`), a position, or `cycle:88121`."""

from dataclasses import dataclass
from typing import Any

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.times import FORMS, clock_ms, is_relative, past_ms
from yardmaster_eventlog.order import Entry
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import DECISIONS


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in a log; exactly one field is set."""

    position: Position | None = None
    at_ms: int | None = None
    cycle: int | None = None

    @property
    def bounds(self) -> dict[str, Any]:
        """The moment as the keyword arguments of `state_at` and `views_at`."""
        return {"position": self.position, "time_ms": self.at_ms, "cycle": self.cycle}

    def missed(self, last_cycle: int, now_ms: int) -> str | None:
        """A note if a log that ends with `last_cycle` does not reach this moment; else None."""
        if self.cycle is not None and self.cycle > last_cycle:
            return f"the log has no cycle {self.cycle} yet; this is its last, cycle {last_cycle}"
        if self.at_ms is not None and self.at_ms > now_ms:
            return f"the time is in the future; this is the end of the log, cycle {last_cycle}"
        return None

    def passed(self, entry: Entry) -> bool:
        """Whether the log up to and including `entry` has reached this moment."""
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
    """Parse `text`, the value of `option`, as a moment.

    Raises:
        BadUsage: the text is not a moment.
    """
    if text.startswith("cycle:") and text[6:].isdecimal():
        return Moment(cycle=int(text[6:]))
    if "@" in text.rstrip("@"):
        try:
            return Moment(position=Position.parse(text))
        except ValueError as error:
            raise BadUsage(f"{option}: {error}") from None
    if is_relative(text):
        return Moment(at_ms=past_ms(text, now_ms, option))
    try:
        return Moment(at_ms=clock_ms(text, option))
    except BadUsage:
        raise BadUsage(
            f"{option}: {text} is not a valid time or position",
            hint=f"write {FORMS}, main@d3021 or cycle:88121",
        ) from None
