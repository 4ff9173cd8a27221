"""Appliers of reservations of slots; each can be undone while a draft is open."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import (
    let_pass_elsewhere,
    schedule_decision,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.reserved_slots import set_free, update_ready
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import DropCode


def slots_reserved_v1(state: ClusterState, event: dec.SlotsReservedV1, _: str) -> None:
    task = state.task(event.task_id)
    if task.reserved is not None or event.attempt <= task.attempt:
        return  # a repeat
    # A task that is moved has some while it still stops.
    stops = task.run is not None and task.run.stop is not None
    if (task.group is None and not stops) or event.attempt != task.attempt + 1:
        raise ImpossibleEvent(
            event=event.TYPE, found=f"{task.id} is {task.phase.name}, attempt {task.attempt}"
        )
    pool = state.pool(event.pool)
    reservation = Reservation(
        event.pool,
        event.placements,
        of=(task.shape.id, task.job.priority, pool.revision),
        since=(state.now_ms, state.cycle),
        victims=event.victims,
        until_ms=event.until_at_ms,
    )
    let_pass_elsewhere(state, task, pool)
    _change(state, task, reservation)
    if event.victims:
        # The victims may release more; groups that sleep may have it reserved.
        pool.recheck = True


def reservation_dropped_v1(state: ClusterState, event: dec.ReservationDroppedV1, _: str) -> None:
    task = state.task(event.task_id)
    if task.reserved is None or event.attempt != task.attempt + 1:
        return  # a repeat
    pool = state.pool(event.pool)
    if event.code is DropCode.STARTED_ELSEWHERE:
        state.journal.put(task, "starts_elsewhere", event.attempt)
    drop(state, task)
    state.wake_index.note_freeing((task.job.id, *state.owners_of(task.job.project)))
    # Others may reserve the slots, or start on them.
    pool.recheck = True
    pool.index.input_changed(from_next_cycle=True)
    if task.group is not None:
        for name in task.group.shape.pools:
            state.wake_index.wake(state.pools[name], task.group)


def drop(state: ClusterState, task: Task) -> None:
    """Release the reserved slots of a task that has some."""
    _change(state, task, None)


def check_reservations(state: ClusterState, node: Node) -> None:
    """Mark tasks with reserved slots on a changed node: the cycle decides about these slots."""
    for task in node.reserved:
        schedule_decision(state, task)


def restore(state: ClusterState, task: Task) -> None:
    """Index the reservation of a task from a snapshot; capacities are rebuilt at the end."""
    assert task.reserved is not None
    _index(state, task, task.reserved)


def _change(state: ClusterState, task: Task, reservation: Reservation | None) -> None:
    """Replace the reservation of a task, by None too; undone with the draft."""
    before = task.reserved
    state.journal.record(hold, state, task, before)
    group = task.group
    if group is not None:
        state.journal.prune(state.leave_and_wake(task))
    _set_indexes(state, task, reservation)
    if group is not None:
        state.join_group(task, group)


def hold(state: ClusterState, task: Task, reservation: Reservation | None) -> None:
    """Set the reservation of a task without waking groups; a call with the former one undoes it."""
    group, left = task.group, task.queue
    if group is not None:
        state.leave_group(task)
    _set_indexes(state, task, reservation)
    if group is not None:
        state.join_group(task, group)
    if left is not None and reservation is None:
        # At the end of a draft, where no iteration is left.
        left.prune()


def _set_indexes(state: ClusterState, task: Task, reservation: Reservation | None) -> None:
    if task.reserved is not None:
        _unindex(state, task, task.reserved)
    task.reserved = reservation
    if reservation is not None:
        _index(state, task, reservation)
        _shift(state, reservation, take=True)
    state.dirty[task] = None


def _index(state: ClusterState, task: Task, reservation: Reservation) -> None:
    pool = state.pools[reservation.pool_name]
    pool.reserved[task] = None
    pool.reserved_by_project.setdefault(task.job.project, {})[task] = None
    for replica, placement in enumerate(reservation.placements):
        state.nodes[placement.node].reserved.setdefault(task, []).append(replica)
    pool.count_reserved(task, reservation)
    state.allocation_changed(task, pool)


def _unindex(state: ClusterState, task: Task, reservation: Reservation) -> None:
    pool = state.pools[reservation.pool_name]
    del pool.reserved[task]
    of_project = pool.reserved_by_project[task.job.project]
    del of_project[task]
    if not of_project:
        del pool.reserved_by_project[task.job.project]
    pool.ready.pop(task, None)
    for replica, placement in enumerate(reservation.placements):
        state.nodes[placement.node].reserved.pop(task, None)
        if reservation.free[replica]:
            set_free(reservation, replica, is_free=False)
    pool.count_reserved(task, reservation, lost=True)
    state.allocation_changed(task, pool)
    _shift(state, reservation, take=False)


def _shift(state: ClusterState, reservation: Reservation, *, take: bool) -> None:
    """Take the reserved slots from the capacity of their nodes, or release them."""
    sign = -1 if take else 1
    nodes = dict.fromkeys(placement.node for placement in reservation.placements)
    for p in reservation.placements:
        node = state.nodes[p.node]
        if node.pool_name is None or node.incarnation != p.incarnation:
            continue
        pool = state.pools[node.pool_name]
        amounts = (sign * p.gpu_milli, sign * p.cpu_milli, sign * p.memory_mib, sign)
        pool.free.shift(node.free, p.slots, *amounts)
        pool.future.shift(node.future, p.slots, *amounts)
    for name in nodes:
        node = state.nodes[name]
        update_ready(node, state.pools)
        if node.pool_name is not None:
            state.pools[node.pool_name].index.node_changed(node)
        # The state's digest covers what is free on a node.
        state.dirty[node] = None
