"""Descriptions of the projections, so that one follower runs each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from yardmaster_projections import rows, usage
from yardmaster_projections.projection import step
from yardmaster_projections.projection.details import Details
from yardmaster_projections.rows import Row
from yardmaster_projections.store import Change, RowKey, ViewReader
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.machine import CycleCommittedV1


class FoldStep(Protocol):
    """A step for a batch of requests, or for a counted cycle with the claims that it consumed.

    For a cycle, the order of calls is: `take` for claims, `refuse`, `take` for decisions, `commit`.
    """

    def take(
        self,
        topic: str,
        offset: int,
        envelope: Envelope[Event],
        details: Details = None,
        /,
    ) -> None:
        """Add the changes of an event."""

    def refuse(self, commit: CycleCommittedV1, /) -> None:
        """Undo the requests whose records a cycle refused."""

    def commit(self, topic: str, offset: int, commit: CycleCommittedV1, /) -> None:
        """Add the changes of the end of a counted cycle."""

    def changes(self) -> list[Change]:
        """All changes of the step.

        Raises:
            NotLoaded: rows that the step reads are not cached; load them and run the step again.
            ImpossibleEvent: an event contradicts the rows.
        """


class StepMaker(Protocol):
    """Makes a step over the current rows; `now_ms` and `cycle`: time and number of its cycle."""

    def __call__(self, view: ViewReader, /, *, now_ms: int = 0, cycle: int = 0) -> FoldStep:
        """A step without events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A projection: its steps, its rows, and the topics that it needs."""

    #: The name of the part of the store that has the projection's rows.
    name: str
    step: StepMaker
    #: Rows that a step with an event most likely reads; a hint.
    likely_read: Callable[[Envelope[Event]], Sequence[RowKey]]
    #: The kinds of the projection's rows, without rows of soft state, which no position counts.
    kinds: tuple[type[Row], ...]
    #: Whether the projection reads `details`.
    details: bool = False
    #: Whether the projection stores heartbeats and the offsets of output.
    soft_state: bool = False


VIEWS: Final[Fold] = Fold(
    name="views",
    step=step.Step,
    likely_read=step.likely_read,
    kinds=(
        *(rows.LogRow, rows.PoolRow, rows.DepartmentRow, rows.ProjectRow, rows.NodeRow),
        *(rows.JobRow, rows.TaskRow, rows.AttemptRow, rows.CountersRow, rows.WaitRow),
        *(rows.RequestRow, rows.CycleRow, rows.HistoryRow, rows.QueueRow, rows.RankRow),
        rows.SharesRow,
    ),
    details=True,
    soft_state=True,
)
USAGE: Final[Fold] = Fold(
    name="usage",
    step=usage.UsageStep,
    likely_read=usage.likely_read,
    kinds=(usage.UsageRow, usage.HeldRow, usage.SubmissionRow, usage.OwnerRow),
)
FOLDS: Final[dict[str, Fold]] = {fold.name: fold for fold in (VIEWS, USAGE)}
