"""Appliers of decisions about tasks; each can be taken back while a draft is open."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import (
    consider,
    hold_port,
    over,
    promise,
    release_next,
    release_port,
    run_of,
    victims,
    watch_start,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.entities import OUTCOMES, Attempt, Due, Phase, Task
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import EndCode, Stop, StopCode, WaitCode


def slots_allocated_v1(state: ClusterState, event: dec.SlotsAllocatedV1, _: str) -> None:
    task = state.task(event.task_id)
    if event.attempt <= task.attempt:
        return  # a repeat; only the first counts
    if task.phase is not Phase.PENDING or task.run is not None or event.attempt != task.attempt + 1:
        raise ImpossibleEvent(
            event="SlotsAllocated", found=f"{task.id} is {task.phase.name}, attempt {task.attempt}"
        )
    pool = state.pool(event.pool)
    state.dequeue(task)
    run = Attempt(event.attempt, pool, event.placements, event.master_port, state.now_ms)
    run.fence_s = event.fence_s or 0
    task.phase = Phase.STARTING
    task.attempt = event.attempt
    task.run = run
    nodes = state.nodes
    milli = 0
    for placement in event.placements:
        node = nodes[placement.node]
        state.occupy(node, task, placement)
        milli += placement.gpu_milli * len(placement.slots)
    if run.port is not None:
        hold_port(nodes[event.placements[0].node], run.port)
    state.charge(task, pool, milli)
    shape = task.job.shape
    for name in shape.pools:
        # It asks for nothing elsewhere any more; or what it holds here cannot be taken back.
        if name != pool.name or not shape.preemptible:
            state.reshare(state.pools[name], later=True)
    state.dirty[task] = None
    line = victims(pool, task.job.priority) if task.job.spec.preemptible else None
    if line is not None:
        line.note(task)
        worst = pool.lowest_placed_priority
        if worst is None or worst < task.job.priority:
            state.put(pool, "lowest_placed_priority", task.job.priority)
        state.prune(line)
    if state.journal is not None:
        state.journal.append((_unallocate, (state, task, run, milli)))
    watch_start(state, task, run)


def _unallocate(state: ClusterState, task: Task, run: Attempt, milli: int) -> None:
    for placement in run.placements:
        node = state.nodes[placement.node]
        state.vacate(node, task, placement, promised=False)
    if run.port is not None:
        release_port(state.nodes[run.placements[0].node], run.port)
    state.charge(task, run.pool, -milli)
    task.phase = Phase.PENDING
    task.attempt -= 1
    task.run = None


def preemption_requested_v1(state: ClusterState, event: dec.PreemptionRequestedV1, _: str) -> None:
    _stop(state, event.task_id, event.attempt, event.stop, event.deadline_at_ms)


def stop_requested_v1(state: ClusterState, event: dec.StopRequestedV1, _: str) -> None:
    _stop(state, event.task_id, event.attempt, event.stop, event.deadline_at_ms)


def _stop(state: ClusterState, task_id: str, attempt: int, stop: Stop, deadline_ms: int) -> None:
    if over(state, task_id, attempt):
        return
    task, run = run_of(state, task_id, attempt)
    state.dirty[task] = None
    if run.stop is not None:
        # A cancel on top of another stop only shortens the grace.
        state.put(run, "stop_deadline_ms", deadline_ms)
        return
    state.put(task, "phase", Phase.STOPPING)
    state.put(run, "stop_deadline_ms", deadline_ms)
    promise(state, task, run, stop)
    if stop.code is StopCode.FITGPP:
        state.put(task, "preemptions", task.preemptions + 1)
    # Of what is freed for a better task, those in line have been asked; an equal that came earlier
    # may have stopped whom they may not.
    numbers = stop.numbers
    if numbers.get("for_priority") in (None, numbers.get("priority")):
        run.pool.recheck = True


def allocation_revoked_v1(state: ClusterState, event: dec.AllocationRevokedV1, _: str) -> None:
    if over(state, event.task_id, event.attempt):
        return
    task, run = run_of(state, event.task_id, event.attempt)
    state.dirty[task] = None
    if run.stop is None:
        state.put(task, "phase", Phase.PENDING)
        state.put(run, "failed_nodes", run.note_failed_start(event.late))
        promise(state, task, run, event.stop)
        run.pool.recheck = True


def task_requeued_v1(state: ClusterState, event: dec.TaskRequeuedV1, _: str) -> None:
    if over(state, event.task_id, event.attempt):
        return
    task, run = run_of(state, event.task_id, event.attempt)
    if run.open:
        raise ImpossibleEvent(event="TaskRequeued", found=f"{task.id} still holds slots")
    state.put(task, "run", None)
    state.put(task, "phase", Phase.PENDING)
    state.put(task, "restarts", event.restarts)
    state.put(task, "held_until_ms", event.not_before_ms)
    state.put(task, "failed_starts", event.failed_starts)
    state.put(task, "failed_nodes", event.failed_nodes)
    state.dirty[task] = None
    consider(state, task)
    if event.not_before_ms > state.now_ms:
        state.deadline(event.not_before_ms, Due.HOLD, task.id, event.attempt)


def allocation_unwritable_v1(
    state: ClusterState, event: dec.AllocationUnwritableV1, _: str
) -> None:
    task = state.task(event.task_id)
    if task.phase.final or task.run is not None or task.unwritable:
        return
    state.dequeue(task)
    state.put(task, "unwritable", True)
    state.dirty[task] = None
    if state.journal is not None and task.id not in state.attention:
        state.journal.append((state.attention.pop, (task.id, None)))
    state.attention[task.id] = task


def task_unschedulable_v1(state: ClusterState, event: dec.TaskUnschedulableV1, _: str) -> None:
    pool = state.pool(event.pool)
    group = pool.groups.get((event.shape, event.priority))
    if group is None:
        raise ImpossibleEvent(
            event="TaskUnschedulable", found=f"nobody of shape {event.shape} waits in {event.pool}"
        )
    known = group.waits.get(pool.name)
    if known is not None and known[0] == event.wait:
        return  # a repeat: since when it waits does not change
    state.set_wait(pool, group, event.wait)
    if event.wait.code is WaitCode.VICTIMS_PROTECTED:
        until = event.wait.numbers.get("until_at_ms", 0)
        state.deadline(until, Due.PROTECTION, pool.name)


def task_ended_v1(state: ClusterState, event: dec.TaskEndedV1, _: str) -> None:
    task = state.task(event.task_id)
    if task.phase.final:
        return
    if task.run is not None and task.run.open:
        raise ImpossibleEvent(event="TaskEnded", found=f"{task.id} still holds slots")
    state.dequeue(task)
    state.put(task, "phase", OUTCOMES[event.outcome])
    state.put(task, "outcome_code", str(event.code))
    state.put(task, "run", None)
    state.dirty[task] = None
    job = task.job
    if event.code is EndCode.UNSCHEDULABLE:
        state.reshare_of(job.shape, later=True)
    if task.released:
        state.put(job, "live", job.live - 1)
        release_next(state, job)
