"""Rows of records of the log: requests, cycles, histories of jobs, the log itself."""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from yardmaster_projections.rows.jobs import Refused
from yardmaster_projections.rows.row import Facet, Order, Row
from yardmaster_schemas.api import RequestState
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    CellConfig,
    LogMode,
    PauseRequestedV1,
    TaskSubmittedV1,
)

#: Requests about a job or one of its tasks that may have a note.
_ABOUT_JOBS: Final = (CancelRequestedV1.TYPE, PauseRequestedV1.TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(Row):
    """A request and its outcome."""

    KIND: ClassVar[str] = "request"

    offset: int
    record_id: str
    type: str
    subject: str
    actor: str
    at_ms: int
    state: RequestState = RequestState.RECORDED
    refusal: Refused | None = None
    note: str | None = None

    @property
    def key(self) -> str:
        """The offset in `requests`."""
        return str(self.offset)

    @property
    def order(self) -> Order:
        """By offset."""
        return (self.offset, "", 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The record's id, as long as quota may still refer to it, and a job with erasable text.

        The job is a facet if the row has a note about the job, or if the row is a refused
        submission of it, such as a repeat, which may have details of its own.
        """
        recorded = self.state is RequestState.RECORDED
        repeat = self.type == TaskSubmittedV1.TYPE and self.state is RequestState.REFUSED
        noted = repeat or (self.note is not None and self.type in _ABOUT_JOBS)
        return (
            *((("record", self.record_id),) if recorded else ()),
            *((("noted", self.subject.partition(".")[0]),) if noted else ()),
        )

    @property
    def final(self) -> bool:
        """Whether quota has decided on the request."""
        return self.state is not RequestState.RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleRow(Row):
    """A counted cycle of the scheduler: its commit, and the offset of the commit."""

    KIND: ClassVar[str] = "cycle"

    offset: int
    commit: CycleCommittedV1

    @property
    def key(self) -> str:
        """The number of the cycle."""
        return str(self.commit.cycle)

    @property
    def order(self) -> Order:
        """By number."""
        return (self.commit.cycle, "", 0)

    @property
    def final(self) -> bool:
        """True: a cycle never changes."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow(Row):
    """The records about a job or task as (topic, offset): the newest `MAX_HISTORY`."""

    KIND: ClassVar[str] = "history"

    subject: str
    records: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> str:
        """The job's or task's id."""
        return self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow(Row):
    """The log's identity and the cell's configuration; one row, keyed by the cell."""

    KIND: ClassVar[str] = "log"

    cell: str
    log_id: str
    mode: LogMode
    created_ms: int
    #: Time and number of the scheduler's newest cycle, and the time of quota's newest cycle.
    now_ms: int = 0
    cycle: int = 0
    judged_ms: int = 0
    #: The configuration of the cell, and how often it was changed.
    config: CellConfig = field(default_factory=CellConfig)
    config_revision: int = 0

    @property
    def key(self) -> str:
        """The cell."""
        return self.cell
