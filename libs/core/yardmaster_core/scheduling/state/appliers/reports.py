"""Appliers of the agents' reports about attempts."""

from yardmaster_core.scheduling.state.appliers.attempts import (
    close_replica,
    note_accepted,
    run_of,
    schedule_decision,
    watch_start,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Due, Phase, ReplicaState
from yardmaster_core.scheduling.state.tasks import Attempt, Task
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev


def task_started_v1(state: ClusterState, event: nev.TaskStartedV1, record_id: str) -> None:
    note_accepted(state, record_id)
    task, run = run_of(state, event.task_id, event.attempt)
    run.replicas[event.replica] = ReplicaState.STARTED
    _note_image(state, task, run, event)
    run.started += 1
    state.dirty[task] = None
    if run.started == len(run.replicas) and task.phase is Phase.STARTING:
        task.phase = Phase.RUNNING
        task.failed_starts = 0
        task.failed_nodes = ()
        task.expired_starts = 0
        run.running_ms = state.now_ms
        if task.job.spec.preemptible:
            pool = state.pools[run.pool_name]
            if run.passed_others:
                # From now on it may be preempted for others, which it has passed.
                if pool.index.traits.preempts:
                    state.may_be_preempted(task, pool)
                    state.wake_index.wake_blocked(pool)
                pool.index.input_changed(from_next_cycle=False)
            state.wake_index.wake_earlier_equals(pool, task)
        limit = task.job.spec.time_limit_s
        if limit is not None:
            left = max(0, limit * 1000 - task.ran_ms)
            state.deadline(state.now_ms + left, Due.TIME_LIMIT, task.id, run.number)


def _note_image(state: ClusterState, task: Task, run: Attempt, event: nev.TaskStartedV1) -> None:
    """Pin the task to the first digest that it runs, and note a replica with another image.

    An image from no registry has no digest, and cannot be pinned: it only differs from one that
    has.
    """
    same = task.image == event.image
    if task.image is None and event.image is not None:
        task.image = event.image
        same = run.started == 0
    if not same and run.differs is None:
        run.differs = event.replica
        schedule_decision(state, task)


def task_preparing_v1(state: ClusterState, event: nev.TaskPreparingV1, record_id: str) -> None:
    note_accepted(state, record_id)
    task, run = run_of(state, event.task_id, event.attempt)
    run.prepared_ms = state.now_ms
    state.dirty[task] = None
    if task.phase is Phase.STARTING:
        watch_start(state, task, run)


def checkpoint_done_v1(state: ClusterState, event: nev.CheckpointDoneV1, record_id: str) -> None:
    note_accepted(state, record_id)
    task, _ = run_of(state, event.task_id, event.attempt)
    task.checkpoint = dec.Checkpoint(uri=event.uri, step=event.step)
    state.dirty[task] = None


def task_progressed_v1(state: ClusterState, event: nev.TaskProgressedV1, record_id: str) -> None:
    note_accepted(state, record_id)


def task_exited_v1(state: ClusterState, event: nev.TaskExitedV1, record_id: str) -> None:
    note_accepted(state, record_id)
    task, run = run_of(state, event.task_id, event.attempt)
    run.replicas[event.replica] = ReplicaState.EXITED
    run.done = run.done or event.done
    run.engine_restarted = run.engine_restarted or event.engine_restarted
    if event.exit_code == 0 and not event.engine_restarted:
        run.zero_exits += 1
    elif not run.failed and run.stop is None:
        # The exit code of a stopping attempt is not a failure.
        run.exit_code = event.exit_code
        run.signal = event.signal
        run.out_of_memory = event.out_of_memory
    if run.stop is None:
        state.disturb()
    state.note_releasing(task)
    task.cause = record_id
    schedule_decision(state, task)


def slots_released_v1(state: ClusterState, event: nev.SlotsReleasedV1, record_id: str) -> None:
    note_accepted(state, record_id)
    task, run = run_of(state, event.task_id, event.attempt)
    task.cause = record_id
    if event.failure is not None and run.stop is None:
        if run.failure is None or run.failure.rank < event.failure.rank:
            run.failure = event.failure
        run.failed_nodes = run.failed_nodes_with((event.node,))
    close_replica(state, task, run, event.replica, ReplicaState.RELEASED)
