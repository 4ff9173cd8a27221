"""A view store that refuses answers that are older than an earlier answer.

A store that was emptied, or restored from an old dump, answers without an error, but with missing
or old rows. `MonotonicViews` therefore remembers the highest position that the store had, and
raises `ViewsUnfinished` for an answer that does not cover it. Before its first answer it reads the
required position from the log, and compares the last records that the store contains with the log.
If the log lost these records, new records get their positions, and the store seems to cover the new
records already. An answer would then lack the changes that its caller has just written, so reads
raise `ViewsAhead`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogError, LogTruncated
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_projections.errors import ViewsAhead, ViewsUnfinished
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import (
    ChangeSet,
    Count,
    Found,
    Page,
    Query,
    ReadableViews,
    RowKey,
)
from yardmaster_runtime.fence import check_marks
from yardmaster_runtime.store_marks import marks_of
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS

#: The number of newest records of a machine's topic that are searched for its last commit.
MAX_TAIL: Final = 500


class MonotonicViews:
    """Readable views whose answers cover every position that an earlier answer covered.

    While the store covers less, reads raise `ViewsUnfinished`, and `ViewsAhead` while it contains
    records that the log lost, in addition to the store's errors.
    """

    def __init__(self, store: ReadableViews, log: EventLog, cell: str, number: int) -> None:
        #: The underlying store, without the check.
        self.store = store
        self._log = log
        self._cell = cell
        self._number = number
        #: The position that answers must cover; None: it must still be read from the log.
        self._required: Position | None = None
        self._lock = asyncio.Lock()
        #: What the last comparison with the log found missing in the log; None: nothing.
        self._lost: str | None = None

    def check_whole(self) -> None:
        """Raise an error if the last comparison with the log found lost records; read nothing.

        Raises: ViewsAhead.
        """
        if self._lost is not None:
            raise ViewsAhead(found=self._lost)

    async def complete_position(self, wait_s: float) -> Position:
        """Return the position of the store once it covers the required position.

        Wait for this at most `wait_s` seconds.

        Raises: ViewsUnfinished, ViewsAhead.
        """
        try:
            return await self.position()
        except ViewsUnfinished:
            required = await self._required_position()
            if required is None or not await self.store.reach(required, wait_s):
                raise
        return await self.position()

    async def _required_position(self) -> Position | None:
        """The position that an answer to a read that starts now must cover.

        Raises: ViewsAhead.
        """
        if self._required is None:
            async with self._lock:
                if self._required is None:
                    await self._check_log()
                    self._required = await self._committed_position()
        return self._required

    async def _check_log(self) -> None:
        """Compare the last records that the store contains with the log, if it can be read.

        Raises: ViewsAhead.
        """
        # Read the notes before the ends of the log, because the store follows the log meanwhile.
        marks = marks_of(await self.store.notes(), self._number)
        try:
            await check_marks(self._log, marks, kept_in="the store of the views")
        except LogTruncated as error:
            self._lost = str(error.fields["found"])
        except LogError:
            return  # the first read with a log compares them
        else:
            self._lost = None
        self.check_whole()

    async def _check(self, position: Position, required: Position | None) -> None:
        """Check the position of an answer against the position required when the read started.

        If the answer's position is higher than the required one, it is required from now on.
        Concurrent reads may have raised the required position since the read started; the answer
        need not cover this higher position.

        Raises: ViewsUnfinished.
        """
        if required is not None and not position.covers(required):
            if await self._is_truncated(required):
                self._required = None  # the log was truncated, so the position no longer exists
            raise ViewsUnfinished(found=position, wanted=required)
        if self._required is not None and position.covers(self._required):
            self._required = position

    async def _committed_position(self) -> Position | None:
        """The position of views that have read the whole log; None if the log cannot be read.

        The position covers all requests and the committed cycles of each machine. Records after a
        machine's last commit do not count yet, and may never count.
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
        """The offset after a machine's last commit; commits of a fenced leader do not count."""
        partition = Partition(topic, self._number)
        end = await self._log.end(partition)
        offset, term, committed = max(0, end - MAX_TAIL), 0, 0
        while offset < end:
            for stored in await self._log.read(partition, offset, max_records=end - offset):
                offset = stored.offset + 1
                try:
                    envelope = decode(stored.record)
                except SchemaError:
                    continue  # the views stop at this record and report it
                if envelope.epoch >= term:
                    term = envelope.epoch
                    if isinstance(envelope.data, CycleCommittedV1):
                        committed = offset
        return committed

    async def _is_truncated(self, position: Position) -> bool:
        """Whether the log now ends before a position that an answer covered."""
        try:
            ends = [
                (await self._log.end(Partition(topic, self._number)), offset)
                for topic, offset in position.parts()
            ]
        except LogError:
            return False
        return any(end < offset for end, offset in ends)

    # --- the methods of ReadableViews -----------------------------------------------------------

    async def position(self) -> Position:
        required = await self._required_position()
        position = await self.store.position()
        await self._check(position, required)
        return position

    async def notes(self) -> Mapping[str, Any]:
        return await self.store.notes()

    async def get(self, kind: type[R], key: str) -> R | None:
        row = (await self.get_all([(kind, key)])).rows[0]
        return row if isinstance(row, kind) else None

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        required = await self._required_position()
        found = await self.store.get_all(wanted)
        await self._check(found.position, required)
        return found

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        required = await self._required_position()
        page = await self.store.page(kind, query)
        await self._check(page.position, required)
        return page

    async def count(self, kind: type[Row], query: Query) -> Count:
        required = await self._required_position()
        found = await self.store.count(kind, query)
        await self._check(found.position, required)
        return found

    async def reach(self, position: Position, timeout_s: float) -> bool:
        return await self.store.reach(position, timeout_s)

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        return await self.store.changes(after)

    async def changed(self, after: Position, timeout_s: float) -> bool:
        return await self.store.changed(after, timeout_s)
