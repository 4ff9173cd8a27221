"""Checks of reservations: a reserved slot starts only the task for which it is reserved.

A ReservationDropped releases reserved slots without a start. Findings have the predicate S3, as for
a slot that is held twice.
"""

from yardmaster_core.audit.cluster import Cluster
from yardmaster_core.audit.findings import FedRecord
from yardmaster_core.audit.placements import SLOT_MILLI
from yardmaster_schemas.events.decisions import (
    Placement,
    ReservationDroppedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    TaskEndedV1,
)

#: A node and its incarnation, and a slot.
Slot = tuple[str, str, int]


class Reservations:
    """The slots that are kept for pending tasks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.report = cluster.report
        #: By reserved slot: task id -> the gpu_milli reserved for the task.
        self._slots: dict[Slot, dict[str, int]] = {}

    def reserved(self, fed: FedRecord, body: SlotsReservedV1) -> None:
        """Check a new reservation, and note it."""
        label = f"{body.task_id} attempt {body.attempt}"
        task = self.cluster.task(body.task_id)
        runs = task.attempt is not None and not task.attempt.stopped
        if task.ended is not None or runs or body.attempt != task.last + 1:
            self.report.add("S3", fed, f"{label} gets reserved slots, but is not its next attempt")
        if body.task_id in self.cluster.reserved:
            self.report.add("S3", fed, f"{label} has reserved slots already")
            self._forget(body.task_id)
        self.cluster.reserve(body)
        for placement in body.placements:
            for slot in _slots(placement):
                held = self._slots.setdefault(slot, {})
                held[body.task_id] = held.get(body.task_id, 0) + placement.gpu_milli
        for placement in body.placements:
            fault = self._fault(placement, "")
            if fault is not None:
                self.report.add("S3", fed, f"{label} replica {placement.replica}: {fault}")
                break

    def check_overdue(self, commit: FedRecord, task_id: str) -> None:
        """Check that nothing is reserved on slots that a task should have released (S3)."""
        attempt = self.cluster.task(task_id).attempt
        for placement in attempt.open.values() if attempt is not None else ():
            fault = self._fault(placement, "")
            if fault is not None:
                self.report.add("S3", commit, f"{task_id} did not stop in time, but {fault}")
                break

    def dropped(self, fed: FedRecord, body: ReservationDroppedV1) -> None:
        """Check that there was a reservation, and forget it."""
        known = self.cluster.reserved.get(body.task_id)
        if known is None or (known.attempt, known.pool) != (body.attempt, body.pool):
            self.report.add(
                "S3",
                fed,
                f"{body.task_id} attempt {body.attempt}: a reservation in {body.pool} is dropped "
                f"({body.code}), but there is none",
            )
        self._forget(body.task_id)

    def allocated(self, fed: FedRecord, body: SlotsAllocatedV1) -> None:
        """Check that an attempt starts on its reserved slots, and on no slot reserved for another
        task.

        `cluster` has the attempt already. The reservation of the task ends.
        """
        label = f"{body.task_id} attempt {body.attempt}"
        own = self.cluster.reserved.get(body.task_id)
        if own is not None:
            kept = [(p.node, p.incarnation, p.slots) for p in own.placements]
            given = [(p.node, p.incarnation, p.slots) for p in body.placements]
            if kept != given:
                self.report.add(
                    "S3", fed, f"{label} starts on other slots than those reserved for it"
                )
            self._forget(body.task_id)
        for placement in body.placements:
            fault = self._fault(placement, body.task_id)
            if fault is not None:
                self.report.add("S3", fed, f"{label} replica {placement.replica}: {fault}")
                return

    def ended(self, fed: FedRecord, body: TaskEndedV1) -> None:
        """Check that a task that ends has no reserved slots."""
        if body.task_id in self.cluster.reserved:
            self.report.add("S3", fed, f"{body.task_id} ends with reserved slots, without a drop")
            self._forget(body.task_id)

    def _forget(self, task_id: str) -> None:
        """Remove the reservation of a task here and in `cluster`, if there is one."""
        known = self.cluster.release_reserved(task_id)
        for placement in known.placements if known is not None else ():
            for slot in _slots(placement):
                # Several replicas may share a slot.
                held = self._slots.get(slot, {})
                held.pop(task_id, None)
                if not held:
                    self._slots.pop(slot, None)

    def _fault(self, placement: Placement, task_id: str) -> str | None:
        """Why the slots of a placement are not free for it, or None."""
        for slot in _slots(placement):
            others = {name: m for name, m in self._slots.get(slot, {}).items() if name != task_id}
            if others and sum(others.values()) + self._kept(slot) > SLOT_MILLI:
                return f"node {slot[0]} slot {slot[2]} is reserved for {', '.join(sorted(others))}"
        return None

    def _kept(self, slot: Slot) -> int:
        """gpu_milli of a slot held by attempts that were not asked to stop, or not in time."""
        node, _, index = slot
        held = 0
        for task_id, replica in self.cluster.on_node.get(node, {}):
            attempt = self.cluster.task(task_id).attempt
            if attempt is None or (attempt.stopped and not attempt.overdue):
                continue
            if replica in attempt.open:
                placement = attempt.open[replica]
                held += placement.gpu_milli * (index in placement.slots)
        return held


def _slots(placement: Placement) -> list[Slot]:
    return [(placement.node, placement.incarnation, slot) for slot in placement.slots]
