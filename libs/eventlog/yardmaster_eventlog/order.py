"""The records of a log in causal order.

The inputs of a cycle come before its decisions. If an input is a record of another machine, the
inputs of the cycle that wrote that record come even earlier. Records that no cycle has consumed
come last. Records of fenced leaders are included, although they have no effect.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import decoded
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, INPUT_ORDER

PAGE: Final = 500
#: The topics of the machines, whose commits name the ranges that they consumed.
_MACHINES: Final = (ADMISSIONS.name, DECISIONS.name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, its decoded envelope (None: it cannot be decoded), and the position after it."""

    stored: StoredRecord
    envelope: Envelope[Any] | None
    position: Position

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.stored.partition.topic


@dataclass(slots=True)
class _Cursor:
    """The progress in one topic: records that were read, and records that were yielded."""

    partition: Partition
    next: int = 0
    read_to: int = 0
    ahead: deque[Entry] = field(default_factory=deque)


class LogOrder:
    """Reads the log of a cell once, after a position, in causal order.

    Records that no cycle has consumed yet are included only if their topic is in `unconsumed`.
    """

    def __init__(
        self,
        log: EventLog,
        start: Position,
        partition: int = 0,
        unconsumed: Sequence[str] = INPUT_ORDER,
    ) -> None:
        self._log = log
        self._unconsumed = unconsumed
        #: The position after the last entry that was yielded.
        self.position = Position.start(start.cell)
        for topic, offset in start.parts():
            self.position = self.position.at(topic, offset)
        self._cursors = {
            topic: _Cursor(Partition(topic, partition), offset, offset)
            for topic, offset in self.position.parts()
        }
        #: Machines whose cycle is being yielded; an input range does not start them again.
        self._open: set[str] = set()

    async def entries(self) -> AsyncIterator[Entry]:
        """The records, in order.

        Raises:
            ReadPastEnd: the log ends before the position.
        """
        while batch := await self._batch(DECISIONS.name):
            async for entry in self._with_inputs(DECISIONS.name, batch):
                yield entry
        while batch := await self._batch(ADMISSIONS.name):
            async for entry in self._with_inputs(ADMISSIONS.name, batch):
                yield entry
        for topic in self._unconsumed:
            async for entry in self._until(topic, None):
                yield entry

    async def _with_inputs(self, topic: str, batch: Sequence[Entry]) -> AsyncIterator[Entry]:
        """The records of `batch`, after the input ranges that its commit consumed."""
        commit = batch[-1].envelope
        self._open.add(topic)
        if commit is not None and isinstance(commit.data, CycleCommittedV1):
            ranges = {each.topic: each.next for each in commit.data.inputs}
            for source in INPUT_ORDER:
                if source in ranges and source not in self._open:
                    async for entry in self._upto(source, ranges[source]):
                        yield entry
        self._open.discard(topic)
        for _ in batch:
            yield self._next(topic)

    async def _upto(self, topic: str, until: int) -> AsyncIterator[Entry]:
        """The records of a topic before offset `until`; of a machine's topic, whole cycles."""
        if topic not in _MACHINES:
            async for entry in self._until(topic, until):
                yield entry
            return
        while self._cursors[topic].next < until and (batch := await self._batch(topic)):
            async for entry in self._with_inputs(topic, batch):
                yield entry

    async def _until(self, topic: str, until: int | None) -> AsyncIterator[Entry]:
        cursor = self._cursors[topic]
        while until is None or cursor.next < until:
            if not cursor.ahead and not await self._fill(cursor):
                return
            yield self._next(topic)

    async def _batch(self, topic: str) -> Sequence[Entry]:
        """The next records of a machine up to and including a commit or a TermStarted.

        Empty if the topic ends before either.
        """
        cursor = self._cursors[topic]
        at = 0
        while True:
            if at == len(cursor.ahead) and not await self._fill(cursor):
                return ()
            envelope = cursor.ahead[at].envelope
            at += 1
            if envelope is not None and isinstance(envelope.data, CycleCommittedV1 | TermStartedV1):
                return list(islice(cursor.ahead, at))

    async def _fill(self, cursor: _Cursor) -> bool:
        page = await self._log.read(cursor.partition, cursor.read_to, max_records=PAGE)
        if not page:
            return False
        cursor.ahead.extend(self._entry(stored) for stored in page)
        cursor.read_to = page[-1].offset + 1
        return True

    def _entry(self, stored: StoredRecord) -> Entry:
        return Entry(stored, decoded(stored), self.position)

    def _next(self, topic: str) -> Entry:
        """Return the next record of a topic with the position after it."""
        cursor = self._cursors[topic]
        first = cursor.ahead.popleft()
        cursor.next = first.stored.offset + 1
        self.position = self.position.at(topic, cursor.next)
        return replace(first, position=self.position)
