"""Metrics of the jobs that quota knows. Only a leader exposes them, until its term ends."""

import asyncio
from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import Final, NoReturn

from yardmaster_core.admission.state import AdmissionState
from yardmaster_core.commit import CountedCycle
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.admissions import TaskRejectedV1

#: Projects with a series of their own: those with the most unfinished tasks.
MAX_PROJECTS: Final = 1_000


class WorkMetrics:
    """The metrics of the jobs during one term; a new term needs a new object."""

    def __init__(self, telemetry: Telemetry, state: Callable[[], AdmissionState]) -> None:
        """`state` returns the leader's state."""
        self._telemetry = telemetry
        self._state = state
        self._part = part = telemetry.part()
        part.before_exposition(self._update)
        self._unfinished = part.gauge_table(
            "tasks_unfinished",
            "Tasks that have not ended, as the limit of their project counts them.",
            "project",
        )
        self._jobs = part.gauge("jobs", "Jobs of which a task has not ended.")
        self._judged = part.gauge("job_ids_kept", "Ids of jobs that ended or were rejected.")
        self._rejected = part.counter("jobs_rejected", "Jobs rejected, by reason.", "code")

    async def run(self) -> NoReturn:
        """Expose the metrics until cancelled."""
        with self._telemetry.exposed(self._part):
            await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    def on_cycle(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Count a cycle's rejections."""
        for _, envelope in counted.decisions:
            if isinstance(envelope.data, TaskRejectedV1):
                self._rejected.labels(envelope.data.code).inc()

    def _update(self) -> None:
        state = self._state()
        tasks = [(state.unfinished("project", name), name) for name, _ in state.projects.items()]
        self._unfinished.rows = {(name,): number for number, name in nlargest(MAX_PROJECTS, tasks)}
        self._jobs.set(len(state.jobs))
        self._judged.set(len(state.judged_ids))
