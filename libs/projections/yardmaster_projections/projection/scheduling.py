"""Projects reports of agents and decisions of the scheduler."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.enrollment import covers
from yardmaster_projections.projection.draft import ENROLLED, Draft
from yardmaster_projections.rows import (
    AttemptRow,
    CountersRow,
    Dropped,
    Ended,
    NodeRow,
    Preparing,
    RankRow,
    ReplicaRow,
    Reserved,
    SharesRow,
    Stopping,
    TaskRow,
    WaitRow,
)
from yardmaster_schemas.api import Phase
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.events import node_events as n

OUTCOMES: Final[Mapping[d.Outcome, Phase]] = {
    d.Outcome.SUCCEEDED: Phase.SUCCEEDED,
    d.Outcome.FAILED: Phase.FAILED,
    d.Outcome.CANCELLED: Phase.CANCELLED,
}


def _attempt(draft: Draft, task_id: str, number: int, event: str) -> AttemptRow:
    return draft.need(AttemptRow, f"{task_id}/{number}", event)


def _task(draft: Draft, data: Any, event: str) -> TaskRow:
    return draft.need(TaskRow, data.task_id, event)


def _replica(draft: Draft, attempt: AttemptRow, replica: int, **changes: Any) -> AttemptRow:
    """Change one replica of an attempt; return the changed attempt, which is stored."""
    if replica >= len(attempt.replicas):
        raise ImpossibleEvent(event=attempt.key, found=f"it has no replica {replica}")
    replicas = list(attempt.replicas)
    replicas[replica] = replace(replicas[replica], **changes)
    new = replace(attempt, replicas=tuple(replicas))
    draft.put(new)
    return new


# --- node-events --------------------------------------------------------------------------------


def _node_joined_v1(draft: Draft, envelope: Envelope[n.NodeJoinedV1], _: object) -> None:
    data = envelope.data
    node = draft.find(NodeRow, data.node) or NodeRow(name=data.node)
    same = node.joined is not None and node.joined.incarnation == data.incarnation
    if same and not node.lost and not node.left:
        return  # the agent restarted; its tasks keep running
    if node.held:
        draft.change_node(node, rejoined=data)
        return
    _install(draft, node, data)


def _install(draft: Draft, node: NodeRow, joined: n.NodeJoinedV1) -> None:
    """Store the offer with which a node joined, and bar the node if it offers too much."""
    node = draft.change_node(
        node, joined=joined, joined_at_ms=draft.now_ms, left=False, lost=False, rejoined=None
    )
    closed = draft.find(CountersRow, ENROLLED) is not None
    draft.change_node(node, barred=closed and barred(node))


def barred(node: NodeRow) -> bool:
    """Whether a node of a closed cell has joined and its enrollment does not cover its offer."""
    joined, enrollment = node.joined, node.enrollment
    if joined is None:
        return False
    offer = (joined.pool, joined.gpus, joined.node_type, joined.labels, joined.address)
    return enrollment is None or not covers(enrollment, *offer)


def _node_drained_v1(draft: Draft, envelope: Envelope[n.NodeDrainedV1], _: object) -> None:
    draft.change_node(draft.need(NodeRow, envelope.data.node, envelope.type), left=True)


def _task_started_v1(draft: Draft, envelope: Envelope[n.TaskStartedV1], _: object) -> None:
    data = envelope.data
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    attempt = _replica(draft, attempt, data.replica, started_at_ms=draft.now_ms, image=data.image)
    task = _task(draft, data, envelope.type)
    if task.image is None and data.image is not None:
        task = draft.change_task(task, image=data.image)
    if any(replica.started_at_ms is None for replica in attempt.replicas):
        return
    draft.put(replace(attempt, started_at_ms=draft.now_ms))
    if task.phase is Phase.STARTING:
        draft.change_task(
            task, phase=Phase.RUNNING, started_at_ms=draft.now_ms, failed_starts=0, expired_starts=0
        )


def _checkpoint_done_v1(draft: Draft, envelope: Envelope[n.CheckpointDoneV1], _: object) -> None:
    data = envelope.data
    checkpoint = d.Checkpoint(uri=data.uri, step=data.step)
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    draft.put(replace(attempt, checkpoint=checkpoint, checkpoint_at_ms=draft.now_ms))
    task = _task(draft, data, envelope.type)
    draft.change_task(task, checkpoint=checkpoint, checkpoint_at_ms=draft.now_ms)


def _task_preparing_v1(draft: Draft, envelope: Envelope[n.TaskPreparingV1], _: object) -> None:
    data = envelope.data
    task = _task(draft, data, envelope.type)
    preparing = Preparing(
        replica=data.replica,
        layers=data.layers,
        layers_done=data.layers_done,
        bytes_done=data.bytes_done,
        bytes_total=data.bytes_total,
        starts_ahead=data.starts_ahead,
        at_ms=draft.now_ms,
    )
    draft.change_task(task, preparing=preparing)


def _task_progressed_v1(draft: Draft, envelope: Envelope[n.TaskProgressedV1], _: object) -> None:
    task = _task(draft, envelope.data, envelope.type)
    draft.change_task(task, progress_permille=envelope.data.permille)


def _task_exited_v1(draft: Draft, envelope: Envelope[n.TaskExitedV1], _: object) -> None:
    data = envelope.data
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    _replica(
        draft,
        attempt,
        data.replica,
        exited_at_ms=draft.now_ms,
        exit_code=data.exit_code,
        signal=data.signal,
    )


def _slots_released_v1(draft: Draft, envelope: Envelope[n.SlotsReleasedV1], _: object) -> None:
    data = envelope.data
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    _close(draft, attempt, data.replica)


def _close(draft: Draft, attempt: AttemptRow, replica: int) -> None:
    """Release the slots of a replica."""
    row = attempt.replicas[replica] if replica < len(attempt.replicas) else None
    if row is not None and row.released_at_ms is not None:
        return
    attempt = _replica(draft, attempt, replica, released_at_ms=draft.now_ms)
    placement = attempt.replicas[replica].placement
    node = draft.need(NodeRow, placement.node, attempt.key)
    held = {at: where for at, where in node.held.items() if at != (attempt.task_id, replica)}
    draft.change_node(node, held=held)
    draft.use(attempt.project, attempt.pool, -placement.gpu_milli * len(placement.slots))


# --- decisions ----------------------------------------------------------------------------------


def _slots_allocated_v1(draft: Draft, envelope: Envelope[d.SlotsAllocatedV1], _: object) -> None:
    data = envelope.data
    task = _task(draft, data, envelope.type)
    if data.attempt <= task.attempt:
        return
    _release_reserved(draft, task, envelope.type)
    draft.put(
        AttemptRow(
            task_id=data.task_id,
            project=data.project,
            attempt=data.attempt,
            pool=data.pool,
            allocated_at_ms=draft.now_ms,
            start=data.start,
            replicas=tuple(ReplicaRow(placement=placement) for placement in data.placements),
        )
    )
    milli = 0
    draft.need_each(NodeRow, [placement.node for placement in data.placements], envelope.type)
    for placement in data.placements:
        node = draft.need(NodeRow, placement.node, envelope.type)
        draft.change_node(node, held={**node.held, (data.task_id, placement.replica): placement})
        milli += placement.gpu_milli * len(placement.slots)
    draft.use(data.project, data.pool, milli)
    draft.change_task(
        task,
        phase=Phase.STARTING,
        reserved=None,
        dropped=None,
        attempt=data.attempt,
        pool=data.pool,
        nodes=tuple(dict.fromkeys(placement.node for placement in data.placements)),
        started_at_ms=None,
        stopping=None,
        progress_permille=None,
        preparing=None,
        not_before_ms=0,
    )


def _slots_reserved_v1(draft: Draft, envelope: Envelope[d.SlotsReservedV1], _: object) -> None:
    data = envelope.data
    task = _task(draft, data, envelope.type)
    if data.attempt <= task.attempt:
        return
    reserved = Reserved(
        pool=data.pool,
        slots=tuple((placement.node, placement.slots) for placement in data.placements),
        victims=data.victims,
        until_ms=data.until_at_ms,
        at_ms=draft.now_ms,
        cycle=draft.cycle,
    )
    draft.need_each(NodeRow, [placement.node for placement in data.placements], envelope.type)
    for placement in data.placements:
        node = draft.need(NodeRow, placement.node, envelope.type)
        kept = {**node.reserved, (data.task_id, placement.replica): placement}
        draft.change_node(node, reserved=kept)
    draft.change_task(task, reserved=reserved, dropped=None)


def _release_reserved(draft: Draft, task: TaskRow, event: str) -> None:
    """Remove the reservation of a task from the rows of its nodes."""
    if task.reserved is None:
        return
    names = list(dict.fromkeys(name for name, _ in task.reserved.slots))
    for node in draft.need_each(NodeRow, names, event):
        kept = {at: where for at, where in node.reserved.items() if at[0] != task.task_id}
        draft.change_node(node, reserved=kept)


def _reservation_dropped_v1(
    draft: Draft, envelope: Envelope[d.ReservationDroppedV1], _: object
) -> None:
    task = _task(draft, envelope.data, envelope.type)
    data = envelope.data
    dropped = Dropped(
        pool=data.pool,
        code=data.code,
        about=data.about,
        for_task=data.for_task,
        numbers=data.numbers,
        at_ms=draft.now_ms,
    )
    _release_reserved(draft, task, envelope.type)
    draft.change_task(task, reserved=None, dropped=dropped)


def _claimants_ranked_v1(draft: Draft, envelope: Envelope[d.ClaimantsRankedV1], _: object) -> None:
    data = envelope.data
    for each in data.ranks:
        row = RankRow(pool=data.pool, among=data.among, claimant=each.claimant, rank=each.rank)
        if each.rank:
            draft.put(row)
        else:
            draft.drop(row)


def _shares_divided_v1(draft: Draft, envelope: Envelope[d.SharesDividedV1], _: object) -> None:
    data = envelope.data
    if not data.part:
        draft.drop_shares(data.pool)
    draft.put(
        SharesRow(
            pool=data.pool,
            part=data.part,
            queues=data.queues,
            at_ms=draft.now_ms,
            cycle=draft.cycle,
        )
    )


def _stop_requested_v1(draft: Draft, envelope: Envelope[Any], _: object) -> None:
    data = envelope.data
    stopping = Stopping(stop=data.stop, at_ms=draft.now_ms, deadline_at_ms=data.deadline_at_ms)
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    draft.put(replace(attempt, stopping=stopping))
    task = _task(draft, data, envelope.type)
    draft.change_task(task, phase=Phase.STOPPING, stopping=stopping)


def _allocation_revoked_v1(
    draft: Draft, envelope: Envelope[d.AllocationRevokedV1], _: object
) -> None:
    data = envelope.data
    stopping = Stopping(stop=data.stop, at_ms=draft.now_ms, deadline_at_ms=None)
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    draft.put(replace(attempt, stopping=stopping))
    task = _task(draft, data, envelope.type)
    draft.change_task(task, phase=Phase.PENDING, stopping=stopping)


def _stop_overdue_v1(draft: Draft, envelope: Envelope[d.StopOverdueV1], _: object) -> None:
    data = envelope.data
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    if attempt.stopping is None:
        return
    stopping = replace(attempt.stopping, overdue_at_ms=draft.now_ms)
    draft.put(replace(attempt, stopping=stopping))
    draft.change_task(_task(draft, data, envelope.type), stopping=stopping)


def _task_requeued_v1(draft: Draft, envelope: Envelope[d.TaskRequeuedV1], _: object) -> None:
    data = envelope.data
    attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
    draft.put(replace(attempt, end=str(data.code), ended_at_ms=draft.now_ms))
    draft.change_task(
        _task(draft, data, envelope.type),
        phase=Phase.PENDING,
        restarts=data.restarts,
        not_before_ms=data.not_before_ms,
        failed_starts=data.failed_starts,
        pool=None,
        nodes=(),
        started_at_ms=None,
        stopping=None,
    )


def _failed_starts_expired_v1(
    draft: Draft, envelope: Envelope[d.FailedStartsExpiredV1], _: object
) -> None:
    data = envelope.data
    task = _task(draft, data, envelope.type)
    draft.change_task(task, expired_starts=data.failed_starts)


def _task_unschedulable_v1(
    draft: Draft, envelope: Envelope[d.TaskUnschedulableV1], _: object
) -> None:
    data = envelope.data
    draft.put(
        WaitRow(
            pool=data.pool,
            shape=data.shape,
            priority=data.priority,
            wait=data.wait,
            since_ms=draft.now_ms,
            cycle=draft.cycle,
        )
    )


def _task_ended_v1(draft: Draft, envelope: Envelope[d.TaskEndedV1], _: object) -> None:
    data = envelope.data
    if data.attempt:
        attempt = _attempt(draft, data.task_id, data.attempt, envelope.type)
        if attempt.end is None:
            draft.put(replace(attempt, end=str(data.code), ended_at_ms=draft.now_ms))
    draft.change_task(
        _task(draft, data, envelope.type),
        phase=OUTCOMES[data.outcome],
        ended_at_ms=draft.now_ms,
        nodes=(),
        stopping=None,
        end=Ended(
            outcome=data.outcome,
            code=data.code,
            exit_code=data.exit_code,
            signal=data.signal,
            cycle=draft.cycle,
        ),
    )


def _node_lost_v1(draft: Draft, envelope: Envelope[d.NodeLostV1], _: object) -> None:
    data = envelope.data
    keys = [f"{closed.task_id}/{closed.attempt}" for closed in data.closed]
    draft.need_each(AttemptRow, keys, envelope.type)
    for closed in data.closed:
        attempt = _attempt(draft, closed.task_id, closed.attempt, envelope.type)
        _close(draft, attempt, closed.replica)
    node = draft.change_node(draft.need(NodeRow, data.node, envelope.type), lost=True)
    if data.cause is d.LossCause.REVOKED:
        # A join that the node requested before the revocation is void.
        draft.change_node(node, rejoined=None)
    elif node.rejoined is not None and not node.held:
        _install(draft, node, node.rejoined)


PROJECTED: Final[Mapping[type[Event], Callable[[Draft, Envelope[Any], Any], None]]] = {
    n.NodeJoinedV1: _node_joined_v1,
    n.NodeDrainedV1: _node_drained_v1,
    n.TaskStartedV1: _task_started_v1,
    n.TaskPreparingV1: _task_preparing_v1,
    n.CheckpointDoneV1: _checkpoint_done_v1,
    n.TaskProgressedV1: _task_progressed_v1,
    n.TaskExitedV1: _task_exited_v1,
    n.SlotsReleasedV1: _slots_released_v1,
    d.SlotsAllocatedV1: _slots_allocated_v1,
    d.SlotsReservedV1: _slots_reserved_v1,
    d.ReservationDroppedV1: _reservation_dropped_v1,
    d.ClaimantsRankedV1: _claimants_ranked_v1,
    d.SharesDividedV1: _shares_divided_v1,
    d.PreemptionRequestedV1: _stop_requested_v1,
    d.StopRequestedV1: _stop_requested_v1,
    d.AllocationRevokedV1: _allocation_revoked_v1,
    d.StopOverdueV1: _stop_overdue_v1,
    d.FailedStartsExpiredV1: _failed_starts_expired_v1,
    d.TaskRequeuedV1: _task_requeued_v1,
    d.TaskUnschedulableV1: _task_unschedulable_v1,
    d.TaskEndedV1: _task_ended_v1,
    d.NodeLostV1: _node_lost_v1,
}
IGNORED: Final[frozenset[type[Event]]] = frozenset(
    {d.AllocationUnwritableV1, d.NodeSilenceObservedV1}
)
#: Events that no history contains: of two types there are too many, the other is about a shape and
#: not about a task.
NOT_IN_HISTORY: Final = (n.TaskPreparingV1, n.TaskProgressedV1, d.TaskUnschedulableV1)
