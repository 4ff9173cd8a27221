"""One step of the projection: the changes of the views by a batch of requests or by a cycle.

Requests are visible at once, in phase `submitted`. Only counted cycles of the machines' topics are
projected, and an agent's claim is projected only when a CycleCommitted of the scheduler consumes
it. A `Step` takes a whole cycle, so that all changes of the cycle are applied together with its
position, or none. There is one function for each event version, as in the state machines; each
event type is in `PROJECTED` or in `IGNORED`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_projections.projection import admissions, requests, scheduling
from yardmaster_projections.projection.details import Details, Projector
from yardmaster_projections.projection.draft import Draft, MissingRows
from yardmaster_projections.rows import (
    AttemptRow,
    CycleRow,
    HistoryRow,
    JobRow,
    LogRow,
    RequestRow,
    TaskRow,
)
from yardmaster_projections.store import Change, RowKey, ViewReader
from yardmaster_schemas.api import RequestState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    RulesEnabledV1,
    SnapshotTakenV1,
    TermStartedV1,
)
from yardmaster_schemas.events.users import ACCESS_CHANGES
from yardmaster_schemas.topics import DECISIONS, REQUESTS


class Step:
    """One step of the projection: a batch of requests, or a counted cycle with its inputs.

    `changes` requests all rows that were missing in the step together (`NotLoaded`).
    """

    def __init__(self, view: ViewReader, *, now_ms: int = 0, cycle: int = 0) -> None:
        self._draft = Draft(view, now_ms=now_ms, cycle=cycle)
        self._missing_rows = MissingRows()

    def take(
        self, topic: str, offset: int, envelope: Envelope[Event], details: Details = None
    ) -> None:
        """Add the changes of an event to the draft, and the event to the histories of its subjects.

        Raises:
            ImpossibleEvent: the event contradicts the views, or its type is unknown.
        """
        kind = type(envelope.data)
        projection = PROJECTED.get(kind)
        if projection is None:
            if kind not in IGNORED:
                raise ImpossibleEvent(event=envelope.type, found="the views do not know it")
            return
        with self._missing_rows:
            if topic == REQUESTS.name:
                requests.record_request(self._draft, offset, envelope, details)
            projection(self._draft, envelope, details)
            for subject in _subjects(envelope):
                self._draft.add_to_history(subject, topic, offset)

    def refuse(self, commit: CycleCommittedV1) -> None:
        """Undo the requests whose records a cycle refused; call it before the cycle's decisions."""
        for one in commit.refused:
            if one.topic == REQUESTS.name:
                for offset in range(one.first, one.last + 1):
                    with self._missing_rows:
                        requests.refuse(self._draft, offset, one.code)

    def commit(self, topic: str, offset: int, commit: CycleCommittedV1) -> None:
        """Add the end of a counted cycle: the requests it decided on, and the cycle."""
        if topic == DECISIONS.name:
            self._draft.put(CycleRow(offset=offset, commit=commit))
            with self._missing_rows:
                log = self._draft.find(LogRow, commit.cell)
                if log is not None:
                    self._draft.put(replace(log, now_ms=commit.now_ms, cycle=commit.cycle))
            return
        with self._missing_rows:
            log = self._draft.find(LogRow, commit.cell)
            if log is not None:
                self._draft.put(replace(log, judged_ms=commit.now_ms))
        for taken in commit.inputs:
            if taken.topic == REQUESTS.name:
                for at in range(taken.first, taken.next):
                    with self._missing_rows:
                        row = self._draft.find(RequestRow, str(at))
                        if row is not None and row.state is RequestState.RECORDED:
                            self._draft.put(replace(row, state=RequestState.ACCEPTED))

    def changes(self) -> list[Change]:
        """All changes of the step.

        Raises:
            NotLoaded: rows that the step reads are not cached.
        """
        changes: list[Change] = []
        with self._missing_rows:
            changes = self._draft.changes()
        self._missing_rows.end()
        return changes


def project(
    view: ViewReader,
    topic: str,
    offset: int,
    envelope: Envelope[Event],
    details: Details = None,
    *,
    now_ms: int | None = None,
    cycle: int = 0,
) -> list[Change]:
    """The changes by one event; `now_ms` is the time of the cycle that consumes the event."""
    step = Step(view, now_ms=envelope.time_ms if now_ms is None else now_ms, cycle=cycle)
    step.take(topic, offset, envelope, details)
    return step.changes()


def likely_read(envelope: Envelope[Event]) -> list[RowKey]:
    """Rows that a step with this event is likely to read; a hint, to load them together."""
    data: Any = envelope.data
    found: list[RowKey] = [(HistoryRow, subject) for subject in _subjects(envelope)]
    job_id = getattr(data, "job_id", None)
    if job_id is not None:
        found.append((JobRow, job_id))
    task_id = getattr(data, "task_id", None)
    if task_id is not None:
        found += ((TaskRow, task_id), (JobRow, task_id.partition(".")[0]))
        attempt = getattr(data, "attempt", 0)
        if attempt:
            found.append((AttemptRow, f"{task_id}/{attempt}"))
    return found


def _subjects(envelope: Envelope[Event]) -> tuple[str, ...]:
    """The job or task to whose history a record belongs."""
    data: Any = envelope.data
    if isinstance(data, scheduling.NOT_IN_HISTORY):
        return ()
    task_id = getattr(data, "task_id", None)
    if task_id is not None:
        return (task_id,)
    job_id = getattr(data, "job_id", None)
    if job_id is None:
        return ()
    index = getattr(data, "index", None)
    return (job_id if index is None else f"{job_id}.{index}",)


PROJECTED: Final[Mapping[type[Event], Projector]] = {
    **requests.PROJECTED,
    **admissions.PROJECTED,
    **scheduling.PROJECTED,
}

#: Events that change no view.
IGNORED: Final[frozenset[type[Event]]] = frozenset(
    {
        *(TermStartedV1, CycleCommittedV1, RulesEnabledV1, SnapshotTakenV1),
        # Gateways read changes of access from the log itself, because a store of views is not
        # trusted for authorization.
        *ACCESS_CHANGES,
        *scheduling.IGNORED,
    }
)
