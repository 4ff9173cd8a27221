"""Compares views with the log: folds the log again in memory, and compares every row.

The services keep running. A page of rows names its position; the fold advances to exactly this
position, and its rows must equal those of the page. Soft state (heartbeats, offsets of output)
expires and cannot be folded again, so it is not compared.
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

#: The number of rows that are read and compared together.
PAGE: Final = 500
#: Differences that are listed; further ones are only counted.
MAX_NAMED: Final = 100
#: How often a comparison restarts because the views were lost or rebuilt in between.
MAX_STARTS: Final = 5
#: How often a row that seems to differ is read again before it is reported.
LOOKS: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs from the fold of the log at a position."""

    kind: str
    key: str
    found: str
    position: Position


@dataclass(slots=True)
class Compared:
    """The result of a comparison of one projection."""

    view: str
    position: Position
    rows: int = 0
    differing: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all rows equal those of the fold."""
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
        """Compare every row; call `report` after each page.

        Raises:
            ViewsMoved: the views were lost or rebuilt during each of `MAX_STARTS` tries.
            ViewsUnavailable, ViewsDamaged, LogError, CoreError, SchemaError.
        """
        for _ in range(MAX_STARTS - 1):
            try:
                return await _Run(self, report).run()
            except ViewsMoved:
                continue
        return await _Run(self, report).run()


class _Run:
    def __init__(self, comparison: Comparison, report: Callable[[Compared], None]) -> None:
        self._comparison = comparison
        self._report = report
        self._memory = MemoryViewStore(comparison.cell, comparison.clock, max_kept=0)
        self._follower = Follower(
            comparison.log,
            Views(self._memory, self._memory),
            comparison.cell,
            comparison.partition,
            comparison.metrics,
            fold=replace(comparison.fold, soft_state=False),
        )
        self._done = Compared(comparison.fold.name, Position.start(comparison.cell))
        self._short: dict[Position, None] = {}

    async def run(self) -> Compared:
        await self._follower.start()
        await self._fold_to(await self._comparison.store.position())
        for kind in self._comparison.fold.kinds:
            seen = await self._compare_pages(kind)
            rows = self._memory.rows(kind)
            await self._compare_missing([(kind, key) for key in rows if key not in seen])
        return self._done

    async def _fold_to(self, position: Position) -> None:
        """Fold the log up to exactly the position of the views."""
        reached = self._follower.position
        if not position.covers(reached):
            raise ViewsMoved(found=position, expected=reached)
        reached = await self._follower.catch_up(position)
        self._done.position = position
        if reached != position and position not in self._short:
            self._short[position] = None
            self._differs("position", str(position), f"the log leads to {reached} only", position)

    async def _compare_pages(self, kind: type[Row]) -> set[str]:
        """Compare all rows of a kind, page by page; return the keys of the rows in the store."""
        seen: set[str] = set()
        after: Order | None = None
        while True:
            page = await self._comparison.store.page(kind, Query(limit=PAGE, after=after))
            await self._fold_to(page.position)
            suspects = []
            for row in page.rows:
                seen.add(row.key)
                if not _same(row, self._memory.find(kind, row.key)):
                    suspects.append((kind, row.key))
            self._done.rows += len(page.rows)
            await self._look_again(suspects)
            self._report(self._done)
            if page.next is None:
                return seen
            after = page.next

    async def _compare_missing(self, wanted: Sequence[RowKey]) -> None:
        """Compare rows that were on no page, because they may be newer than the pages."""
        for start in range(0, len(wanted), PAGE):
            await self._look_again(wanted[start : start + PAGE])

    async def _look_again(self, wanted: Sequence[RowKey]) -> None:
        """Read rows that seem to differ again, at one position; report those that still differ."""
        for _ in range(LOOKS):
            if not wanted:
                return
            found = await self._comparison.store.get_all(wanted)
            await self._fold_to(found.position)
            wanted = [
                (kind, key)
                for (kind, key), row in zip(wanted, found.rows, strict=True)
                if not _same(row, self._memory.find(kind, key))
            ]
        found = await self._comparison.store.get_all(wanted)
        await self._fold_to(found.position)
        for (kind, key), row in zip(wanted, found.rows, strict=True):
            expected = self._memory.find(kind, key)
            if not _same(row, expected):
                self._differs(kind.KIND, key, _difference(row, expected), found.position)

    def _differs(self, kind: str, key: str, found: str, position: Position) -> None:
        self._done.differing += 1
        if len(self._done.differences) < MAX_NAMED:
            one = Difference(kind, key, found, position)
            self._done.differences = (*self._done.differences, one)


def _same(found: Row | None, expected: Row | None) -> bool:
    if isinstance(found, HistoryRow) and isinstance(expected, HistoryRow):
        # The order of records across topics depends on when the follower read each topic.
        if len(found.records) == len(expected.records) == MAX_HISTORY:
            return True
        return sorted(found.records) == sorted(expected.records)
    return found == expected


def _difference(found: Row | None, expected: Row | None) -> str:
    if found is None:
        return "is missing"
    if expected is None:
        return "is not in the log"
    names: list[str] = []
    for each in fields(found):  # type: ignore[arg-type]
        ours: Any = getattr(expected, each.name, None)
        if getattr(found, each.name) != ours:
            names.append(each.name)
    return f"differs in {', '.join(names)}"
