"""Decisions about running tasks and nodes under every policy: ends, stops, losses, deadlines.

Each step is a function of the present task or node. So it is harmless to check a task that needs no
decision; `attention` only lists the tasks to check.
"""

from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.kept_reservations import drop_of, dropped
from yardmaster_core.scheduling.state.appliers.attempts import OVERDUE_MS
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, Phase, ReplicaState
from yardmaster_core.scheduling.state.tasks import Attempt, Task
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    FailedStartsExpiredV1,
    LossCause,
    NodeLostV1,
    Outcome,
    StopOverdueV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.node_events import ReplicaRef
from yardmaster_schemas.events.requests import ExitZero
from yardmaster_schemas.reasons import DropCode, EndCode, PolicyStop, StartFailure, Stop, StopCode

#: After its n-th failure a task backs off 2^(n-1) seconds, and after the n-th failed start in a row
#: 2^n seconds, but at most this many.
MAX_BACKOFF_S: Final = 300
#: The most seconds of grace for a gang that lacks a replica, or runs two images: the others wait
#: for one that will not answer.
MAX_GANG_GRACE_S: Final = 10
#: A task ends after this many failed starts in a row.
MAX_FAILED_STARTS: Final = 5
#: The next attempt avoids at most this many nodes on which a start failed, the newest.
MAX_FAILED_NODES: Final = 16


def decide_lifecycle(draft: Draft) -> None:
    """Decide about nodes, then about tasks, each in the order of their names.

    Nodes come first because a lost node frees slots and closes replicas.
    """
    state = draft.state
    for name in sorted(state.node_attention):
        event = _next_of_node(state, state.node_attention[name])
        if event is not None:
            draft.record(event, name, None)
    done: set[str] = set()
    while todo := sorted(state.attention.keys() - done):
        done.update(todo)
        tasks = [state.attention[task_id] for task_id in todo]
        for task in tasks:
            _advance_task(draft, task)
        overdue = [task.run for task in tasks if task.run is not None and task.run.overdue]
        for pool in dict.fromkeys(run.pool_name for run in overdue):
            _drop_impossible(draft, state.pools[pool].reserved)


def _advance_task(draft: Draft, task: Task) -> None:
    # A task may take two steps at once: requeued, then ended because it was cancelled meanwhile.
    while (event := next_of_task(draft.state, task)) is not None:
        nodes = event.nodes if isinstance(event, StopOverdueV1) else ()
        owners = {owner for node in nodes for owner in draft.state.nodes[node].reserved}
        if owners:
            # In the same cycle: until then, slots are reserved that may never be released.
            draft.require(1 + len(owners))
        draft.record(event, task.id, task.cause)
        _drop_impossible(draft, owners)


def _drop_impossible(draft: Draft, owners: Iterable[Task]) -> None:
    """Drop what is reserved for the tasks that cannot get it any more.

    These are tasks whose slots another task did not release in time, and tasks that a limit lets
    start only once another one has: all of a pool are looked at once, after all stops that are
    overdue. Also tasks about which this cycle has decided already. A cycle that stops at its limit
    leaves the overdue tasks in `attention`, so that the next one drops the rest.
    """
    for owner in sorted(owners):
        if (drop := drop_of(draft.state, owner)) is not None:
            draft.record(drop, owner.id, owner.cause)


def _next_of_node(state: ClusterState, node: Node) -> Event | None:
    if node.state is not NodeState.UP:
        return None
    cause = _why_lost(state, node)
    if cause is None:
        return None
    closed = tuple(
        ReplicaRef(task_id=task_id, attempt=task.attempt, replica=replica)
        for (task_id, replica), task in sorted(node.open.items())
    )
    return NodeLostV1(
        node=node.name,
        incarnation=node.incarnation,
        cause=cause,
        last_heard_at_ms=node.silent_ms if cause is LossCause.SILENT else state.now_ms,
        closed=closed,
    )


def _why_lost(state: ClusterState, node: Node) -> LossCause | None:
    if node.pending is not None:
        return LossCause.REPLACED
    timeout_ms = node.timeout_s(state.config_of(node)) * 1000
    if node.silent_ms > 0 and state.now_ms - node.silent_ms >= timeout_ms:
        return LossCause.SILENT
    forfeit_ms = node.forfeit_ms(state.config_of(node))
    if forfeit_ms is not None and forfeit_ms <= state.now_ms:
        return LossCause.REVOKED
    return None


def next_of_task(state: ClusterState, task: Task) -> Event | None:
    """Return the next decision about a task, or None."""
    if task.phase.final:
        return None
    run = task.run
    if run is None:
        if (drop := drop_of(state, task)) is not None:
            return drop
        if task.cancelled:
            return TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.CANCELLED,
                code=EndCode.CANCELLED,
            )
        if task.job.erased:
            return TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.FAILED,
                code=EndCode.DETAILS_ERASED,
            )
        if task.unwritable:
            return TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.FAILED,
                code=EndCode.DECISION_TOO_LARGE,
            )
        if task.set_apart and state.now_ms >= task.expiry_ms:
            return FailedStartsExpiredV1(
                task_id=task.id, attempt=task.attempt, failed_starts=task.failed_starts
            )
        return None
    if run.open == 0:
        end = _end_of_attempt(state, task, run)
        if task.reserved is not None and isinstance(end, TaskEndedV1):
            return dropped(task, DropCode.ENDED)
        return end
    if run.stop is not None:
        if (drop := drop_of(state, task)) is not None:
            return drop
        if task.cancel_now and run.stop_deadline_ms > state.now_ms:
            return _stop(state, task, run, Stop(code=StopCode.CANCELLED), grace_s=0)
        return _overdue(state, task, run)
    return _stop_of_attempt(state, task, run)


def _overdue(state: ClusterState, task: Task, run: Attempt) -> StopOverdueV1 | None:
    """Return the decision that a stop is overdue, or None."""
    if not run.frees_slots or state.now_ms < run.stop_deadline_ms + OVERDUE_MS:
        return None
    return StopOverdueV1(
        task_id=task.id,
        attempt=run.number,
        pool=run.pool_name,
        nodes=run.nodes,
        deadline_at_ms=run.stop_deadline_ms,
    )


def _stop_of_attempt(state: ClusterState, task: Task, run: Attempt) -> Event | None:
    spec = task.job.spec
    if task.cancelled:
        grace_s = 0 if task.cancel_now else spec.grace_s
        return _stop(state, task, run, Stop(code=StopCode.CANCELLED), grace_s=grace_s)
    if task.paused and not run.ended:
        return _stop(state, task, run, Stop(code=StopCode.PAUSED), grace_s=spec.grace_s)
    replicas = run.replicas
    if run.differs is not None:
        other = run.placements[run.differs].node
        stop = Stop(code=StopCode.IMAGE_CHANGED, numbers={"replica": run.differs}, about=other)
        return _stop(state, task, run, stop, grace_s=min(spec.grace_s, MAX_GANG_GRACE_S))
    # A reported exit takes precedence over a later loss of a node.
    if ReplicaState.LOST in replicas and not run.failed:
        lost = run.placements[replicas.index(ReplicaState.LOST)].node
        stop = Stop(
            code=StopCode.NODE_LOST,
            # A node that was replaced was heard just now.
            numbers={"last_heard_at_ms": state.nodes[lost].silent_ms or state.now_ms},
            about=lost,
        )
        return _stop(state, task, run, stop, grace_s=spec.grace_s)
    # True if a replica was released without having started; one that ended before the others have
    # started does not count.
    never_started = run.started + replicas.count(ReplicaState.ALLOCATED) < len(replicas)
    if run.failed or never_started:
        numbers = {"replicas": len(replicas), "open": run.open}
        stop = Stop(code=StopCode.GANG_INCOMPLETE, numbers=numbers)
        if len(replicas) > 1:
            return _stop(state, task, run, stop, grace_s=min(spec.grace_s, MAX_GANG_GRACE_S))
        return None
    if run.ended:
        return None  # it ended by itself; a stop would change its outcome
    limit_s = spec.time_limit_s
    if limit_s is not None and run.running_ms:
        ran_ms = task.ran_ms + state.now_ms - run.running_ms
        if ran_ms >= limit_s * 1000:
            numbers = {"limit_s": limit_s, "ran_s": ran_ms // 1000}
            stop = Stop(code=StopCode.TIME_LIMIT, numbers=numbers)
            return _stop(state, task, run, stop, grace_s=spec.grace_s)
    config = state.pools[run.pool_name].config
    if (
        task.phase is Phase.STARTING
        and config is not None
        and state.now_ms >= run.start_due_ms(config.start_timeout_s)
    ):
        numbers = {
            "active": run.started,
            "needed": len(replicas),
            "limit_s": config.start_timeout_s,
        }
        return AllocationRevokedV1(
            task_id=task.id,
            attempt=run.number,
            nodes=run.nodes,
            stop=Stop(code=StopCode.START_TIMEOUT, numbers=numbers),
            late=run.late_nodes,
        )
    return _drain(state, task, run) or _off_disabled(state, task, run)


def _drain(state: ClusterState, task: Task, run: Attempt) -> Event | None:
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] >= ReplicaState.RELEASED:
            continue
        node = state.nodes[placement.node]
        empty_ms = node.empty_ms
        if empty_ms and (task.job.spec.preemptible or empty_ms <= state.now_ms):
            stop = Stop(
                code=StopCode.NODE_DRAINED, numbers={"until_at_ms": empty_ms}, about=node.name
            )
            grace_s = task.job.spec.grace_s
            at_deadline = not task.job.spec.preemptible and not node.revoked
            if not at_deadline:
                grace_s = min(grace_s, max(0, (empty_ms - state.now_ms) // 1000))
            return _stop(state, task, run, stop, grace_s=grace_s)
    return None


def _off_disabled(state: ClusterState, task: Task, run: Attempt) -> Event | None:
    for replica, placement in enumerate(run.placements):
        node = state.nodes[placement.node]
        if run.replicas[replica] >= ReplicaState.RELEASED or not node.stops_disabled:
            continue
        held = set(placement.slots).intersection(node.disabled)
        if held and node.incarnation == placement.incarnation:
            stop = Stop(code=StopCode.SLOT_DISABLED, numbers={"slot": min(held)}, about=node.name)
            return _stop(state, task, run, stop, grace_s=task.job.spec.grace_s)
    return None


def _stop(
    state: ClusterState, task: Task, run: Attempt, stop: Stop, *, grace_s: int
) -> StopRequestedV1:
    return StopRequestedV1(
        task_id=task.id,
        attempt=run.number,
        nodes=run.nodes,
        stop=stop,
        grace_s=grace_s,
        deadline_at_ms=state.in_s(grace_s),
    )


def _end_of_attempt(state: ClusterState, task: Task, run: Attempt) -> Event:
    spec = task.job.spec
    if task.cancelled:
        return _ended(task, run, Outcome.CANCELLED, EndCode.CANCELLED)
    all_zero = run.zero_exits == len(run.replicas) and run.differs is None
    stop = run.stop
    if stop is None or stop.code in (StopCode.GANG_INCOMPLETE, StopCode.IMAGE_CHANGED):
        if run.differs is not None:
            return _of_other_image(task, run)
        if all_zero:
            return _ended(task, run, Outcome.SUCCEEDED, EndCode.EXIT, exit_code=0)
        if run.engine_restarted:
            return _requeued(task, run, EndCode.ENGINE_RESTARTED)
        if run.failed:
            return _failed(state, task, run)
        if ReplicaState.LOST in run.replicas:
            return _requeued(task, run, EndCode.NODE_LOST)
        return _failed_start(state, task, run, EndCode.NEVER_STARTED)
    if stop.code is StopCode.TIME_LIMIT:
        return _ended(task, run, Outcome.FAILED, EndCode.TIME_LIMIT)
    if all_zero and (run.done or spec.exit_zero is ExitZero.FINISHED):
        return _ended(task, run, Outcome.SUCCEEDED, EndCode.EXIT, exit_code=0)
    if stop.code is StopCode.START_TIMEOUT:
        return _failed_start(state, task, run, EndCode.START_TIMEOUT)
    return _requeued(task, run, stop.code if isinstance(stop, PolicyStop) else EndCode(stop.code))


def _of_other_image(task: Task, run: Attempt) -> Event:
    """Return the decision after an attempt whose replicas did not all run the image of the task.

    The next attempt is given its digest. A node that runs another one nevertheless would do so
    again, so the task ends.
    """
    if run.image is None:
        return _requeued(task, run, EndCode.IMAGE_CHANGED)
    return _ended(task, run, Outcome.FAILED, EndCode.IMAGE_CHANGED)


def _failed_start(state: ClusterState, task: Task, run: Attempt, code: EndCode) -> Event:
    """Return the decision after a failed start: retry after a back-off, on other nodes if possible,
    or end.

    The task ends if a retry would fail in the same way, or after `MAX_FAILED_STARTS` failures.
    What nodes may see differently, such as an image, is tried once more first, unless a start of
    the task has failed on two nodes.
    `max_restarts` is not used up, because no process of the task ran.
    """
    failure = run.failure or StartFailure.OTHER
    end = failure.end_code
    times = task.failed_starts + 1
    # Agents need not report which replica failed; with one node there is no doubt.
    here = run.failed_nodes or (run.nodes if len(run.nodes) == 1 else ())
    newest_first = dict.fromkeys(reversed((*task.failed_nodes, *here)))
    if failure.checked_twice and times == 1 and len(newest_first) < 2:
        end = None
    if end is None and times >= MAX_FAILED_STARTS:
        end = EndCode.START_FAILED
    if end is not None:
        return _ended(task, run, Outcome.FAILED, end)
    return TaskRequeuedV1(
        task_id=task.id,
        attempt=run.number,
        code=code if failure is StartFailure.OTHER else failure.requeue_code,
        restarts=task.restarts,
        not_before_ms=_backoff_ms(state, times),
        failed_starts=times,
        failed_nodes=tuple(newest_first)[:MAX_FAILED_NODES][::-1],
    )


def _failed(state: ClusterState, task: Task, run: Attempt) -> Event:
    most = task.job.spec.max_restarts
    code = EndCode.EXIT if run.exit_code is not None else EndCode.SIGNAL
    if run.out_of_memory:
        code = EndCode.OUT_OF_MEMORY
    if task.restarts < most:
        not_before_ms = _backoff_ms(state, task.restarts)
        return TaskRequeuedV1(
            task_id=task.id,
            attempt=run.number,
            code=code,
            restarts=task.restarts + 1,
            not_before_ms=not_before_ms,
            failed_starts=task.failed_starts,
            failed_nodes=task.failed_nodes,
        )
    if most:
        code = EndCode.RESTARTS_EXHAUSTED
    return _ended(task, run, Outcome.FAILED, code, exit_code=run.exit_code, signal=run.signal)


def _backoff_ms(state: ClusterState, times: int) -> int:
    return state.in_s(min(MAX_BACKOFF_S, 1 << min(times, 20)))


def _requeued(task: Task, run: Attempt, code: EndCode | str) -> TaskRequeuedV1:
    return TaskRequeuedV1(
        task_id=task.id,
        attempt=run.number,
        code=code,
        restarts=task.restarts,
        # A start that was stopped early does not tell whether the task can start.
        failed_starts=task.failed_starts,
        failed_nodes=task.failed_nodes,
    )


def _ended(
    task: Task,
    run: Attempt,
    outcome: Outcome,
    code: EndCode,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
) -> TaskEndedV1:
    return TaskEndedV1(
        task_id=task.id,
        attempt=run.number,
        outcome=outcome,
        code=code,
        exit_code=exit_code,
        signal=signal,
    )
