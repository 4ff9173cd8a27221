"""Pools: nodes, the free capacity on them, and the pending tasks that may use it."""

from collections.abc import Callable
from typing import Any, Protocol

from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.held import HeldByJob, HeldByProject
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.policy_index import PolicyIndex
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.recorded_shares import RecordedShares
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.tasks import Group, Job, Reservation, Task
from yardmaster_core.scheduling.state.workload import WorkloadCounter
from yardmaster_schemas.events.requests import PoolConfig
from yardmaster_schemas.resources import fraction_of


class Pool:
    """Nodes of a cell with one policy, their free capacity, and the pending tasks of the pool."""

    __slots__ = (
        *("awake", "config", "free", "future", "groups", "has_min_runtimes", "hash", "index"),
        *("all_woken", "blocked_woken", "equals_woken", "max_free", "max_free_changes"),
        *("name", "nodes"),
        *("policy_cache", "protected", "queue_classes", "ranked", "ready", "recheck"),
        *("reconsidered", "reserved", "reserved_groups", "reserved_idle_milli"),
        *(
            "reserved_milli",
            "resolved",
            "revision",
            "shares",
            "stopping",
            "stopping_non_preemptible",
        ),
        *("started", "topology"),
        *("held_by_job", "held_by_project", "used_milli", "woken", "workload"),
        *("reserved_by_project", "user_ranks", "user_ranks_hash"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: PoolConfig | None = None
        self.revision = 0
        #: By node ordinal.
        self.nodes: dict[int, Node] = {}
        self.free = CapacityIndex()
        #: The free capacity once all stopping tasks are gone.
        self.future = CapacityIndex()
        #: The free capacity if all preemptible tasks were gone.
        self.max_free = CapacityIndex()
        #: Number of changes of `max_free`, for caches of results that depend only on it.
        self.max_free_changes = 0
        #: Jobs and projects that hold GPUs of the pool, and the gpu_milli that all hold together.
        self.held_by_job: dict[Job, HeldByJob] = {}
        self.held_by_project: dict[Project, HeldByProject] = {}
        self.used_milli = 0
        #: The index of the pool's policy.
        self.index = PolicyIndex()
        #: Claimants with a recorded place in the queue (derived).
        self.ranked: dict[Job | Project, None] = {}
        #: The recorded places of users in the queue, by claimant, and the sum of their hashes.
        self.user_ranks: dict[str, tuple[int, ...]] = {}
        self.user_ranks_hash = 0
        #: The shares of its queues that were recorded last.
        self.shares: RecordedShares | None = None
        #: (shape id, priority) -> pending tasks.
        self.groups: dict[tuple[str, int], Group] = {}
        #: Groups to consider in the next cycle.
        self.awake: dict[Group, None] = {}
        #: Whether this cycle's inputs woke all groups, or all that did not fit: once is enough.
        self.all_woken = self.blocked_woken = False
        #: Whether the next cycle considers the first of each class of equal groups that did not
        #: fit.
        self.equals_woken = False
        #: Tasks that started during the running cycle.
        self.started: dict[Task, None] = {}
        #: Groups that became awake during the running cycle.
        self.woken: list[Group] = []
        #: Groups that the running cycle considers again although nothing woke them.
        self.reconsidered: dict[Group, None] = {}
        #: Without GPUs, with GPUs.
        self.queue_classes = (QueueClass(), QueueClass())
        #: Groups that wait until the minimum runtime of possible victims, or a delay, is over.
        self.protected: dict[Group, None] = {}
        #: Whether any job that may use the pool ever had a minimum runtime.
        self.has_min_runtimes = False
        #: Number of stopping attempts, whatever the reason; and of those that are not preemptible.
        self.stopping = self.stopping_non_preemptible = 0
        #: Pending tasks with reserved slots of the pool, the same by project (derived), and the
        #: tasks whose reserved slots are all free.
        self.reserved: dict[Task, None] = {}
        self.reserved_by_project: dict[Project, dict[Task, None]] = {}
        self.ready: dict[Task, None] = {}
        #: The same tasks' groups, in each pool that the groups may use: their tasks may start on
        #: other slots before the reserved ones are free.
        self.reserved_groups: dict[Group, None] = {}
        #: gpu_milli reserved for tasks of a job, project or department; and the part of all
        #: reserved gpu_milli that no task holds, on nodes that take tasks (derived).
        self.reserved_milli: dict[Job | Project | Department, int] = {}
        self.reserved_idle_milli = 0
        #: Whether slots began to be freed or lost their reservation, so that all groups that did
        #: not fit are considered again, once in a cycle.
        self.recheck = False
        #: The requests of its tasks so far.
        self.workload = WorkloadCounter()
        #: Number of changes of the set of nodes, for caches of results that depend only on it.
        self.topology = 0
        self.policy_cache: dict[Any, Any] = {}
        #: Its policy and placement with their options, as the planner resolved them on first use.
        self.resolved: Any = None
        self.hash = 0

    def reconsider(self, group: Group) -> None:
        """Have `group` considered again in the running cycle."""
        self.reconsidered[group] = None
        self.woken.append(group)

    @property
    def indexes(self) -> tuple[CapacityIndex, ...]:
        """The three indexes: `free`, `future` and `max_free`."""
        return (self.free, self.future, self.max_free)

    def capacities_of(self, node: Node) -> tuple[tuple[CapacityIndex, NodeCapacity], ...]:
        """The three indexes, each with the capacity of `node` in it."""
        return (self.free, node.free), (self.future, node.future), (self.max_free, node.max_free)

    def most_milli(self, shape: Shape) -> int:
        """The most gpu_milli that a task of `shape` may take.

        A request by memory takes most on the smallest GPUs of the pool that have enough memory.
        """
        return shape.total_gpu_milli or self._milli_by_memory(shape, min)

    def least_milli(self, shape: Shape) -> int:
        """The least gpu_milli that a task of `shape` may take: that on the pool's largest GPUs."""
        return shape.total_gpu_milli or self._milli_by_memory(shape, max)

    def milli_for_limits(self, shape: Shape, task: Task) -> int:
        """The least gpu_milli that a pending task of `shape` may take now, for limits: that of its
        reservation, else that on the largest GPUs of the nodes that take tasks.
        """
        if not shape.gpu_memory_mib:
            return shape.total_gpu_milli
        reservation = task.reserved
        if reservation is not None and reservation.pool_name == self.name:
            return sum(p.gpu_milli * len(p.slots) for p in reservation.placements)
        memories = self.free.memories(shape)
        return shape.gpu_milli_on(memories[-1]) if memories else self.least_milli(shape)

    def _milli_by_memory(self, shape: Shape, choose: Callable[[list[int]], int]) -> int:
        requested = shape.gpu_memory_mib
        if not requested:
            return 0
        memories = [memory for memory in self.free.of_gpu_memory if memory >= requested]
        # As whole GPUs where no GPU has as much memory.
        milli = fraction_of(requested, choose(memories)) if memories else WHOLE
        return shape.replicas * shape.gpus * milli

    def held_milli(self, task: Task) -> int:
        """The gpu_milli of a running task: its request, or for a request by memory the amount that
        it holds where it is placed.
        """
        shape = task.job.shape
        return self.unreleased_milli(task) if shape.gpu_memory_mib else shape.total_gpu_milli

    def unreleased_milli(self, task: Task) -> int:
        """The gpu_milli that a task holds, without replicas that have released theirs."""
        usage = self.held_by_job.get(task.job)
        return usage.tasks.get(task, 0) if usage is not None else 0

    def nodes_changed(self) -> None:
        """Note that nodes joined or left, or that their resources changed."""
        self.topology += 1
        self.index.nodes_changed()

    def count_reserved(self, task: Task, reservation: Reservation, *, lost: bool = False) -> None:
        """Count the gpu_milli that are reserved for the owners of `task` again, or with `lost` no
        more.

        While a moved task holds more than is reserved for it, nothing is counted: else another task
        could start within a limit that it exceeds until then.
        """
        holding = self.held_by_job.get(task.job)
        still = holding.tasks.get(task, 0) if holding is not None else 0
        milli = (0 if lost else max(0, reservation.gpu_milli - still)) - reservation.counted
        if not milli:
            return
        reservation.counted += milli
        held = self.reserved_milli
        for owner in (task.job, task.job.project, task.job.project.department):
            left = held.get(owner, 0) + milli
            if left:
                held[owner] = left
            else:
                del held[owner]

    def change_held(self, task: Task, milli: int) -> None:
        """Add to the gpu_milli that `task` holds (or subtract)."""
        job, project = task.job, task.job.project
        self.used_milli += milli
        project_held = self.held_by_project.get(project)
        if project_held is None:
            project_held = self.held_by_project[project] = HeldByProject()
        job_held = self.held_by_job.get(job)
        if job_held is None:
            job_held = self.held_by_job[job] = project_held.jobs[job] = HeldByJob()
        job_held.milli += milli
        left = job_held.tasks.get(task, 0) + milli
        if left:
            job_held.tasks[task] = left
        else:
            del job_held.tasks[task]
        project_held.releasing_milli += job_held.count_releasing(task)
        if not job_held.tasks:
            del self.held_by_job[job]
            del project_held.jobs[job]
            if not project_held.jobs:
                del self.held_by_project[project]

    def count_releasing(self, task: Task) -> bool:
        """Count what `task` is about to release; return whether it holds GPUs of the pool."""
        job_held = self.held_by_job.get(task.job)
        if job_held is None or task not in job_held.tasks:
            return False
        change = job_held.count_releasing(task)
        self.held_by_project[task.job.project].releasing_milli += change
        return True

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        facts: tuple[object, ...] = ("pool", self.name, self.revision, self.workload.facts())
        if self.user_ranks:
            facts = (*facts, "user_ranks", self.user_ranks_hash)
        shares = self.shares
        if shares is None:
            return facts
        return (*facts, "shares", shares.at_ms, shares.pause_ms, shares.digest)

    def set_user_rank(self, claimant: str, rank: tuple[int, ...]) -> None:
        """Set the recorded place of a claimant among users; an empty `rank` removes it."""
        before = self.user_ranks.pop(claimant, ())
        change = -row_hash(repr((claimant, before))) if before else 0
        if rank:
            self.user_ranks[claimant] = rank
            change += row_hash(repr((claimant, rank)))
        self.user_ranks_hash = (self.user_ranks_hash + change) % MODULUS


class IndexSource(Protocol):
    """The part of the registry of policies that the state uses."""

    def index(self, pool: Pool) -> PolicyIndex:
        """Return a new index for the policy of a pool's configuration.

        For a pool without configuration or with an unknown policy, the index keeps nothing.
        """
