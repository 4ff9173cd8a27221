"""Appliers of quota's decisions about jobs."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import (
    enqueue_if_ready,
    leave_places,
    release_next,
    schedule_decision,
)
from yardmaster_core.scheduling.state.appliers.entitlements import project_of
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.tasks import Job, Task
from yardmaster_schemas.events import admissions as adm


def task_admitted_v1(state: ClusterState, event: adm.TaskAdmittedV1, record_id: str) -> None:
    known = state.jobs.get(event.job_id)
    if known is not None:
        content = (known.project.name, known.spec, known.submitted_ms, known.details, known.user)
        if content == (
            *(event.project, event.spec, event.submitted_at_ms),
            *(event.details, event.user),
        ):
            return  # a repeat
        raise ImpossibleEvent(
            event="TaskAdmitted", found=f"job {event.job_id} was admitted with another content"
        )
    project = state.projects.get(event.project)
    if project is None:
        project = project_of(state, event.project, event.department)
    job = Job(
        event.job_id,
        state.next_job,
        project,
        event.spec,
        event.submitted_at_ms,
        event.details,
        event.user,
    )
    state.next_job += 1
    job.set_separate(*state.separation(event.spec.pools))
    state.jobs[job.id] = job
    state.dirty[job] = None
    for name in event.spec.pools:
        pool = state.pool(name)
        pool.has_min_runtimes |= event.spec.min_runtime_s > 0
        pool.workload.add(job.shape, event.spec.tasks)
        state.dirty[pool] = None
    for index in range(event.spec.tasks):
        task = Task(job, index)
        task.cause = record_id
        job.tasks.append(task)
        state.tasks[task.id] = task
        state.dirty[task] = None
    release_next(state, job)


def _of(state: ClusterState, job_id: str, index: int | None) -> list[Task]:
    """The tasks of a job, or the one at `index`; none if the state has no such job any more."""
    job = state.jobs.get(job_id)
    if job is None:
        return []
    if index is not None and index >= len(job.tasks):
        raise ImpossibleEvent(event="a verdict", found=f"there is no task {job_id}.{index}")
    return job.tasks if index is None else [job.tasks[index]]


def cancel_accepted_v1(state: ClusterState, event: adm.CancelAcceptedV1, record_id: str) -> None:
    for task in _of(state, event.job_id, event.index):
        if task.phase.final:
            continue
        task.cancelled = True
        task.cancel_now = task.cancel_now or event.immediate
        task.cause = record_id
        state.dequeue(task)
        schedule_decision(state, task)


def details_erased_v1(state: ClusterState, event: adm.DetailsErasedV1, record_id: str) -> None:
    job = state.jobs.get(event.job_id)
    if job is None or job.erased:
        return  # never admitted, or a repeat
    job.erased = True
    state.dirty[job] = None
    for task in job.tasks:
        if not task.phase.final and task.run is None:
            task.cause = record_id
            state.dequeue(task)
            schedule_decision(state, task)


def task_paused_v1(state: ClusterState, event: adm.TaskPausedV1, record_id: str) -> None:
    tasks = _of(state, event.job_id, event.index)
    for task in tasks:
        if not task.phase.final:
            task.paused = True
            task.cause = record_id
            state.dequeue(task)
            schedule_decision(state, task)
    if tasks:
        leave_places(state, tasks[0].job, tasks)


def task_resumed_v1(state: ClusterState, event: adm.TaskResumedV1, record_id: str) -> None:
    tasks = _of(state, event.job_id, event.index)
    resumed = [task for task in tasks if task.paused and not task.phase.final]
    for task in resumed:
        task.paused = False
        task.cause = record_id
        schedule_decision(state, task)
        enqueue_if_ready(state, task)
    without = next((task for task in resumed if not task.released), None)
    if without is not None and without.index < without.job.next_index:
        # It left its place. The free places go to the first tasks without one.
        without.job.next_index = without.index
        state.dirty[without.job] = None
        release_next(state, without.job)


def priority_changed_v1(state: ClusterState, event: adm.PriorityChangedV1, record_id: str) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    waiting = [task for task in job.tasks if task.group is not None]
    for task in waiting:
        state.dequeue(task)
    job.priority = event.priority
    job.revision = event.revision
    state.dirty[job] = None
    for task in waiting:
        task.cause = record_id
        state.enqueue(task)
        if task.reserved is not None:
            schedule_decision(state, task)
    for task in job.tasks:
        run = task.run
        if run is not None and job.spec.preemptible:
            pool = state.pools[run.pool_name]
            state.may_be_preempted(task, pool)
            state.wake_index.wake_blocked(pool)


def weight_changed_v1(state: ClusterState, event: adm.WeightChangedV1, _: str) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    job.weight = event.weight
    state.recount(job)
    job.revision = event.revision
    state.dirty[job] = None
    state.input_changed(job.shape)
    _wake_job(state, job)


def max_slots_changed_v1(state: ClusterState, event: adm.MaxSlotsChangedV1, record_id: str) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    waiting = [task for task in job.tasks if task.group is not None]
    for task in waiting:
        state.dequeue(task)
    job.set_max_slots(event.max_slots_milli)
    state.recount(job)
    job.revision = event.revision
    state.dirty[job] = None
    state.input_changed(job.shape)
    for task in waiting:
        task.cause = record_id
        state.enqueue(task)
        if task.reserved is not None:
            schedule_decision(state, task)


def _wake_job(state: ClusterState, job: Job) -> None:
    for task in job.tasks:
        if task.group is not None:
            for name in job.shape.pools:
                state.wake_index.wake(state.pools[name], task.group)
