"""The scheduler's state of one cell: tasks, jobs, nodes, pools, entitlements, and what indexes
them.

Plain slotted objects and integers. `apply` alone calls the methods that change something; those
that a decision may cause note how to undo themselves while a draft is open (`journal`), so that a
cycle can be decided on the state itself and taken back.

Everything whose order matters has a key made of logged facts: tasks of equal priority by submission
time, then the order of admission, then their index; nodes by the order in which they first joined;
names by name. The digest is a sum of hashes, one an entity, updated for those that changed.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from heapq import heappush
from typing import Any

from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.entities import (
    BEHIND,
    BLOCKING,
    IN_LINE,
    LIMITED,
    Department,
    Due,
    Enrolled,
    Group,
    Job,
    Node,
    Pool,
    Project,
    Task,
    blocks,
)
from yardmaster_core.scheduling.state.holdings import hold
from yardmaster_core.scheduling.state.policy_traits import TraitsSource
from yardmaster_core.scheduling.state.queues import OrderedTasks
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.reasons import Wait, WaitCode

Entity = Task | Job | Group | Pool | Node | Enrolled | Department | Project


Undo = tuple[Callable[..., object], tuple[Any, ...]]


class ClusterState:
    """One cell as the scheduler sees it; `apply` alone changes it."""

    __slots__ = (
        *("attention", "cell", "cycle", "deadlines", "departments", "dirty", "emptied"),
        *("enrolled", "jobs", "tasks"),
        *("journal", "next_job", "next_node", "node_attention", "nodes", "now_ms", "pools"),
        *("policies", "projects", "restless", "revoked", "sources", "total", "unpruned"),
    )

    def __init__(self, cell: str, policies: TraitsSource) -> None:
        self.cell = cell
        self.policies = policies
        self.cycle = 0
        self.now_ms = 0
        self.pools: dict[str, Pool] = {}
        self.departments: dict[str, Department] = {}
        self.projects: dict[str, Project] = {}
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.nodes: dict[str, Node] = {}
        #: Nodes that were ever enrolled; while there is none, any node may join.
        self.enrolled: dict[str, Enrolled] = {}
        #: Nodes that were revoked while they were up (derived); some may be gone since.
        self.revoked: dict[str, Node] = {}
        self.next_job = 0
        self.next_node = 0
        #: (when, what, id, attempt), soonest first; entries that no longer hold are skipped.
        self.deadlines: list[tuple[int, int, str, int]] = []
        #: Tasks and nodes whose next step is to be decided.
        self.attention: dict[str, Task] = {}
        self.node_attention: dict[str, Node] = {}
        #: source -> (epoch, seq) of the last claim that was believed.
        self.sources: dict[str, tuple[int, int]] = {}
        #: While a draft is open that will be taken back: how to do that.
        self.journal: list[Undo] | None = None
        #: While any draft is open: lines that tasks left, which the planner may be going through.
        self.unpruned: dict[OrderedTasks, None] | None = None
        self.dirty: dict[Entity, None] = {}
        #: Groups that lost their last task since the cycle began.
        self.emptied: dict[Group, None] = {}
        self.total = 0
        #: Whether a cycle is due at once, without an input.
        self.restless = False

    # Looking things up

    def task(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            ImpossibleEvent: there is none.
        """
        found = self.tasks.get(task_id)
        if found is None:
            raise ImpossibleEvent(event="an event", found=f"there is no task {task_id}")
        return found

    # Undoing

    def undo(self) -> None:
        """Take back all that was noted, and note nothing more."""
        journal, self.journal = self.journal, None
        while journal:
            function, arguments = journal.pop()
            function(*arguments)

    def put(self, thing: object, name: str, value: object) -> None:
        """Set an attribute; taken back with the draft."""
        if self.journal is not None:
            self.journal.append((setattr, (thing, name, getattr(thing, name))))
        setattr(thing, name, value)

    # Digest

    def digest(self) -> str:
        """64 hex digits over all entities; costs what changed since the last time.

        In a draft nothing is kept of it, since what changed will be taken back.
        """
        total = self.total
        drafting = self.journal is not None
        for entity in self.dirty:
            new = row_hash(repr(entity.facts()))
            total += new - entity.hash
            if not drafting:
                entity.hash = new
        total %= MODULUS
        if not drafting:
            self.total = total
            self.dirty.clear()
        head = f"{self.cell}/{self.cycle}/{self.now_ms}/{total:x}"
        return blake2b(head.encode(), digest_size=32).hexdigest()

    # Waiting and waking

    def wake(self, pool: Pool, group: Group) -> None:
        """Let a group be considered in a pool."""
        if group not in pool.awake:
            pool.awake[group] = None
            if self.journal is not None:
                self.journal.append((pool.awake.pop, (group, None)))
        if self.unpruned is not None:
            # Also one that was awake: it may have been considered in this cycle already.
            pool.woken.append(group)

    def wake_pool(self, pool: Pool) -> None:
        """Wake the groups that wait for room, but those whom freed slots will never do."""
        for group in self.blocked(pool):
            self.wake(pool, group)

    def blocked(self, pool: Pool) -> Iterator[Group]:
        """The groups that wait for room in a pool and may have it once slots are freed."""
        for queue_class in pool.queue_classes:
            for groups in queue_class.blocked.values():
                for group in groups:
                    if group.waits[pool.name][0].code in BLOCKING:
                        yield group

    def wake_behind(self, pool: Pool) -> None:
        """Wake the groups that wait for others to go first; in strict lines the next."""
        if pool.strict_queues is not None:
            for group in pool.strict_queues.firsts():
                self.wake(pool, group)
            return
        for queue_class in pool.queue_classes:
            for group in queue_class.behind:
                self.wake(pool, group)

    def wake_limited(self) -> None:
        """Wake the groups that wait for a bound, which counts what is promised to others."""
        for pool, group in self.limited():
            self.wake(pool, group)

    def limited(self) -> Iterator[tuple[Pool, Group]]:
        """The groups that wait for a bound, each with the pool in which it does."""
        for department in self.departments.values():
            yield from department.limited

    def reshare(self, pool: Pool, *, later: bool = False) -> None:
        """What the pool's shares rest on changed; `later`: by what a planner decided, so that it
        counts in the next cycle only.
        """
        if pool.shares:
            pool.reshare = True
            pool.reshare_next |= later

    def reshare_of(self, shape: Shape, *, later: bool = False) -> None:
        """The same of all pools that tasks of a shape may use."""
        for name in shape.pools:
            self.reshare(self.pools[name], later=later)

    def wake_all(self, pool: Pool) -> None:
        """Wake every group of a pool: its nodes, policy or entitlements changed."""
        for group in pool.groups.values():
            self.wake(pool, group)

    def set_wait(self, pool: Pool, group: Group, wait: Wait) -> None:
        """Keep why a group waits in a pool, and file it under what would wake it."""
        if self.journal is not None:
            old = group.waits.get(pool.name)
            self.journal.append((self.restore_wait, (pool, group, old)))
        queue_class = pool.queue_classes[group.shape.queue_class]
        before = queue_class.mask
        if wait.code is not WaitCode.WAITING_FOR_VICTIMS and self._unpromise(pool, group):
            self.reshare(pool, later=True)
        self.restore_wait(pool, group, (wait, self.now_ms, self.cycle))
        if wait.code is WaitCode.WAITING_FOR_VICTIMS:
            # Also where only the draft woke it: what it was promised is kept in every cycle.
            self.wake(pool, group)
        passed = pool.strict_queues is not None and wait.code not in IN_LINE
        if passed or before & ~queue_class.mask:
            self.wake_behind(pool)

    def restore_wait(self, pool: Pool, group: Group, record: tuple[Wait, int, int] | None) -> None:
        """Keep a wait as it was recorded (None: not yet), and file the group under it."""
        self._unfile(pool, group)
        if record is None:
            group.waits.pop(pool.name, None)
        else:
            group.waits[pool.name] = record
            self._file(pool, group)
        self.dirty[group] = None

    def _unfile(self, pool: Pool, group: Group) -> None:
        queue_class = pool.queue_classes[group.shape.queue_class]
        blocked = queue_class.blocked.get(group.priority)
        if blocked is not None and group in blocked:
            del blocked[group]
            queue_class.firsts.pop(group.priority, None)
            if not blocked:
                del queue_class.blocked[group.priority]
                queue_class.mask &= ~(1 << group.priority)
        queue_class.behind.pop(group, None)
        pool.over_share.pop(group, None)
        pool.protected.pop(group, None)
        self.projects[group.shape.project].department.limited.pop((pool, group), None)

    def _file(self, pool: Pool, group: Group) -> None:
        record = group.waits.get(pool.name)
        if record is None or not group.queue.live:
            return
        code = record[0].code
        queue_class = pool.queue_classes[group.shape.queue_class]
        if blocks(group, code):
            queue_class.blocked.setdefault(group.priority, {})[group] = None
            queue_class.firsts.pop(group.priority, None)
            queue_class.mask |= 1 << group.priority
        elif code in BEHIND:
            queue_class.behind[group] = None
            if pool.strict_queues is not None:
                pool.strict_queues.note(group)
        elif code is WaitCode.OVER_FAIR_SHARE:
            pool.over_share[group] = None
        elif code in LIMITED:
            self.projects[group.shape.project].department.limited[pool, group] = None
        if code is WaitCode.VICTIMS_PROTECTED:
            pool.protected[group] = None

    def enqueue(self, task: Task) -> None:
        """Let a task wait among its equals, in all pools it may use."""
        job = task.job
        shape = task.shape
        group = self.pool(shape.pools[0]).groups.get((shape.id, job.priority))
        if group is None:
            group = self._new_group(shape, job.priority)
        if self.journal is not None:
            self.journal.append((self._leave, (task,)))
        self._join(task, group)
        self.reshare_of(shape)
        foremost = group.queue.first is task
        for name in shape.pools:
            record = group.waits.get(name)
            # Behind equals that were given an answer, a newcomer has the same one.
            if foremost or record is None or record[0].code is WaitCode.WAITING_FOR_VICTIMS:
                self.wake(self.pools[name], group)

    def _new_group(self, shape: Shape, priority: int) -> Group:
        group = Group(shape, priority)
        for name in shape.pools:
            self.pool(name).groups[group.key] = group
        self.dirty[group] = None
        if self.journal is not None:
            self.journal.append((self.forget, (group,)))
        return group

    def dequeue(self, task: Task) -> None:
        """Take a task out of the queue, if it is in one."""
        group = task.group
        if group is None:
            return
        if self.journal is not None:
            self.journal.append((self._join, (task, group)))
        if group.queue.live > 1:
            self._leave(task)
        else:
            # Nobody of the group waits any more, so those behind it may be next.
            queue_class = group.shape.queue_class
            pools = [self.pools[name] for name in group.shape.pools]
            before = [pool.queue_classes[queue_class].mask for pool in pools]
            self._leave(task)
            for pool, mask in zip(pools, before, strict=True):
                if mask & ~pool.queue_classes[queue_class].mask:
                    self.wake_behind(pool)
            if self.journal is None:
                self.emptied[group] = None
        self.prune(group.queue)
        self.reshare_of(group.shape)
        for name in group.shape.pools:
            pool = self.pools[name]
            self._unpromise(pool, group)
            if pool.strict_queues is not None:
                self.wake_behind(pool)

    def prune(self, line: OrderedTasks) -> None:
        """Remove those from a line who left it; while a draft is open, at its end."""
        if self.unpruned is None:
            line.prune()
        else:
            self.unpruned[line] = None

    def _unpromise(self, pool: Pool, group: Group) -> bool:
        """Have others asked again, if the group was promised slots that it may leave to them;
        whether it was.
        """
        record = group.waits.get(pool.name)
        promised = record is not None and record[0].code is WaitCode.WAITING_FOR_VICTIMS
        pool.recheck |= promised
        return promised

    def _leave(self, task: Task) -> None:
        group = task.group
        assert group is not None
        task.group = None
        task.queue = None
        group.queue.drop()
        self._note_change(group, task.job)
        if not group.queue.live:
            for name in group.shape.pools:
                self._unfile(self.pools[name], group)

    def _join(self, task: Task, group: Group) -> None:
        task.group = group
        task.queue = group.queue
        group.queue.push(task)
        self._note_change(group, task.job)
        if group.queue.live == 1:
            for name in group.shape.pools:
                self._file(self.pools[name], group)

    def _note_change(self, group: Group, job: Job) -> None:
        shape = group.shape
        for name in shape.pools:
            pool = self.pools[name]
            pool.queue_classes[shape.queue_class].firsts.pop(group.priority, None)
            if pool.demands is not None:
                pool.stale[group if shape.job_id is None else job] = None
            if pool.strict_queues is not None and group.queue.live:
                pool.strict_queues.note(group)

    def forget(self, group: Group) -> None:
        """Let go of a group in which nobody waits."""
        for name in group.shape.pools:
            pool = self.pools[name]
            self._unfile(pool, group)
            pool.groups.pop(group.key, None)
            pool.awake.pop(group, None)
        self.dirty.pop(group, None)
        self.total -= group.hash

    # Entities

    def pool(self, name: str) -> Pool:
        """The pool of that name; one that is only named so far has no configuration and takes
        nothing.
        """
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
            self.dirty[pool] = None
        return pool

    def alone(self, pools: Iterable[str]) -> bool:
        """Whether one of these pools is divided among jobs."""
        return any(name in self.pools and self.pools[name].per_job for name in pools)

    def node(self, name: str) -> Node:
        """The node of that name, made when it is first named."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, self.next_node)
            self.next_node += 1
            self.dirty[node] = None
        return node

    def deadline(self, when_ms: int, due: Due, id_: str, attempt: int = 0) -> None:
        """Have something looked at when its time comes; a draft needs no deadlines."""
        if self.journal is None:
            heappush(self.deadlines, (when_ms, due, id_, attempt))

    # Slots

    def occupy(self, node: Node, task: Task, placement: Placement) -> None:
        """Take a replica's slots."""
        pool = node.pool
        assert pool is not None
        slots, milli = placement.slots, -placement.gpu_milli
        cpu, memory = -placement.cpu_milli, -placement.memory_mib
        pool.free.shift(node.free, slots, milli, cpu, memory, -1)
        pool.future.shift(node.future, slots, milli, cpu, memory, -1)
        if not task.job.spec.preemptible:
            pool.max_free.shift(node.max_free, slots, milli, cpu, memory, -1)
            pool.max_free_changes += 1
        node.open[task.id, placement.replica] = task
        self.dirty[node] = None

    def vacate(self, node: Node, task: Task, placement: Placement, *, promised: bool) -> None:
        """Free a replica's slots; `promised`: they counted as free in the future already."""
        pool = node.pool
        assert pool is not None
        slots, milli = placement.slots, placement.gpu_milli
        cpu, memory = placement.cpu_milli, placement.memory_mib
        pool.free.shift(node.free, slots, milli, cpu, memory, 1)
        if not promised:
            pool.future.shift(node.future, slots, milli, cpu, memory, 1)
        if not task.job.spec.preemptible:
            pool.max_free.shift(node.max_free, slots, milli, cpu, memory, 1)
            pool.max_free_changes += 1
        node.open.pop((task.id, placement.replica), None)
        self.dirty[node] = None

    def charge(self, task: Task, pool: Pool, milli: int) -> None:
        """Add to what a task's job, project and department hold (or take away, below zero)."""
        job = task.job
        project = job.project
        name = pool.name
        if milli:
            hold(self, task, pool, milli)
        job.used_milli += milli
        held = project.used_milli
        held[name] = held.get(name, 0) + milli
        self.dirty[project] = None
        held = project.department.used_milli
        held[name] = held.get(name, 0) + milli
        self.dirty[project.department] = None

    def recount(self, job: Job) -> None:
        """What a job asks for, holds or may hold changed: it is counted again when shares are
        wanted next, in all pools, since bounds go over several.

        Undone with what changed it, which marks it again.
        """
        for name in job.shape.pools:
            pool = self.pools[name]
            if pool.demands is not None:
                pool.stale[job] = None

    def update_availability(self, node: Node) -> None:
        """Let tasks be placed on a node, or not, as its state says."""
        pool = node.pool
        if pool is None:
            return
        pool.topology += 1
        for index, capacity in pool.views(node):
            if capacity.ordinal not in index.capacities:
                continue
            if node.usable:
                index.open_node(capacity)
            else:
                index.close_node(capacity)
