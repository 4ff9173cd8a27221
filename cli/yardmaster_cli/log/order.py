"""A log's records in the order in which they were decided on.

The four topics that decide are one story: a cycle's inputs come before its decisions, and what a
machine took from another machine's topic comes after that cycle's own inputs. Records that no cycle
took yet come last.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, INPUT_ORDER

PAGE: Final = 500
#: The topics whose records commit what they took from others.
_MACHINES: Final = (ADMISSIONS.name, DECISIONS.name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, what it says (None: it cannot be decoded), and the position after it."""

    stored: StoredRecord
    envelope: Envelope[Any] | None
    position: Position

    @property
    def topic(self) -> str:
        """The topic it lies in."""
        return self.stored.partition.topic


@dataclass(slots=True)
class _Cursor:
    """How far one topic was read and given out."""

    partition: Partition
    next: int = 0
    read_to: int = 0
    ahead: deque[Entry] = field(default_factory=deque)


class LogOrder:
    """Reads a cell's log once, from the start, in order."""

    def __init__(self, log: EventLog, cell: str = "main", partition: int = 0) -> None:
        self._log = log
        self._position = Position.start(cell)
        self._cursors = {topic: _Cursor(Partition(topic, partition)) for topic in INPUT_ORDER}
        #: Machines whose cycle is being given out: what they wait for is not asked of them again.
        self._open: set[str] = set()

    async def entries(self) -> AsyncIterator[Entry]:
        """Every record of the cell, in order."""
        while batch := await self._batch(DECISIONS.name):
            async for entry in self._with_inputs(DECISIONS.name, batch):
                yield entry
        while batch := await self._batch(ADMISSIONS.name):
            async for entry in self._with_inputs(ADMISSIONS.name, batch):
                yield entry
        for topic in INPUT_ORDER:
            async for entry in self._until(topic, None):
                yield entry

    async def _with_inputs(self, topic: str, batch: Sequence[Entry]) -> AsyncIterator[Entry]:
        """A machine's records up to a commit, after what the commit took."""
        commit = batch[-1].envelope
        self._open.add(topic)
        if commit is not None and isinstance(commit.data, CycleCommittedV1):
            ranges = {taken.topic: taken.next for taken in commit.data.inputs}
            for upstream in INPUT_ORDER:
                if upstream in ranges and upstream not in self._open:
                    async for entry in self._upto(upstream, ranges[upstream]):
                        yield entry
        self._open.discard(topic)
        for _ in batch:
            yield self._give(topic)

    async def _upto(self, topic: str, until: int) -> AsyncIterator[Entry]:
        """Records of a topic before offset `until`; of a machine's topic whole cycles."""
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
            yield self._give(topic)

    async def _batch(self, topic: str) -> Sequence[Entry]:
        """The next records of a machine up to a commit or a new term; none when no such follows."""
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
        return Entry(stored, decoded(stored), self._position)

    def _give(self, topic: str) -> Entry:
        """Give out the next record of a topic, at the position that is then reached."""
        cursor = self._cursors[topic]
        first = cursor.ahead.popleft()
        cursor.next = first.stored.offset + 1
        self._position = self._position.at(topic, cursor.next)
        return replace(first, position=self._position)


def decoded(stored: StoredRecord) -> Envelope[Any] | None:
    """What a record says, or None when it cannot be decoded."""
    try:
        return decode(stored.record)
    except SchemaError:
        return None
