"""Appliers of decisions about tasks; each can be undone while a draft is open."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import (
    begin_stop,
    enqueue_if_ready,
    hold_overdue,
    hold_port,
    is_over,
    leave_places,
    let_pass,
    let_pass_elsewhere,
    release_next,
    release_port,
    run_of,
    schedule_decision,
    watch_expiry,
    watch_start,
    watch_stop,
)
from yardmaster_core.scheduling.state.appliers.reservations import check_reservations, drop
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import OUTCOMES, Due, Phase
from yardmaster_core.scheduling.state.tasks import Attempt, Task
from yardmaster_core.scheduling.state.wait_codes import LIMITED, UNTIL, blocks
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import EndCode, PolicyStop, Stop


def slots_allocated_v1(state: ClusterState, event: dec.SlotsAllocatedV1, _: str) -> None:
    task = state.task(event.task_id)
    if event.attempt <= task.attempt:
        return  # a repeat; only the first counts
    if task.phase is not Phase.PENDING or task.run is not None or event.attempt != task.attempt + 1:
        raise ImpossibleEvent(
            event="SlotsAllocated", found=f"{task.id} is {task.phase.name}, attempt {task.attempt}"
        )
    pool = state.pool(event.pool)
    reserved = task.reserved is not None
    if reserved:
        drop(state, task)
    let_pass_elsewhere(state, task, pool)
    state.dequeue(task)
    pool.started[task] = None
    run = Attempt(event.attempt, pool.name, event.placements, event.master_port, state.now_ms)
    run.fence_s = event.fence_s or 0
    run.image = event.image
    run.passed_others = reserved or task.starts_elsewhere == event.attempt
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
        # Its demand ends in the other pools, what a non-preemptible task holds stays, and a task
        # that was set apart counts from now on.
        if name != pool.name or not shape.preemptible or task.set_apart:
            state.pools[name].index.input_changed(from_next_cycle=True)
    state.limits_changed_elsewhere(task.job, pool, from_next_cycle=True)
    state.dirty[task] = None
    # rule: victims: only preemptible tasks
    if task.job.spec.preemptible:
        state.may_be_preempted(task, pool)
    state.journal.record(_unallocate, state, task, run, milli)
    if state.journal.changes is None:  # else it would be undone
        watch_start(state, task, run)


def _unallocate(state: ClusterState, task: Task, run: Attempt, milli: int) -> None:
    for placement in run.placements:
        node = state.nodes[placement.node]
        state.vacate(node, task, placement, stopping=False)
    if run.port is not None:
        release_port(state.nodes[run.placements[0].node], run.port)
    pool = state.pools[run.pool_name]
    state.charge(task, pool, -milli)
    pool.started.pop(task, None)
    task.phase = Phase.PENDING
    task.attempt -= 1
    task.run = None


def preemption_requested_v1(state: ClusterState, event: dec.PreemptionRequestedV1, _: str) -> None:
    _stop(state, event.task_id, event.attempt, event.stop, event.deadline_at_ms)


def stop_requested_v1(state: ClusterState, event: dec.StopRequestedV1, _: str) -> None:
    _stop(state, event.task_id, event.attempt, event.stop, event.deadline_at_ms)


def _stop(
    state: ClusterState,
    task_id: str,
    attempt: int,
    stop: Stop | PolicyStop,
    deadline_ms: int,
) -> None:
    if is_over(state, task_id, attempt):
        return
    task, run = run_of(state, task_id, attempt)
    state.dirty[task] = None
    if run.stop is not None:
        # The task is stopping already; the cancellation only shortens its grace period.
        state.journal.put(run, "stop_deadline_ms", deadline_ms)
        watch_stop(state, task, run)
        return
    state.journal.put(task, "phase", Phase.STOPPING)
    state.journal.put(run, "stop_deadline_ms", deadline_ms)
    begin_stop(state, task, run, stop)
    watch_stop(state, task, run)
    if stop.for_task is not None and state.pools[run.pool_name].index.traits.counts_preemptions:
        state.journal.put(task, "preemptions", task.preemptions + 1)
    # The groups behind a higher-priority task were considered before it. A preemption for an equal
    # task may free slots that they could not have freed themselves.
    numbers = stop.numbers
    if numbers.get("for_priority") in (None, numbers.get("priority")):
        state.pools[run.pool_name].recheck = True


def allocation_revoked_v1(state: ClusterState, event: dec.AllocationRevokedV1, _: str) -> None:
    if is_over(state, event.task_id, event.attempt):
        return
    task, run = run_of(state, event.task_id, event.attempt)
    state.dirty[task] = None
    if run.stop is None:
        # Pending already, while the attempt holds its slots; once they are released, TaskRequeued
        # ends the attempt.
        state.journal.put(task, "phase", Phase.PENDING)
        state.journal.put(run, "failed_nodes", run.failed_nodes_with(event.late))
        state.journal.put(run, "stop_deadline_ms", state.now_ms)
        begin_stop(state, task, run, event.stop)
        watch_stop(state, task, run)
        state.pools[run.pool_name].recheck = True


def stop_overdue_v1(state: ClusterState, event: dec.StopOverdueV1, _: str) -> None:
    if is_over(state, event.task_id, event.attempt):
        return
    task, run = run_of(state, event.task_id, event.attempt)
    if not run.frees_slots:
        return  # a repeat
    state.dirty[task] = None
    hold_overdue(state, task, run)
    for name in run.nodes:
        check_reservations(state, state.nodes[name])
    pool = state.pools[run.pool_name]
    # Groups that would have got these slots look for others.
    pool.recheck = True
    pool.index.input_changed(from_next_cycle=True)


def task_requeued_v1(state: ClusterState, event: dec.TaskRequeuedV1, _: str) -> None:
    if is_over(state, event.task_id, event.attempt):
        return
    task, run = run_of(state, event.task_id, event.attempt)
    if run.open:
        raise ImpossibleEvent(event="TaskRequeued", found=f"{task.id} still holds slots")
    state.journal.put(task, "run", None)
    state.journal.put(task, "phase", Phase.PENDING)
    state.journal.put(task, "queued_ms", state.now_ms)
    state.journal.put(task, "restarts", event.restarts)
    state.journal.put(task, "held_until_ms", event.not_before_ms)
    state.journal.put(task, "failed_starts", event.failed_starts)
    state.journal.put(task, "failed_nodes", event.failed_nodes)
    state.dirty[task] = None
    enqueue_if_ready(state, task)
    leave_places(state, task.job, (task,))
    if event.not_before_ms > state.now_ms:
        state.deadline(event.not_before_ms, Due.HOLD, task.id, event.attempt)
    watch_expiry(state, task)


def failed_starts_expired_v1(state: ClusterState, event: dec.FailedStartsExpiredV1, _: str) -> None:
    task = state.task(event.task_id)
    if task.phase.final or event.attempt != task.attempt or not task.set_apart:
        return  # a repeat
    if task.run is not None:
        raise ImpossibleEvent(event=event.TYPE, found=f"{task.id} is {task.phase.name}")
    # It joins the others of its job.
    state.dequeue(task)
    state.journal.put(task, "expired_starts", event.failed_starts)
    state.dirty[task] = None
    enqueue_if_ready(state, task)


def allocation_unwritable_v1(
    state: ClusterState, event: dec.AllocationUnwritableV1, _: str
) -> None:
    task = state.task(event.task_id)
    if task.phase.final or task.run is not None or task.unwritable:
        return
    state.dequeue(task)
    state.journal.put(task, "unwritable", True)
    schedule_decision(state, task)


def task_unschedulable_v1(state: ClusterState, event: dec.TaskUnschedulableV1, _: str) -> None:
    pool = state.pool(event.pool)
    group = pool.groups.get((event.shape, event.priority))
    if group is None:
        raise ImpossibleEvent(
            event="TaskUnschedulable",
            found=f"no task of shape {event.shape} is pending in {event.pool}",
        )
    known = group.waits.get(pool.name)
    if known is not None and known[0] == event.wait:
        return  # a repeat, which does not change since when the group waits
    state.set_wait(pool, group, event.wait)
    impossible = pool.index.traits.impossible_block
    blocked = known is not None and blocks(group.shape, known[0].code, impossible=impossible)
    if blocked and event.wait.code in LIMITED:
        let_pass(state, pool)
    if event.wait.code in UNTIL:
        until = event.wait.numbers.get("until_at_ms", 0)
        state.deadline(until, Due.PROTECTION, pool.name)


def task_ended_v1(state: ClusterState, event: dec.TaskEndedV1, _: str) -> None:
    task = state.task(event.task_id)
    if task.phase.final:
        return
    if task.run is not None and task.run.open:
        raise ImpossibleEvent(event="TaskEnded", found=f"{task.id} still holds slots")
    state.dequeue(task)
    state.journal.put(task, "phase", OUTCOMES[event.outcome])
    state.journal.put(task, "outcome_code", str(event.code))
    state.journal.put(task, "run", None)
    state.dirty[task] = None
    job = task.job
    state.journal.put(job, "unfinished", job.unfinished - 1)
    if not job.unfinished:
        state.ended[job] = None
        state.journal.record(state.ended.pop, job)
    if event.code is EndCode.UNSCHEDULABLE:
        state.input_changed(job.shape, from_next_cycle=True)
    if task.released:
        state.journal.put(job, "live", job.live - 1)
        release_next(state, job)
