"""The writer's cache of a remote store: cached rows, and changes that are not saved yet.

The projection is a pure function and cannot wait for the store. So it requests the rows that are
not cached by an exception, `NotLoaded`, which names all rows that the step is known to need. The
follower loads these rows and runs the step again. Once the rows of active jobs are cached, this is
rare.

A step reads the changes of earlier steps before they are saved, so several steps are saved as one
write: a task that was admitted, placed and started in between is written once. The cache is correct
only while there is no other writer; after `ViewsMoved`, call `forget`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from yardmaster_projections.errors import NotLoaded
from yardmaster_projections.rows import Facet, R, Row
from yardmaster_projections.store import Change, Put, Query, RowKey, ViewStore

#: The most rows in the cache after a save; the least recently used row is evicted first. Between
#: two saves the cache may have more.
MAX_ROWS: Final = 200_000
#: Rows loaded at once.
MAX_LOADED: Final = 1_000

_Key = tuple[str, str]


class CachedReader:
    """The `ViewReader` of a store's only writer; empty at first."""

    def __init__(self, store: ViewStore, *, max_rows: int = MAX_ROWS) -> None:
        self._store = store
        self._max_rows = max_rows
        #: None: the store has no such row.
        self._rows: OrderedDict[_Key, Row | None] = OrderedDict()
        #: Keys of the rows that have a facet, for the duration of one step.
        self._having: dict[tuple[str, Facet], tuple[str, ...]] = {}
        self._unsaved: dict[_Key, Change] = {}
        #: Whether all rows of the store are cached: the store was empty, and no row was evicted
        #: since. Only rows of `_final_kinds` are missing, because a final row is not cached.
        self._complete = False
        self._final_kinds: set[str] = set()
        #: Counts for metrics: rows loaded, and rows evicted because the cache was full.
        self.loaded = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def unsaved(self) -> Sequence[Change]:
        """The changes since the last save, each row once."""
        return list(self._unsaved.values())

    @property
    def unsaved_count(self) -> int:
        """How many rows were changed since the last save."""
        return len(self._unsaved)

    # For the projection.

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key.

        Raises:
            NotLoaded: the row is not cached.
        """
        at = (kind.KIND, key)
        try:
            row = self._rows[at]
        except KeyError:
            if self._complete and kind.KIND not in self._final_kinds:
                return None
            raise NotLoaded(((kind, key),)) from None
        self._rows.move_to_end(at)
        return cast("R | None", row)

    def having(self, kind: type[R], facet: Facet) -> Iterator[R]:
        """All rows that have a facet, in order.

        Raises:
            NotLoaded: the rows are not cached.
        """
        keys = self._having.get((kind.KIND, facet))
        if keys is None:
            raise NotLoaded(facets=((kind, facet),))
        return iter([cast("R", self._rows[kind.KIND, key]) for key in keys])

    # For the writer.

    async def load(self, missing: NotLoaded) -> None:
        """Load the rows that a step missed.

        Raises: ViewsUnavailable.
        """
        await self.want(missing.wanted)
        for kind, facet in missing.facets:
            await self._load_having(kind, facet)

    async def want(self, wanted: Iterable[RowKey]) -> None:
        """Load the rows in `wanted` that are not cached.

        Raises: ViewsUnavailable.
        """
        absent = {
            (kind.KIND, key): (kind, key)
            for kind, key in wanted
            if (kind.KIND, key) not in self._rows
            and not (self._complete and kind.KIND not in self._final_kinds)
        }
        keys = list(absent.values())
        for start in range(0, len(keys), MAX_LOADED):
            part = keys[start : start + MAX_LOADED]
            found = await self._store.get_all(part)
            for (kind, key), row in zip(part, found.rows, strict=True):
                self._rows[kind.KIND, key] = row
            self.loaded += len(part)

    def take(self, changes: Iterable[Change]) -> None:
        """Add the changes of a step to the cache and to the next save."""
        self._having.clear()
        for change in changes:
            at = (change.kind, change.key)
            self._rows[at] = change.row if isinstance(change, Put) else None
            self._rows.move_to_end(at)
            self._unsaved[at] = change

    def saved(self) -> None:
        """Mark all changes as saved; evict rows that are final, and rows above the limit."""
        for at, change in self._unsaved.items():
            if isinstance(change, Put) and change.row.final:
                self._rows.pop(at, None)
                self._final_kinds.add(change.kind)
        self._unsaved.clear()
        while len(self._rows) > self._max_rows:
            self._rows.popitem(last=False)
            self.evicted += 1
            self._complete = False

    def forget(self, *, empty: bool = False) -> None:
        """Empty the cache and drop unsaved changes; `empty`: the store has no row at all."""
        self._rows.clear()
        self._having.clear()
        self._unsaved.clear()
        self._final_kinds.clear()
        self._complete = empty

    async def _load_having(self, kind: type[R], facet: Facet) -> None:
        """Load all rows with a facet; `having` returns them until the next call of `take`."""
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
        self._having[kind.KIND, facet] = tuple(row.key for row in sorted(rows, key=_sort_key))


def _sort_key(row: Row) -> tuple[object, str]:
    return (row.order, row.key)
