"""The port of the views' store: rows by kind and key, filtered lists, and the position they are at.

Changes are applied together with the position they lead to, whole or not at all, so that a row is
never newer than what the store says of itself. One writer a cell (the views service); many readers.
Two that both take themselves for the writer harm nothing: each says where it believes the store to
be, and the one that is wrong is told (`ViewsMoved`).

Every call may raise `ViewsUnavailable`. Adapters: `memory`, `redis`; one contract suite holds all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from yardmaster_projections.rows import Facet, JobRow, Order, R, Row
from yardmaster_schemas.position import Position


@dataclass(frozen=True, slots=True)
class Put:
    """A row appears or takes another's place."""

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
    """A row is gone; deleting what is not there changes nothing. `row` is what was there."""

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
    """Whether changes erase what earlier ones said of a job: a store keeps those no longer.

    A watch that would resume before them begins with a snapshot.
    """
    return any(
        isinstance(change, Put) and isinstance(change.row, JobRow) and change.row.facts.erased
        for change in changes
    )


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What one step of the projection changed, and the position after it."""

    changes: tuple[Change, ...]
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows of a kind: those that have, of every facet named, one of its values.

    `prefix` is of the key; `since_ms` is the least, `after` the last order already seen; at most
    `limit` rows, from the end when `newest_first`.
    """

    facets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prefix: str = ""
    since_ms: int = 0
    after: Order | None = None
    newest_first: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Rows in order, where the next page starts (None: there is none), as of a position."""

    rows: tuple[R, ...]
    next: Order | None
    position: Position


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows match, at most the query's limit, as of a position."""

    number: int
    position: Position


#: A row's kind and key.
RowKey = tuple[type[Row], str]


@dataclass(frozen=True, slots=True)
class Found:
    """Rows, each in the place of the key asked for (None: there is none), as of a position."""

    rows: tuple[Row | None, ...]
    position: Position


class ViewReader(Protocol):
    """What the projection reads: rows as they are before the changes it makes."""

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""

    def having(self, kind: type[R], facet: Facet) -> Iterator[R]:
        """All rows that have a facet, in order."""


class ViewStore(Protocol):
    """Rows of one cell."""

    async def position(self) -> Position:
        """What the rows cover."""

    async def notes(self) -> Mapping[str, Any]:
        """What the writer stored beside the rows, to go on from there; empty at the start."""

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key."""

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        """The rows of many keys of any kinds, as they are at one position."""

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page."""

    async def count(self, kind: type[Row], query: Query) -> Count:
        """How many rows a page of `query.limit` rows would have, without reading them."""

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes, and the position and the writer's notes (by name) with them, at once.

        Changes whose position is covered already are a repeat and change nothing, unless the writer
        says `before`: where it believes the store to be.

        Raises:
            ViewsMoved: the store is not at `before`, or other rows count than when its writer
                began; nothing was changed.
        """

    async def begin(self) -> Position:
        """Be its writer from here on: what the rows cover.

        A write that says `before` counts only while these are the rows that do: others may come
        in their place (a rebuild), and be at the very same position.
        """

    async def check(self, before: Position) -> None:
        """See that the store is where its writer left it, and that its rows still count.

        Raises:
            ViewsMoved: they do not, or are elsewhere.
        """

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes that no position counts (what expires: heartbeats, output), and keep notes.

        No watch reports them. `noted` are notes as the writer believes them to be, as `before` is
        of the position; None for one that is not there.

        Raises:
            ViewsMoved: the store is not at `before`, or one of `noted` is another; nothing was
                changed.
        """

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position; False after `timeout_s` seconds."""

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position, oldest first; None when they are no longer kept."""

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied; False after `timeout_s` seconds."""
