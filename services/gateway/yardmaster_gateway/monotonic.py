"""Views as readers may trust them: a store that covers less than it did was lost and is refilled.

A store that was emptied, or restored from an old dump, looks well: it answers that there is nothing
yet, or what was true long ago. So the farthest position that a store was seen at is remembered, and
an answer that does not cover it is none. A gateway that has seen nothing yet asks the log once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_projections.errors import ViewsUnfinished
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import (
    Change,
    ChangeSet,
    Count,
    Found,
    Page,
    Query,
    ViewStore,
    Wanted,
)
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS

#: The newest records of a machine's topic among which its last commit is looked for.
MAX_TAIL: Final = 500


class MonotonicViews:
    """A store whose answers cover all that it was ever seen to cover.

    Reading raises `ViewsUnfinished` while they do not, beside what the store raises.
    """

    def __init__(self, store: ViewStore, log: EventLog, cell: str, number: int) -> None:
        #: The store itself, whatever it covers.
        self.store = store
        self._log = log
        self._cell = cell
        self._number = number
        #: What answers must cover; None: the log was not asked yet.
        self._least: Position | None = None
        self._lock = asyncio.Lock()

    async def whole(self, wait_s: float) -> Position:
        """What the rows cover, after a wait of up to `wait_s` for them to be whole.

        Raises: ViewsUnfinished.
        """
        try:
            return await self.position()
        except ViewsUnfinished:
            least = await self._wanted()
            if least is None or not await self.store.reach(least, wait_s):
                raise
        return await self.position()

    async def _wanted(self) -> Position | None:
        """What an answer to a question asked now must cover."""
        if self._least is None:
            async with self._lock:
                if self._least is None:
                    self._least = await self._of_the_log()
        return self._least

    async def _see(self, position: Position, wanted: Position | None) -> None:
        """Take note of an answer's position.

        Asked beforehand what it must cover: another answer may have come from further on meanwhile.
        """
        if wanted is not None and not position.covers(wanted):
            if await self._is_cut(wanted):
                self._least = None  # that future was taken back, with the log
            raise ViewsUnfinished(found=position, wanted=wanted)
        if self._least is not None and position.covers(self._least):
            self._least = position

    async def _of_the_log(self) -> Position | None:
        """What views that follow the log cover; None while it cannot be read.

        All requests, and of each machine what it committed: the rest counts later, or never.
        """
        try:
            requests = await self._log.end(Partition(REQUESTS.name, self._number))
            position = Position(cell=self._cell, requests=requests)
            for topic in (ADMISSIONS.name, DECISIONS.name):
                position = position.at(topic, await self._committed(topic))
        except LogError:
            return None
        return position

    async def _committed(self, topic: str) -> int:
        """The offset after a machine's last commit; a leader that was replaced commits nothing."""
        place = Partition(topic, self._number)
        end = await self._log.end(place)
        offset, term, committed = max(0, end - MAX_TAIL), 0, 0
        while offset < end:
            for stored in await self._log.read(place, offset, max_records=end - offset):
                offset = stored.offset + 1
                try:
                    envelope = decode(stored.record)
                except SchemaError:
                    continue  # the views stop there, and name it
                if envelope.epoch >= term:
                    term = envelope.epoch
                    if isinstance(envelope.data, CycleCommittedV1):
                        committed = offset
        return committed

    async def _is_cut(self, position: Position) -> bool:
        """Whether the log ends before a position that was seen."""
        try:
            ends = [
                (await self._log.end(Partition(topic, self._number)), offset)
                for topic, offset in position.parts()
            ]
        except LogError:
            return False
        return any(end < offset for end, offset in ends)

    # --- a ViewStore ----------------------------------------------------------------------------

    async def position(self) -> Position:
        """What the rows cover."""
        wanted = await self._wanted()
        position = await self.store.position()
        await self._see(position, wanted)
        return position

    async def notes(self) -> Mapping[str, Any]:
        """What the writer stored beside the rows."""
        return await self.store.notes()

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""
        row = (await self.get_all([(kind, key)])).rows[0]
        return row if isinstance(row, kind) else None

    async def get_all(self, wanted: Sequence[Wanted]) -> Found:
        """The rows of many keys."""
        least = await self._wanted()
        found = await self.store.get_all(wanted)
        await self._see(found.position, least)
        return found

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page."""
        least = await self._wanted()
        page = await self.store.page(kind, query)
        await self._see(page.position, least)
        return page

    async def count(self, kind: type[Row], query: Query) -> Count:
        """How many rows a page would have."""
        least = await self._wanted()
        found = await self.store.count(kind, query)
        await self._see(found.position, least)
        return found

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes at once."""
        await self.store.apply(changes, position, notes, before=before)

    async def begin(self) -> Position:
        """Be its writer from here on."""
        return await self.store.begin()

    async def check(self, before: Position) -> None:
        """See that the store is where its writer left it."""
        await self.store.check(before)

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes that no position counts."""
        await self.store.note(changes, notes, before=before, noted=noted)

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position."""
        return await self.store.reach(position, timeout_s)

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position; None when they are no longer kept."""
        return await self.store.changes(after)

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied."""
        return await self.store.changed(after, timeout_s)
