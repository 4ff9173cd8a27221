"""The views after a step of the projection: an overlay that collects changes.

Many events of a step change the counts of jobs, the counters of pools and projects, and histories.
The draft sums up these changes, and `changes` writes each row once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, cast

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.planner.policy import QueueTraits
from yardmaster_projections.errors import NotLoaded
from yardmaster_projections.rows import (
    CountersRow,
    Facet,
    HistoryRow,
    JobRow,
    NodeRow,
    QueueRow,
    R,
    RequestRow,
    Row,
    SharesRow,
    TaskRow,
)
from yardmaster_projections.rows.queue import section_of
from yardmaster_projections.store import Change, Delete, Put, ViewReader
from yardmaster_schemas.api import Phase

#: The most records in a history; older records are found only in the log.
MAX_HISTORY: Final = 1000
_PHASE_ORDER: Final = {phase: place for place, phase in enumerate(Phase)}
#: Phases in which a task counts as running in its project.
ACTIVE: Final = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


#: The counter of nodes that were ever enrolled; until it exists, the cell is open.
ENROLLED: Final = "enrolled"


class MissingRows:
    """Collects the rows that the parts of a step miss, so that they are loaded together.

    Each part runs in `with missing:`. Once a row is missing, a later part may find a contradiction
    only because of that. So ImpossibleEvent is then suppressed: the step will run again.
    """

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: list[NotLoaded] = []

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, NotLoaded):
            self._missing.append(error)
            return True
        return bool(self._missing) and isinstance(error, ImpossibleEvent)

    def end(self) -> None:
        """Request the missing rows; call it after all parts have run.

        Raises:
            NotLoaded: rows were missing.
        """
        if self._missing:
            raise NotLoaded.merged(self._missing)


class _Sums:
    """Amounts to add to a `CountersRow`."""

    __slots__ = (
        "gpu_milli",
        "nodes",
        "pending",
        "running",
        "sections",
        "used",
        "waiting",
        "waiting_milli",
    )

    def __init__(self) -> None:
        self.used: dict[str, int] = defaultdict(int)
        self.pending: dict[str, int] = defaultdict(int)
        self.waiting_milli = 0
        self.waiting = 0
        self.running = 0
        self.nodes = 0
        self.gpu_milli = 0
        self.sections: dict[str, None] = {}


class Draft:
    """Rows with the changes of the step; `now_ms` and `cycle`: time and number of its cycle."""

    def __init__(self, view: ViewReader, *, now_ms: int = 0, cycle: int = 0) -> None:
        self.now_ms = now_ms
        self.cycle = cycle
        self._view = view
        self._rows: dict[tuple[str, str], Change] = {}
        self._sums: dict[str, _Sums] = {}
        self._phases: dict[str, dict[Phase, int]] = {}
        self._failed: dict[str, int] = {}
        self._ends: dict[str, dict[str, int]] = {}
        self._histories: dict[str, list[tuple[str, int]]] = {}

    def find(self, kind: type[R], key: str) -> R | None:
        """The row of a key, as changed so far."""
        change = self._rows.get((kind.KIND, key))
        if change is None:
            return self._view.find(kind, key)
        return cast("R", change.row) if isinstance(change, Put) else None

    def need(self, kind: type[R], key: str, event: str) -> R:
        """The row that an event is about.

        Raises:
            ImpossibleEvent: the row does not exist; the log and the views contradict each other.
        """
        row = self.find(kind, key)
        if row is None:
            raise ImpossibleEvent(event=event, found=f"the views know no {kind.KIND} {key}")
        return row

    def need_each(self, kind: type[R], keys: Iterable[str], event: str) -> list[R]:
        """The rows that an event is about; all that are not cached are requested together.

        Raises:
            ImpossibleEvent: one of them does not exist.
        """
        missing = MissingRows()
        found: list[R] = []
        for key in keys:
            with missing:
                found.append(self.need(kind, key, event))
        missing.end()
        return found

    def request(self, record_id: str) -> RequestRow | None:
        """The request with a record id; None once quota has decided on it."""
        for row in self._view.having(RequestRow, ("record", record_id)):
            return self.find(RequestRow, row.key)
        return None

    def having(self, kind: type[R], facet: Facet) -> list[R]:
        """The rows that had a facet before the step, as changed so far."""
        found = [self.find(kind, row.key) for row in self._view.having(kind, facet)]
        return [row for row in found if row is not None]

    def enroll(self) -> None:
        """Count a node that was enrolled for the first time."""
        self._of(ENROLLED).nodes += 1

    def put(self, row: Row) -> None:
        """Insert or replace a row."""
        self._rows[row.KIND, row.key] = Put(row)

    def drop(self, row: Row) -> None:
        """Delete a row."""
        self._rows[row.KIND, row.key] = Delete(row)

    def drop_shares(self, pool: str) -> None:
        """Delete the division of a pool, with all its parts."""
        changed = [change.row for change in self._rows.values() if isinstance(change, Put)]
        for row in (*self.having(SharesRow, ("pool", pool)), *changed):
            if isinstance(row, SharesRow) and row.pool == pool:
                self.drop(row)

    def add_task(self, task: TaskRow) -> None:
        """Insert a task and count it."""
        self._count(task, +1)
        self.put(task)

    def change_task(self, task: TaskRow, **changes: Any) -> TaskRow:
        """Change a task and the counts that include it."""
        new = replace(task, **changes)
        if new.phase is not task.phase or new.start_failed is not task.start_failed:
            self._count(task, -1)
            self._count(new, +1)
        self.put(new)
        return new

    def change_node(self, node: NodeRow, **changes: Any) -> NodeRow:
        """Change a node and the capacity of its pool."""
        new = replace(node, **changes)
        if new.joined is not node.joined or (new.lost, new.left) != (node.lost, node.left):
            self._offer(node, -1)
            self._offer(new, +1)
        self.put(new)
        return new

    def use(self, project: str, pool: str, milli: int) -> None:
        """Add `milli` gpu_milli to the usage of a pool by a project."""
        self._of(f"project/{project}").used[pool] += milli
        self._of(f"pool/{pool}").used[pool] += milli

    def add_to_history(self, subject: str, topic: str, offset: int) -> None:
        """Add a record to the history of a job or task."""
        self._histories.setdefault(subject, []).append((topic, offset))

    def changes(self) -> list[Change]:
        """All changes of the step, in a defined order. Call it once."""
        missing = MissingRows()
        for job_id, phases in self._phases.items():
            with missing:
                job = self.find(JobRow, job_id)
                if job is not None:
                    failed = job.failed + self._failed.get(job_id, 0)
                    ends = _both(dict(job.ends), self._ends.get(job_id, {}))
                    counts = _in_phases(job.phases, phases)
                    self.put(replace(job, phases=counts, failed=failed, ends=ends))
        for change in [each for (kind, _), each in self._rows.items() if kind == JobRow.KIND]:
            with missing:
                self._queue(change)
        for name, sums in self._sums.items():
            with missing:
                self.put(_added(self.find(CountersRow, name) or CountersRow(name=name), sums))
        for subject, records in self._histories.items():
            with missing:
                before = self.find(HistoryRow, subject) or HistoryRow(subject=subject)
                self.put(replace(before, records=(*before.records, *records)[-MAX_HISTORY:]))
        missing.end()
        return list(self._rows.values())

    def _queue(self, change: Change) -> None:
        """Put the job of a changed row into the queues of its pools, or remove it from them."""
        job = cast("JobRow", change.row)
        old = self._view.find(JobRow, job.key)
        before = {} if old is None else queue_rows(old)
        after = queue_rows(job) if isinstance(change, Put) else {}
        for key, row in before.items():
            if key not in after:
                self.drop(row)
        for key, row in after.items():
            if before.get(key) != row:
                self.put(row)
                self._of(f"pool/{row.pool}").sections[section_of(row.traits)] = None

    def _of(self, name: str) -> _Sums:
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums()
        return sums

    def drop_task(self, task: TaskRow) -> None:
        """Delete a task whose submission was refused."""
        self._count(task, -1)
        self.drop(task)

    def _count(self, task: TaskRow, by: int) -> None:
        """Add a task to the counts of its job, project and pools; `by` -1 removes it."""
        phases = self._phases.setdefault(task.job.job_id, defaultdict(int))
        phases[task.phase] += by
        if task.phase is Phase.PENDING:
            if task.start_failed:
                job_id = task.job.job_id
                self._failed[job_id] = self._failed.get(job_id, 0) + by
            milli = task.gpu_milli
            project = self._of(f"project/{task.job.project}")
            project.waiting += by
            project.waiting_milli += by * milli
            for pool in task.job.pools:
                project.pending[pool] += by * milli
                sums = self._of(f"pool/{pool}")
                sums.pending[pool] += by * milli
                sums.waiting += by
        elif task.phase in ACTIVE:
            self._of(f"project/{task.job.project}").running += by
        elif task.failed and task.end is not None:
            self._ends.setdefault(task.job.job_id, defaultdict(int))[task.end.facet] += by

    def _offer(self, node: NodeRow, by: int) -> None:
        """Add the capacity of a node that is present to its pool; `by` -1 removes it."""
        if node.joined is not None and not node.lost and not node.left:
            sums = self._of(f"pool/{node.joined.pool}")
            sums.nodes += by
            sums.gpu_milli += by * 1000 * node.joined.gpus


def _added(row: CountersRow, sums: _Sums) -> CountersRow:
    """The row with the sums of the step added."""
    return CountersRow(
        name=row.name,
        used_milli=_both(dict(row.used_milli), sums.used),
        pending_milli=_both(dict(row.pending_milli), sums.pending),
        waiting_milli=row.waiting_milli + sums.waiting_milli,
        waiting=row.waiting + sums.waiting,
        running=row.running + sums.running,
        nodes=row.nodes + sums.nodes,
        gpu_milli=row.gpu_milli + sums.gpu_milli,
        sections=tuple(sorted({*row.sections, *sums.sections})) if sums.sections else row.sections,
    )


def queue_rows(job: JobRow) -> dict[str, QueueRow]:
    """The rows of a job in the queues of its pools, by key."""
    spec, pending = job.facts.spec, job.phases.get(Phase.PENDING, 0)
    if spec is None or not pending:
        return {}
    gpus = spec.resources.gpus > 0
    rows = [
        QueueRow(
            pool=pool,
            job_id=job.key,
            project=job.facts.project,
            actor=job.facts.actor,
            traits=QueueTraits(spec.priority, spec.preemptible, gpus, failed),
            submitted_at_ms=job.facts.submitted_at_ms,
            queued_at_ms=job.queued_at_ms,
            offset=job.offset,
        )
        for failed, count in ((False, pending - job.failed), (True, job.failed))
        if count > 0
        for pool in spec.pools
    ]
    return {row.key: row for row in rows}


def _in_phases(before: Mapping[Phase, int], more: Mapping[Phase, int]) -> dict[Phase, int]:
    counts = dict(before)
    for phase, count in more.items():
        counts[phase] = counts.get(phase, 0) + count
    left = [phase for phase, count in counts.items() if count]
    # The tasks of a job are mostly in one or two phases, so it is cheaper to sort these than to
    # look up every phase.
    return {phase: counts[phase] for phase in sorted(left, key=_PHASE_ORDER.__getitem__)}


def _both(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
    return {name: counts[name] for name in sorted(counts) if counts[name]}
