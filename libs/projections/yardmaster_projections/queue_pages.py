"""Pages of the queue of a pool: its pending tasks in the order of its policy.

A policy orders tasks by their traits (`Listing.place`), then, if it says so (`in_rank`), by the
ranks of their claimants as the scheduler recorded them, then by other traits (`within`), then by
submission. A *section* contains the jobs whose tasks have equal traits; a *place* contains
sections. So a page walks the places in order. In each place it walks the claimants in order of
their ranks, for each claimant the sections in the order of `within`, and in each section the jobs
by submission. Jobs of claimants without a rank, which no cycle has considered yet, come last in
their place.

A page reads at most `MAX_READ` tasks and `MAX_JOBS` jobs, so it may have fewer items than requested
although more follow. Between two pages tasks may start: positions are those at the time of reading.
"""

import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import Policy, QueueTraits, Rank
from yardmaster_projections.queries import (
    BadCursor,
    WaitFinder,
    Waits,
    counters,
    order_of,
)
from yardmaster_projections.rows import JobRow, Order, QueueRow, RankRow, TaskRow
from yardmaster_projections.rows.queue import section_of, traits_of
from yardmaster_projections.store import Query, ReadableViews
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import Among

#: Tasks and jobs that one page reads at most.
MAX_READ: Final = 10_000
MAX_JOBS: Final = 1_000
#: Rows read at once.
_CHUNK: Final = 200


@dataclass(frozen=True, slots=True)
class QueuedTasks:
    """Tasks of one job that follow each other and wait for the same reason."""

    #: The number of the first task in the queue, from 1.
    position: int
    first: TaskRow
    last_index: int
    count: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Groups of tasks in order; the next page starts at `cursor` (None: there is none)."""

    groups: tuple[QueuedTasks, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """The state of a walk through the queue: it has passed the rows that these fields name."""

    place: Rank = ()
    #: 0: claimants with a rank, 1: all others.
    step: int = 0
    #: The order of the last claimant that is done, and the claimant whose jobs are read.
    ranked: Order | None = None
    claimant: str = ""
    #: The rank of the sections that are read, and the order of the last of their jobs that is done.
    within: Rank = ()
    job: Order | None = None
    #: The job whose tasks are read, and the index of its next task.
    job_id: str = ""
    index: int = 0
    #: The number of tasks before that task.
    passed: int = 0


def _cursor(at: _At) -> str:
    where = (at.place, at.step, at.ranked, at.claimant, at.within, at.job)
    fields = (*where, at.job_id, at.index, at.passed)
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def _at(cursor: str | None) -> _At | None:
    """The state of the walk from which a cursor continues; None without a cursor.

    Raises:
        BadCursor.
    """
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        place, step, ranked, claimant, within, job, job_id, index, passed = json.loads(
            base64.b64decode(padded, altchars=b"-_", validate=True)
        )
        at = _At(
            place=tuple(map(int, place)),
            step=int(step),
            ranked=_order(ranked),
            claimant=str(claimant),
            within=tuple(map(int, within)),
            job=_order(job),
            job_id=str(job_id),
            index=int(index),
            passed=int(passed),
        )
    except (ValueError, TypeError, RecursionError):
        raise BadCursor("the cursor is not from a page of this queue") from None
    return at


def _order(found: Any) -> Order | None:
    if found is None:
        return None
    return order_of(base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("="))


class QueueReader:
    """Reads pages of the queue of one pool, for one answer."""

    def __init__(
        self,
        store: ReadableViews,
        pool: str,
        policy: Policy,
        options: Any,
        now_ms: int,
        *,
        includes: Callable[[str], bool],
        grouped: bool = True,
    ) -> None:
        self._store = store
        self._pool = pool
        self._listing = policy.listing
        self._options = options
        self._among = policy.listing.claimants(options)
        #: Whether the tasks of a project are listed; other tasks only count for positions.
        self._includes = includes
        self._grouped = grouped
        self._finder = WaitFinder(store, now_ms)
        self._read = 0

    async def page(self, limit: int, cursor: str | None = None) -> QueuePage:
        """At most `limit` groups from a cursor on.

        Raises:
            BadCursor.
        """
        start = _at(cursor)
        passed = start.passed if start is not None else 0
        groups: list[QueuedTasks] = []
        jobs = 0
        async for at, row in self._jobs(start):
            resumed = start is not None and (start.job_id, at.job) == (row.job_id, start.job)
            index = start.index if start is not None and resumed else 0
            at = replace(at, job_id=row.job_id, index=index, passed=passed)
            if jobs >= MAX_JOBS or self._read >= MAX_READ or len(groups) >= limit:
                return QueuePage(tuple(groups), _cursor(at))
            jobs += 1
            if not self._includes(row.project):
                passed += await self._count(row)
                continue
            async for group in self._groups(row, index, passed):
                if len(groups) >= limit:
                    at = replace(at, index=group.first.index, passed=passed)
                    return QueuePage(tuple(groups), _cursor(at))
                groups.append(group)
                passed += group.count
        return QueuePage(tuple(groups), None)

    # Jobs, in order

    async def _jobs(self, start: _At | None) -> AsyncIterator[tuple[_At, QueueRow]]:
        """The jobs in the queue, each with the state of the walk before it."""
        sections = [
            traits_of(section) for section in (await counters(self._store, self._key)).sections
        ]
        places: dict[Rank, list[QueueTraits]] = {}
        for traits in sections:
            places.setdefault(tuple(map(int, self._listing.place(traits))), []).append(traits)
        for place in sorted(places):
            if start is not None and place < start.place:
                continue
            begin = start if start is not None and place == start.place else _At(place=place)
            some = places[place]
            ranked = self._among is not None and self._listing.in_rank(some[0])
            if ranked and begin.step == 0:
                async for found in self._by_rank(begin, some):
                    yield found
                begin = _At(place=place, step=1)
            async for found in self._by_submission(begin, some, skip_ranked=ranked):
                yield found

    @property
    def _key(self) -> str:
        return f"pool/{self._pool}"

    async def _by_rank(
        self, at: _At, sections: Sequence[QueueTraits]
    ) -> AsyncIterator[tuple[_At, QueueRow]]:
        assert self._among is not None
        facets = {"pool": frozenset({f"{self._pool}/{self._among}"})}
        after = at.ranked
        while True:
            page = await self._store.page(RankRow, Query(facets=facets, after=after, limit=_CHUNK))
            for rank in page.rows:
                same = at.claimant == rank.claimant
                here = _At(
                    place=at.place,
                    ranked=after,
                    claimant=rank.claimant,
                    within=at.within if same else (),
                    job=at.job if same else None,
                )
                async for found in self._of_claimant(here, sections):
                    yield found
                after = rank.order
            if page.next is None:
                return

    async def _of_claimant(
        self, at: _At, sections: Sequence[QueueTraits]
    ) -> AsyncIterator[tuple[_At, QueueRow]]:
        if self._among is Among.JOB:
            for _, some in self._parts(sections):
                for failed in sorted({traits.failed for traits in some}):
                    key = f"{self._pool}/{at.claimant}" + ("/failed" if failed else "")
                    row = await self._store.get(QueueRow, key)
                    if row is not None and row.traits in some:
                        yield at, row
            return
        assert self._among is not None
        of = f"{self._pool}/{at.claimant}"
        async for found in self._in_parts(at, self._among, of, sections):
            yield found

    async def _by_submission(
        self, at: _At, sections: Sequence[QueueTraits], *, skip_ranked: bool
    ) -> AsyncIterator[tuple[_At, QueueRow]]:
        async for found in self._in_parts(at, "section", self._pool, sections):
            if skip_ranked and self._among is not None:
                name = found[1].claimant(self._among)
                if await self._store.get(RankRow, f"{self._pool}/{self._among}/{name}"):
                    continue
            yield found

    def _parts(self, sections: Sequence[QueueTraits]) -> list[tuple[Rank, list[QueueTraits]]]:
        """The sections of a place by their rank in `within`; sections of equal rank together."""
        parts: dict[Rank, list[QueueTraits]] = {}
        for traits in sections:
            within = tuple(map(int, self._listing.within(self._options, traits)))
            parts.setdefault(within, []).append(traits)
        return sorted(parts.items(), key=itemgetter(0))

    async def _in_parts(
        self, at: _At, facet: str, of: str, sections: Sequence[QueueTraits]
    ) -> AsyncIterator[tuple[_At, QueueRow]]:
        """The jobs of a pool or of a claimant (`of`), part by part, each part by submission."""
        for within, some in self._parts(sections):
            if within < at.within:
                continue
            here = at if within == at.within else replace(at, within=within, job=None)
            names = frozenset(f"{of}/{section_of(traits)}" for traits in some)
            async for found in self._walk(here, {facet: names}):
                yield found

    async def _walk(
        self, at: _At, facets: dict[str, frozenset[str]]
    ) -> AsyncIterator[tuple[_At, QueueRow]]:
        after = at.job
        while True:
            page = await self._store.page(QueueRow, Query(facets=facets, after=after, limit=_CHUNK))
            for row in page.rows:
                yield replace(at, job=after), row
                after = row.order
            if page.next is None:
                return

    # Tasks of a job

    async def _count(self, row: QueueRow) -> int:
        job = await self._store.get(JobRow, row.job_id)
        if job is None:
            return 0
        return job.failed if row.traits.failed else job.phases.get(Phase.PENDING, 0) - job.failed

    async def _groups(self, row: QueueRow, index: int, passed: int) -> AsyncIterator[QueuedTasks]:
        """The pending tasks of a job from an index on, grouped by the reason why they wait."""
        group: QueuedTasks | None = None
        known: Waits | None = None
        async for task in self._tasks(row, index):
            waits = await self._finder.waits(task)
            if group is not None and self._grouped and waits == known and task.reserved is None:
                group = replace(group, last_index=task.index, count=group.count + 1)
                continue
            if group is not None:
                yield group
                passed += group.count
            group, known = QueuedTasks(passed + 1, task, task.index, 1), waits
        if group is not None:
            yield group

    async def _tasks(self, row: QueueRow, index: int) -> AsyncIterator[TaskRow]:
        facets = {"job": frozenset({row.job_id}), "phase": frozenset({str(Phase.PENDING)})}
        after = (row.submitted_at_ms, row.job_id, index - 1) if index else None
        while True:
            page = await self._store.page(TaskRow, Query(facets=facets, after=after, limit=_CHUNK))
            for task in page.rows:
                self._read += 1
                if task.start_failed == row.traits.failed:
                    yield task
            if page.next is None:
                return
            after = page.next
