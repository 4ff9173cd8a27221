"""Queries of the gateway and the command line.

Every query takes the caller's `Visibility`; a row outside of it does not exist for the caller.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from yardmaster_core.scheduling.planner.lifecycle import MAX_FAILED_STARTS
from yardmaster_core.scheduling.state.shapes import shape_id
from yardmaster_projections.rows import (
    AttemptRow,
    CountersRow,
    DepartmentRow,
    JobRow,
    LogRow,
    NodeRow,
    Order,
    PoolRow,
    ProjectRow,
    R,
    Reserved,
    Row,
    SeenRow,
    TaskRow,
    WaitRow,
)
from yardmaster_projections.store import Page, Query, ReadableViews
from yardmaster_schemas.api import Phase
from yardmaster_schemas.reasons import Wait, WaitCode

MAX_LIMIT: Final = 1000
#: Phases of tasks that have not ended.
LIVE: Final = tuple(str(phase) for phase in Phase if not phase.final)
#: Phases of tasks that have an attempt.
WITH_ATTEMPT: Final = tuple(phase for phase in LIVE if phase != Phase.PENDING)
#: The highest number up to which the tasks in a phase are counted.
MAX_COUNTED: Final = 10_000
#: Attempts of a task in an answer; older ones are in the log.
MAX_ATTEMPTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Visibility:
    """The projects that a caller may see; `projects` None: all projects."""

    projects: frozenset[str] | None = None

    def includes(self, project: str) -> bool:
        """Whether the caller may see a project."""
        return self.projects is None or project in self.projects


ALL_PROJECTS: Final = Visibility()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of a list; an empty filter allows all rows."""

    phases: frozenset[Phase] = frozenset()
    projects: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    departments: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    job_id: str | None = None
    labels: Mapping[str, frozenset[str]] | None = None
    ref: str = ""
    since_ms: int = 0
    newest_first: bool = True
    limit: int = 100
    cursor: str | None = None


class BadCursor(ValueError):
    """A cursor that is not from a page."""


def cursor_of(order: Order | None) -> str | None:
    """Return the opaque cursor with which the next page starts."""
    if order is None:
        return None
    return base64.urlsafe_b64encode(json.dumps(order).encode()).decode().rstrip("=")


def order_of(cursor: str | None) -> Order | None:
    """The order after which the page of a cursor starts; the inverse of `cursor_of`.

    Raises:
        BadCursor: the cursor is not from a page.
    """
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        number, name, index = found
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise BadCursor("the cursor is not from a page of this list") from None
    if type(number) is not int or type(name) is not str or type(index) is not int:
        raise BadCursor("the cursor is not from a page of this list")
    return (number, name, index)


def _query(kind: type[Row], filters: Filters, visibility: Visibility) -> Query:
    named = (
        ("phase", frozenset(str(phase) for phase in filters.phases)),
        *(("pool", filters.pools), ("node", filters.nodes), ("user", filters.users)),
        *(("kind", filters.kinds), ("state", filters.states), ("name", filters.names)),
        *(("department", filters.departments), ("parent", filters.parents)),
        ("job", frozenset() if filters.job_id is None else frozenset({filters.job_id})),
        *((f"label.{key}", values) for key, values in (filters.labels or {}).items()),
    )
    facets = {name: values for name, values in named if values}
    projects = filters.projects
    if kind in (TaskRow, JobRow, ProjectRow) and visibility.projects is not None:
        projects = projects & visibility.projects if projects else visibility.projects
        facets["project"] = projects
    elif projects:
        facets["project"] = projects
    if kind is NodeRow:
        facets["listed"] = frozenset({"yes"})
    return Query(
        facets=facets,
        prefix=filters.ref,
        since_ms=filters.since_ms,
        after=order_of(filters.cursor),
        newest_first=filters.newest_first,
        limit=max(1, min(filters.limit, MAX_LIMIT)),
    )


async def rows(
    store: ReadableViews, kind: type[R], filters: Filters, visibility: Visibility = ALL_PROJECTS
) -> Page[R]:
    """One page of a kind.

    Raises:
        BadCursor: the cursor of the filters is not from a page.
    """
    return await store.page(kind, _query(kind, filters, visibility))


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Tasks of one job in one phase: the task with the lowest index, the highest index, the number.

    Failed tasks of a group ended alike: with the same code, exit code and signal.
    """

    first: TaskRow
    last_index: int
    count: int


@dataclass(frozen=True, slots=True)
class TaskGroups:
    """The groups of tasks of the jobs of a page, and the order after which the next page starts."""

    groups: tuple[TaskGroup, ...]
    next: Order | None


async def task_groups(
    store: ReadableViews, filters: Filters, visibility: Visibility = ALL_PROJECTS
) -> TaskGroups:
    """The tasks of a page of jobs, grouped by job and phase; failed ones also by how they ended.

    A group costs two short reads, whatever its number of tasks. `filters.limit` is a number of
    jobs.

    Raises:
        BadCursor: the cursor of the filters is not from a page.
    """
    of_jobs = replace(filters, job_id=None, ref=filters.job_id or filters.ref)
    page = await rows(store, JobRow, of_jobs, visibility)
    found: list[TaskGroup] = []
    for job in page.rows:
        for phase in Phase:
            count = job.phases.get(phase, 0)
            if not count or (filters.phases and phase not in filters.phases):
                continue
            parts = {"": count} if phase is not Phase.FAILED else job.ends
            for end, number in parts.items():
                facets = {"job": frozenset({job.key}), "phase": frozenset({str(phase)})}
                if end:
                    facets["end"] = frozenset({end})
                # Tasks may have left the phase since the job was read.
                if (group := await _group(store, facets, number)) is not None:
                    found.append(group)
    return TaskGroups(tuple(found), page.next)


async def _group(
    store: ReadableViews, facets: Mapping[str, frozenset[str]], count: int
) -> TaskGroup | None:
    """The group of the `count` tasks that have these facets; None if they no longer exist.

    Only the first and the last task are read.
    """
    ends = [
        (await store.page(TaskRow, Query(facets=facets, newest_first=last, limit=1))).rows
        for last in ((False, True) if count > 1 else (False,))
    ]
    return TaskGroup(ends[0][0], ends[-1][0].index, count) if all(ends) else None


async def task_counts(
    store: ReadableViews, filters: Filters, visibility: Visibility = ALL_PROJECTS
) -> dict[Phase, int]:
    """The number of tasks in each phase, up to `MAX_COUNTED`; `filters.phases` is ignored."""
    found: dict[Phase, int] = {}
    for phase in Phase:
        query = _query(
            TaskRow, replace(filters, phases=frozenset({phase}), cursor=None), visibility
        )
        number = (await store.count(TaskRow, replace(query, limit=MAX_COUNTED))).number
        if number:
            found[phase] = number
    return found


async def task(
    store: ReadableViews, task_id: str, visibility: Visibility = ALL_PROJECTS
) -> TaskRow | None:
    """A task, if it exists and the caller may see it."""
    row = await store.get(TaskRow, task_id)
    return row if row is not None and visibility.includes(row.job.project) else None


async def job(
    store: ReadableViews, job_id: str, visibility: Visibility = ALL_PROJECTS
) -> JobRow | None:
    """A job, if it exists and the caller may see it."""
    row = await store.get(JobRow, job_id)
    return row if row is not None and visibility.includes(row.facts.project) else None


async def project(
    store: ReadableViews, name: str, visibility: Visibility = ALL_PROJECTS
) -> ProjectRow | None:
    """A project, if it exists and the caller may see it."""
    row = await store.get(ProjectRow, name)
    return row if row is not None and visibility.includes(name) else None


async def resolve(
    store: ReadableViews, ref: str, visibility: Visibility = ALL_PROJECTS
) -> tuple[str, ...]:
    """The ids that match a REF, which is an id or the prefix of ids; at most two of them.

    A prefix without a dot matches ids of jobs, a prefix with a dot matches ids of tasks.
    """
    if "." in ref:
        exact = await task(store, ref, visibility)
        if exact is not None:
            return (exact.key,)
        page: Page[Any] = await rows(store, TaskRow, Filters(ref=ref, limit=2), visibility)
    else:
        page = await rows(store, JobRow, Filters(ref=ref, limit=2), visibility)
    return tuple(row.key for row in page.rows)


async def attempts(store: ReadableViews, task_id: str) -> Page[AttemptRow]:
    """A task's attempts, the newest first."""
    query = Query(facets={"task": frozenset({task_id})}, newest_first=True, limit=MAX_ATTEMPTS)
    return await store.page(AttemptRow, query)


async def counters(store: ReadableViews, name: str) -> CountersRow:
    """The counters of `project/x` or `pool/y`."""
    return await store.get(CountersRow, name) or CountersRow(name=name)


async def pools(store: ReadableViews) -> tuple[PoolRow, ...]:
    """All pools, by name."""
    page = await store.page(PoolRow, Query(limit=MAX_LIMIT))
    return page.rows


async def projects_of(
    store: ReadableViews, department: str, visibility: Visibility = ALL_PROJECTS
) -> tuple[ProjectRow, ...]:
    """The projects of a department that the caller may see, by name."""
    return await _projects_of(store, frozenset({department}), visibility)


async def projects_below(
    store: ReadableViews, department: str, visibility: Visibility = ALL_PROJECTS
) -> tuple[ProjectRow, ...]:
    """The projects of a department and of all departments below it that the caller may see."""
    below = [row.name for row in await departments_below(store, department)]
    return await _projects_of(store, frozenset({department, *below}), visibility)


async def _projects_of(
    store: ReadableViews, departments: frozenset[str], visibility: Visibility
) -> tuple[ProjectRow, ...]:
    filters = Filters(departments=departments, newest_first=False, limit=MAX_LIMIT)
    return (await rows(store, ProjectRow, filters, visibility)).rows


async def children_of(store: ReadableViews, *departments: str) -> tuple[DepartmentRow, ...]:
    """The departments whose parent is one of these departments, by name."""
    filters = Filters(parents=frozenset(departments), newest_first=False, limit=MAX_LIMIT)
    return (await rows(store, DepartmentRow, filters)).rows


async def departments_below(store: ReadableViews, department: str) -> tuple[DepartmentRow, ...]:
    """All departments below a department, level by level; costs a read per level."""
    found: dict[str, DepartmentRow] = {}
    level = await children_of(store, department)
    while level:
        found |= {row.name: row for row in level}
        below = await children_of(store, *(row.name for row in level))
        # A change between two reads may show a department twice.
        level = tuple(row for row in below if row.name not in found)
    return tuple(found.values())


async def department_visible(
    store: ReadableViews, row: DepartmentRow, visibility: Visibility
) -> bool:
    """Whether a caller may see a department, because it may see a project in or below it."""
    return visibility.projects is None or bool(await projects_below(store, row.name, visibility))


async def seen_ms(store: ReadableViews, node: str) -> int | None:
    """The time of the last heartbeat of a node."""
    row = await store.get(SeenRow, node)
    return row.at_ms if row is not None else None


async def log(store: ReadableViews, cell: str) -> LogRow | None:
    """The identity of the log, once its first record was projected."""
    return await store.get(LogRow, cell)


@dataclass(frozen=True, slots=True)
class Waits:
    """The reasons why a task waits: one for each pool, or one for all pools (`held`)."""

    recorded: tuple[tuple[str, WaitRow | None], ...] = ()
    held: "Held | None" = None


@dataclass(frozen=True, slots=True)
class Held:
    """A reason that blocks a task independent of free capacity."""

    code: str
    numbers: Mapping[str, int]


def _wait_for_slots(row: TaskRow, reserved: Reserved) -> WaitRow:
    """The wait of a task with reserved slots; it replaces the wait that tasks of a shape share."""
    numbers = {"victims": reserved.victims, "asked_milli": row.gpu_milli}
    if reserved.until_ms:
        numbers["until_at_ms"] = reserved.until_ms
    return WaitRow(
        pool=reserved.pool,
        shape=row.job.shape or "",
        priority=row.job.spec.priority if row.job.spec is not None else 0,
        wait=Wait(code=WaitCode.WAITING_FOR_VICTIMS, numbers=numbers),
        since_ms=reserved.at_ms,
        cycle=reserved.cycle,
    )


class WaitFinder:
    """Finds why tasks wait, for one answer; tasks of a job or shape share the reads."""

    def __init__(self, store: ReadableViews, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._recorded: dict[str, WaitRow | None] = {}
        self._last_indexes: dict[str, int | None] = {}

    async def waits(self, row: TaskRow) -> Waits | None:
        """The reasons why a pending task waits; None for any other task."""
        if row.phase is not Phase.PENDING:
            return None
        if row.paused:
            return Waits(held=Held("paused", {}))
        if row.not_before_ms > self._now_ms and row.failed_starts:
            numbers = {
                "until_at_ms": row.not_before_ms,
                "failed_starts": row.failed_starts,
                "limit": MAX_FAILED_STARTS,
            }
            return Waits(held=Held("start_backoff", numbers))
        if row.not_before_ms > self._now_ms:
            numbers = {"until_at_ms": row.not_before_ms, "restarts": row.restarts}
            return Waits(held=Held("restart_backoff", numbers))
        spec = row.job.spec
        if spec is None or row.job.shape is None:
            return Waits()
        if row.reserved is not None:
            return Waits(recorded=((row.reserved.pool, _wait_for_slots(row, row.reserved)),))
        if spec.max_concurrent is not None:
            last = await self._last_index(row.job.job_id, spec.max_concurrent)
            if last is not None and row.index > last:
                numbers = {"limit": spec.max_concurrent, "used": spec.max_concurrent}
                return Waits(held=Held("at_max_concurrent", numbers))
        # In a pool that is divided among jobs, each job has its own shape; in a pool that is
        # divided among users, the jobs of a user share one. The newest recorded wait tells which
        # of these shapes applies now.
        job, project, failed = row.job.job_id, row.job.project, row.start_failed
        shared = shape_id(job, project, spec, start_failed=True) if failed else row.job.shape
        own = shape_id(job, project, spec, own=True, start_failed=failed)
        of_user = shape_id(job, project, spec, start_failed=failed, user=row.job.actor)
        shapes = dict.fromkeys((shared, own, of_user))
        found = []
        for pool in spec.pools:
            waits = [await self._wait(f"{pool}/{shape}/{spec.priority}") for shape in shapes]
            known = [wait for wait in waits if wait is not None]
            found.append((pool, max(known, key=lambda wait: wait.cycle, default=None)))
        return Waits(recorded=tuple(found))

    async def _wait(self, key: str) -> WaitRow | None:
        if key not in self._recorded:
            self._recorded[key] = await self._store.get(WaitRow, key)
        return self._recorded[key]

    async def _last_index(self, job_id: str, most: int) -> int | None:
        """The highest index of a pending task that may start now, if at most `most` tasks of the
        job run at once; None: all pending tasks may.

        Tasks with an attempt take their places first. The free places go to the pending tasks with
        the lowest indexes that are not paused.
        """
        if job_id not in self._last_indexes:
            facets = {"job": frozenset({job_id}), "phase": frozenset(WITH_ATTEMPT)}
            page = await self._store.page(TaskRow, Query(facets=facets, limit=most))
            self._last_indexes[job_id] = await self._last_pending(job_id, most - len(page.rows))
        return self._last_indexes[job_id]

    async def _last_pending(self, job_id: str, places: int) -> int | None:
        """The index of the pending task that gets the last of the free places.

        None if there are enough places for all pending tasks; -1 without free places.
        """
        if not places:
            return -1
        facets = {"job": frozenset({job_id}), "phase": frozenset({str(Phase.PENDING)})}
        after: Order | None = None
        while True:
            query = Query(facets=facets, after=after, limit=max(places, 100))
            page = await self._store.page(TaskRow, query)
            for row in page.rows:
                places -= not row.paused
                if not places:
                    return row.index
            after = page.next
            if after is None:
                return None
