"""The scheduler's state of one cell: tasks, jobs, nodes, pools, entitlements, and their indexes.

Plain slotted objects and integers. Only `apply` calls the methods that change the state. While a
draft is open, the methods that a decision may call record how to undo themselves (`journal`), so
that a cycle can be decided on the state itself and then undone.

Everything whose order matters is sorted by a key of logged facts: tasks of equal priority by
submission time, then by the order of admission, then by their index; nodes by the order in which
they first joined; names by name. The digest is a sum of hashes, one per entity, and is updated for
the entities that changed.
"""

from collections.abc import Iterable
from hashlib import blake2b
from heapq import heappush

from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.decayed_usage import DecayedUsage
from yardmaster_core.scheduling.state.enrollment import Enrolled
from yardmaster_core.scheduling.state.journal import Journal
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.phases import Due
from yardmaster_core.scheduling.state.pools import IndexSource, Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.reserved_slots import update_ready
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.task_counts import TaskCounts
from yardmaster_core.scheduling.state.tasks import Group, Job, Task, group_facts
from yardmaster_core.scheduling.state.wait_codes import IN_STRICT_QUEUE
from yardmaster_core.scheduling.state.wake_index import WakeIndex
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.requests import PoolConfig
from yardmaster_schemas.instants import LAST_MS
from yardmaster_schemas.reasons import Wait

Entity = Task | Job | Group | Pool | Node | Enrolled | Department | Project


class ClusterState:
    """The state of one cell; only `apply` changes it."""

    __slots__ = (
        *("attention", "cell", "counts", "cycle", "cycle_due", "deadlines", "deadlines_kept"),
        *("departments", "dirty", "emptied", "ended", "enrolled", "forgotten", "former_usage"),
        "inputs_ended",
        *("jobs", "journal", "next_job", "next_node", "node_attention", "nodes", "now_ms"),
        *("policies", "pools", "projects", "revoked", "rules", "sources", "tasks", "total"),
        *("usage_due", "wake_index"),
    )

    def __init__(self, cell: str, policies: IndexSource) -> None:
        self.cell = cell
        self.policies = policies
        self.cycle = 0
        self.now_ms = 0
        #: The rules in force; a commit names them, so the digest does not cover them.
        self.rules = 0
        self.pools: dict[str, Pool] = {}
        self.departments: dict[str, Department] = {}
        self.projects: dict[str, Project] = {}
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.nodes: dict[str, Node] = {}
        #: For metrics (derived).
        self.counts = TaskCounts()
        #: Nodes that were ever enrolled; while there is none, any node may join.
        self.enrolled: dict[str, Enrolled] = {}
        #: Nodes that were revoked while they were up (derived); some may be down by now.
        self.revoked: dict[str, Node] = {}
        self.next_job = 0
        self.next_node = 0
        #: (time in ms, kind, id, attempt), a heap; entries that no longer apply are skipped.
        self.deadlines: list[tuple[int, int, str, int]] = []
        #: The number of entries left when entries that no longer apply were removed last.
        self.deadlines_kept = 0
        #: Tasks and nodes whose next step must be decided.
        self.attention: dict[str, Task] = {}
        self.node_attention: dict[str, Node] = {}
        #: source -> (epoch, seq) of the last accepted claim.
        self.sources: dict[str, tuple[int, int]] = {}
        self.journal = Journal()
        #: Which groups the planner considers (derived).
        self.wake_index = WakeIndex(self.journal)
        #: Entities that changed since the digest was computed.
        self.dirty: dict[Entity, None] = {}
        #: Groups that lost their last task since the cycle began.
        self.emptied: dict[Group, None] = {}
        #: The changes of the last `end_cycle` after the commit: by group key the waits of each
        #: group that it removed; by project and pool the usage that it replaced (None: there was
        #: none).
        self.forgotten: dict[tuple[str, int], dict[str, tuple[Wait, int, int]]] = {}
        self.former_usage: dict[tuple[Project, str], DecayedUsage | None] = {}
        #: Jobs whose last task has ended; the next cycle begins by removing them.
        self.ended: dict[Job, None] = {}
        self.total = 0
        #: Since the cycle began: projects that may hold another amount of a pool that keeps decayed
        #: usages.
        self.usage_due: dict[tuple[Pool, Project], None] = {}
        #: Whether the planner has decided something in this cycle.
        self.inputs_ended = False
        #: Whether a cycle is due at once, without an input.
        self.cycle_due = False

    def task(self, task_id: str) -> Task:
        """The task `task_id`.

        Raises:
            ImpossibleEvent: there is no such task.
        """
        found = self.tasks.get(task_id)
        if found is None:
            raise ImpossibleEvent(event="an event", found=f"there is no task {task_id}")
        return found

    # Digest

    def digest(self) -> str:
        """64 hex digits over all entities; the cost depends on the changes since the last call.

        A draft keeps no hash, since its changes will be undone.
        """
        total = self.total
        drafting = self.journal.changes is not None
        for entity in self.dirty:
            new = row_hash(repr(entity.facts()))
            total += new - entity.hash
            if not drafting:
                entity.hash = new
        total %= MODULUS
        if not drafting:
            self.total = total
            for entity in self.dirty:
                if isinstance(entity, Task):
                    self.counts.update(entity, self.now_ms)
            self.dirty.clear()
        return self._digest_of(total)

    def committed_digest(self) -> str:
        """The digest before `end_cycle` removed groups and replaced usages.

        If it changed nodes too, this is not the digest of the commit.
        """
        self.digest()
        rows = (group_facts(key, waits) for key, waits in self.forgotten.items())
        total = self.total + sum(row_hash(repr(row)) for row in rows)
        for project in {project: None for project, _ in self.former_usage}:
            usage = dict(project.decayed_usage)
            for (changed, pool), former in self.former_usage.items():
                if changed is project:
                    usage.pop(pool, None)
                    if former is not None:
                        usage[pool] = former
            total += row_hash(repr(project.facts(usage))) - project.hash
        return self._digest_of(total % MODULUS)

    def _digest_of(self, total: int) -> str:
        head = f"{self.cell}/{self.cycle}/{self.now_ms}/{total:x}"
        return blake2b(head.encode(), digest_size=32).hexdigest()

    # Queues

    def input_changed(self, shape: Shape, *, from_next_cycle: bool = False) -> None:
        """Tell the policies of the pools of `shape` that an input changed.

        `from_next_cycle`: the planner changed it, so the next cycle must consider it too.
        """
        for name in shape.pools:
            self.pools[name].index.input_changed(from_next_cycle=from_next_cycle)

    def set_wait(self, pool: Pool, group: Group, wait: Wait) -> None:
        """Record why `group` is pending in `pool`, and index it by what will wake it."""
        self.journal.record(self.restore_wait, pool, group, group.waits.get(pool.name))
        queue_class = pool.queue_classes[group.shape.queue_class]
        before = queue_class.barriers
        self.restore_wait(pool, group, (wait, self.now_ms, self.cycle))
        passed = pool.index.traits.behind_one and wait.code not in IN_STRICT_QUEUE
        if passed or before & ~queue_class.barriers:
            self.wake_index.wake_behind(pool)

    def restore_wait(self, pool: Pool, group: Group, record: tuple[Wait, int, int] | None) -> None:
        """Set the recorded wait of `group` in `pool`, or remove it; index the group by it."""
        self.wake_index.remove_wait(pool, group)
        if pool.name == group.shape.pools[0]:
            self.counts.move_queued(group, group.waits.get(pool.name), record)
        if record is None:
            group.waits.pop(pool.name, None)
        else:
            group.waits[pool.name] = record
            self.wake_index.store_wait(pool, group)
        pool.index.wait_changed(group)
        self.dirty[group] = None

    def limits_changed_elsewhere(self, job: Job, pool: Pool, *, from_next_cycle: bool) -> None:
        """Tell the policies of the other pools that a limit over several pools leaves another
        amount there, because the job holds another amount of `pool`.

        `from_next_cycle`: see `input_changed`.
        """
        config = job.project.config
        names: Iterable[str] = job.shape.pools if job.max_slots_milli is not None else ()
        if config is not None and config.limit_milli is not None:
            names = self.pools
        for name in names:
            if name != pool.name:
                self.pools[name].index.input_changed(from_next_cycle=from_next_cycle)

    def end_inputs(self) -> None:
        """Tell the policies of all pools, once in a cycle, that the planner decides from now on."""
        if not self.inputs_ended:
            self.journal.put(self, "inputs_ended", True)
            for pool in self.pools.values():
                pool.index.inputs_ended()

    def disturb(self) -> None:
        """Tell the policies of all pools that something changed that is no answer to decisions."""
        for pool in self.pools.values():
            pool.index.disturbed()

    def enqueue(self, task: Task) -> None:
        """Put `task` into the queue of its group, in all pools that it may use."""
        job = task.job
        shape = task.shape
        group = self.pool(shape.pools[0]).groups.get((shape.id, job.priority))
        if group is None:
            group = self._new_group(shape, job.priority)
        self.journal.record(self.leave_group, task)
        # Its queue counts it from now on.
        self.dirty[task] = None
        self.join_group(task, group)
        self.input_changed(shape)
        if task.reserved is not None:
            return
        is_first = group.queue.first is task
        for name in shape.pools:
            # A task behind equal tasks that were considered gets their answer.
            if is_first or name not in group.waits:
                self.wake_index.wake(self.pools[name], group)

    def _new_group(self, shape: Shape, priority: int) -> Group:
        group = Group(shape, priority)
        for name in shape.pools:
            self.pool(name).groups[group.key] = group
        self.dirty[group] = None
        self.journal.record(self.forget, group)
        return group

    def dequeue(self, task: Task) -> None:
        """Remove `task` from its queue, if it is in one."""
        group = task.group
        if group is None:
            return
        self.journal.record(self.join_group, task, group)
        queue = self.leave_and_wake(task)
        if not group.pending and self.journal.changes is None:
            self.emptied[group] = None
        self.journal.prune(queue)
        self.input_changed(group.shape)
        for name in group.shape.pools:
            pool = self.pools[name]
            if pool.index.traits.strict and name not in group.waits:
                # Its tasks waited for one of them to leave its reserved slots.
                self.wake_index.wake(pool, group)

    def leave_and_wake(self, task: Task) -> OrderedTasks[Task]:
        """Remove `task` from its group, and wake the groups that this group blocks no longer.

        Returns the collection that the task left, to be pruned.
        """
        group, queue = task.group, task.queue
        assert group is not None
        assert queue is not None
        shape, min_runtimes = group.shape, group.min_runtimes
        before: list[tuple[Pool, int]] = []
        if queue.live == 1:
            # The groups behind it may be next once the queue is empty.
            pools = (self.pools[name] for name in shape.pools)
            before = [(pool, pool.queue_classes[shape.queue_class].barriers) for pool in pools]
        self.leave_group(task)
        if group.queue.live and min_runtimes > group.min_runtimes == 0:
            # Its other tasks may pass those that they waited for.
            for name in shape.pools:
                self.wake_index.wake(self.pools[name], group)
        for pool, barriers in before:
            if barriers & ~pool.queue_classes[shape.queue_class].barriers:
                self.wake_index.wake_behind(pool)
        for name in shape.pools:
            if self.pools[name].index.traits.behind_one:
                self.wake_index.wake_behind(self.pools[name])
        return queue

    def leave_group(self, task: Task) -> None:
        """Remove `task` from its group; the caller records how to undo it."""
        group, queue = task.group, task.queue
        assert group is not None
        assert queue is not None
        task.group = None
        task.queue = None
        queue.drop()
        group.min_runtimes -= task.job.spec.min_runtime_s > 0
        reserved = queue is group.reserved
        self.counts.add_queued(group, -1, reserved=reserved)
        self._note_change(group, task.job)
        if queue.live:
            return
        for name in group.shape.pools:
            pool = self.pools[name]
            if reserved:
                del pool.reserved_groups[group]
                pool.queue_classes[group.shape.queue_class].release(group)
            else:
                self.wake_index.remove_wait(pool, group)
                pool.index.wait_changed(group)

    def join_group(self, task: Task, group: Group) -> None:
        """Put `task` into `group`, among those with reserved slots if it has some.

        The caller records how to undo it.
        """
        task.group = group
        group.min_runtimes += task.job.spec.min_runtime_s > 0
        reserved = task.reserved is not None
        queue = task.queue = group.reserved if reserved else group.queue
        queue.push(task)
        self.counts.add_queued(group, 1, reserved=reserved)
        self._note_change(group, task.job)
        if queue.live > 1:
            return
        for name in group.shape.pools:
            pool = self.pools[name]
            if reserved:
                pool.reserved_groups[group] = None
                pool.queue_classes[group.shape.queue_class].reserve(group)
            else:
                self.wake_index.store_wait(pool, group)
                pool.index.wait_changed(group)

    def _note_change(self, group: Group, job: Job) -> None:
        shape = group.shape
        for name in shape.pools:
            pool = self.pools[name]
            pool.queue_classes[shape.queue_class].first_changed(group.priority)
            pool.index.group_changed(group, job)

    def forget(self, group: Group) -> None:
        """Remove a group that has no pending task."""
        for name in group.shape.pools:
            pool = self.pools[name]
            self.wake_index.remove_wait(pool, group)
            pool.index.wait_changed(group)
            pool.groups.pop(group.key, None)
            pool.awake.pop(group, None)
        self.dirty.pop(group, None)
        self.total -= group.hash

    def remove_ended(self) -> None:
        """Remove the jobs that have ended: no rule refers to them any more."""
        for job in self.ended:
            gone = job.hash
            for task in job.tasks:
                self.counts.update(task, self.now_ms)
                self.attention.pop(task.id, None)
                self.dirty.pop(task, None)
                del self.tasks[task.id]
                gone += task.hash
            self.dirty.pop(job, None)
            for name in job.ranks:
                self.pools[name].ranked.pop(job, None)
            del self.jobs[job.id]
            self.total = (self.total - gone) % MODULUS
        self.ended.clear()

    # Entities

    def pool(self, name: str) -> Pool:
        """The pool `name`, created on first use; it takes no task until it is configured."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
            self.dirty[pool] = None
        return pool

    def separation(self, pools: Iterable[str]) -> tuple[bool, bool]:
        """Whether any of these pools is divided among jobs, and whether any is among users."""
        found = (self.pools.get(name) for name in pools)
        within = {pool.index.traits.equal_within for pool in found if pool is not None}
        return "job" in within, "user" in within

    def chain_of(self, department: Department) -> tuple[str, ...]:
        """The names of a department and of the departments above it."""
        chain = [department.name]
        while department.config is not None and (parent := department.config.parent) is not None:
            if parent not in self.departments or parent in chain:
                break
            chain.append(parent)
            department = self.departments[parent]
        return tuple(chain)

    def owners_of(self, project: Project) -> tuple[str, ...]:
        """The names of a project and of the departments above it whose limits it counts towards."""
        return project.name, *self.chain_of(project.department)

    def nest_departments(self) -> None:
        """Update the list of departments below each department, after a parent changed."""
        for department in self.departments.values():
            department.within = [department]
        for department in self.departments.values():
            for name in self.chain_of(department)[1:]:
                self.departments[name].within.append(department)

    def node(self, name: str) -> Node:
        """The node `name`, created on first use."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, self.next_node)
            self.next_node += 1
            self.dirty[node] = None
        return node

    def pool_of(self, node: Node) -> Pool | None:
        """The pool of `node`; None if it never joined."""
        return None if node.pool_name is None else self.pools[node.pool_name]

    def config_of(self, node: Node) -> PoolConfig | None:
        """The configuration of the pool of `node`."""
        pool = self.pool_of(node)
        return None if pool is None else pool.config

    def in_s(self, seconds: int) -> int:
        """Return the time in `seconds` (ms), at most the last time that an event can name."""
        return min(self.now_ms + seconds * 1000, LAST_MS)

    def deadline(self, when_ms: int, due: Due, id_: str, attempt: int = 0) -> None:
        """Have a task, node or pool checked at `when_ms`; a draft needs no deadlines."""
        if self.journal.changes is None:
            heappush(self.deadlines, (when_ms, due, id_, attempt))

    # Slots

    def occupy(
        self, node: Node, task: Task, placement: Placement, *, stopping: bool = False
    ) -> None:
        """Take the slots of a replica; those of a `stopping` replica stay free in `future`."""
        pool = self.pool_of(node)
        assert pool is not None
        slots, milli = placement.slots, -placement.gpu_milli
        cpu, memory = -placement.cpu_milli, -placement.memory_mib
        pool.free.shift(node.free, slots, milli, cpu, memory, -1)
        if node.reserved:
            update_ready(node, self.pools)
        if not stopping:
            pool.future.shift(node.future, slots, milli, cpu, memory, -1)
            pool.index.node_changed(node)
        if not task.job.spec.preemptible:
            pool.max_free.shift(node.max_free, slots, milli, cpu, memory, -1)
            pool.max_free_changes += 1
        node.open[task.id, placement.replica] = task
        self.dirty[node] = None

    def vacate(self, node: Node, task: Task, placement: Placement, *, stopping: bool) -> None:
        """Free the slots of a replica; in `future`, those of a `stopping` one are free already."""
        pool = self.pool_of(node)
        assert pool is not None
        slots, milli = placement.slots, placement.gpu_milli
        cpu, memory = placement.cpu_milli, placement.memory_mib
        pool.free.shift(node.free, slots, milli, cpu, memory, 1)
        if node.reserved:
            update_ready(node, self.pools)
        if not stopping:
            pool.future.shift(node.future, slots, milli, cpu, memory, 1)
            pool.index.node_changed(node)
        if not task.job.spec.preemptible:
            pool.max_free.shift(node.max_free, slots, milli, cpu, memory, 1)
            pool.max_free_changes += 1
        node.open.pop((task.id, placement.replica), None)
        self.dirty[node] = None

    def charge(self, task: Task, pool: Pool, milli: int) -> None:
        """Add to the gpu_milli that the job, project and department of `task` hold, or subtract."""
        job = task.job
        project = job.project
        name = pool.name
        if milli:
            pool.change_held(task, milli)
        self.allocation_changed(task, pool)
        if milli:
            self.recount(job)
        reservation = task.reserved
        if reservation is not None and reservation.pool_name == name:
            # The slots that a moved task still holds are not counted twice.
            pool.count_reserved(task, reservation)
        job.used_milli += milli
        held = project.used_milli
        held[name] = held.get(name, 0) + milli
        self.dirty[project] = None
        if pool.index.traits.usage_half_life_ms:
            self.usage_due[pool, project] = None
        held = project.department.used_milli
        held[name] = held.get(name, 0) + milli
        self.dirty[project.department] = None

    def allocation_changed(self, task: Task, pool: Pool) -> None:
        """Tell the policy of `pool` that `task` holds, releases or has reserved other slots."""
        for tasks in pool.index.allocation_changed(task):
            self.journal.prune(tasks)

    def recount(self, job: Job) -> None:
        """Tell the policies of the job's pools that its demand, its held amount or a limit changed.

        Every pool counts, since limits apply across pools. Code that undoes such a change
        must call this again.
        """
        for name in job.shape.pools:
            self.pools[name].index.job_changed(job)

    def may_be_preempted(self, task: Task, pool: Pool) -> None:
        """Note that a preemptible task holds slots of `pool`, or that others may preempt it."""
        if pool.index.traits.finds_fitting_groups and task.run is not None:
            for name in task.run.nodes:
                pool.index.node_changed(self.nodes[name])
        for tasks in pool.index.victim_changed(task):
            self.journal.prune(tasks)

    def note_releasing(self, task: Task) -> None:
        """Note that `task` began to release its slots, or that this was undone."""
        assert task.run is not None
        pool = self.pools[task.run.pool_name]
        self.allocation_changed(task, pool)
        if pool.count_releasing(task):
            self.recount(task.job)

    def update_availability(self, node: Node) -> None:
        """Allow new tasks on `node` in its pool's indexes if the node is usable."""
        pool = self.pool_of(node)
        if pool is None:
            return
        pool.nodes_changed()
        for index, capacity in pool.capacities_of(node):
            if capacity.ordinal not in index.capacities:
                continue
            if node.usable:
                index.open_node(capacity)
            else:
                index.close_node(capacity)
        update_ready(node, self.pools)
