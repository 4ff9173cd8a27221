"""The port of the views' store: rows by kind and key, filtered lists, and their position.

All changes of a write and the position to which they lead are applied together or not at all, so a
row is never newer than the store's position. A cell has one writer (the views service) and many
readers. A second writer does no harm: each writer names the position where it left the store, and
gets `ViewsMoved` if the store is elsewhere.

Every call may raise `ViewsUnavailable`. Adapters: `memory`, `redis`; one contract suite holds all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from yardmaster_projections.rows import Facet, JobRow, Order, R, Row
from yardmaster_schemas.position import Position


@dataclass(frozen=True, slots=True)
class Put:
    """Insert a row, or replace the row of its key."""

    row: Row

    @property
    def kind(self) -> str:
        """The row's kind."""
        return self.row.KIND

    @property
    def key(self) -> str:
        """The row's key."""
        return self.row.key


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a row, if it exists; `row` is its content before the deletion."""

    row: Row

    @property
    def kind(self) -> str:
        """The row's kind."""
        return self.row.KIND

    @property
    def key(self) -> str:
        """The row's key."""
        return self.row.key


Change = Put | Delete


def erases(changes: Sequence[Change]) -> bool:
    """Whether changes erase details of a job, so that earlier change sets must not be kept.

    A watch that would resume before such changes begins with a snapshot.
    """
    return any(
        isinstance(change, Put) and isinstance(change.row, JobRow) and change.row.facts.erased
        for change in changes
    )


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of one step of the projection, and the position after it."""

    changes: tuple[Change, ...]
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Select the rows of a kind that have, for every facet in `facets`, one of its values.

    Keys begin with `prefix`. `since_ms` is the lowest number of an order. `after` is the last order
    that was read; the page starts behind it. The page has at most `limit` rows, from the end of the
    list if `newest_first`.
    """

    facets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prefix: str = ""
    since_ms: int = 0
    after: Order | None = None
    newest_first: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Rows in order, at a position; the next page starts after `next` (None: the last page)."""

    rows: tuple[R, ...]
    next: Order | None
    position: Position


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows that match, at most the query's limit, at a position."""

    number: int
    position: Position


#: A row's kind and key.
RowKey = tuple[type[Row], str]


@dataclass(frozen=True, slots=True)
class Found:
    """Rows in the order of the requested keys (None: no such row), at a position."""

    rows: tuple[Row | None, ...]
    position: Position


class ViewReader(Protocol):
    """The rows that a step of the projection reads, as they were before the step."""

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""

    def having(self, kind: type[R], facet: Facet) -> Iterator[R]:
        """All rows that have a facet, in order."""


class ReadableViews(Protocol):
    """The reader's side of the store: the rows of one cell."""

    async def position(self) -> Position:
        """The position of the rows."""

    async def notes(self) -> Mapping[str, Any]:
        """The notes that the writer stored with the rows; empty at the start."""

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        """The rows of many keys of any kinds, at one position."""

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page."""

    async def count(self, kind: type[Row], query: Query) -> Count:
        """The number of rows that a page of `query.limit` rows would have."""

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position; False after `timeout_s` seconds."""

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position, oldest first; None when they are no longer kept."""

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied; False after `timeout_s` seconds."""


class WritableViews(Protocol):
    """The writer's side of the store: the rows of one cell."""

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes, and store the position and the writer's notes (by name), at once.

        `before` is the position where the writer left the store. Without `before`, the call does
        nothing if the store covers `position` already.

        Raises:
            ViewsMoved: the store is not at `before`, or its rows were rebuilt since its writer
                began; nothing was changed.
        """

    async def begin(self) -> Position:
        """Become the writer; return the position of the rows.

        From here on, a write with `before` fails once a rebuild has replaced the rows, even if the
        new rows are at the same position.
        """

    async def check(self, before: Position) -> None:
        """Check that the store is where its writer left it, and was not rebuilt.

        Raises:
            ViewsMoved: the store is at another position, or was rebuilt.
        """

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes that no position counts (soft state: heartbeats, output), and store notes.

        Watches do not report the changes. `noted` has notes as the writer left them; None stands
        for a note that does not exist.

        Raises:
            ViewsMoved: the store is not at `before`, or a note differs from `noted`; nothing was
                changed.
        """


class ViewStore(ReadableViews, WritableViews, Protocol):
    """Rows of one cell."""
