"""Compares views with the log: folds it again in memory, and looks at every row at its position.

The services run on meanwhile. A page of rows names the position that it was read at; the fold goes
on to exactly there, and what it has must be what the page shows. What is beside the log's positions
(heartbeats, where output lies) expires and cannot be folded again, so it is not compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from yardmaster_eventlog.port import EventLog
from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.fold import Fold
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.projection.draft import MAX_HISTORY
from yardmaster_projections.rows import HistoryRow, Order, Row
from yardmaster_projections.store import Query, RowKey, ViewStore
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.position import Position
from yardmaster_views.follower import Follower, Metrics, Views

#: Rows looked at together.
PAGE: Final = 500
#: Differences that are named; more are counted.
MAX_NAMED: Final = 100
#: How often a comparison begins again because the views were lost or rebuilt under it.
MAX_STARTS: Final = 5
#: How often a row that differs is looked at again, alone, before it is said to.
LOOKS: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not what the log says, at a position."""

    kind: str
    key: str
    found: str
    position: Position


@dataclass(slots=True)
class Compared:
    """What a comparison saw of one projection."""

    view: str
    position: Position
    rows: int = 0
    differing: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Every row is what the log says."""
        return not self.differing


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of one projection of one cell."""

    log: EventLog
    store: ViewStore
    cell: str
    partition: int
    fold: Fold
    clock: Clock
    metrics: Metrics

    async def run(self, report: Callable[[Compared], None] = lambda _: None) -> Compared:
        """Compare every row; `tell` is called as it goes on.

        Raises:
            ViewsMoved: they were lost or rebuilt again and again meanwhile.
            ViewsUnavailable, ViewsDamaged, LogError, CoreError, SchemaError.
        """
        for _ in range(MAX_STARTS - 1):
            try:
                return await _Run(self, report).run()
            except ViewsMoved:
                continue
        return await _Run(self, report).run()


class _Run:
    def __init__(self, asked: Comparison, report: Callable[[Compared], None]) -> None:
        self._asked = asked
        self._report = report
        self._memory = MemoryViewStore(asked.cell, asked.clock, max_kept=0)
        self._follower = Follower(
            asked.log,
            Views(self._memory, self._memory),
            asked.cell,
            asked.partition,
            asked.metrics,
            fold=replace(asked.fold, soft_state=False),
        )
        self._done = Compared(asked.fold.name, Position.start(asked.cell))
        self._short: dict[Position, None] = {}

    async def run(self) -> Compared:
        await self._follower.start()
        await self._fold_to(await self._asked.store.position())
        for kind in self._asked.fold.kinds:
            seen = await self._compare_pages(kind)
            rows = self._memory.rows(kind)
            await self._compare_missing([(kind, key) for key in rows if key not in seen])
        return self._done

    async def _fold_to(self, position: Position) -> None:
        """Fold the log on to exactly where the views are."""
        reached = self._follower.position
        if not position.covers(reached):
            raise ViewsMoved(found=position, expected=reached)
        reached = await self._follower.catch_up(position)
        self._done.position = position
        if reached != position and position not in self._short:
            self._short[position] = None
            self._differs("position", str(position), f"the log leads to {reached} only", position)

    async def _compare_pages(self, kind: type[Row]) -> set[str]:
        seen: set[str] = set()
        after: Order | None = None
        while True:
            page = await self._asked.store.page(kind, Query(limit=PAGE, after=after))
            await self._fold_to(page.position)
            doubted = []
            for row in page.rows:
                seen.add(row.key)
                if not _same(row, self._memory.find(kind, row.key)):
                    doubted.append((kind, row.key))
            self._done.rows += len(page.rows)
            await self._look_again(doubted)
            self._report(self._done)
            if page.next is None:
                return seen
            after = page.next

    async def _compare_missing(self, wanted: Sequence[RowKey]) -> None:
        """What the fold has and no page showed: it may have come after its page."""
        for start in range(0, len(wanted), PAGE):
            await self._look_again(wanted[start : start + PAGE])

    async def _look_again(self, wanted: Sequence[RowKey]) -> None:
        """Rows that seem to differ, each read at one position; what differs then, does."""
        for _ in range(LOOKS):
            if not wanted:
                return
            found = await self._asked.store.get_all(wanted)
            await self._fold_to(found.position)
            wanted = [
                (kind, key)
                for (kind, key), row in zip(wanted, found.rows, strict=True)
                if not _same(row, self._memory.find(kind, key))
            ]
        found = await self._asked.store.get_all(wanted)
        await self._fold_to(found.position)
        for (kind, key), row in zip(wanted, found.rows, strict=True):
            expected = self._memory.find(kind, key)
            if not _same(row, expected):
                self._differs(kind.KIND, key, _said(row, expected), found.position)

    def _differs(self, kind: str, key: str, found: str, position: Position) -> None:
        self._done.differing += 1
        if len(self._done.differences) < MAX_NAMED:
            one = Difference(kind, key, found, position)
            self._done.differences = (*self._done.differences, one)


def _same(found: Row | None, expected: Row | None) -> bool:
    if isinstance(found, HistoryRow) and isinstance(expected, HistoryRow):
        # The order across topics is that in which the follower came to read them.
        if len(found.records) == len(expected.records) == MAX_HISTORY:
            return True
        return sorted(found.records) == sorted(expected.records)
    return found == expected


def _said(found: Row | None, expected: Row | None) -> str:
    if found is None:
        return "is missing"
    if expected is None:
        return "is in no log"
    names: list[str] = []
    for each in fields(found):  # type: ignore[arg-type]
        ours: Any = getattr(expected, each.name, None)
        if getattr(found, each.name) != ours:
            names.append(each.name)
    return f"differs in {', '.join(names)}"
