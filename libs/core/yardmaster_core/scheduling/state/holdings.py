"""What jobs hold of pools, and how much of it is being given back. `ClusterState.charge` is where
it starts; whatever changes has the job counted again (`demands.py`).
"""

from typing import TYPE_CHECKING

from yardmaster_core.scheduling.state.entities import JobUsage, Pool, ProjectUsage, Task

if TYPE_CHECKING:
    from yardmaster_core.scheduling.state.cluster import ClusterState


def hold(state: "ClusterState", task: Task, pool: Pool, milli: int) -> None:
    """Let a task hold more of a pool (or less, below zero)."""
    job = task.job
    pool.used_milli += milli
    holders = pool.usage_by_project.get(job.project)
    if holders is None:
        holders = pool.usage_by_project[job.project] = ProjectUsage()
    holding = pool.usage_by_job.get(job)
    if holding is None:
        holding = pool.usage_by_job[job] = holders.jobs[job] = JobUsage()
    holding.milli += milli
    if pool.reclaimable and job.spec.preemptible:
        for claimant in (job, job.project):
            line = pool.reclaimable.get(claimant)
            if line is not None:
                line.add(task)
                state.prune(line)
    left = holding.tasks.get(task, 0) + milli
    if left:
        holding.tasks[task] = left
    else:
        del holding.tasks[task]
    _count_releasing(state, task, holders, holding, left)
    if not holding.tasks:
        del pool.usage_by_job[job]
        del holders.jobs[job]
        pool.reclaimable.pop(job, None)
        if not holders.jobs:
            del pool.usage_by_project[job.project]
            pool.reclaimable.pop(job.project, None)


def note_releasing(state: "ClusterState", task: Task) -> None:
    """What a task holds is being given back, or is no longer."""
    assert task.run is not None
    pool, job = task.run.pool, task.job
    holding = pool.usage_by_job.get(job)
    if holding is not None and task in holding.tasks:
        _count_releasing(
            state, task, pool.usage_by_project[job.project], holding, holding.tasks[task]
        )


def _count_releasing(
    state: "ClusterState", task: Task, holders: ProjectUsage, holding: JobUsage, milli: int
) -> None:
    leaving = milli if milli and task.releasing else 0
    more = leaving - holding.releasing.pop(task, 0)
    if leaving:
        holding.releasing[task] = leaving
    holding.releasing_milli += more
    holders.releasing_milli += more
    state.recount(task.job)
