"""The projection of one job: the rows that explain its tasks, and none of other jobs.

Its steps are those of the views, but with fewer events. So its rows of the job are equal to the
rows in the views, and its memory does not grow with the number of jobs and cycles in a log.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from yardmaster_projections.fold import VIEWS, Fold
from yardmaster_projections.projection.details import Details
from yardmaster_projections.projection.step import Step
from yardmaster_projections.rows import CycleRow
from yardmaster_projections.store import Change, ViewReader
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import NodeLostV1, TaskUnschedulableV1


def fold_of(job_id: str) -> Fold:
    """The projection of a job, without its details and without soft state."""
    step = partial(_JobStep, job_id)
    return replace(VIEWS, name="one_job", step=step, details=False, soft_state=False)


class _JobStep(Step):
    def __init__(self, job_id: str, view: ViewReader, *, now_ms: int = 0, cycle: int = 0) -> None:
        super().__init__(view, now_ms=now_ms, cycle=cycle)
        self._job_id = job_id

    def take(
        self, topic: str, offset: int, envelope: Envelope[Event], details: Details = None
    ) -> None:
        """Add the changes of an event, unless it is about another job."""
        data = envelope.data
        if isinstance(data, NodeLostV1):
            closed = tuple(one for one in data.closed if _job_of(one) == self._job_id)
            envelope = replace(envelope, data=replace(data, closed=closed))
        # A TaskUnschedulable names one task, but is about all tasks of the same shape, also in
        # other jobs.
        elif _job_of(data) not in (None, self._job_id) and not isinstance(
            data, TaskUnschedulableV1
        ):
            return
        super().take(topic, offset, envelope, details)

    def changes(self) -> list[Change]:
        """All changes of the step, without the rows of cycles."""
        return [change for change in super().changes() if change.kind != CycleRow.KIND]


def _job_of(about: Any) -> str | None:
    task_id: str | None = getattr(about, "task_id", None)
    return getattr(about, "job_id", None) if task_id is None else task_id.partition(".")[0]
