"""Whether a pending task keeps its reserved slots.

A reservation is valid for the task's shape and priority, the pool's configuration, and nodes that
could take the task. If one of these changed, the reservation is dropped, and the planner considers
the task as any other. It is also dropped for a task that comes first in the policy's order and does
not fit otherwise (`plan.py`), and where the task that holds the slots does not release them in
time.
"""

from functools import partial

from yardmaster_core.scheduling.planner.limits import is_allowed, limit_reached
from yardmaster_core.scheduling.planner.policy import StopReason
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.reserved_slots import takes_whole_nodes
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_schemas.events.decisions import Placement, ReservationDroppedV1
from yardmaster_schemas.reasons import DropCode


def drop_of(state: ClusterState, task: Task) -> ReservationDroppedV1 | None:
    """Return the decision to drop a task's reservation; None if the task has none or keeps it.

    A task that is moved loses it before it has stopped only for a reason of the nodes.
    """
    reservation = task.reserved
    if reservation is None:
        return None
    reason = None
    if task.run is None:
        reason = _of_task(task, reservation) or _of_pool(state, task, reservation)
    if reason is None:
        for placement in reservation.placements:
            node = state.nodes[placement.node]
            code = _of_node(node, placement) or _of_holders(node, placement)
            if task.job.spec.image and not node.runs_images:
                code = code or DropCode.NODE_UNAVAILABLE
            if takes_whole_nodes(task) and _lacks_slots(node, placement):
                code = code or DropCode.NODE_UNAVAILABLE
            if code is not None:
                reason = code, placement.node
                break
    return None if reason is None else dropped(task, *reason)


def dropped(task: Task, code: DropCode, about: str | None = None) -> ReservationDroppedV1:
    """Return the decision to drop a task's reservation for this reason."""
    assert task.reserved is not None
    return ReservationDroppedV1(
        task_id=task.id,
        attempt=task.attempt + 1,
        pool=task.reserved.pool_name,
        code=code,
        about=about,
    )


def displaced(owner: Task, task: Task, reason: StopReason | None = None) -> ReservationDroppedV1:
    """Return the decision to drop the reservation of `owner` for `task`: because that comes first,
    or for this reason.
    """
    assert owner.reserved is not None
    numbers = {
        "priority": owner.job.priority,
        "for_priority": task.job.priority,
        "submitted_at_ms": owner.job.submitted_ms,
        "for_submitted_at_ms": task.job.submitted_ms,
    }
    return ReservationDroppedV1(
        task_id=owner.id,
        attempt=owner.attempt + 1,
        pool=owner.reserved.pool_name,
        code=DropCode.PASSED,
        for_task=task.id,
        about=None if reason is None else reason.about,
        numbers=numbers if reason is None else reason.numbers,
    )


def _of_task(task: Task, reservation: Reservation) -> tuple[DropCode, None] | None:
    if task.cancelled:
        return DropCode.CANCELLED, None
    if task.paused:
        return DropCode.PAUSED, None
    if task.job.erased or task.unwritable:
        return DropCode.ENDED, None
    if task.job.priority != reservation.priority:
        return DropCode.PRIORITY_CHANGED, None
    return None


def _of_pool(
    state: ClusterState, task: Task, reservation: Reservation
) -> tuple[DropCode, str] | None:
    pool = state.pools[reservation.pool_name]
    if pool.config is None or pool.revision != reservation.revision:
        return DropCode.POOL_CHANGED, pool.name
    if not is_allowed(task.job.project, pool):
        return DropCode.POOL_NOT_ALLOWED, pool.name
    if pool.index.relies_on_overdue(state, task):
        return DropCode.STOP_OVERDUE, pool.name
    if task.shape.id != reservation.shape_id or _exceeds_limit(state, pool, task):
        return DropCode.LIMIT_CHANGED, pool.name
    return None


def _exceeds_limit(state: ClusterState, pool: Pool, task: Task) -> bool:
    """Whether a limit refuses the task also once the tasks that stop in time are gone."""
    freed = partial(pool.index.freed_in_time_milli, state, task.job)
    return limit_reached(state, pool, task, freed=freed) is not None


def _of_node(node: Node, placement: Placement) -> DropCode | None:
    if node.incarnation != placement.incarnation or node.state is NodeState.LOST:
        return DropCode.NODE_LOST
    if not node.usable:
        return DropCode.NODE_UNAVAILABLE
    if not node.disabled_slots or set(placement.slots).isdisjoint(node.disabled_slots):
        return None
    return DropCode.SLOT_DISABLED


def _lacks_slots(node: Node, placement: Placement) -> bool:
    """Whether a placement does not have all slots of a node, because one was enabled since."""
    return len(placement.slots) < node.gpus - len(node.disabled_slots)


def _of_holders(node: Node, placement: Placement) -> DropCode | None:
    """The code if an attempt whose stop is overdue holds what is reserved, else None."""
    runs = (task.run for task in node.open.values())
    if not any(run is not None and run.overdue for run in runs):
        return None
    future = node.future
    short = (
        any(future.slots[slot] < 0 for slot in placement.slots)
        or (placement.cpu_milli and future.cpu_milli < 0)
        or (placement.memory_mib and future.memory_mib < 0)
        or (not placement.slots and future.gpuless_left < 0)
    )
    return DropCode.STOP_OVERDUE if short else None
