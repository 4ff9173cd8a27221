"""The views' store in this process: dictionaries, sorted keys, and the newest change sets.

Each value of a facet has its own sorted list of keys, which is updated as rows change, so that the
cost of a page grows with the rows of the page and not with all rows.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Final, Protocol, cast

from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.rows import Facet, Order, R, Row
from yardmaster_projections.store import (
    Change,
    ChangeSet,
    Count,
    Delete,
    Found,
    Page,
    Put,
    Query,
    RowKey,
    erases,
)
from yardmaster_schemas.position import Position

#: Changes that are kept for watches to resume from; a set is kept or dropped whole.
MAX_KEPT_CHANGES: Final = 50_000

_Entry = tuple[Order, str]
_BEYOND: Final = "\U0010ffff"


class Clock(Protocol):
    """The clock that the store needs."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class _Kind:
    """All rows of one kind."""

    __slots__ = ("all", "facets", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.all: list[_Entry] = []
        self.facets: dict[Facet, list[_Entry]] = {}

    def put(self, row: Row) -> None:
        entry = (row.order, row.key)
        facets = row.facets
        old = self.rows.get(row.key)
        if old is not None:
            before = (old.order, old.key)
            if before == entry:
                kept = set(old.facets)
                for facet in kept.difference(facets):
                    self._drop(self.facets[facet], entry, facet)
                for facet in dict.fromkeys(facets):
                    if facet not in kept:
                        insort(self.facets.setdefault(facet, []), entry)
                self.rows[row.key] = row
                return
            self.delete(row.key)
        self.rows[row.key] = row
        _add(self.all, entry)
        for facet in dict.fromkeys(facets):
            _add(self.facets.setdefault(facet, []), entry)

    def delete(self, key: str) -> None:
        row = self.rows.pop(key, None)
        if row is None:
            return
        entry = (row.order, key)
        del self.all[bisect_left(self.all, entry)]
        for facet in set(row.facets):
            self._drop(self.facets[facet], entry, facet)

    def _drop(self, entries: list[_Entry], entry: _Entry, facet: Facet) -> None:
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self.facets[facet]

    def page(self, query: Query) -> Iterator[Row]:
        """The rows that match the query, in order, from the start of the page."""
        narrowest: list[list[_Entry]] | None = None
        for name, values in query.facets.items():
            lists = [
                entries
                for value in sorted(values)
                if (entries := self.facets.get((name, value))) is not None
            ]
            if narrowest is None or sum(map(len, lists)) < sum(map(len, narrowest)):
                narrowest = lists
        parts = [
            _slice(entries, query) for entries in ([self.all] if narrowest is None else narrowest)
        ]
        found = merge(*parts, reverse=query.newest_first) if len(parts) != 1 else parts[0]
        last: str | None = None
        for _, key in found:
            if key == last or not key.startswith(query.prefix):
                continue
            last = key
            row = self.rows[key]
            if all(
                any(facet[0] == name and facet[1] in values for facet in row.facets)
                for name, values in query.facets.items()
            ):
                yield row


def _add(entries: list[_Entry], entry: _Entry) -> None:
    if not entries or entries[-1] < entry:
        entries.append(entry)
    else:
        insort(entries, entry)


def _slice(entries: list[_Entry], query: Query) -> Iterator[_Entry]:
    """The entries of the page of a query, in its order, without its facets and its limit."""
    low, high = 0, len(entries)
    if query.since_ms:
        low = bisect_left(entries, ((query.since_ms, "", 0), ""))
    if query.after is not None:
        if query.newest_first:
            high = bisect_left(entries, (query.after, ""))
        else:
            low = max(low, bisect_right(entries, (query.after, _BEYOND)))
    if query.newest_first:
        return (entries[at] for at in range(high - 1, low - 1, -1))
    return (entries[at] for at in range(low, high))


class _Waiter:
    __slots__ = ("position", "wake")

    def __init__(self, position: Position | None) -> None:
        #: The position for which the call waits; None: any change wakes it.
        self.position = position
        self.wake = asyncio.Event()


class MemoryViewStore:
    """Rows of one cell in memory, and its writer's `ViewReader`; empty at first."""

    def __init__(self, cell: str, clock: Clock, *, max_kept: int = MAX_KEPT_CHANGES) -> None:
        self._clock = clock
        self._position = Position.start(cell)
        self._kinds: dict[str, _Kind] = {}
        self._notes: dict[str, Any] = {}
        self._kept: deque[ChangeSet] = deque()
        self._kept_changes = 0
        self._max_kept = max_kept
        #: The position after which change sets are kept.
        self._floor = self._position
        self._waiters: dict[int, _Waiter] = {}
        self._made = 0

    # For the writer.

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key, at once."""
        table = self._kinds.get(kind.KIND)
        return None if table is None else cast("R | None", table.rows.get(key))

    def having(self, kind: type[R], facet: Facet) -> Iterator[R]:
        """All rows that have a facet, in order."""
        table = self._kinds.get(kind.KIND)
        if table is None:
            return
        for _, key in tuple(table.facets.get(facet, ())):
            yield cast("R", table.rows[key])

    def rows(self, kind: type[R]) -> Mapping[str, R]:
        """All rows of a kind, by key."""
        table = self._kinds.get(kind.KIND)
        return {} if table is None else cast("Mapping[str, R]", table.rows)

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes at once, unless the store covers `position` already."""
        if before is not None:
            if before != self._position:
                raise ViewsMoved(found=self._position, expected=before)
        elif self._position.covers(position):
            return
        self._change(changes)
        self._notes.update(notes)
        self._position = position
        watched = tuple(change for change in changes if change.row.WATCHED)
        if watched:
            self._kept.append(ChangeSet(watched, position))
            self._kept_changes += len(watched)
            most = len(watched) if erases(changes) else self._max_kept
            while self._kept_changes > most:
                gone = self._kept.popleft()
                self._kept_changes -= len(gone.changes)
                self._floor = gone.position
        for waiter in tuple(self._waiters.values()):
            if waiter.position is None or position.covers(waiter.position):
                waiter.wake.set()

    async def begin(self) -> Position:
        """Become the writer; return the position. Rows in memory are never rebuilt."""
        return await self.position()

    async def check(self, before: Position) -> None:
        """Check that the store is at `before`, the position where its writer left it."""
        found = await self.position()
        if found != before:
            raise ViewsMoved(found=found, expected=before)

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes of soft state, which leave the position as it is."""
        if before is not None and before != self._position:
            raise ViewsMoved(found=self._position, expected=before)
        for name, value in (noted or {}).items():
            if self._notes.get(name) != value:
                raise ViewsMoved(found=f"{name} {self._notes.get(name)}", expected=value)
        self._change(changes)
        self._notes.update(notes)

    def _change(self, changes: Sequence[Change]) -> None:
        for change in changes:
            table = self._kinds.setdefault(change.kind, _Kind())
            match change:
                case Put(row):
                    table.put(row)
                case Delete(row):
                    table.delete(row.key)

    # For readers.

    async def position(self) -> Position:
        """The position of the rows."""
        return self._position

    async def notes(self) -> Mapping[str, Any]:
        """The notes that the writer stored with the rows."""
        return dict(self._notes)

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""
        return self.find(kind, key)

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        """The rows of many keys."""
        return Found(tuple(self.find(kind, key) for kind, key in wanted), self._position)

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page."""
        table = self._kinds.get(kind.KIND)
        if table is None:
            return Page((), None, self._position)
        rows = [cast("R", row) for row in islice(table.page(query), query.limit + 1)]
        more = rows[query.limit - 1].order if len(rows) > query.limit else None
        return Page(tuple(rows[: query.limit]), more, self._position)

    async def count(self, kind: type[Row], query: Query) -> Count:
        """The number of rows that a page would have."""
        table = self._kinds.get(kind.KIND)
        number = 0 if table is None else sum(1 for _ in islice(table.page(query), query.limit))
        return Count(number, self._position)

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position."""
        if not self._position.covers(position):
            await self._wait(_Waiter(position), timeout_s)
        return self._position.covers(position)

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position; None when they are no longer kept."""
        if not after.covers(self._floor):
            return None
        found = list(takewhile(lambda one: not after.covers(one.position), reversed(self._kept)))
        return found[::-1]

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied."""
        if after.covers(self._position):
            await self._wait(_Waiter(None), timeout_s)
        return not after.covers(self._position)

    async def _wait(self, waiter: _Waiter, timeout_s: float) -> None:
        if timeout_s <= 0:
            return
        self._made += 1
        number = self._made
        self._waiters[number] = waiter
        try:
            async with asyncio.TaskGroup() as group:
                alarm = group.create_task(self._wake_after(waiter, timeout_s))
                await waiter.wake.wait()
                alarm.cancel()
        finally:
            del self._waiters[number]

    async def _wake_after(self, waiter: _Waiter, timeout_s: float) -> None:
        await self._clock.sleep(timeout_s)
        waiter.wake.set()
