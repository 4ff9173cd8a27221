"""What jobs hold of pools, and how much of it is being given back. `ClusterState.charge` is where
it starts; whatever changes has the job counted again (`demands.py`).
"""

from typing import TYPE_CHECKING

from yardmaster_core.scheduling.state.entities import Holders, Holding, Pool, Task

if TYPE_CHECKING:
    from yardmaster_core.scheduling.state.cluster import ClusterState


def hold(state: "ClusterState", task: Task, pool: Pool, milli: int) -> None:
    """Let a task hold more of a pool (or less, below zero)."""
    job = task.job
    pool.held_milli += milli
    holders = pool.holders.get(job.project)
    if holders is None:
        holders = pool.holders[job.project] = Holders()
    holding = pool.held.get(job)
    if holding is None:
        holding = pool.held[job] = holders.jobs[job] = Holding()
    holding.milli += milli
    if pool.giving and job.spec.preemptible:
        for claimant in (job, job.project):
            line = pool.giving.get(claimant)
            if line is not None:
                line.add(task)
                state.prune(line)
    left = holding.tasks.get(task, 0) + milli
    if left:
        holding.tasks[task] = left
    else:
        del holding.tasks[task]
    _count_leaving(state, task, holders, holding, left)
    if not holding.tasks:
        del pool.held[job]
        del holders.jobs[job]
        pool.giving.pop(job, None)
        if not holders.jobs:
            del pool.holders[job.project]
            pool.giving.pop(job.project, None)


def note_leaving(state: "ClusterState", task: Task) -> None:
    """What a task holds is being given back, or is no longer."""
    assert task.run is not None
    pool, job = task.run.pool, task.job
    holding = pool.held.get(job)
    if holding is not None and task in holding.tasks:
        _count_leaving(state, task, pool.holders[job.project], holding, holding.tasks[task])


def _count_leaving(
    state: "ClusterState", task: Task, holders: Holders, holding: Holding, milli: int
) -> None:
    leaving = milli if milli and task.leaving else 0
    more = leaving - holding.leaving.pop(task, 0)
    if leaving:
        holding.leaving[task] = leaving
    holding.leaving_milli += more
    holders.leaving_milli += more
    state.recount(task.job)
