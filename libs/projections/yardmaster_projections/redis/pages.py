"""Reads of one page from the sorted sets in Redis: in order, a chunk at a time.

A query with several facets reads the sets of the facet with the fewest rows, and checks the other
facets in the index entry of each row (`idx:`), so it decodes only rows of the page. A prefix of the
key is looked up in the set that is sorted by key if few rows have the prefix. Sets are merged by
their members, which sort like the rows.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar, cast

from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.client import Command
from yardmaster_projections.redis.keys import END, Keys
from yardmaster_projections.redis.view import CurrentHead, RedisView
from yardmaster_projections.redis.write import facets_of
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import Count, Page, Query
from yardmaster_schemas.position import Position

T = TypeVar("T")

#: The fewest and the most members that are read from one list at once.
MIN_CHUNK: Final = 8
MAX_CHUNK: Final = 1_000
#: The most rows with a prefix for which the set that is sorted by key is used. For more rows the
#: whole list is read.
MAX_BY_KEY: Final = 1_000
#: How often a page is tried, because the views may change in between; the last try accepts that.
MAX_TRIES: Final = 4

#: For each name of a facet, a set of facets as in names of keys; a row must have one of the set.
_Facets = Mapping[str, frozenset[str]]


class _Moved(Exception):
    """The views changed in the middle of a page."""


class PageReader(Generic[R]):
    """Reads one page of rows of one kind, or counts its rows."""

    def __init__(self, view: RedisView, kind: type[R], query: Query) -> None:
        self._view = view
        self._kind = kind
        self._query = query
        self._range = _Range(kind, query)
        self._facets: _Facets = {
            name: frozenset(redis_keys.facet_name((name, value)) for value in values)
            for name, values in query.facets.items()
        }
        #: The head of the first read.
        self._first: CurrentHead | None = None
        #: Whether all reads of the page must return the same head.
        self._strict = True

    async def page(self) -> Page[R]:
        """Read the page.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        limit = self._query.limit
        rows = await self._at_one_head(lambda: self._rows(limit + 1))
        more = rows[limit - 1].order if len(rows) > limit else None
        return Page(tuple(rows[:limit]), more, self._position)

    async def count(self) -> Count:
        """Count the rows that the page would have; only the lists are read.

        Raises: ViewsUnavailable.
        """
        return Count(await self._at_one_head(self._number), self._position)

    async def _at_one_head(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a try of `read` during which nothing was written, else of the last.

        Raises: ViewsUnavailable: another generation became current during each try.
        """
        for left in reversed(range(MAX_TRIES)):
            self._strict, self._first = left > 0, None
            try:
                return await read()
            except _Moved:
                continue
        raise ViewsUnavailable(found="their generation changed in the middle of a page")

    @property
    def _position(self) -> Position:
        """The position of the first read: the page includes all changes up to it."""
        assert self._first is not None, "an empty answer was read too"
        return self._first.head.position

    async def _look(self, commands: Callable[[Keys], Sequence[Command]]) -> list[Any]:
        seen = await self._view.look(commands)
        self._same(seen.at)
        return seen.answers

    def _same(self, at: CurrentHead) -> None:
        """Raise _Moved if a read is of another head (generation, if not strict) than the first."""
        if self._first is None:
            self._first = at
        elif at.keys is not self._first.keys or (self._strict and at.head != self._first.head):
            raise _Moved

    async def _rows(self, wanted: int) -> list[R]:
        """Read at most `wanted` rows of the query, in order."""
        if not all(self._facets.values()):
            await self._look(lambda _: ())
            return []
        source, others = await self._source()
        picky = bool(others) or bool(self._query.prefix)
        size = min(wanted, MAX_CHUNK)
        rows: list[R] = []
        while len(rows) < wanted:
            members = await source.next(size if picky else min(size, wanted - len(rows)))
            if not members:
                break
            prefix = self._query.prefix
            if prefix:
                members = [one for one in members if redis_keys.key_of(one).startswith(prefix)]
            rows += await self._fetch(await self._having(members, others), wanted - len(rows))
            size = min(2 * size, MAX_CHUNK)
        return rows

    async def _number(self) -> int:
        """Count the rows of the query, up to its limit."""
        query = self._query
        if not all(self._facets.values()):
            await self._look(lambda _: ())
            return 0
        alone = len(self._facets) == 1 and len(next(iter(self._facets.values()))) == 1
        if alone and not (query.prefix or query.since_ms or query.after):
            (number,) = await self._look(self._counts)
            return min(int(number), query.limit)
        source, others = await self._source()
        number = 0
        while number < query.limit:
            members = await source.next(MAX_CHUNK)
            if not members:
                break
            if query.prefix:
                members = [
                    one for one in members if redis_keys.key_of(one).startswith(query.prefix)
                ]
            number += len(await self._having(members, others))
        return min(number, query.limit)

    async def _source(self) -> "tuple[_Source, _Facets]":
        """The members to read, and the facets that remain to be checked."""
        by_key = bool(self._query.prefix) and not redis_keys.ordered_by_key(self._kind)
        if len(self._facets) < 2 and not by_key:
            return self._lists(next(iter(self._facets.values()), None)), {}
        counts = await self._look(self._counts)
        found_by_key = counts.pop() if by_key else 0
        sizes: dict[str, int] = {}
        for name, values in self._facets.items():
            sizes[name] = sum(counts[: len(values)])
            del counts[: len(values)]
        narrowest = min(sizes, key=lambda name: (sizes[name], name)) if sizes else None
        if by_key and found_by_key <= min(MAX_BY_KEY, *sizes.values(), MAX_BY_KEY):
            (found,) = await self._look(self._by_key)
            members = sorted(map(redis_keys.member_by_key, found), reverse=self._range.backward)
            return _Known([one for one in members if self._range.holds(one)]), self._facets
        if narrowest is None:
            return self._lists(None), {}
        others = {name: values for name, values in self._facets.items() if name != narrowest}
        return self._lists(self._facets[narrowest]), others

    def _counts(self, keys: Keys) -> list[Command]:
        counts: list[Command] = [
            ("ZCARD", keys.having(self._kind, facet))
            for values in self._facets.values()
            for facet in sorted(values)
        ]
        if self._query.prefix and not redis_keys.ordered_by_key(self._kind):
            counts.append(("ZLEXCOUNT", keys.by_key(self._kind), *self._beginning))
        return counts

    def _by_key(self, keys: Keys) -> list[Command]:
        return [("ZRANGEBYLEX", keys.by_key(self._kind), *self._beginning)]

    @property
    def _beginning(self) -> tuple[bytes, bytes]:
        prefix = self._query.prefix.encode("utf-8", "surrogatepass")
        return b"[" + prefix, b"(" + prefix + END

    def _lists(self, facets: frozenset[str] | None) -> "_Lists":
        kind = self._kind

        def names(keys: Keys) -> list[str]:
            if facets is None:
                return [keys.all(kind)]
            return [keys.having(kind, facet) for facet in sorted(facets)]

        return _Lists(self._look, names, 1 if facets is None else len(facets), self._range)

    async def _having(self, members: list[bytes], others: _Facets) -> list[bytes]:
        """The members whose rows have one of the values of every other facet."""
        if not others or not members:
            return members
        wanted = [redis_keys.key_of(member) for member in members]
        (raws,) = await self._look(lambda keys: [("HMGET", keys.index(self._kind), *wanted)])
        return [
            member
            for member, raw in zip(members, raws, strict=True)
            if raw is not None and _has(facets_of(raw), others)
        ]

    async def _fetch(self, members: list[bytes], wanted: int) -> list[R]:
        """Read the rows of members; leave out rows that have left the list in between."""
        members = members[:wanted]
        if not members:
            return []
        by_key = {redis_keys.key_of(member): member for member in members}
        seen = await self._view.rows({self._kind: list(by_key)})
        self._same(seen.at)
        found = (seen.rows.get((self._kind, key)) for key in by_key)
        rows = [cast("R", row) for row in found if row is not None]
        if self._strict:
            return rows
        return [
            row for row in rows if by_key[row.key] == redis_keys.member_of(row) and self._fits(row)
        ]

    def _fits(self, row: Row) -> bool:
        return _has([redis_keys.facet_name(facet) for facet in row.facets], self._facets)


def _has(facets: Sequence[str], wanted: _Facets) -> bool:
    return all(not values.isdisjoint(facets) for values in wanted.values())


class _Range:
    """The range of members of a page."""

    def __init__(self, kind: type[Row], query: Query) -> None:
        self.backward = query.newest_first
        #: The lowest member in the range, and the lowest member above the range.
        self.low: bytes | None = None
        self.high: bytes | None = None
        lows: list[bytes] = []
        highs: list[bytes] = []
        if query.since_ms:
            lows.append(redis_keys.number_bytes(query.since_ms))
        if query.after is not None:
            after = redis_keys.order_bytes(query.after)
            (highs if self.backward else lows).append(after if self.backward else after + END)
        if query.prefix and redis_keys.ordered_by_key(kind):
            text = redis_keys.text_bytes(query.prefix)
            beginning = redis_keys.number_bytes(0) + text
            lows.append(beginning)
            highs.append(beginning + END)
        self.low = max(lows, default=None)
        self.high = min(highs, default=None)

    def holds(self, member: bytes) -> bool:
        if self.low is not None and member < self.low:
            return False
        return self.high is None or member < self.high

    def command(self, name: str, after: bytes | None, count: int) -> Command:
        """The command that reads the next `count` members of the sorted set `name`.

        `after`: the last member that was read; None: read from the start of the range.
        """
        low = b"-" if self.low is None else b"[" + self.low
        high = b"+" if self.high is None else b"(" + self.high
        if after is not None:
            if self.backward:
                high = b"(" + after
            else:
                low = b"(" + after
        if self.backward:
            return ("ZREVRANGEBYLEX", name, high, low, "LIMIT", 0, count)
        return ("ZRANGEBYLEX", name, low, high, "LIMIT", 0, count)


class _Source:
    """Members in order, each once."""

    async def next(self, count: int) -> list[bytes]:
        """The next members, about `count`; none at the end."""
        raise NotImplementedError


class _Known(_Source):
    """Members that were read already."""

    def __init__(self, members: list[bytes]) -> None:
        self._members = members

    async def next(self, count: int) -> list[bytes]:
        """The next members."""
        found, self._members = self._members[:count], self._members[count:]
        return found


class _Lists(_Source):
    """Several sorted sets, read as one."""

    def __init__(
        self,
        look: Callable[[Callable[[Keys], Sequence[Command]]], Any],
        names: Callable[[Keys], list[str]],
        count: int,
        bounds: _Range,
    ) -> None:
        self._look = look
        self._names = names
        self._range = bounds
        #: For each list: members that were read and not returned, and the last that was read.
        self._read: list[list[bytes]] = [[] for _ in range(count)]
        self._after: list[bytes | None] = [None] * count
        self._done = [False] * count

    async def next(self, count: int) -> list[bytes]:
        """The next members; reads more of the lists that have no member left to return."""
        empty = [at for at, read in enumerate(self._read) if not read and not self._done[at]]
        if empty:
            share = max(MIN_CHUNK, count // len(self._read) + 1) if len(self._read) > 1 else count
            answers = await self._look(
                lambda keys: [
                    self._range.command(self._names(keys)[at], self._after[at], share)
                    for at in empty
                ]
            )
            for at, found in zip(empty, answers, strict=True):
                self._read[at] = found
                self._done[at] = len(found) < share
                self._after[at] = found[-1] if found else self._after[at]
        return self._merged()

    def _merged(self) -> list[bytes]:
        """The members that precede all members that are still to be read."""
        bounds = [
            after
            for after, done in zip(self._after, self._done, strict=True)
            if not done and after is not None
        ]
        merged: set[bytes] = set()
        if not bounds:
            merged.update(chain.from_iterable(self._read))
            self._read = [[] for _ in self._read]
        elif self._range.backward:
            bound = max(bounds)
            for at, read in enumerate(self._read):
                merged.update(one for one in read if one >= bound)
                self._read[at] = [one for one in read if one < bound]
        else:
            bound = min(bounds)
            for at, read in enumerate(self._read):
                merged.update(one for one in read if one <= bound)
                self._read[at] = [one for one in read if one > bound]
        return sorted(merged, reverse=self._range.backward)
