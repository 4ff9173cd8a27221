"""Records the decisions of a cycle about one pool's tasks: starts, stops, reservations, waits."""

from typing import Any

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.kept_reservations import displaced, dropped
from yardmaster_core.scheduling.planner.placement import ReplicaSlots
from yardmaster_core.scheduling.planner.policy import Policy, PoolView, StopReason
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import LIMITED, NO_CAPACITY, class_of
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    Outcome,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.reasons import (
    DropCode,
    EndCode,
    PolicyStop,
    Wait,
    WaitClass,
)


class PoolDecisions:
    """The decisions of one cycle about the tasks of one pool."""

    def __init__(self, draft: Draft, view: PoolView, policy: Policy, fence_s: int | None) -> None:
        self.draft = draft
        self.pool: Pool = view.pool
        self.view = view
        self.policy = policy
        self.fence_s = fence_s
        self.placed = view.placed
        #: The projects of tasks that count towards a limit and have started or got reserved slots.
        self.limits_changed: dict[Project, None] = {}

    # Starting

    def start(self, task: Task, placement: list[ReplicaSlots]) -> None:
        """Start a task that has no reserved slots."""
        self._record_start(task, self._placements(task.job.shape, placement))

    def start_reserved(self, task: Task) -> None:
        """Start a task on exactly the slots that are reserved for it."""
        assert task.reserved is not None
        self._record_start(task, task.reserved.placements)

    def start_elsewhere(self, task: Task, placement: list[ReplicaSlots]) -> None:
        """Start a task on other slots than those reserved for it."""
        self.draft.require(2)
        placements = self._placements(task.job.shape, placement)
        drop = dropped(task, DropCode.STARTED_ELSEWHERE, self.pool.name)
        self.draft.record(drop, task.id, task.cause)
        self._record_start(task, placements)

    def _placements(self, shape: Shape, placement: list[ReplicaSlots]) -> tuple[Placement, ...]:
        nodes = self.pool.nodes
        placements = []
        for replica, (capacity, slots) in enumerate(placement):
            node = nodes[capacity.ordinal]
            placements.append(
                Placement(
                    replica=replica,
                    node=node.name,
                    incarnation=node.incarnation,
                    address=node.address,
                    slots=slots,
                    gpu_milli=capacity.milli_of(shape),
                    cpu_milli=shape.cpu_milli,
                    memory_mib=shape.memory_mib,
                    gpu_memory_mib=shape.gpu_memory_mib,
                )
            )
        return tuple(placements)

    def _record_start(self, task: Task, placements: tuple[Placement, ...]) -> None:
        job = task.job
        port = None
        if len(placements) > 1:
            first = self.draft.state.nodes[placements[0].node]
            ports = range(first.port_first, first.port_last + 1)
            # If all ports are taken, share the first one: the port is a hint, and no gang waits for
            # it.
            port = next((p for p in ports if p not in first.ports), first.port_first)
        event = SlotsAllocatedV1(
            task_id=task.id,
            attempt=task.attempt + 1,
            pool=self.pool.name,
            project=job.project.name,
            tasks=len(job.tasks),
            placements=placements,
            master_port=port,
            details=job.details,
            checkpoint=task.checkpoint,
            grace_s=job.spec.grace_s,
            fence_s=self.fence_s,
            image=task.image,
            run_as=job.spec.run_as,
            start=self.policy.start.reason(self.view, task),
        )
        self.draft.record(event, task.id, task.cause)
        self._note_limits(task)
        self.placed.add(task)

    def _note_limits(self, task: Task) -> None:
        project = task.job.project
        if task.job.max_slots_milli or project.config or project.department.config:
            self.limits_changed[project] = None

    # Preempting

    def stop(self, victim: Task, reason: StopReason) -> None:
        """Preempt a running task, or stop one above a limit or share of its claimant."""
        run = victim.run
        assert run is not None
        state, policy, for_task = self.draft.state, self.policy.name, reason.for_task
        grace_s = victim.job.spec.grace_s
        stop = PolicyStop(
            policy=policy,
            rule=reason.rule,
            for_task=for_task,
            numbers=reason.numbers,
            about=reason.about,
        )
        attempt: dict[str, Any] = {
            "task_id": victim.id,
            "attempt": run.number,
            "nodes": run.nodes,
            "grace_s": grace_s,
            "deadline_at_ms": state.in_s(grace_s),
        }
        # Without a receiving task, the victim is above a limit or a share of its own claimant.
        event: Event
        if for_task is None:
            event = StopRequestedV1(stop=stop, **attempt)
        else:
            event = PreemptionRequestedV1(stop=stop, **attempt)
        about = victim if for_task is None else state.tasks[for_task]
        self.draft.record(event, victim.id, about.cause)

    def reserve(self, task: Task, placement: list[ReplicaSlots], victims: int = 0) -> None:
        """Reserve slots for a task; `victims` is the number of tasks that were preempted for it."""
        placements = self._placements(task.job.shape, placement)
        self._note_limits(task)
        event = SlotsReservedV1(
            task_id=task.id,
            attempt=task.attempt + 1,
            pool=self.pool.name,
            placements=placements,
            victims=victims,
            until_at_ms=self._released_by_ms(placements),
        )
        self.draft.record(event, task.id, task.cause)

    def displace(self, owner: Task, task: Task, reason: StopReason | None = None) -> None:
        """Drop the reservation of `owner`, whose slots `task` takes over: because it comes first,
        or for this reason.
        """
        self.draft.record(displaced(owner, task, reason), owner.id, task.cause)

    def _released_by_ms(self, placements: tuple[Placement, ...]) -> int:
        """Return the latest deadline of the tasks that still hold part of these slots."""
        latest = 0
        for placement in placements:
            for (_, replica), holder in self.draft.state.nodes[placement.node].open.items():
                run = holder.run
                assert run is not None
                held = run.placements[replica].slots
                if run.stop is not None and (
                    not held or not set(held).isdisjoint(placement.slots) or not placement.slots
                ):
                    latest = max(latest, run.stop_deadline_ms)
        return latest

    # Waiting

    def wait(self, group: Group, task: Task, wait: Wait) -> None:
        """Record why the group's tasks are pending, if the reason changed."""
        known = group.waits.get(self.pool.name)
        until_ms = known[0].numbers.get("until_at_ms") if known is not None else None
        now_ms = self.draft.state.now_ms
        # The recorded moment has passed, or the new one is earlier.
        changed = until_ms is not None and (
            until_ms <= now_ms or wait.numbers.get("until_at_ms", until_ms) < until_ms
        )
        if known is not None and wait.code in LIMITED:
            # Another owner's limit: its releases wake the group from now on.
            changed |= known[0].about != wait.about
        if known is not None and wait.code in NO_CAPACITY:
            # The share of another resource decides, or none does any more; or later tasks wait
            # behind it from now on.
            changed |= _of_shares(known[0]) != _of_shares(wait)
        if known is None or known[0].code is not wait.code or changed:
            event = TaskUnschedulableV1(
                task_id=task.id,
                shape=group.shape.id,
                priority=group.priority,
                pool=self.pool.name,
                wait=wait,
            )
            self.draft.record(event, task.id, task.cause)
        if wait.code.wait_class is WaitClass.NEVER and group.shape.fail_when_never:
            self._fail_group(group)

    def _fail_group(self, group: Group) -> None:
        if class_of(group.waits, group.shape.pools) is not WaitClass.NEVER:
            return
        # Not a loop over the queue: when a task ends, the next task of its job may join the queue.
        while (task := next(group.queue.in_order(), None)) is not None:
            event = TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.FAILED,
                code=EndCode.UNSCHEDULABLE,
            )
            self.draft.record(event, task.id, task.cause)


def _of_shares(wait: Wait) -> set[str]:
    """Return the names of a wait's numbers that describe the share of a project, or its task for
    which slots are kept.
    """
    described = ("fair_share_", "others_above", "reserved_from_")
    return {name for name in wait.numbers if name.startswith(described)}
