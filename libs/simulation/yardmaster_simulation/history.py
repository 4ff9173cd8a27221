"""The history of a cluster, built from its events: of a simulated run or of a recorded log.

`History.see` consumes admissions, decisions and the accepted claims of agents in the order in which
the scheduler applied them, each with the time of its cycle. An event counts from that time. Only
the work of tasks counts from the agent's own times, because the scheduler may see a report late.
Repeated events change nothing, nor do events of unknown tasks (admitted before the first event).
Reserved slots count as free until their task starts on them, and also as idle but reserved.

Times are milliseconds, GPUs are gpu_milli.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import (
    EntitlementsChangedV1,
    Level,
    NodeRevokedV1,
    PoolConfiguredV1,
    TaskAdmittedV1,
    TaskPausedV1,
    TaskRejectedV1,
    TaskResumedV1,
)
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    Outcome,
    Placement,
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SharesDividedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    NodeDrainedV1,
    NodeJoinedV1,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.reasons import EndCode
from yardmaster_simulation.fragments import Demand, FreeNode
from yardmaster_simulation.records import Attempt, Job, Pool, Project, Task

#: Values of `Attempt.end`, in addition to the outcomes of tasks.
PREEMPTED: Final = "preempted"
NODE_LOST: Final = "node_lost"
STOPPED: Final = "stopped"
NEVER_STARTED: Final = "never_started"
FAILED: Final = "failed"

_CODES: Final[Mapping[str, str]] = {
    EndCode.EXIT: FAILED,
    EndCode.SIGNAL: FAILED,
    EndCode.OUT_OF_MEMORY: FAILED,
    EndCode.NODE_LOST: NODE_LOST,
    EndCode.ENGINE_RESTARTED: NODE_LOST,
    EndCode.NEVER_STARTED: NEVER_STARTED,
    EndCode.START_TIMEOUT: NEVER_STARTED,
    EndCode.IMAGE_MISSING: NEVER_STARTED,
    EndCode.IMAGE_REFUSED: NEVER_STARTED,
    EndCode.IMAGE_UNREACHABLE: NEVER_STARTED,
}
_ALLOCATED, _STARTED, _EXITED, _CLOSED = range(4)


class _Node:
    __slots__ = (
        *("changed", "free", "incarnation", "open", "pending", "pool", "reserved"),
        "reserved_idle",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.incarnation = ""
        #: None unless the node is up.
        self.free: FreeNode | None = None
        #: Number of replicas that hold slots on the node.
        self.open = 0
        #: A later join of the node, received while replicas from before still held slots. The join
        #: counts once these replicas have released their slots.
        self.pending: NodeJoinedV1 | None = None
        self.changed = False
        #: Slot -> gpu_milli that is reserved for pending tasks.
        self.reserved: dict[int, int] = {}
        #: The part of the pool's `reserved_idle` that is on this node.
        self.reserved_idle = 0

    def idle_of_reserved(self) -> int:
        """The gpu_milli that is reserved but that no task holds; 0 if the node is not up."""
        if self.free is None:
            return 0
        slots = self.free.slots
        return sum(min(milli, slots[slot]) for slot, milli in self.reserved.items())

    def reserve(self, placement: Placement, sign: int) -> None:
        """Reserve a placement; with `sign` -1, end its reservation."""
        for slot in placement.slots:
            milli = self.reserved.get(slot, 0) + sign * placement.gpu_milli
            if milli:
                self.reserved[slot] = milli
            else:
                del self.reserved[slot]


class History:
    """Tasks, jobs, pools and projects of a run; `see` consumes its events one by one."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.tasks: dict[str, Task] = {}
        self.jobs: dict[str, Job] = {}
        self.pools: dict[str, Pool] = {}
        self.projects: dict[str, Project] = {}
        #: The number of rejected jobs, and the number of lost nodes.
        self.rejected = self.nodes_lost = 0
        self._event_ms = 0
        self._nodes: dict[str, _Node] = {}
        self._demand = Demand()
        self._changed_pools: list[Pool] = []
        self._changed_projects: list[Project] = []
        self._changed_nodes: list[_Node] = []
        #: The policies of the pools whose shares were recorded, and whether any share was recorded.
        self._policies: dict[str, str] = {}
        self.divided = False
        self._appliers: dict[type[Event], Callable[[Any], None]] = {
            PoolConfiguredV1: self._configured,
            EntitlementsChangedV1: self._entitled,
            SharesDividedV1: self._divided,
            TaskAdmittedV1: self._admitted,
            TaskRejectedV1: self._rejected,
            TaskPausedV1: self._paused,
            TaskResumedV1: self._resumed,
            NodeJoinedV1: self._joined,
            NodeDrainedV1: self._drained,
            NodeLostV1: self._lost,
            NodeRevokedV1: self._revoked,
            SlotsReservedV1: self._reserved,
            ReservationDroppedV1: self._dropped,
            SlotsAllocatedV1: self._allocated,
            TaskStartedV1: self._started,
            CheckpointDoneV1: self._saved,
            PreemptionRequestedV1: self._preempted,
            StopRequestedV1: self._stopped,
            AllocationRevokedV1: self._stopped,
            TaskExitedV1: self._exited,
            SlotsReleasedV1: self._released,
            TaskRequeuedV1: self._requeued,
            TaskEndedV1: self._ended,
        }

    def see(self, now_ms: int, event: Event, event_ms: int | None = None) -> None:
        """Apply an event of the cycle at `now_ms`, which never decreases.

        `event_ms`: the time in the event's envelope, if it differs from the cycle's.
        """
        if now_ms > self.now_ms:
            self.flush()
            self.now_ms = now_ms
        self._event_ms = now_ms if event_ms is None else event_ms
        take = self._appliers.get(type(event))
        if take is not None:
            take(event)

    def flush(self) -> None:
        """Write pending changes into the series; call it before reading them."""
        demand = self._demand
        if demand.total >= demand.next_total:
            demand.choose()
            for node in self._nodes.values():
                self._touch_node(node)
            for pool in self.pools.values():
                self._touch_pool(pool)
        for node in self._changed_nodes:
            node.changed = False
            free = node.free
            if free is not None:
                unusable = demand.unusable(free)
                node.pool.unusable += unusable - free.unusable
                free.unusable = unusable
            if node.reserved or node.reserved_idle:
                idle = node.idle_of_reserved()
                node.pool.reserved_idle += idle - node.reserved_idle
                node.reserved_idle = idle
        self._changed_nodes.clear()
        now_ms, weight = self.now_ms, demand.weight
        for pool in self._changed_pools:
            pool.changed = False
            pool.series.points.extend(
                (
                    *(now_ms, pool.up, pool.allocated, pool.requested),
                    *(pool.unusable // weight, pool.reserved_idle),
                )
            )
        self._changed_pools.clear()
        for project in self._changed_projects:
            project.changed = False
            project.series.points.extend(
                (now_ms, project.allocated, project.requested, *self._deserved(project))
            )
        self._changed_projects.clear()

    def _deserved(self, project: Project) -> tuple[int, int, int]:
        """Return the GPUs that a project deserves, the deserved GPUs that it holds, and its share.

        Each is the sum over all pools, in gpu_milli.
        """
        total = held = 0
        for name, milli in project.deserved.items():
            # An unlimited project deserves all GPUs of the pool, so all GPUs that it holds count.
            total += self._pool(name).up if milli is None else milli
            holds = project.held.get(name, 0)
            held += holds if milli is None else min(holds, milli)
        return total, held, sum(project.shares.values())

    def _touch_pool(self, pool: Pool) -> None:
        """Mark a pool as changed, so that `flush` writes its series."""
        if not pool.changed:
            pool.changed = True
            self._changed_pools.append(pool)

    def _touch(self, pool: Pool, project: Project) -> None:
        """Mark a pool and a project as changed, so that `flush` writes their series."""
        if not pool.changed:
            pool.changed = True
            self._changed_pools.append(pool)
        if not project.changed:
            project.changed = True
            self._changed_projects.append(project)

    def _touch_project(self, project: Project) -> None:
        """Mark a project as changed, so that `flush` writes its series."""
        if not project.changed:
            project.changed = True
            self._changed_projects.append(project)

    def _count_up(self, pool: Pool, milli: int) -> None:
        """Add `milli` to the pool's GPUs in nodes that are up; a negative number subtracts.

        Projects that deserve all GPUs of the pool change too.
        """
        pool.up += milli
        self._touch_pool(pool)
        for project in self.projects.values():
            if project.deserved.get(pool.name, 0) is None:
                self._touch_project(project)

    def _touch_node(self, node: _Node) -> None:
        """Mark a node and its pool as changed, so that `flush` computes their figures."""
        if not node.changed:
            node.changed = True
            self._changed_nodes.append(node)
            self._touch_pool(node.pool)

    def _pool(self, name: str) -> Pool:
        """Return the pool with a name; create it at its first use."""
        found = self.pools.get(name)
        if found is None:
            found = self.pools[name] = Pool(name)
        return found

    def _project(self, name: str) -> Project:
        """Return the project with a name; create it at its first use."""
        found = self.projects.get(name)
        if found is None:
            found = self.projects[name] = Project(name)
        return found

    def _change_demand(self, job: Job, waiting: int, holding: int = 0) -> None:
        """Change the number of a job's pending tasks, and of its tasks with an attempt (`holding`).

        `holding` counts only for jobs that limit their concurrent tasks. The GPUs that the pool and
        the project request change with these numbers.
        """
        requesting = job.waiting = job.waiting + waiting
        if job.most is not None:
            job.holding += holding
            requesting = min(requesting, job.most - job.holding)
        more = (requesting - job.requesting) * job.gpu_milli
        job.requesting = requesting
        if more:
            pool, project = job.pool, job.project
            pool.requested += more
            project.requested += more
            if not (pool.changed and project.changed):
                self._touch(pool, project)

    # Admissions

    def _configured(self, event: PoolConfiguredV1) -> None:
        policy = event.config.policy.name
        if self._policies.get(event.pool, policy) != policy:
            self._forget_shares(event.pool)
        self._policies[event.pool] = policy

    def _entitled(self, event: EntitlementsChangedV1) -> None:
        if event.level is not Level.PROJECT:
            return
        project = self._project(event.name)
        quotas = event.project.quotas if event.project is not None else {}
        project.deserved = {
            pool: None if quota.deserved_unlimited else quota.deserved_milli or 0
            for pool, quota in quotas.items()
        }
        if event.project is not None:
            project.weight = event.project.weight
        self._touch_project(project)

    def _divided(self, event: SharesDividedV1) -> None:
        self.divided = True
        if event.part == 0:
            self._forget_shares(event.pool)
        for queue in event.queues:
            if queue.level is Level.PROJECT and queue.fair_share.gpu_milli:
                project = self._project(queue.name)
                project.shares[event.pool] = queue.fair_share.gpu_milli
                self._touch_project(project)

    def _forget_shares(self, pool: str) -> None:
        for project in self.projects.values():
            if project.shares.pop(pool, None) is not None:
                self._touch_project(project)

    def _rejected(self, _: TaskRejectedV1) -> None:
        self.rejected += 1

    def _admitted(self, event: TaskAdmittedV1) -> None:
        if event.job_id in self.jobs:
            return
        spec = event.spec
        project = self._project(event.project)
        # The submission time is by the gateway's clock, which may be ahead.
        submitted_ms = min(event.submitted_at_ms, self.now_ms)
        job = Job(event, project, self._pool(spec.pools[0]), submitted_ms)
        self.jobs[event.job_id] = job
        for index in range(spec.tasks):
            task = Task(f"{event.job_id}.{index}", job)
            job.tasks.append(task)
            self.tasks[task.id] = task
        self._demand.add(spec)
        self._change_demand(job, spec.tasks)

    def _open_tasks(self, event: TaskPausedV1 | TaskResumedV1) -> list[Task]:
        job = self.jobs.get(event.job_id)
        if job is None:
            return []
        tasks = job.tasks if event.index is None else job.tasks[event.index : event.index + 1]
        return [task for task in tasks if task.outcome is None]

    def _paused(self, event: TaskPausedV1) -> None:
        for task in self._open_tasks(event):
            if not task.paused:
                if task.run is None:
                    self._end_wait(task)
                    self._change_demand(task.job, -1)
                task.paused = True

    def _resumed(self, event: TaskResumedV1) -> None:
        for task in self._open_tasks(event):
            if task.paused:
                task.paused = False
                if task.run is None:
                    task.since_ms = self.now_ms
                    self._change_demand(task.job, 1)

    def _end_wait(self, task: Task) -> None:
        if task.since_ms is not None:
            task.wait_ms += self.now_ms - task.since_ms
            task.since_ms = None

    # Nodes

    def _joined(self, event: NodeJoinedV1) -> None:
        node = self._nodes.get(event.node)
        if node is None:
            node = self._nodes[event.node] = _Node(self._pool(event.pool))
        elif node.free is not None and node.incarnation == event.incarnation:
            return
        if node.open:
            node.pending = event
            return
        self._down(node)
        node.pending = None
        if node.incarnation != event.incarnation:
            node.reserved.clear()
        node.incarnation = event.incarnation
        node.pool = self._pool(event.pool)
        node.free = FreeNode(event)
        self._count_up(node.pool, event.gpus * 1000)
        self._touch_node(node)

    def _down(self, node: _Node) -> None:
        free = node.free
        if free is not None:
            self._count_up(node.pool, -len(free.slots) * 1000)
            node.pool.unusable -= free.unusable
            node.pool.reserved_idle -= node.reserved_idle
            node.reserved_idle = 0
            node.free = None

    def _drained(self, event: NodeDrainedV1) -> None:
        node = self._nodes.get(event.node)
        if node is not None and node.incarnation == event.incarnation:
            self._down(node)

    def _lost(self, event: NodeLostV1) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.incarnation != event.incarnation or node.free is None:
            return
        self.nodes_lost += 1
        self._down(node)
        for ref in event.closed:
            self._close(ref.task_id, ref.attempt, ref.replica)

    def _revoked(self, event: NodeRevokedV1) -> None:
        node = self._nodes.get(event.node)
        if node is not None:
            node.pending = None

    # Reservations

    def _reserved(self, event: SlotsReservedV1) -> None:
        task = self.tasks.get(event.task_id)
        if task is not None and not task.reserved and event.attempt > len(task.attempts):
            self._reserve(task, event.placements)

    def _dropped(self, event: ReservationDroppedV1) -> None:
        task = self.tasks.get(event.task_id)
        if task is not None and event.attempt > len(task.attempts):
            self._reserve(task, ())

    def _reserve(self, task: Task, placements: tuple[Placement, ...]) -> None:
        """Reserve these placements for a task, and end the task's earlier reservations."""
        for sign, changed in ((-1, task.reserved), (1, placements)):
            for placement in changed:
                node = self._nodes.get(placement.node)
                if node is not None and node.incarnation == placement.incarnation:
                    node.reserve(placement, sign)
                    self._touch_node(node)
        task.reserved = placements

    # Attempts

    def _allocated(self, event: SlotsAllocatedV1) -> None:
        task = self.tasks.get(event.task_id)
        if task is None or task.run is not None or event.attempt <= len(task.attempts):
            return
        self._reserve(task, ())
        pool = self._pool(event.pool)
        project = task.job.project
        held = 0
        for placement in event.placements:
            held += placement.gpu_milli * len(placement.slots)
            node = self._nodes.get(placement.node)
            if node is not None:
                node.open += 1
                if node.free is not None and node.incarnation == placement.incarnation:
                    node.free.allocate(placement)
                    self._touch_node(node)
        if held:
            pool.allocated += held
            project.allocated += held
            project.held[pool.name] = project.held.get(pool.name, 0) + held
            if not (pool.changed and project.changed):
                self._touch(pool, project)
        task.run = run = Attempt(event.attempt, pool, event.placements, self.now_ms)
        task.attempts.append(run)
        self._end_wait(task)
        self._change_demand(task.job, -1, 1)

    def _run(self, task_id: str, attempt: int) -> Attempt | None:
        task = self.tasks.get(task_id)
        run = task.run if task is not None else None
        return run if run is not None and run.number == attempt else None

    def _started(self, event: TaskStartedV1) -> None:
        run = self._run(event.task_id, event.attempt)
        if run is not None and run.replicas[event.replica] == _ALLOCATED:
            run.replicas[event.replica] = _STARTED
            run.unstarted -= 1
            if not run.unstarted:
                run.started_ms = self._happened_ms(run)

    def _happened_ms(self, run: Attempt) -> int:
        """The time of an agent's report by its clock, limited to between allocation and now."""
        return min(max(self._event_ms, run.allocated_ms), self.now_ms)

    def _saved(self, event: CheckpointDoneV1) -> None:
        run = self._run(event.task_id, event.attempt)
        if run is not None:
            run.checkpoint_ms = self._happened_ms(run)

    def _preempted(self, event: PreemptionRequestedV1) -> None:
        run = self._run(event.task_id, event.attempt)
        if run is not None and run.stop_ms is None:
            run.stop_ms = self.now_ms
            run.preempted = True
            run.for_task = event.stop.for_task
            run.deadline_ms = event.deadline_at_ms
            rule = event.stop.rule or str(event.stop.code)
            rules = self.tasks[event.task_id].job.project.preempted
            rules[rule] = rules.get(rule, 0) + 1

    def _stopped(self, event: StopRequestedV1 | AllocationRevokedV1) -> None:
        run = self._run(event.task_id, event.attempt)
        if run is not None and run.stop_ms is None:
            run.stop_ms = self.now_ms

    def _exited(self, event: TaskExitedV1) -> None:
        run = self._run(event.task_id, event.attempt)
        if run is not None and run.replicas[event.replica] < _EXITED:
            run.replicas[event.replica] = _EXITED
            run.left -= 1
            if not run.left:
                run.over_ms = self._happened_ms(run)

    def _released(self, event: SlotsReleasedV1) -> None:
        self._close(event.task_id, event.attempt, event.replica)

    def _close(self, task_id: str, attempt: int, replica: int) -> None:
        """Record that a replica has released its slots."""
        task = self.tasks.get(task_id)
        run = task.run if task is not None else None
        if task is None or run is None or run.number != attempt:
            return
        was = run.replicas[replica]
        if was == _CLOSED:
            return
        run.replicas[replica] = _CLOSED
        now_ms = self.now_ms
        if was < _EXITED:
            run.left -= 1
            if not run.left:
                run.over_ms = now_ms
        run.open -= 1
        if not run.open:
            run.closed_ms = now_ms
        placement = run.placements[replica]
        node = self._nodes.get(placement.node)
        if node is not None:
            node.open -= 1
            if node.free is not None and node.incarnation == placement.incarnation:
                node.free.allocate(placement, -1)
                self._touch_node(node)
            if node.pending is not None:
                self._joined(node.pending)
        held = placement.gpu_milli * len(placement.slots)
        if held:
            project = task.job.project
            run.pool.allocated -= held
            project.allocated -= held
            project.held[run.pool.name] -= held
            task.gpu_milli_ms += held * (now_ms - run.allocated_ms)
            self._touch(run.pool, project)

    def _requeued(self, event: TaskRequeuedV1) -> None:
        task = self.tasks.get(event.task_id)
        run = task.run if task is not None else None
        if task is None or run is None or run.number != event.attempt:
            return
        if run.started_ms is not None:
            until_ms = run.works_until_ms(self.now_ms)
            run.ran_ms = max(0, until_ms - run.started_ms)
            saved_ms = run.checkpoint_ms if run.checkpoint_ms is not None else run.started_ms
            run.lost_ms = min(run.ran_ms, max(0, until_ms - saved_ms))
        self._conclude(task, run, PREEMPTED if run.preempted else _CODES.get(event.code, STOPPED))
        if not task.paused:
            task.since_ms = self.now_ms
            self._change_demand(task.job, 1)

    def _ended(self, event: TaskEndedV1) -> None:
        task = self.tasks.get(event.task_id)
        if task is None or task.outcome is not None:
            return
        task.outcome = event.outcome
        task.ended_ms = self.now_ms
        run = task.run
        if run is None:
            if not task.paused:
                self._end_wait(task)
                self._change_demand(task.job, -1)
            return
        until_ms = run.works_until_ms(self.now_ms)
        if event.outcome is Outcome.SUCCEEDED:
            until_ms = run.over_ms if run.over_ms is not None else self.now_ms
        if run.started_ms is not None:
            run.ran_ms = max(0, until_ms - run.started_ms)
        self._conclude(task, run, event.outcome.value)

    def _conclude(self, task: Task, run: Attempt, end: str) -> None:
        run.end = end
        run.placements = ()
        task.run = None
        if task.job.most is not None:
            self._change_demand(task.job, 0, -1)
