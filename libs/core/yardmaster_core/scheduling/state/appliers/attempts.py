"""Steps that several appliers share: enqueue tasks, close replicas, stop attempts."""

from collections.abc import Iterable
from typing import Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import Due, Phase, ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Attempt, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import PolicyStop, Stop

#: A stop is overdue this long after its deadline: agents have killed the processes at the deadline.
OVERDUE_MS: Final = 60_000


def release_next(state: ClusterState, job: Job) -> None:
    """Release as many tasks of `job` as max_concurrent allows."""
    tasks = job.tasks
    index, live = job.next_index, job.live
    most = job.spec.max_concurrent or len(tasks)
    while live < most and index < len(tasks):
        task = tasks[index]
        index += 1
        if task.phase.final or task.released or task.paused:
            continue
        live += 1
        state.journal.put(task, "released", True)
        state.dirty[task] = None
        enqueue_if_ready(state, task)
    if index != job.next_index:
        state.journal.put(job, "next_index", index)
        state.journal.put(job, "live", live)
        state.dirty[job] = None


def leave_places(state: ClusterState, job: Job, tasks: Iterable[Task]) -> None:
    """Free the places that paused tasks have under max_concurrent, for other tasks of `job`.

    Only those of `tasks` that hold no slots leave their places.
    """
    if job.spec.max_concurrent is None:
        return
    left = [
        task
        for task in tasks
        if task.paused and task.released and task.run is None and not task.phase.final
    ]
    for task in left:
        state.journal.put(task, "released", False)
        state.dirty[task] = None
    if left:
        state.journal.put(job, "live", job.live - len(left))
        release_next(state, job)


def enqueue_if_ready(state: ClusterState, task: Task) -> None:
    """Enqueue `task` if it is pending and nothing holds it."""
    if (
        task.phase is Phase.PENDING
        and task.run is None
        and task.group is None
        and task.released
        and not task.paused
        and not task.cancelled
        and not task.job.erased
        and not task.unwritable
        and task.held_until_ms <= state.now_ms
    ):
        state.enqueue(task)


def let_pass(state: ClusterState, pool: Pool) -> None:
    """Note that the tasks started in this cycle passed groups that a blocked group kept back.

    That group blocks no longer: it has reached a limit since, or uses another pool. The groups
    behind it may preempt the started tasks, but only once they run: then `TaskStarted` wakes these
    groups.
    """
    if not pool.index.traits.preempts:
        return
    for task in pool.started:
        run = task.run
        if run is not None and task.job.spec.preemptible:
            state.journal.put(run, "passed_others", True)
            state.dirty[task] = None
            state.may_be_preempted(task, pool)
    # Each once, however many groups let it pass.
    state.journal.put(pool, "started", {})


def let_pass_elsewhere(state: ClusterState, task: Task, pool: Pool) -> None:
    """Note which started tasks passed others in other pools than `pool`, in which the last task of
    a group without reserved slots gets some.
    """
    group = task.group
    if group is None or task.queue is not group.queue or group.queue.live > 1:
        return
    for name in group.shape.pools:
        record = group.waits.get(name)
        if name != pool.name and record is not None and record[0].code in BLOCKING:
            let_pass(state, state.pools[name])


def schedule_decision(state: ClusterState, task: Task) -> None:
    """Mark `task`: the cycle must decide its next step."""
    if task.id not in state.attention:
        state.journal.record(state.attention.pop, task.id, None)
    state.attention[task.id] = task
    state.dirty[task] = None


def note_accepted(state: ClusterState, record_id: str) -> None:
    """Remember the last claim accepted from a source, so that repeats are recognized."""
    if not record_id:
        return
    source, epoch, seq = record_id.rsplit("/", 2)
    state.sources[source] = (int(epoch), int(seq))


def reopen(state: ClusterState, task: Task, run: Attempt) -> None:
    """Restore the slots of an attempt from a snapshot; capacities are rebuilt at the end."""
    task.run = run
    run.open = 0
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] >= ReplicaState.RELEASED:
            continue
        run.open += 1
        node = state.nodes[placement.node]
        node.open[task.id, replica] = task
        state.charge(task, state.pools[run.pool_name], placement.gpu_milli * len(placement.slots))
    if run.port is not None and run.replicas[0] < ReplicaState.RELEASED:
        hold_port(state.nodes[run.placements[0].node], run.port)
    stop = run.stop
    if stop is not None and run.open:
        overdue, run.overdue = run.overdue, False
        begin_stop(state, task, run, stop)
        if overdue:
            hold_overdue(state, task, run)


def run_of(state: ClusterState, task_id: str, attempt: int) -> tuple[Task, Attempt]:
    """The task and its open attempt `attempt`.

    Raises:
        ImpossibleEvent: the attempt is not open.
    """
    task = state.task(task_id)
    run = task.run
    if run is None or run.number != attempt:
        raise ImpossibleEvent(event="an event", found=f"{task_id} has no attempt {attempt} open")
    return task, run


def watch_start(state: ClusterState, task: Task, run: Attempt) -> None:
    """Set the deadline by which an attempt must have started."""
    config = state.pools[run.pool_name].config
    limit_s = config.start_timeout_s if config is not None else 300
    state.deadline(run.start_due_ms(limit_s), Due.START, task.id, run.number)


def watch_expiry(state: ClusterState, task: Task) -> None:
    """Set the time at which the failed starts of a pending task expire, if it is set apart."""
    if task.set_apart:
        state.deadline(task.expiry_ms, Due.EXPIRY, task.id, task.attempt)


def watch_stop(state: ClusterState, task: Task, run: Attempt) -> None:
    """Set the time at which an attempt that stops is overdue."""
    state.deadline(run.stop_deadline_ms + OVERDUE_MS, Due.STOP, task.id, run.number)


def is_over(state: ClusterState, task_id: str, attempt: int) -> bool:
    """Whether the attempt has ended, so that a decision about it is a repeat."""
    task = state.task(task_id)
    return attempt <= task.attempt and (task.run is None or task.run.number != attempt)


def hold_port(node: Node, port: int) -> None:
    """Count one more gang on `port` of the node; gangs share ports when there are too few."""
    node.ports[port] = node.ports.get(port, 0) + 1


def release_port(node: Node, port: int) -> None:
    """Count one gang less on `port` of the node."""
    left = node.ports.get(port, 0) - 1
    if left > 0:
        node.ports[port] = left
    else:
        node.ports.pop(port, None)


def close_replica(
    state: ClusterState, task: Task, run: Attempt, replica: int, end: ReplicaState
) -> None:
    """Set a replica to the state `end`, and release its slots."""
    placement = run.placements[replica]
    node = state.nodes[placement.node]
    pool = state.pools[run.pool_name]
    state.journal.record(_reopen_replica, state, task, run, replica, run.replicas[replica])
    run.replicas[replica] = end
    run.open -= 1
    milli = placement.gpu_milli * len(placement.slots)
    if node.pool_name is not None and node.incarnation == placement.incarnation:
        state.vacate(node, task, placement, stopping=run.frees_slots)
    else:
        node.open.pop((task.id, replica), None)
    if replica == 0 and run.port is not None:
        release_port(node, run.port)
    state.charge(task, pool, -milli)
    pool.index.input_changed(from_next_cycle=False)
    state.limits_changed_elsewhere(task.job, pool, from_next_cycle=False)
    if run.open == 0:
        _count_closed(state, task, run, 1)
    schedule_decision(state, task)
    state.wake_index.wake_after_release(pool)
    if state.wake_index.limited or state.wake_index.by_memory:
        state.wake_index.wake_below_limits((task.job.id, *state.owners_of(task.job.project)))


def _reopen_replica(
    state: ClusterState, task: Task, run: Attempt, replica: int, before: ReplicaState
) -> None:
    """Undo `close_replica`; the replica was in the state `before`."""
    placement = run.placements[replica]
    node = state.nodes[placement.node]
    if run.open == 0:
        _count_closed(state, task, run, -1)
    state.charge(task, state.pools[run.pool_name], placement.gpu_milli * len(placement.slots))
    if replica == 0 and run.port is not None:
        hold_port(node, run.port)
    if node.pool_name is not None and node.incarnation == placement.incarnation:
        state.occupy(node, task, placement, stopping=run.frees_slots)
    else:
        node.open[task.id, replica] = task
    run.open += 1
    run.replicas[replica] = before


def _count_closed(state: ClusterState, task: Task, run: Attempt, sign: int) -> None:
    """Count the end of an attempt, or with `sign` -1 that the end is undone."""
    if run.running_ms:
        task.ran_ms += sign * (state.now_ms - run.running_ms)
    if run.frees_slots:
        _count_stopping(state, task, run, -sign)


def _count_stopping(state: ClusterState, task: Task, run: Attempt, sign: int) -> None:
    pool = state.pools[run.pool_name]
    pool.stopping += sign
    if not task.job.spec.preemptible:
        pool.stopping_non_preemptible += sign


def begin_stop(state: ClusterState, task: Task, run: Attempt, stop: Stop | PolicyStop) -> None:
    """Mark an attempt as stopping and count its open replicas' slots as free in the future."""
    run.stop = stop
    _count_stopping(state, task, run, 1)
    _shift_future(state, run, release=True)
    state.note_releasing(task)
    pool = state.pools[run.pool_name]
    state.limits_changed_elsewhere(task.job, pool, from_next_cycle=True)
    state.wake_index.note_freeing((task.job.id, *state.owners_of(task.job.project)))
    state.journal.record(_undo_stop, state, task, run)


def _undo_stop(state: ClusterState, task: Task, run: Attempt) -> None:
    run.stop = None
    state.note_releasing(task)
    _count_stopping(state, task, run, -1)
    _shift_future(state, run, release=False)


def hold_overdue(state: ClusterState, task: Task, run: Attempt) -> None:
    """Count the slots of an attempt that stops as held again, because its stop is overdue."""
    run.overdue = True
    _count_stopping(state, task, run, -1)
    _shift_future(state, run, release=False)
    state.allocation_changed(task, state.pools[run.pool_name])
    state.journal.record(_undo_overdue, state, task, run)


def _undo_overdue(state: ClusterState, task: Task, run: Attempt) -> None:
    run.overdue = False
    _count_stopping(state, task, run, 1)
    _shift_future(state, run, release=True)
    state.allocation_changed(task, state.pools[run.pool_name])


def _shift_future(state: ClusterState, run: Attempt, *, release: bool) -> None:
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] >= ReplicaState.RELEASED:
            continue
        node = state.nodes[placement.node]
        if node.pool_name is None or node.incarnation != placement.incarnation:
            continue
        pool = state.pools[node.pool_name]
        index = pool.future
        amounts = (placement.slots, placement.gpu_milli, placement.cpu_milli, placement.memory_mib)
        if release:
            index.release(node.future, *amounts)
            pool.index.node_changed(node)
        else:
            index.take(node.future, *amounts)
