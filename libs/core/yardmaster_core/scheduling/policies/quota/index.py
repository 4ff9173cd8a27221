"""The index of `quota`: the tree of queues with what their tasks hold and request, and the tasks
that may be preempted.

Changes only mark tasks and groups as stale. Their amounts are counted again, from the facts of the
state, when the policy next reads the tree, so a cycle costs what changed.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.wait_reasons import never_fits
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    UNITS,
    Amounts,
    exceeded,
    limited,
    minus,
    plus,
    requested,
    times,
)
from yardmaster_core.scheduling.policies.claiming.index import (
    UNCOUNTED,
    ClaimingIndex,
    Counted,
    counted,
    holders,
    usable,
)
from yardmaster_core.scheduling.policies.preemptible import Victims
from yardmaster_core.scheduling.policies.quota.blocked_order import (
    BlockedGroups,
    BlockedOrder,
    Placed,
    Request,
    request_of,
)
from yardmaster_core.scheduling.policies.quota.division import NO_USAGE
from yardmaster_core.scheduling.policies.quota.queues import Queue, configure, derive_settings
from yardmaster_core.scheduling.policies.quota.shares import divide_tree
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import WaitCode

#: So many orders of blocked groups are kept.
MAX_ORDERS: Final = 32


class QuotaIndex(ClaimingIndex[Project]):
    """The queues of a pool."""

    follows_pools = True
    finds_fitting_groups = True

    def __init__(
        self,
        pool: Pool,
        *,
        by_weight: bool,
        usage_half_life_ms: int = 0,
        usage_weight: Fraction = NO_USAGE,
    ) -> None:
        super().__init__(pool)
        self._by_weight = by_weight
        self.usage_half_life_ms = usage_half_life_ms
        self._usage_weight = usage_weight if usage_half_life_ms else NO_USAGE
        self.follows_usage = bool(self._usage_weight)
        #: Whether other usages were counted than the queues have.
        self._usage_stale = True
        #: Built on first use.
        self._root: Queue | None = None
        self._queues: dict[Department | Project, Queue] = {}
        self._tasks: dict[Task, Counted] = {}
        self._groups: dict[Group, Amounts] = {}
        #: The set of nodes for which groups were counted: those that can never fit request nothing.
        self._topology = -1
        #: Leaves whose amounts changed, in order; `QueueOrder` reads on from where it was.
        self.touched: list[Queue] = []
        #: Queues whose place among their siblings may have changed since projects were ranked.
        self.unranked: dict[Queue, None] = {}
        #: Projects whose standing changed since the last cycle, or in it, by name: their groups in
        #: other pools may claim more than before, or less.
        self._moved: dict[str, None] = {}
        self._moved_next: dict[str, None] = {}
        #: The groups that did not fit, or have reserved slots, by request.
        self.by_request: dict[Request, dict[Group, None]] = {}
        self._request_of: dict[Group, Request] = {}
        #: Whether a group can never start, as far as nodes and the bounds of queues tell.
        self._never_starts: dict[Group, bool] = {}
        #: Number of changes of the set of these requests.
        self.request_changes = 0
        #: Those of some requests in the order of queues; and those of each leaf.
        self._orders: dict[frozenset[Request], BlockedOrder] = {}
        self.placed: dict[Queue, list[Placed]] = {}
        #: Leaves with such groups that would stay within their share; that could hold more within
        #: it, and have tasks that these may preempt; and of which some wait for another reason
        #: than the recorded one. They follow from the state.
        self.below_share: dict[Queue, None] = {}
        self.growing: dict[Queue, None] = {}
        self.outdated: dict[Queue, None] = {}
        #: Queues of which these must be found again.
        self._unchecked: dict[Queue, None] = {}
        #: Projects with another standing, or other tasks that are pending or may be preempted,
        #: since the last cycle, or in it, by name.
        self._changed: dict[str, None] = {}
        self._changed_next: dict[str, None] = {}
        #: Whether owners have other settings since the last cycle, or in it.
        self.reconfigured = False
        self._reconfigured_next = False
        #: Nodes with another capacity or other victims since the last cycle, or in it, by ordinal.
        self._changed_nodes: dict[int, None] = {}
        self._changed_nodes_next: dict[int, None] = {}
        #: Whether the shares may differ from those that were recorded.
        self._shares_stale = True

    # Reading

    def root(self, state: ClusterState) -> Queue:
        """Return the tree, with all changes counted."""
        if self._root is None:
            self._root = self._build(state)
        if self._topology != self._pool.topology:
            self._topology = self._pool.topology
            self._never_starts.clear()
            self._stale_groups.update(dict.fromkeys(self._pool.groups.values()))
        if self._stale_tasks or self._stale_groups:
            self._count(state)
        if self._usage_stale:
            self._take_usages(state, self._root)
        return self._root

    def queue_of(self, state: ClusterState, project: Project) -> Queue:
        """Return the queue of a project, with all changes counted."""
        self.root(state)
        return self._queue(state, project)

    def divide(self, state: ClusterState) -> Queue:
        """Divide the pool where something changed; return the tree."""
        root = self.root(state)
        total = usable(self._pool)
        if total != root.fair:
            root.fair = root.allocatable = total
            # What may be reclaimed depends on the total, also where no share changes.
            for queue in (root, *self._queues.values()):
                queue.divide_below = True
                queue.divided = False
        if root.divide_below:
            moved: dict[Queue, None] = {}
            divide_tree(root, total, moved, self._usage_weight)
            self.unranked.update(moved)
            for queue in moved:
                self._place_changed(queue)
        return root

    def never_starts(self, state: ClusterState, group: Group) -> bool:
        """Whether a group exceeds all nodes, or a bound of a queue by itself."""
        self.root(state)
        found = self._never_starts.get(group)
        if found is None:
            shape = group.shape
            ask, leaf = (
                limited(self._pool, shape),
                self._queue(state, state.projects[shape.project]),
            )
            found = self._never_starts[group] = never_fits(self._pool, shape) or any(
                exceeded(ask, queue.limit) is not None
                or (not shape.preemptible and exceeded(ask, queue.deserved) is not None)
                for queue in leaf.path
            )
        return found

    def _place_changed(self, queue: Queue) -> None:
        self._unchecked[queue] = None
        for order in self._orders.values():
            order.changed(queue)

    @property
    def changed_nodes(self) -> Sequence[int]:
        """The nodes with another capacity or other victims since the last cycle, by ordinal."""
        return list(self._changed_nodes)

    def changed_queues(self, state: ClusterState) -> Sequence[Queue]:
        """Return the projects that changed since the last cycle. They are facts: an index that was
        restored, or that only followed decisions, has the same.
        """
        self.root(state)
        projects = (state.projects.get(name) for name in self._changed)
        return [self._queue(state, project) for project in projects if project is not None]

    def take_unchecked(self, state: ClusterState) -> Sequence[Queue]:
        """Return the leaves with another standing or share, or other groups that did not fit, than
        when they were last taken; `growing` and `outdated` of them must be found.
        """
        self.divide(state)
        unchecked = [queue for queue in self._unchecked if queue.is_project]
        self._unchecked.clear()
        for queue in unchecked:
            room = minus(queue.fair, queue.standing)
            asks = (requested(self._pool, group.shape) for group in queue.blocked)
            mark(self.below_share, queue, any(exceeded(ask, room) is None for ask in asks))
        return unchecked

    def first_blocked(
        self,
        state: ClusterState,
        requests: frozenset[Request],
        source: BlockedGroups,
        passed: Set[Group],
    ) -> Group | None:
        """Return the first group in the order of queues that did not fit, of these requests and not
        in `passed`, or None.

        An order is kept for each set of requests, of which there are at most `MAX_ORDERS`.
        """
        self.divide(state)
        for project in self.moved_elsewhere(state):
            # Whether it is guaranteed what it deserves here depends on its other pools.
            self._place_changed(self._queue(state, project))
        order = self._orders.pop(requests, None)
        if order is None:
            if len(self._orders) == MAX_ORDERS:
                del self._orders[next(iter(self._orders))]
            leaves = [queue for queue in self._queues.values() if queue.blocked]
            order = BlockedOrder(requests, leaves)
        self._orders[requests] = order
        return order.first(source, passed)

    def moved_elsewhere(self, state: ClusterState) -> Iterator[Project]:
        """Yield the projects whose standing in another pool changed since the last cycle."""
        for name, pool in sorted(state.pools.items()):
            if name != self._pool.name and isinstance(pool.index, QuotaIndex):
                for project in pool.index._moved:
                    yield state.projects[project]

    # Counting

    def _build(self, state: ClusterState) -> Queue:
        root = Queue("", None, (0, 0))
        self._built = True
        self._queues.clear()
        self.unranked.clear()
        self._tasks.clear()
        self._groups.clear()
        self.touched.clear()
        self.by_request.clear()
        self._request_of.clear()
        self._orders.clear()
        self.placed.clear()
        self._never_starts.clear()
        self.below_share.clear()
        self.growing.clear()
        self.outdated.clear()
        self._unchecked.clear()
        self._usage_stale = bool(self.usage_half_life_ms)
        self._add_queues(state, root)
        self._stale_tasks = dict.fromkeys((*holders(self._pool), *self._pool.reserved))
        self._stale_groups = dict.fromkeys(self._pool.groups.values())
        return root

    def _add_queues(self, state: ClusterState, root: Queue) -> None:
        """Add the departments and projects that have no queue yet, in the order of creation."""
        for age, department in enumerate(state.departments.values()):
            if department not in self._queues:
                self._add_department(state, root, department, age)
        for age, project in enumerate(state.projects.values()):
            if project not in self._queues:
                parent = self._queues[project.department]
                self._add(project, Queue(project.name, parent, (1, age)))
        derive_settings(root, by_weight=self._by_weight)

    def _add_department(
        self, state: ClusterState, root: Queue, department: Department, age: int
    ) -> Queue:
        parent = department.config.parent if department.config is not None else None
        above = state.departments.get(parent) if parent is not None else None
        of = root
        if above is not None:
            names = list(state.departments)
            of = self._queues.get(above) or self._add_department(
                state, root, above, names.index(above.name)
            )
        return self._add(department, Queue(department.name, of, (0, age)))

    def _add(self, owner: Department | Project, queue: Queue) -> Queue:
        self._queues[owner] = queue
        self.unranked[queue] = None
        configure(queue, owner, self._pool.name)
        return queue

    def _queue(self, state: ClusterState, project: Project) -> Queue:
        queue = self._queues.get(project)
        if queue is None:
            assert self._root is not None
            self._add_queues(state, self._root)
            queue = self._queues[project]
            # Other sums may be deserved now.
            for each in (self._root, *self._queues.values()):
                each.divided = False
                each.divide_below = True
        return queue

    def _count(self, state: ClusterState) -> None:
        """Count what changed; have those siblings divided again of which a wish changed.

        A task that starts changes what its queues hold and request, but not their wish.
        """
        wishes: dict[Queue, Amounts] = {}
        for task in self._stale_tasks:
            self._count_task(state, task, wishes)
        self._stale_tasks.clear()
        for group in self._stale_groups:
            self._count_group(state, group, wishes)
        self._stale_groups.clear()
        self.unranked.update(dict.fromkeys(wishes))
        for queue, before in wishes.items():
            _note_wish(queue, before)

    def _take_usages(self, state: ClusterState, root: Queue) -> None:
        """Give the queues the usages of the minute; have all of them divided again."""
        self._usage_stale = False
        queues = (root, *self._queues.values())
        for queue in queues:
            queue.usage_milli = 0
            if self.follows_usage:
                queue.divided, queue.divide_below = False, True
        for project in state.projects.values():
            usage = project.usage.get(self._pool.name)
            if usage is not None:
                for queue in self._queue(state, project).path:
                    queue.usage_milli += usage.counted_milli

    def _count_task(self, state: ClusterState, task: Task, wishes: dict[Queue, Amounts]) -> None:
        known = self._tasks.get(task, UNCOUNTED)
        now = counted(task, self._pool.name)
        if now == known:
            return
        if now == UNCOUNTED:
            del self._tasks[task]
        else:
            self._tasks[task] = now
        held, firm, leaving, returning, reserved = map(minus, now, known)
        leaf = self._queue(state, task.job.project)
        for queue in leaf.path:
            wishes.setdefault(queue, queue.wish)
            if held != NOTHING:
                queue.held = plus(queue.held, held)
            if firm != NOTHING:
                queue.firm = plus(queue.firm, firm)
            if leaving != NOTHING:
                queue.leaving = plus(queue.leaving, leaving)
            if returning != NOTHING:
                queue.returning = plus(queue.returning, returning)
            if reserved != NOTHING:
                queue.reserved = plus(queue.reserved, reserved)
        self.touched.append(leaf)
        self._place_changed(leaf)

    def _count_group(self, state: ClusterState, group: Group, wishes: dict[Queue, Amounts]) -> None:
        known = self._groups.get(group, NOTHING)
        shape = group.shape
        counts = 0
        leaf = self._queue(state, state.projects[shape.project])
        if group.pending:
            leaf.waiting[group] = None
        else:
            leaf.waiting.pop(group, None)
        self.unranked[leaf] = None
        self._file_blocked(leaf, group)
        if group.queue.live and not shape.start_failed and not never_fits(self._pool, shape):
            counts = group.queue.live
        now = times(requested(self._pool, shape), counts)
        if now == known:
            return
        if counts:
            self._groups[group] = now
        else:
            self._groups.pop(group, None)
        more = minus(now, known)
        for queue in leaf.path:
            wishes.setdefault(queue, queue.wish)
            queue.pending = plus(queue.pending, more)

    def _file_blocked(self, leaf: Queue, group: Group) -> None:
        request = None
        record = group.waits.get(self._pool.name)
        blocked = record is not None and record[0].code in BLOCKING and group.queue.live
        if blocked or group.reserved.live:
            request = request_of(group)
        before = self._request_of.get(group)
        if before is not None and before != request:
            groups = self.by_request[before]
            del groups[group]
            if not groups:
                del self.by_request[before]
                self.request_changes += 1
        if not group.pending:
            self._never_starts.pop(group, None)
        if request is None:
            leaf.blocked.pop(group, None)
            self._request_of.pop(group, None)
        else:
            leaf.blocked[group] = None
            self._request_of[group] = request
            if request not in self.by_request:
                self.by_request[request] = {}
                self.request_changes += 1
            self.by_request[request][group] = None
        self.placed.pop(leaf, None)
        self._place_changed(leaf)

    # Changes

    def wait_recorded(self, group: Group, code: WaitCode) -> None:
        self._note(group.shape.project)
        if self._built:
            self._stale_groups[group] = None

    def wait_cleared(self, group: Group) -> None:
        self._note(group.shape.project)
        if self._built:
            self._stale_groups[group] = None

    def node_changed(self, node: Node) -> None:
        self._changed_nodes[node.ordinal] = self._changed_nodes_next[node.ordinal] = None

    def owner_of(self, job: Job) -> Project:
        return job.project

    def allocation_changed(self, task: Task) -> None:
        super().allocation_changed(task)
        self._shares_stale = True
        name = task.job.project.name
        self._moved[name] = self._moved_next[name] = None
        self._note(name)

    def may_be_preempted(self, task: Task) -> Iterator[Victims]:
        # Other tasks of its project may preempt it.
        self._note(task.job.project.name)
        queue = self._queues.get(task.job.project)
        if queue is not None:
            self._unchecked[queue] = None
        return super().may_be_preempted(task)

    def _note(self, project: str) -> None:
        self._changed[project] = self._changed_next[project] = None

    def queue_changed(self, group: Group, job: Job) -> None:
        super().queue_changed(group, job)
        self._shares_stale = True
        self._note(group.shape.project)

    def claimants_changed(self) -> None:
        self._root = None
        self._built = False
        self._shares_stale = True
        self.reconfigured = self._reconfigured_next = True

    def usages_counted(self) -> None:
        self._usage_stale = self._shares_stale = True
        self._due |= self.follows_usage

    def nodes_changed(self) -> None:
        self._shares_stale = True

    @property
    def shares_stale(self) -> bool:
        return self._shares_stale

    def shares_compared(self) -> None:
        self._shares_stale = False

    def cycle_ended(self) -> None:
        super().cycle_ended()
        self._moved, self._moved_next = self._moved_next, {}
        self._changed, self._changed_next = self._changed_next, {}
        self.reconfigured, self._reconfigured_next = self._reconfigured_next, False
        self._changed_nodes, self._changed_nodes_next = self._changed_nodes_next, {}
        self.touched.clear()

    def dump(self) -> Mapping[str, Any]:
        return {
            **super().dump(),
            "shares_stale": self._shares_stale,
            "moved": list(self._moved),
            "moved_next": list(self._moved_next),
            "changed": list(self._changed),
            "changed_next": list(self._changed_next),
            "reconfigured": self.reconfigured,
            "reconfigured_next": self._reconfigured_next,
            "changed_nodes": sorted(self._changed_nodes),
            "changed_nodes_next": sorted(self._changed_nodes_next),
        }

    def load(self, dump: Mapping[str, Any]) -> None:
        super().load(dump)
        self._shares_stale = dump["shares_stale"]
        self._moved = dict.fromkeys(dump["moved"])
        self._moved_next = dict.fromkeys(dump["moved_next"])
        self._changed = dict.fromkeys(dump["changed"])
        self._changed_next = dict.fromkeys(dump["changed_next"])
        self.reconfigured = dump["reconfigured"]
        self._reconfigured_next = dump["reconfigured_next"]
        self._changed_nodes = dict.fromkeys(dump["changed_nodes"])
        self._changed_nodes_next = dict.fromkeys(dump["changed_nodes_next"])


def _note_wish(queue: Queue, before: Amounts) -> None:
    """Have the siblings divided again, if a wish that is met or becomes met changed."""
    now, fair, parent = queue.wish, queue.fair, queue.parent
    assert parent is not None
    if now == before and parent.divided:
        return
    if not parent.divided or any(
        now[i] != before[i] and min(now[i], before[i]) < fair[i] + UNITS[i] for i in RESOURCES
    ):
        parent.divided = False
        above: Queue | None = parent
        while above is not None:
            above.divide_below = True
            above = above.parent


def mark(queues: dict[Queue, None], queue: Queue, found: bool) -> None:
    """Add a queue to a set, or remove it."""
    if found:
        queues[queue] = None
    else:
        queues.pop(queue, None)


def index_of(view: PoolView) -> QuotaIndex:
    """Return the index of a pool with this policy."""
    index = view.pool.index
    assert isinstance(index, QuotaIndex), "the pool has another policy"
    return index


def project_queue(view: PoolView, task: Task) -> Queue:
    """Return the queue of the project of a task."""
    return index_of(view).queue_of(view.state, task.job.project)
