"""Queries of metered usage: GPU time by project, user or pool, in hours, days or months.

Windows are whole hours in UTC: `from` is rounded down, `to` is rounded up. Slots that are still
held count up to the end of the window, or to now.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from yardmaster_projections.errors import TooMuchUsage, ViewsUnavailable
from yardmaster_projections.queries import Visibility
from yardmaster_projections.rows import R
from yardmaster_projections.store import Query, ReadableViews, RowKey
from yardmaster_projections.usage import HOUR_MS, HeldRow, UsageRow, held
from yardmaster_schemas.api import UsageBucket, UsageBy
from yardmaster_schemas.position import Position

#: Rows that one answer may need; a row is an hour of a project's user in a pool.
MAX_ROWS: Final = 200_000
_PAGE: Final = 1_000
#: How often held slots are read again, at most, until none was released since the last read.
MAX_TRIES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """A query of usage; the window begins and ends at whole hours."""

    from_ms: int
    to_ms: int
    by: UsageBy = UsageBy.PROJECT
    #: None: the whole window is one bucket.
    bucket: UsageBucket | None = None

    @classmethod
    def window(
        cls, from_ms: int, to_ms: int, by: UsageBy, bucket: UsageBucket | None
    ) -> "UsageQuery":
        """A query for the whole hours that contain two moments."""
        start = from_ms - from_ms % HOUR_MS
        return cls(from_ms=start, to_ms=to_ms + -to_ms % HOUR_MS, by=by, bucket=bucket)


@dataclass(frozen=True, slots=True)
class Metered:
    """GPU time at a position.

    `sums` has (start of the bucket in ms, name, gpu_milli x ms), sorted in this order.
    """

    sums: tuple[tuple[int, str, int], ...]
    position: Position

    def gpu_milli_seconds(self) -> Iterable[tuple[int, str, int]]:
        """Bucket's start (ms), name, and gpu_milli x seconds, rounded down."""
        return ((start, name, milli_ms // 1000) for start, name, milli_ms in self.sums)


def bucket_of(at_ms: int, bucket: UsageBucket | None, window_ms: int) -> int:
    """The start of the bucket that contains a moment; without buckets the start of the window."""
    if bucket is None:
        return window_ms
    if bucket is UsageBucket.HOUR:
        return at_ms - at_ms % HOUR_MS
    day = datetime.fromtimestamp(at_ms // 1000, tz=UTC).replace(hour=0, minute=0, second=0)
    if bucket is UsageBucket.MONTH:
        day = day.replace(day=1)
    return int(day.timestamp()) * 1000


async def metered(
    store: ReadableViews, query: UsageQuery, visibility: Visibility, now_ms: int
) -> Metered:
    """Return the usage that a caller may see.

    The rows fill several pages. If slots are released between two reads, their usage moves from
    the held rows to the rows of hours. So at the end all held rows are read again, at one position
    with the hours of the rows that were released. This is repeated until no further row was
    released.

    Raises:
        TooMuchUsage: the query needs more than `MAX_ROWS` rows.
        ViewsUnavailable: slots were released during each of `MAX_TRIES` reads; or the store is
            unavailable.
    """
    held_rows, position = await _all(store, HeldRow, visibility, 0, None)
    used_rows, _ = await _all(store, UsageRow, visibility, query.from_ms, query.to_ms)
    used = {row.key: row for row in used_rows}
    # The time of the log may be ahead of this clock by less than an hour.
    until_ms = min(query.to_ms, now_ms + HOUR_MS)
    gone: list[HeldRow] = []
    for _ in range(MAX_TRIES):
        hours = {row.key: None for one in gone for row in held(one, query.from_ms, until_ms)}
        wanted: list[RowKey] = [(HeldRow, one.key) for one in held_rows]
        found = (await store.get_all([*wanted, *((UsageRow, key) for key in hours)])).rows
        used |= {row.key: row for row in found if isinstance(row, UsageRow)}
        there = {row.key for row in found if isinstance(row, HeldRow)}
        closed = [one for one in held_rows if one.key not in there]
        if not closed:
            break
        held_rows = [one for one in held_rows if one.key in there]
        gone += closed
    else:
        raise ViewsUnavailable(found=f"usage changed during each of {MAX_TRIES} reads")
    sums: dict[tuple[int, str], int] = {}
    for one in held_rows:
        for row in held(one, query.from_ms, min(query.to_ms, now_ms)):
            _add(sums, row, query)
    for row in used.values():
        _add(sums, row, query)
    ordered = sorted((start, name, count) for (start, name), count in sums.items())
    return Metered(tuple(ordered), position)


def _add(sums: dict[tuple[int, str], int], row: UsageRow, query: UsageQuery) -> None:
    start = bucket_of(row.hour_ms, query.bucket, query.from_ms)
    at = (start, str(getattr(row, query.by)))
    sums[at] = sums.get(at, 0) + row.gpu_milli_ms


async def _all(
    store: ReadableViews, kind: type[R], visibility: Visibility, since_ms: int, until_ms: int | None
) -> tuple[list[R], Position]:
    """All visible rows of a kind between two times, and the position that all of them cover."""
    facets = {} if visibility.projects is None else {"project": visibility.projects}
    rows: list[R] = []
    first: Position | None = None
    query = Query(facets=facets, since_ms=since_ms, limit=_PAGE)
    while True:
        page = await store.page(kind, query)
        first = first or page.position
        rows += (row for row in page.rows if until_ms is None or row.order[0] < until_ms)
        if len(rows) > MAX_ROWS:
            raise TooMuchUsage(limit=MAX_ROWS)
        if page.next is None or (until_ms is not None and page.next[0] >= until_ms):
            return rows, first
        query = Query(facets=facets, since_ms=since_ms, after=page.next, limit=_PAGE)
