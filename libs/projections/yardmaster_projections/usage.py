"""Metered usage as a pure function of the log: GPU time by hour, pool, project and user.

The slots of a replica are billed from the cycle that allocated them to the cycle that consumes its
SlotsReleased or NodeLost. The time of the cycles counts, which never decreases, not the clock of an
agent. The user is the authenticated user (`actor`), not a name that may be erased. Sums are
integers in `gpu_milli` x milliseconds, so that rounding errors do not add up; hours are in UTC.

A `UsageRow` has the usage of released slots in one hour. Slots that a replica still holds have a
`HeldRow`, whose usage up to now is computed by the query (`held`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_projections.projection.details import Details
from yardmaster_projections.projection.draft import MissingRows
from yardmaster_projections.rows import Facet, Order, R, Row
from yardmaster_projections.store import Change, Delete, Put, RowKey, ViewReader
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.admissions import RequestRefusedV1, TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.decisions import NodeLostV1, SlotsAllocatedV1, TaskEndedV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.node_events import SlotsReleasedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.topics import REQUESTS

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow(Row):
    """The GPU time of a project's user in a pool in one hour, of slots that were released."""

    KIND: ClassVar[str] = "usage"

    hour_ms: int
    pool: str
    project: str
    user: str
    #: gpu_milli x milliseconds.
    gpu_milli_ms: int

    @property
    def key(self) -> str:
        """Hour, pool, project, user."""
        return usage_key(self.hour_ms, self.pool, self.project, self.user)

    @property
    def order(self) -> Order:
        """By hour."""
        return (self.hour_ms, self.key, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The project, by which visibility is checked."""
        return (("project", self.project),)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow(Row):
    """The slots that one replica of an attempt holds now."""

    KIND: ClassVar[str] = "held"

    task_id: str
    attempt: int
    replica: int
    pool: str
    project: str
    user: str
    #: The sum over the slots of the replica.
    gpu_milli: int
    since_ms: int

    @property
    def key(self) -> str:
        """Task, attempt, replica."""
        return held_key(self.task_id, self.attempt, self.replica)

    @property
    def order(self) -> Order:
        """By time of allocation."""
        return (self.since_ms, self.key, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The project, by which visibility is checked."""
        return (("project", self.project),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow(Row):
    """The user of a submission, until quota decides on it.

    Several submissions may have the same job id; quota refuses all but one of them.
    """

    KIND: ClassVar[str] = "submission"

    record_id: str
    offset: int
    user: str

    @property
    def key(self) -> str:
        """The record id, which the verdict names."""
        return self.record_id

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The offset, by which a cycle names the records that it refuses."""
        return (("offset", str(self.offset)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow(Row):
    """The user of a job, from its admission until its tasks have ended."""

    KIND: ClassVar[str] = "owner"

    job_id: str
    user: str
    #: Tasks that have not ended.
    left: int

    @property
    def key(self) -> str:
        """The job's id."""
        return self.job_id


def usage_key(hour_ms: int, pool: str, project: str, user: str) -> str:
    """The key of a `UsageRow`."""
    return f"{hour_ms}/{pool}/{project}/{user}"


def held_key(task_id: str, attempt: int, replica: int) -> str:
    """The key of a `HeldRow`."""
    return f"{task_id}/{attempt}/{replica}"


def hours(since_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
    """The hours of a period: the start of each, and the milliseconds of the period in it."""
    while since_ms < until_ms:
        hour_ms = since_ms - since_ms % HOUR_MS
        end_ms = min(until_ms, hour_ms + HOUR_MS)
        yield hour_ms, end_ms - since_ms
        since_ms = end_ms


def held(row: HeldRow, from_ms: int, to_ms: int) -> Iterator[UsageRow]:
    """The usage of held slots by hour between two times, as if they were released at `to_ms`."""
    for hour_ms, ms in hours(max(row.since_ms, from_ms), to_ms):
        yield UsageRow(
            hour_ms=hour_ms,
            pool=row.pool,
            project=row.project,
            user=row.user,
            gpu_milli_ms=row.gpu_milli * ms,
        )


class UsageStep:
    """One step of metering: a batch of requests, or a counted cycle with its inputs."""

    def __init__(self, view: ViewReader, *, now_ms: int = 0, cycle: int = 0) -> None:
        self._view = view
        self._now_ms = now_ms
        self._rows: dict[tuple[str, str], Change] = {}
        self._missing_rows = MissingRows()

    def take(
        self, topic: str, offset: int, envelope: Envelope[Event], details: Details = None
    ) -> None:
        """Add the changes of an event; most events change nothing."""
        data: Any = envelope.data
        with self._missing_rows:
            match data:
                case TaskSubmittedV1():
                    self._submitted(offset, envelope)
                case TaskAdmittedV1():
                    self._admitted(data, envelope.cause or "")
                case TaskRejectedV1():
                    self._decided(envelope.cause or "")
                case RequestRefusedV1(request_type=TaskSubmittedV1.TYPE):
                    self._decided(envelope.cause or "")
                case SlotsAllocatedV1():
                    self._allocated(data)
                case SlotsReleasedV1():
                    self._close(held_key(data.task_id, data.attempt, data.replica))
                case NodeLostV1():
                    self._lost(data)
                case TaskEndedV1():
                    self._ended(data.task_id.partition(".")[0])

    def refuse(self, commit: CycleCommittedV1) -> None:
        """Drop submissions whose records a cycle refused; call it before the cycle's decisions."""
        for one in commit.refused:
            if one.topic == REQUESTS.name:
                for offset in range(one.first, one.last + 1):
                    with self._missing_rows:
                        for row in self._view.having(SubmissionRow, ("offset", str(offset))):
                            self._drop(row)

    def commit(self, topic: str, offset: int, commit: CycleCommittedV1) -> None:
        """Do nothing: the end of a cycle changes no usage."""

    def changes(self) -> list[Change]:
        """All changes of the step.

        Raises:
            NotLoaded: rows that the step reads are not cached.
        """
        self._missing_rows.end()
        return list(self._rows.values())

    def _find(self, kind: type[R], key: str) -> R | None:
        change = self._rows.get((kind.KIND, key))
        if change is None:
            return self._view.find(kind, key)
        return change.row if isinstance(change, Put) and isinstance(change.row, kind) else None

    def _put(self, row: Row) -> None:
        self._rows[row.KIND, row.key] = Put(row)

    def _drop(self, row: Row) -> None:
        self._rows[row.KIND, row.key] = Delete(row)

    def _submitted(self, offset: int, envelope: Envelope[Event]) -> None:
        # If a record was appended twice, the first one counts.
        if self._find(SubmissionRow, envelope.id) is None:
            user = envelope.actor.id
            self._put(SubmissionRow(record_id=envelope.id, offset=offset, user=user))

    def _decided(self, cause: str) -> SubmissionRow | None:
        row = self._find(SubmissionRow, cause)
        if row is not None:
            self._drop(row)
        return row

    def _admitted(self, data: TaskAdmittedV1, cause: str) -> None:
        submission = self._decided(cause)
        if submission is None:
            raise ImpossibleEvent(event=data.TYPE, found=f"job {data.job_id} was not submitted")
        self._put(OwnerRow(job_id=data.job_id, user=submission.user, left=data.spec.tasks))

    def _ended(self, job_id: str) -> None:
        owner = self._find(OwnerRow, job_id)
        if owner is None:
            return
        if owner.left > 1:
            self._put(replace(owner, left=owner.left - 1))
        else:
            self._drop(owner)

    def _allocated(self, data: SlotsAllocatedV1) -> None:
        job_id = data.task_id.partition(".")[0]
        owner = self._find(OwnerRow, job_id)
        if owner is None:
            raise ImpossibleEvent(event=data.TYPE, found=f"job {job_id} was not admitted")
        for placement in data.placements:
            milli = placement.gpu_milli * len(placement.slots)
            if milli:
                self._put(
                    HeldRow(
                        task_id=data.task_id,
                        attempt=data.attempt,
                        replica=placement.replica,
                        pool=data.pool,
                        project=data.project,
                        user=owner.user,
                        gpu_milli=milli,
                        since_ms=self._now_ms,
                    )
                )

    def _lost(self, data: NodeLostV1) -> None:
        missing = MissingRows()
        for closed in data.closed:
            with missing:
                self._close(held_key(closed.task_id, closed.attempt, closed.replica))
        missing.end()

    def _close(self, key: str) -> None:
        """Release the slots of a replica; a repetition changes nothing."""
        row = self._find(HeldRow, key)
        if row is None:
            return
        missing = MissingRows()
        for used in held(row, row.since_ms, self._now_ms):
            with missing:
                before = self._find(UsageRow, used.key)
                milli_ms = used.gpu_milli_ms + (before.gpu_milli_ms if before is not None else 0)
                self._put(replace(used, gpu_milli_ms=milli_ms))
        missing.end()
        self._drop(row)


def likely_read(envelope: Envelope[Event]) -> list[RowKey]:
    """Rows that a step with this event is likely to read."""
    data: Any = envelope.data
    match data:
        case TaskSubmittedV1():
            return [(SubmissionRow, envelope.id)]
        case TaskAdmittedV1() | TaskRejectedV1():
            return [(SubmissionRow, envelope.cause or "")]
        case SlotsAllocatedV1() | TaskEndedV1():
            return [(OwnerRow, data.task_id.partition(".")[0])]
        case SlotsReleasedV1():
            return [(HeldRow, held_key(data.task_id, data.attempt, data.replica))]
        case _:
            return []
