"""Explains a task's phase at a moment, from the scheduler's state and the task's history.

The state contains why a task is pending: one recorded reason per pool, shared by all tasks with the
same shape and priority. Only the log contains why earlier attempts were stopped, and how a task
ended whose job has left the state; `TaskHistory` collects that while the log is folded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from yardmaster_core.commit import CountedCycle
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.planner.lifecycle import MAX_FAILED_STARTS
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Phase, ReplicaState
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_core.scheduling.state.wait_codes import class_of
from yardmaster_eventlog.port import EventLog
from yardmaster_runtime.errors import UnknownTask
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    Outcome,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.node_events import ShareLimits
from yardmaster_schemas.position import Position
from yardmaster_schemas.reasons import EndCode, PolicyStop, Start, Stop, Wait, WaitClass, WaitCode
from yardmaster_schemas.resources import Resources, is_share


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWait:
    """Why a task is pending in one pool, since when, and the cycle that recorded it, if any."""

    pool: str
    wait: Wait
    since_ms: int | None
    cycle: int | None

    @property
    def wait_class(self) -> WaitClass:
        """never, held or not_now."""
        return self.wait.code.wait_class


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt: where and why it started, why it was stopped, how it ended.

    `ended` is the code of TaskRequeued or TaskEnded; empty before.
    """

    number: int
    pool: str
    nodes: tuple[str, ...]
    allocated_ms: int
    start: Start | None = None
    stop: Stop | PolicyStop | None = None
    stopped_ms: int | None = None
    deadline_ms: int | None = None
    ended: str = ""
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """The end of a task, and the cycle that decided it."""

    cycle: int
    at_ms: int
    outcome: Outcome
    code: EndCode
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request of one replica, the number of replicas, and the GPUs of all of them."""

    replica: Resources
    replicas: int
    gpu_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A task at a point in the log; `waits` has the reasons of a pending task, in the order of its
    pools.
    """

    task_id: str
    at_ms: int
    cycle: int
    phase: str
    #: None: its job has ended and left the state.
    request: Request | None = None
    #: The class of all `waits` together: `never` only when every pool is `never`.
    wait_class: WaitClass | None = None
    waits: tuple[PoolWait, ...] = ()
    #: The slots that are kept for the task.
    reserved: Reservation | None = None
    attempts: tuple[AttemptSummary, ...] = ()
    #: The last attempt that was stopped.
    last_stop: AttemptSummary | None = None
    #: None before the end.
    end: TaskEnd | None = None
    #: The nodes where the task holds shares of GPUs, and nothing limits it to its shares.
    nodes_without_share_limits: tuple[str, ...] = ()


class TaskHistory:
    """Collects the attempts and the end of one task; a listener of the scheduler's fold."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.end: TaskEnd | None = None
        self._attempts: dict[int, AttemptSummary] = {}

    @property
    def attempts(self) -> tuple[AttemptSummary, ...]:
        """All attempts so far, by number."""
        return tuple(self._attempts.values())

    def __call__(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Take a cycle's decisions about the task."""
        for _, envelope in counted.decisions:
            if getattr(envelope.data, "task_id", None) == self.task_id:
                self._note(envelope.data, counted.commit.cycle, counted.commit.now_ms)

    def _note(self, event: Event, cycle: int, now_ms: int) -> None:
        match event:
            case SlotsAllocatedV1():
                self._attempts[event.attempt] = AttemptSummary(
                    number=event.attempt,
                    pool=event.pool,
                    nodes=tuple(dict.fromkeys(p.node for p in event.placements)),
                    allocated_ms=now_ms,
                    start=event.start,
                )
            case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
                self._change(
                    event.attempt,
                    stop=event.stop,
                    stopped_ms=now_ms,
                    deadline_ms=getattr(event, "deadline_at_ms", None),
                )
            case TaskRequeuedV1() | TaskEndedV1():
                self._change(event.attempt, ended=str(event.code), ended_ms=now_ms)
                if isinstance(event, TaskEndedV1):
                    self.end = TaskEnd(
                        cycle=cycle,
                        at_ms=now_ms,
                        outcome=event.outcome,
                        code=event.code,
                        exit_code=event.exit_code,
                        signal=event.signal,
                    )
            case _:
                pass

    def _change(self, attempt: int, **changes: object) -> None:
        if attempt in self._attempts:
            self._attempts[attempt] = replace(self._attempts[attempt], **changes)  # type: ignore[arg-type]


def explain(state: ClusterState, task_id: str, history: TaskHistory | None = None) -> Explanation:
    """Explain a task's phase; with `history`, also its earlier attempts, and its end after its job
    has left the state.

    Raises:
        UnknownTask.
    """
    task = state.tasks.get(task_id)
    end = history.end if history is not None else None
    attempts: tuple[AttemptSummary, ...] = ()
    if history is not None:
        attempts = history.attempts
    elif task is not None:
        attempts = _current(task)
    stopped = [attempt for attempt in attempts if attempt.stop is not None]
    last_stop = stopped[-1] if stopped else None
    if task is None:
        if end is None:
            raise UnknownTask(task_id=task_id, where=f"cycle {state.cycle}")
        return Explanation(
            task_id=task_id,
            at_ms=state.now_ms,
            cycle=state.cycle,
            phase=end.outcome.value,
            attempts=attempts,
            last_stop=last_stop,
            end=end,
        )
    waits = _waits(state, task) if task.phase is Phase.PENDING else ()
    shape = task.job.shape
    return Explanation(
        task_id=task_id,
        at_ms=state.now_ms,
        cycle=state.cycle,
        phase=task.phase.name.lower(),
        request=Request(
            replica=task.job.spec.resources,
            replicas=shape.replicas,
            gpu_milli=state.pools[shape.pools[0]].most_milli(shape),
        ),
        wait_class=_class_of(waits),
        waits=waits,
        reserved=task.reserved,
        attempts=attempts,
        last_stop=last_stop,
        end=end,
        nodes_without_share_limits=_without_share_limits(state, task),
    )


def _without_share_limits(state: ClusterState, task: Task) -> tuple[str, ...]:
    run = task.run
    if run is None:
        return ()
    names = dict.fromkeys(
        placement.node
        for placement, replica in zip(run.placements, run.replicas, strict=True)
        if is_share(placement.gpu_milli) and replica < ReplicaState.RELEASED
    )
    return tuple(
        name
        for name in names
        if name in state.nodes and state.nodes[name].share_limits is ShareLimits.NONE
    )


def _current(task: Task) -> tuple[AttemptSummary, ...]:
    run = task.run
    if run is None:
        return ()
    story = AttemptSummary(
        number=run.number,
        pool=run.pool_name,
        nodes=run.nodes,
        allocated_ms=run.allocated_ms,
        stop=run.stop,
        deadline_ms=run.stop_deadline_ms or None,
    )
    return (story,)


def _waits(state: ClusterState, task: Task) -> tuple[PoolWait, ...]:
    """One reason per pool: the task's own reason, or else the one of its shape and priority."""
    reserved = task.reserved
    if reserved is not None:
        return (
            PoolWait(
                pool=reserved.pool_name,
                wait=reserved.wait,
                since_ms=reserved.since_ms,
                cycle=reserved.cycle,
            ),
        )
    own = _own_wait(state, task)
    recorded: Mapping[str, tuple[Wait, int, int]] = task.group.waits if task.group else {}
    waits = []
    for pool in task.job.shape.pools:
        if own is not None:
            waits.append(PoolWait(pool=pool, wait=own, since_ms=None, cycle=None))
        elif pool in recorded:
            wait, since_ms, cycle = recorded[pool]
            waits.append(PoolWait(pool=pool, wait=wait, since_ms=since_ms, cycle=cycle))
        else:
            wait = Wait(code=WaitCode.NOT_CONSIDERED)
            waits.append(PoolWait(pool=pool, wait=wait, since_ms=None, cycle=None))
    return tuple(waits)


def _own_wait(state: ClusterState, task: Task) -> Wait | None:
    if task.paused:
        return Wait(code=WaitCode.PAUSED)
    if task.held_until_ms > state.now_ms and task.failed_starts:
        numbers = {
            "until_at_ms": task.held_until_ms,
            "failed_starts": task.failed_starts,
            "limit": MAX_FAILED_STARTS,
        }
        return Wait(code=WaitCode.START_BACKOFF, numbers=numbers)
    if task.held_until_ms > state.now_ms:
        numbers = {"until_at_ms": task.held_until_ms, "restarts": task.restarts}
        return Wait(code=WaitCode.RESTART_BACKOFF, numbers=numbers)
    limit = task.job.spec.max_concurrent
    if not task.released and limit is not None:
        numbers = {"limit": limit, "used": task.job.live}
        return Wait(code=WaitCode.AT_MAX_CONCURRENT, numbers=numbers)
    return None


def _class_of(waits: Sequence[PoolWait]) -> WaitClass | None:
    return (
        class_of(
            {each.pool: (each.wait, 0, 0) for each in waits}, tuple(each.pool for each in waits)
        )
        if waits
        else None
    )


async def explain_at(
    log: EventLog,
    cell: str,
    task_id: str,
    *,
    position: Position | None = None,
    time_ms: int | None = None,
    cycle: int | None = None,
    partition: int = 0,
) -> Explanation:
    """Explain a task's phase at a point in the log (see `state_at`).

    Raises:
        UnknownTask: the task was not admitted by then.
        BeforeFirstCycle and the errors of `state_at`.
    """
    history = TaskHistory(task_id)
    found = await state_at(
        log,
        SchedulerMachine(),
        cell,
        position=position,
        time_ms=time_ms,
        cycle=cycle,
        partition=partition,
        listeners=[history],
    )
    return explain(found.state, task_id, history)
