"""What a follower needs to know of a projection, so that one follower hosts them all."""

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
    """A batch of requests, or a counted cycle with the claims that it took.

    Its parts come in this order: claims, what the commit refused, decisions, the commit.
    """

    def take(
        self,
        topic: str,
        offset: int,
        envelope: Envelope[Event],
        details: Details = None,
        /,
    ) -> None:
        """Add what an event changes."""

    def refuse(self, commit: CycleCommittedV1, /) -> None:
        """Take back requests that a cycle refused as records."""

    def commit(self, topic: str, offset: int, commit: CycleCommittedV1, /) -> None:
        """Add what the end of a counted cycle changes."""

    def changes(self) -> list[Change]:
        """All changes of the step.

        Raises:
            NotLoaded: rows that it reads are not at hand; it must be run again.
            ImpossibleEvent: an event contradicts the rows.
        """


class StepMaker(Protocol):
    """Makes a step over rows as they are; `now_ms` and `cycle` are the cycle's."""

    def __call__(self, view: ViewReader, /, *, now_ms: int = 0, cycle: int = 0) -> FoldStep:
        """A step without events yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A projection: its steps, and what it needs beside the topics that decide."""

    #: Names its rows' store beside the others'.
    name: str
    step: StepMaker
    #: Rows that a step with an event most likely reads; a hint.
    likely_read: Callable[[Envelope[Event]], Sequence[RowKey]]
    #: All kinds of its rows that positions count.
    kinds: tuple[type[Row], ...]
    #: It shows what `details` says.
    details: bool = False
    #: It shows heartbeats and where output lies.
    soft_state: bool = False


VIEWS: Final[Fold] = Fold(
    name="views",
    step=step.Step,
    likely_read=step.likely_read,
    kinds=(
        *(rows.LogRow, rows.PoolRow, rows.DepartmentRow, rows.ProjectRow, rows.NodeRow),
        *(rows.JobRow, rows.TaskRow, rows.AttemptRow, rows.CountersRow, rows.WaitRow),
        *(rows.RequestRow, rows.CycleRow, rows.HistoryRow),
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
