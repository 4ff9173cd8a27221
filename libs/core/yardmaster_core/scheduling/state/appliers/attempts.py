"""What several appliers do to tasks and attempts: queue them, close replicas, promise slots."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.entities import (
    Attempt,
    Due,
    Job,
    Node,
    Phase,
    Pool,
    ReplicaState,
    Task,
    Victims,
)
from yardmaster_core.scheduling.state.holdings import note_releasing
from yardmaster_schemas.reasons import Stop


def release_next(state: ClusterState, job: Job) -> None:
    """Let through as many tasks as max_concurrent allows."""
    tasks = job.tasks
    index, live = job.next_index, job.live
    most = job.spec.max_concurrent or len(tasks)
    while live < most and index < len(tasks):
        task = tasks[index]
        index += 1
        if task.phase.final:
            continue
        live += 1
        state.put(task, "released", True)
        state.dirty[task] = None
        consider(state, task)
    if index != job.next_index:
        state.put(job, "next_index", index)
        state.put(job, "live", live)
        state.dirty[job] = None


def consider(state: ClusterState, task: Task) -> None:
    """Put a pending task into the queue unless something holds it."""
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


def note(state: ClusterState, task: Task) -> None:
    """Have a task's next step decided."""
    state.attention[task.id] = task
    state.dirty[task] = None


def believed(state: ClusterState, record_id: str) -> None:
    """Remember the last claim believed from a source, so that repeats are seen."""
    if not record_id:
        return
    source, epoch, seq = record_id.rsplit("/", 2)
    state.sources[source] = (int(epoch), int(seq))


def reopen(state: ClusterState, task: Task, run: Attempt) -> None:
    """Hold again what an attempt from a snapshot holds; rooms are rebuilt after all attempts."""
    task.run = run
    run.open = 0
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] >= ReplicaState.RELEASED:
            continue
        run.open += 1
        node = state.nodes[placement.node]
        node.open[task.id, replica] = task
        state.charge(task, run.pool, placement.gpu_milli * len(placement.slots))
    if run.port is not None and run.replicas[0] < ReplicaState.RELEASED:
        hold_port(state.nodes[run.placements[0].node], run.port)
    stop = run.stop
    if stop is not None and run.open:
        promise(state, task, run, stop)


def run_of(state: ClusterState, task_id: str, attempt: int) -> tuple[Task, Attempt]:
    """The task and its open attempt of that number.

    Raises:
        ImpossibleEvent: the attempt is not open.
    """
    task = state.task(task_id)
    run = task.run
    if run is None or run.number != attempt:
        raise ImpossibleEvent(event="an event", found=f"{task_id} has no attempt {attempt} open")
    return task, run


def watch_start(state: ClusterState, task: Task, run: Attempt) -> None:
    """Have an attempt looked at when it should have started."""
    config = run.pool.config
    limit_s = config.start_timeout_s if config is not None else 300
    state.deadline(run.allocated_ms + limit_s * 1000, Due.START, task.id, run.number)


def over(state: ClusterState, task_id: str, attempt: int) -> bool:
    """Whether that attempt was and is no more: a decision about it is a repeat."""
    task = state.task(task_id)
    return attempt <= task.attempt and (task.run is None or task.run.number != attempt)


def hold_port(node: Node, port: int) -> None:
    """A gang's first replica is on the node; a port is shared where the node has too few."""
    node.ports[port] = node.ports.get(port, 0) + 1


def release_port(node: Node, port: int) -> None:
    """One gang less holds the port."""
    left = node.ports.get(port, 0) - 1
    if left > 0:
        node.ports[port] = left
    else:
        node.ports.pop(port, None)


def close_replica(
    state: ClusterState, task: Task, run: Attempt, replica: int, end: ReplicaState
) -> None:
    """A replica holds its slots no more."""
    placement = run.placements[replica]
    node = state.nodes[placement.node]
    pool = run.pool
    run.replicas[replica] = end
    run.open -= 1
    milli = placement.gpu_milli * len(placement.slots)
    if node.pool is not None and node.incarnation == placement.incarnation:
        state.vacate(node, task, placement, promised=run.stop is not None)
    else:
        node.open.pop((task.id, replica), None)
    if replica == 0 and run.port is not None:
        release_port(node, run.port)
    state.charge(task, pool, -milli)
    state.reshare(pool)
    if run.open == 0:
        _closed(state, task, run)
    note(state, task)
    state.wake_pool(pool)
    for limited_pool, group in list(task.job.project.department.limited):
        state.wake(limited_pool, group)


def _closed(state: ClusterState, task: Task, run: Attempt) -> None:
    if run.running_ms:
        task.ran_ms += state.now_ms - run.running_ms
    if run.stop is None:
        return
    run.pool.stopping -= 1
    for_priority = run.stop.numbers.get("for_priority")
    if for_priority is not None:
        held = run.pool.stopping_for[run.queue_class]
        left = held[for_priority] - 1
        if left:
            held[for_priority] = left
        else:
            del held[for_priority]
            state.wake_behind(run.pool)


def victims(pool: Pool, priority: int) -> Victims:
    """The preemptible tasks of a priority that hold slots in the pool."""
    found = pool.victims.get(priority)
    if found is None:
        found = pool.victims[priority] = Victims(pool, priority)
    return found


def promise(state: ClusterState, task: Task, run: Attempt, stop: Stop) -> None:
    """Count the open replicas' slots as free in the future."""
    pool = run.pool
    run.stop = stop
    pool.stopping += 1
    for_priority = stop.numbers.get("for_priority")
    if for_priority is not None:
        held = pool.stopping_for[run.queue_class]
        held[for_priority] = held.get(for_priority, 0) + 1
    _shift_future(state, run, give=True)
    note_releasing(state, task)
    if state.journal is not None:
        state.journal.append((_unpromise, (state, task, run, for_priority)))


def _unpromise(state: ClusterState, task: Task, run: Attempt, for_priority: int | None) -> None:
    run.stop = None
    note_releasing(state, task)
    pool = run.pool
    pool.stopping -= 1
    if for_priority is not None:
        held = pool.stopping_for[run.queue_class]
        held[for_priority] -= 1
        if not held[for_priority]:
            del held[for_priority]
    _shift_future(state, run, give=False)


def _shift_future(state: ClusterState, run: Attempt, *, give: bool) -> None:
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] >= ReplicaState.RELEASED:
            continue
        node = state.nodes[placement.node]
        if node.pool is None or node.incarnation != placement.incarnation:
            continue
        index = node.pool.future
        what = (placement.slots, placement.gpu_milli, placement.cpu_milli, placement.memory_mib)
        if give:
            index.give(node.future, *what)
        else:
            index.take(node.future, *what)
