"""Which reserved slots of a node are free.

The free and the future capacity of a node do not include its reserved slots.
A slot that is reserved and still held is taken twice, so its free amount is negative.
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_schemas.events.decisions import Placement


def update_ready(node: Node, pools: Mapping[str, Pool]) -> None:
    """Compute which reserved slots of a node are free, and which part of them no task holds, after
    its capacity changed.

    Where the free amounts do not suffice for all reservations of the node, tasks that were
    submitted earlier come first.
    """
    if not node.reserved:
        _set_idle(node, pools, 0)
        return
    free = node.free
    rows = [
        (task, replica, task.reserved.placements[replica])
        for task in sorted(node.reserved)
        for replica in node.reserved[task]
        if task.reserved is not None
    ]
    slots = dict.fromkeys((slot for *_, p in rows for slot in p.slots), 0)
    for slot in slots:
        slots[slot] = _free_of(node, slot)
    cpu_milli, memory_mib, gpuless = free.cpu_milli, free.memory_mib, free.gpuless_left
    for *_, placement in rows:
        if placement.incarnation != node.incarnation:
            continue  # nothing of this node was taken for it
        cpu_milli += placement.cpu_milli
        memory_mib += placement.memory_mib
        gpuless += not placement.slots
        for slot in placement.slots:
            slots[slot] += placement.gpu_milli
    unheld = sum(max(0, milli) - max(0, _free_of(node, slot)) for slot, milli in slots.items())
    _set_idle(node, pools, unheld if free.available else 0)
    for task, replica, placement in rows:
        is_free = (
            placement.incarnation == node.incarnation
            and placement.cpu_milli <= cpu_milli
            and placement.memory_mib <= memory_mib
            and (gpuless > 0 or bool(placement.slots))
            and all(slots[slot] >= placement.gpu_milli for slot in placement.slots)
            and not (takes_whole_nodes(task) and _others_hold_slots(node, placement))
        )
        if is_free:
            cpu_milli -= placement.cpu_milli
            memory_mib -= placement.memory_mib
            gpuless -= not placement.slots
            for slot in placement.slots:
                slots[slot] -= placement.gpu_milli
        _set_ready(task, replica, pools, is_free=is_free)


def _free_of(node: Node, slot: int) -> int:
    """Return the free gpu_milli of a slot, which the node may not have any more."""
    free = node.free.slots
    return free[slot] if slot < len(free) else -1


def _set_idle(node: Node, pools: Mapping[str, Pool], milli: int) -> None:
    """Set the reserved gpu_milli of a node that no task holds."""
    if milli != node.reserved_idle_milli and node.pool_name is not None:
        pools[node.pool_name].reserved_idle_milli += milli - node.reserved_idle_milli
        node.reserved_idle_milli = milli


def takes_whole_nodes(task: Task) -> bool:
    """Whether slots are reserved for a task on several whole nodes."""
    reservation = task.reserved
    assert reservation is not None
    return task.job.shape.whole_nodes and len(reservation.placements) > 1


def _others_hold_slots(node: Node, placement: Placement) -> bool:
    """Whether another task holds slots of a node that `placement` does not have: disabled slots,
    which that task is about to release.
    """
    for slot, left in enumerate(node.free.slots):
        unused = 0 if slot in node.free.disabled else WHOLE
        if left != unused and slot not in placement.slots:
            return True
    return False


def _set_ready(task: Task, replica: int, pools: Mapping[str, Pool], *, is_free: bool) -> None:
    """Note whether the reserved slots of a replica are free; if all are, the task is ready."""
    reservation = task.reserved
    assert reservation is not None
    if is_free != reservation.free[replica]:
        set_free(reservation, replica, is_free=is_free)
        pool = pools[reservation.pool_name]
        if reservation.missing:
            pool.ready.pop(task, None)
        else:
            pool.ready[task] = None


def set_free(reservation: Reservation, replica: int, *, is_free: bool) -> None:
    """Note that the reserved slots of a replica became free, or are not free any more."""
    reservation.free[replica] = is_free
    reservation.missing += -1 if is_free else 1
