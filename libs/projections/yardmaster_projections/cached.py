"""A writer's view of a store that is elsewhere: rows at hand, and what is changed but not saved.

The projection is a pure function of what it reads, and cannot wait. So a row that is not at hand is
asked for by an exception, `NotLoaded`, which names all that the step could tell it needs; it is
loaded, and the step is run again. Once the rows of what is going on are at hand that is rare.

What a step changes is at hand for the next one before it is saved, so that several steps can be
saved as one write: a task that was admitted, placed and started meanwhile is written once. The
reader is right only as long as nobody else writes: when the store turns out to be elsewhere
(`ViewsMoved`), `forget` all.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from yardmaster_projections.errors import NotLoaded
from yardmaster_projections.rows import Facet, R, Row
from yardmaster_projections.store import Change, Put, Query, RowKey, ViewStore

#: Rows kept at hand; those used longest ago go first. Over it for the length of one write at most.
MAX_ROWS: Final = 200_000
#: Rows loaded at once.
MAX_LOADED: Final = 1_000

_Key = tuple[str, str]


class CachedReader:
    """The `ViewReader` of a store's only writer; empty at first. See `store.ViewReader`."""

    def __init__(self, store: ViewStore, *, max_rows: int = MAX_ROWS) -> None:
        self._store = store
        self._max_rows = max_rows
        #: None: known not to be there.
        self._rows: OrderedDict[_Key, Row | None] = OrderedDict()
        #: What was asked for by facet, for the length of one step.
        self._having: dict[tuple[str, Facet], tuple[str, ...]] = {}
        self._unsaved: dict[_Key, Change] = {}
        #: All rows of the store are at hand: it was empty once, and none went since, but for rows
        #: of these kinds, which were settled.
        self._complete = False
        self._settled: set[str] = set()
        #: Counts for metrics: rows loaded, and rows let go for want of room.
        self.loaded = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def unsaved(self) -> Sequence[Change]:
        """What was changed since the last save, each row once."""
        return list(self._unsaved.values())

    @property
    def unsaved_count(self) -> int:
        """How many rows were changed since the last save."""
        return len(self._unsaved)

    # What the projection asks.

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key.

        Raises:
            NotLoaded: it is not at hand.
        """
        at = (kind.KIND, key)
        try:
            row = self._rows[at]
        except KeyError:
            if self._complete and kind.KIND not in self._settled:
                return None
            raise NotLoaded(((kind, key),)) from None
        self._rows.move_to_end(at)
        return cast("R | None", row)

    def having(self, kind: type[R], facet: Facet) -> Iterator[R]:
        """All rows that have a facet, in order.

        Raises:
            NotLoaded: they are not at hand.
        """
        keys = self._having.get((kind.KIND, facet))
        if keys is None:
            raise NotLoaded(facets=((kind, facet),))
        return iter([cast("R", self._rows[kind.KIND, key]) for key in keys])

    # What the writer tells.

    async def load(self, missing: NotLoaded) -> None:
        """Take what a step missed to hand.

        Raises: ViewsUnavailable.
        """
        await self.want(missing.wanted)
        for kind, facet in missing.facets:
            await self._load_having(kind, facet)

    async def want(self, wanted: Iterable[RowKey]) -> None:
        """Take rows to hand that a step will ask for, as far as they are not.

        Raises: ViewsUnavailable.
        """
        absent = {
            (kind.KIND, key): (kind, key)
            for kind, key in wanted
            if (kind.KIND, key) not in self._rows
            and not (self._complete and kind.KIND not in self._settled)
        }
        keys = list(absent.values())
        for start in range(0, len(keys), MAX_LOADED):
            part = keys[start : start + MAX_LOADED]
            found = await self._store.get_all(part)
            for (kind, key), row in zip(part, found.rows, strict=True):
                self._rows[kind.KIND, key] = row
            self.loaded += len(part)

    def take(self, changes: Iterable[Change]) -> None:
        """A step's changes: at hand for the next step, and part of the next save."""
        self._having.clear()
        for change in changes:
            at = (change.kind, change.key)
            self._rows[at] = change.row if isinstance(change, Put) else None
            self._rows.move_to_end(at)
            self._unsaved[at] = change

    def saved(self) -> None:
        """What was unsaved is in the store; what of it is settled is at hand no more."""
        for at, change in self._unsaved.items():
            if isinstance(change, Put) and change.row.settled:
                self._rows.pop(at, None)
                self._settled.add(change.kind)
        self._unsaved.clear()
        while len(self._rows) > self._max_rows:
            self._rows.popitem(last=False)
            self.evicted += 1
            self._complete = False

    def forget(self, *, empty: bool = False) -> None:
        """Nothing at hand holds any more; `empty`: the store has no row at all."""
        self._rows.clear()
        self._having.clear()
        self._unsaved.clear()
        self._settled.clear()
        self._complete = empty

    async def _load_having(self, kind: type[R], facet: Facet) -> None:
        name, value = facet
        query = Query(facets={name: frozenset({value})}, limit=MAX_LOADED)
        keys: set[str] = set()
        while True:
            page = await self._store.page(kind, query)
            for row in page.rows:
                self._rows.setdefault((kind.KIND, row.key), row)
                keys.add(row.key)
            self.loaded += len(page.rows)
            if page.next is None:
                break
            query = Query(facets=query.facets, limit=MAX_LOADED, after=page.next)
        keys |= {key for named, key in self._unsaved if named == kind.KIND}
        found = [self._rows.get((kind.KIND, key)) for key in keys]
        rows = [row for row in found if row is not None and facet in row.facets]
        self._having[kind.KIND, facet] = tuple(row.key for row in sorted(rows, key=_place))


def _place(row: Row) -> tuple[object, str]:
    return (row.order, row.key)
