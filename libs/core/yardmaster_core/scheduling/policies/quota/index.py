"""The index of `quota`: the tree of queues with the amounts that their tasks hold and request, the
tasks that may be preempted, and the groups that did not fit.

Hooks only mark tasks and groups as stale: `allocation_changed` a task; `group_changed` and
`wait_changed` a group. Their amounts are counted again, from the facts of the
state, when the policy next reads the tree. So the cost of a cycle depends on the number of changes.

| cache | follows from | is brought up to date |
| --- | --- | --- |
| the tree and its settings | departments, projects, quotas | after `owners_changed`, at a read |
| held, leaving, reserved amounts | slots held by and reserved for tasks | stale tasks, at a read |
| pending amounts | pending tasks, the nodes they fit on | stale groups, at a read |
| `usage_milli` of queues | decayed usages of projects | after `usages_changed`, at a read |
| `fair`, `allocatable` of queues | settings, demands, usages, nodes | by `divide` |
| `place` of queues | amounts, shares | queues in `rank_stale`, by `ranks.py` |
| `blocked`, `at_limit`, `by_request` | waits, reserved slots | stale groups, at a read |
| `groups_by_place` | `blocked`, priorities | emptied for the project of a stale group |
| `_orders` | `place`s, `groups_by_place`, other pools | queues that changed, by `first_blocked` |
| `_waiting` | waits | the groups of stale groups are added |
| `_never_starts` | nodes, limits, deserved amounts | emptied when these change |
| sets of leaves | amounts, shares, `blocked`, victims | queues in `_unchecked`, by the policy |

The sets of leaves are `below_share`, `may_preempt_own`, `reason_stale`, `before_owners`,
`gangs_before_owners` and `refused_owners`; `at_limit` is the set of those with groups that wait for
a limit. A project without a queue gets one when it is read. After a change of nodes all groups are
stale.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any, Final, TypeVar

from yardmaster_core.scheduling.planner.limits import never_within_limits
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.wait_reasons import fits_usable_nodes, never_fits
from yardmaster_core.scheduling.policies.carried_over import CarriedOver, CarriedOverFlag
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    UNITS,
    Amounts,
    first_exceeded,
    least_requested,
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
from yardmaster_core.scheduling.policies.quota.node_bounds import NodeBounds
from yardmaster_core.scheduling.policies.quota.queues import (
    Queue,
    configure,
    derive_settings,
    lower_deserved,
)
from yardmaster_core.scheduling.policies.quota.shares import divide_tree
from yardmaster_core.scheduling.policies.waiting_groups import (
    WaitingGroups,
    waits_for_its_owner,
)
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import WaitCode

#: The number of sets of requests for which the order of blocked groups is kept.
MAX_ORDERS: Final = 32

M = TypeVar("M")


class QuotaIndex(ClaimingIndex[Project]):
    """The tree of queues of a pool, and the caches that the table above lists."""

    def __init__(
        self,
        pool: Pool,
        *,
        by_weight: bool,
        usage_half_life_ms: int = 0,
        usage_weight: Fraction = NO_USAGE,
        reserves: bool = False,
        lowers_deserved: bool = False,
    ) -> None:
        self._by_weight = by_weight
        #: Whether the queues of a department deserve no more together than the department.
        self._lowers_deserved = lowers_deserved
        #: Whether tasks may wait behind the oldest one of their project.
        self._reserves = reserves
        self._usage_weight = usage_weight if usage_half_life_ms else NO_USAGE
        traits = Traits(
            preempts=True,
            finds_fitting_groups=True,
            follows_pools=True,
            usage_half_life_ms=usage_half_life_ms,
            follows_usage=bool(self._usage_weight),
        )
        super().__init__(pool, traits)
        #: Whether the usages of projects changed since they were last copied to the queues.
        self._usage_stale = True
        #: The root of the tree, built at the first read.
        self._root: Queue | None = None
        self._queues: dict[Department | Project, Queue] = {}
        self._tasks: dict[Task, Counted] = {}
        self._groups: dict[Group, Amounts] = {}
        #: The number of the set of nodes for which groups were counted: a group that exceeds all
        #: nodes requests nothing.
        self._topology = -1
        #: Leaves whose amounts changed in this cycle, in the order of the changes. A `QueueOrder`
        #: remembers up to where it has read them.
        self.changed_leaves: list[Queue] = []
        #: By project, the groups that its own tasks may keep from starting.
        self._waiting: dict[Queue, WaitingGroups] = {}
        #: Queues whose `place` may have changed since projects were ranked.
        self.rank_stale: dict[Queue, None] = {}
        #: Names of projects whose allocated amounts changed: their groups in other pools may claim
        #: more than before, or less.
        self._reallocated = CarriedOver[str]("moved")
        #: The groups that did not fit, or have reserved slots, by request.
        self.by_request: dict[Request, dict[Group, None]] = {}
        self._request_of: dict[Group, Request] = {}
        #: By group, whether it can never start because it exceeds all nodes or a bound of a queue.
        self._never_starts: dict[Group, bool] = {}
        #: How often a request was added to `by_request` or removed, and how often a group was
        #: checked for it.
        self.request_changes = 0
        self.blocked_changes = 0
        #: The groups of `by_request` in the order of queues, by the set of their requests; and the
        #: groups of each project in the order within it.
        self._orders: dict[frozenset[Request], BlockedOrder] = {}
        self.groups_by_place: dict[Queue, list[Placed]] = {}
        #: Leaves with a blocked group that would stay within the share of its project.
        self.below_share: dict[Queue, None] = {}
        #: Leaves below their share with blocked groups that may preempt tasks of their project.
        self.may_preempt_own: dict[Queue, None] = {}
        #: Leaves with blocked groups that wait for another reason than the recorded one.
        self.reason_stale: dict[Queue, None] = {}
        #: Leaves with blocked groups that come before a task of their project with reserved slots.
        self.before_owners: dict[Queue, None] = {}
        #: Of these, the leaves with gangs, each with the gpu_milli that one of them needs at least,
        #: apart from what is reserved for the project.
        self.gangs_before_owners: dict[Queue, int] = {}
        #: Of all these, the leaves with a group that a rule, not capacity, may have kept from
        #: taking over such slots when it was last asked; also those that were not asked yet.
        self.refused_owners: dict[Queue, None] = {}
        #: Queues whose membership in these sets must be checked again.
        self._unchecked: dict[Queue, None] = {}
        #: Leaves with groups that wait for a limit.
        self.at_limit: dict[Queue, None] = {}
        #: Names of projects with other allocated amounts, other pending tasks, or other tasks that
        #: may be preempted.
        self._changed = CarriedOver[str]("changed")
        #: How often the amounts or the settings of a queue changed; and the sums over all pools,
        #: which the first of the pools keeps for all (`pool_sums.py`).
        self.amount_changes = 0
        self.known_sums: Any = None
        #: What could be free on the nodes at most.
        self.node_bounds = NodeBounds(pool)
        #: Whether settings of owners changed.
        self.reconfigured = CarriedOverFlag("reconfigured")
        #: Ordinals of nodes with another capacity, or other tasks that may be preempted.
        self._changed_nodes = CarriedOver[int]("changed_nodes", ascending=True)
        self._carried += self._reallocated, self._changed, self.reconfigured, self._changed_nodes
        self.shares_stale = True

    # Reading

    def root(self, state: CellView) -> Queue:
        """Return the root of the tree, with all changes counted."""
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

    def queue_of(self, state: CellView, project: Project) -> Queue:
        """Return the queue of a project, with all changes counted."""
        self.root(state)
        return self._queue(state, project)

    def divide(self, state: CellView) -> Queue:
        """Divide the pool again among the siblings for which an input changed; return the root."""
        root = self.root(state)
        total = usable(self._pool)
        if total != root.fair:
            root.fair = root.allocatable = total
            # What may be reclaimed depends on the total, also where no share changes.
            for queue in (root, *self._queues.values()):
                queue.needs_division_below = True
                queue.divided = False
        if root.needs_division_below:
            changed: dict[Queue, None] = {}
            divide_tree(root, total, changed, self._usage_weight)
            self.rank_stale.update(changed)
            for queue in changed:
                self._place_changed(queue)
        return root

    def never_starts(self, state: CellView, group: Group) -> bool:
        """Whether a single task of the group exceeds each node, a limit of its job or project, or a
        bound of a queue above it.
        """
        self.root(state)
        never = self._never_starts.get(group)
        if never is None:
            shape = group.shape
            project_queue = self._queue(state, state.projects[shape.project])
            request = least_requested(self._pool, shape)
            # rule: order: impossible tasks last
            never = self._never_starts[group] = (
                never_fits(self._pool, shape)
                or bool(group.pending and never_within_limits(self._pool, group.first))
                or any(
                    # rule: order: tasks beyond a limit last
                    first_exceeded(request, queue.limit) is not None
                    # rule: order: tasks beyond what is deserved last
                    or (
                        not shape.preemptible
                        and first_exceeded(request, queue.deserved) is not None
                    )
                    for queue in project_queue.path
                )
            )
        return never

    def _place_changed(self, queue: Queue) -> None:
        """Mark a queue for a new check of its sets and a new place in the kept orders."""
        self._unchecked[queue] = None
        for order in self._orders.values():
            order.changed(queue)

    def anything_changed(self, state: CellView) -> bool:
        """Whether anything changed in this pool since the last cycle, or the amounts that a project
        holds of another one.
        """
        return any(self._carried) or next(self.reallocated_elsewhere(state), None) is not None

    @property
    def changed_nodes(self) -> Sequence[int]:
        """The ordinals of nodes with another capacity or other victims since the last cycle."""
        return list(self._changed_nodes)

    def changed_queues(self, state: CellView) -> Sequence[Queue]:
        """Return the queues of the projects that changed since the last cycle.

        The names of these projects are part of the dump, so an index that was restored, or that
        only followed decisions, returns the same queues.
        """
        self.root(state)
        projects = (state.projects.get(name) for name in self._changed)
        return [self._queue(state, project) for project in projects if project is not None]

    def take_unchecked(self, state: CellView) -> Sequence[Queue]:
        """Return the leaves with other amounts, another share or other blocked groups than when
        they were last taken. The caller adds these leaves to the sets of leaves, or removes them;
        `below_share` is up to date.
        """
        self.divide(state)
        unchecked = [queue for queue in self._unchecked if queue.is_project]
        self._unchecked.clear()
        for queue in unchecked:
            room = minus(queue.fair, queue.allocated)
            requests = (requested(self._pool, group.shape) for group in queue.blocked)
            fits_share = any(first_exceeded(request, room) is None for request in requests)
            set_member(self.below_share, queue, fits_share)
        return unchecked

    def blocked_within_share(self, state: CellView) -> Iterator[tuple[Queue, Group]]:
        """Yield the groups without reserved slots that did not fit and would stay within the share
        of their project, each with its queue; also those that did not fit in this cycle.
        """
        self.divide(state)
        unchecked = (queue for queue in self._unchecked if queue.is_project)
        for queue in dict.fromkeys((*self.below_share, *unchecked)):
            room = minus(queue.fair, queue.allocated)
            for group in queue.blocked:
                if not group.queue.live or group.shape.start_failed:
                    continue
                if first_exceeded(requested(self._pool, group.shape), room) is None:
                    yield queue, group

    def first_blocked(
        self,
        state: CellView,
        requests: frozenset[Request],
        source: BlockedGroups,
        passed: Set[Group],
        leaf: Queue | None = None,
    ) -> Group | None:
        """Return the first blocked group in the order of queues that has one of these requests and
        is not in `passed`, or None; with `leaf`, of the groups of this leaf.

        The order is kept for the last `MAX_ORDERS` sets of requests.
        """
        self.divide(state)
        for project in self.reallocated_elsewhere(state):
            # What the project is guaranteed here depends on its allocated amounts in other pools.
            self._place_changed(self._queue(state, project))
        order = self._orders.pop(requests, None)
        if order is None:
            if len(self._orders) == MAX_ORDERS:
                del self._orders[next(iter(self._orders))]
            leaves = [queue for queue in self._queues.values() if queue.blocked]
            order = BlockedOrder(requests, leaves)
        self._orders[requests] = order
        return order.first(source, passed) if leaf is None else order.first_of(leaf, source, passed)

    def reallocated_elsewhere(self, state: CellView) -> Iterator[Project]:
        """Yield the projects that hold other amounts of other pools since the last cycle."""
        changed = {
            name: pool.index._reallocated
            for name, pool in state.pools.items()
            if isinstance(pool.index, QuotaIndex) and pool.index._reallocated
        }
        for name in sorted(changed):
            if name != self._pool.name:
                for project in changed[name]:
                    yield state.projects[project]

    def first_waiting(self, queue: Queue, accepted: Callable[[Group], bool]) -> Task | None:
        """Return the task of a project that waits and was submitted first, of the groups that
        `accepted` accepts; or None.
        """
        waiting = self._waiting.get(queue)
        return waiting.first(accepted) if waiting is not None else None

    def _waits(self, group: Group) -> bool:
        return waits_for_its_owner(group, self._pool.name)

    # Counting

    def _build(self, state: CellView) -> Queue:
        """Return a new tree; empty all caches, and mark all tasks and groups as stale."""
        root = Queue("", None, (0, 0))
        self._built = True
        self._queues.clear()
        self.rank_stale.clear()
        self._waiting.clear()
        self._tasks.clear()
        self._groups.clear()
        self.changed_leaves.clear()
        self.by_request.clear()
        self._request_of.clear()
        self._orders.clear()
        self.groups_by_place.clear()
        self._never_starts.clear()
        self.below_share.clear()
        self.may_preempt_own.clear()
        self.reason_stale.clear()
        self.before_owners.clear()
        self.gangs_before_owners.clear()
        self.refused_owners.clear()
        self.at_limit.clear()
        self._unchecked.clear()
        self._usage_stale = bool(self.traits.usage_half_life_ms)
        self._add_queues(state, root)
        self._stale_tasks = dict.fromkeys((*holders(self._pool), *self._pool.reserved))
        self._stale_groups = dict.fromkeys(self._pool.groups.values())
        return root

    def _add_queues(self, state: CellView, root: Queue) -> None:
        """Add the departments and projects that have no queue yet, in the order of creation."""
        for age, department in enumerate(state.departments.values()):
            if department not in self._queues:
                self._add_department(state, root, department, age)
        for age, project in enumerate(state.projects.values()):
            if project not in self._queues:
                parent = self._queues[project.department]
                self._add(project, Queue(project.name, parent, (1, age)))
        derive_settings(root, by_weight=self._by_weight)
        if self._lowers_deserved:
            lower_deserved(root)

    def _add_department(
        self, state: CellView, root: Queue, department: Department, age: int
    ) -> Queue:
        """Add a department, after those above it."""
        name = department.config.parent if department.config is not None else None
        above = state.departments.get(name) if name is not None else None
        parent = root
        if above is not None:
            names = list(state.departments)
            parent = self._queues.get(above) or self._add_department(
                state, root, above, names.index(above.name)
            )
        return self._add(department, Queue(department.name, parent, (0, age)))

    def _add(self, owner: Department | Project, queue: Queue) -> Queue:
        """Configure and keep the queue of a department or project; mark its rank as stale."""
        self._queues[owner] = queue
        self.rank_stale[queue] = None
        configure(queue, owner, self._pool.name)
        return queue

    def _queue(self, state: CellView, project: Project) -> Queue:
        """Return the queue of a project.

        A project without a queue gets one; then the shares of all queues must be divided again.
        """
        queue = self._queues.get(project)
        if queue is None:
            assert self._root is not None
            self._add_queues(state, self._root)
            queue = self._queues[project]
            # A department without a quota deserves the sum of its projects, which may have changed.
            for stale in (self._root, *self._queues.values()):
                stale.divided = False
                stale.needs_division_below = True
        return queue

    def _count(self, state: CellView) -> None:
        """Count stale tasks and groups again; mark siblings for division if a demand changed.

        A task that starts changes the amounts that its queues hold and request, but not their sum,
        the demand.
        """
        demands_before: dict[Queue, Amounts] = {}
        for task in self._stale_tasks:
            self._count_task(state, task, demands_before)
        self._stale_tasks.clear()
        for group in self._stale_groups:
            self._count_group(state, group, demands_before)
        self._stale_groups.clear()
        self.rank_stale.update(dict.fromkeys(demands_before))
        for queue, before in demands_before.items():
            _demand_changed(queue, before)

    def _take_usages(self, state: CellView, root: Queue) -> None:
        """Copy the decayed usages of projects to the queues; mark all for division if shares depend
        on usages.
        """
        self._usage_stale = False
        queues = (root, *self._queues.values())
        for queue in queues:
            queue.usage_milli = 0
            if self.traits.follows_usage:
                queue.divided, queue.needs_division_below = False, True
        for project in state.projects.values():
            usage = project.decayed_usage.get(self._pool.name)
            if usage is not None:
                for queue in self._queue(state, project).path:
                    queue.usage_milli += usage.counted_milli

    def _count_task(
        self, state: CellView, task: Task, demands_before: dict[Queue, Amounts]
    ) -> None:
        """Count a task again, and add the difference to its queues.

        `demands_before` gets the demand of each queue before its first change.
        """
        known = self._tasks.get(task, UNCOUNTED)
        now = counted(task, self._pool.name)
        if now == known:
            return
        if now == UNCOUNTED:
            del self._tasks[task]
        else:
            self._tasks[task] = now
        held, non_preemptible, leaving, freed_in_time, returning, reserved = map(minus, now, known)
        project_queue = self._queue(state, task.job.project)
        for queue in project_queue.path:
            demands_before.setdefault(queue, queue.demand)
            if held != NOTHING:
                queue.held = plus(queue.held, held)
            if non_preemptible != NOTHING:
                queue.non_preemptible = plus(queue.non_preemptible, non_preemptible)
            if leaving != NOTHING:
                queue.leaving = plus(queue.leaving, leaving)
            if freed_in_time != NOTHING:
                queue.freed_in_time = plus(queue.freed_in_time, freed_in_time)
            if returning != NOTHING:
                queue.returning = plus(queue.returning, returning)
            if reserved != NOTHING:
                queue.reserved = plus(queue.reserved, reserved)
        self.changed_leaves.append(project_queue)
        self._place_changed(project_queue)

    def _count_group(
        self, state: CellView, group: Group, demands_before: dict[Queue, Amounts]
    ) -> None:
        """Count the pending tasks of a group again; `demands_before` as in `_count_task`."""
        known = self._groups.get(group, NOTHING)
        shape = group.shape
        counts = 0
        project_queue = self._queue(state, state.projects[shape.project])
        if group.pending:
            project_queue.waiting[group] = None
        else:
            project_queue.waiting.pop(group, None)
        self.rank_stale[project_queue] = None
        self._update_blocked(project_queue, group)
        # rule: shares: impossible tasks request nothing
        if group.queue.live and not shape.start_failed and fits_usable_nodes(self._pool, shape):
            counts = group.queue.live
        now = times(requested(self._pool, shape), counts)
        if now == known:
            return
        if counts:
            self._groups[group] = now
        else:
            self._groups.pop(group, None)
        more = minus(now, known)
        for queue in project_queue.path:
            demands_before.setdefault(queue, queue.demand)
            queue.pending = plus(queue.pending, more)
            if not shape.preemptible:
                queue.pending_non_preemptible = plus(queue.pending_non_preemptible, more)

    def _update_blocked(self, project_queue: Queue, group: Group) -> None:
        """Add a group to those that did not fit, or have reserved slots, or remove it."""
        if self._reserves:
            waiting = self._waiting.get(project_queue)
            if waiting is None:
                waiting = self._waiting[project_queue] = WaitingGroups(self._waits)
            waiting.add(group)
        request = None
        self.blocked_changes += 1
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
        if not group.pending or group.shape.job_id is not None:
            # The limit of its job may have changed.
            self._never_starts.pop(group, None)
        at_limit = record is not None and record[0].code is WaitCode.AT_LIMIT and group.queue.live
        set_member(project_queue.at_limit, group, bool(at_limit))
        set_member(self.at_limit, project_queue, bool(project_queue.at_limit))
        if request is None:
            project_queue.blocked.pop(group, None)
            self._request_of.pop(group, None)
        else:
            project_queue.blocked[group] = None
            self._request_of[group] = request
            if request not in self.by_request:
                self.by_request[request] = {}
                self.request_changes += 1
            self.by_request[request][group] = None
        self.groups_by_place.pop(project_queue, None)
        self._place_changed(project_queue)

    # Changes

    def wait_changed(self, group: Group) -> None:
        self._project_changed(group.shape.project)
        if self._reserves and group.queue.live:
            # Other tasks may have to wait behind it.
            self._due.set()
        if self._built:
            self._stale_groups[group] = None

    def node_changed(self, node: Node) -> None:
        self._changed_nodes.add(node.ordinal)

    def owner_of(self, job: Job) -> Project:
        return job.project

    def allocation_changed(self, task: Task) -> Iterable[Victims]:
        self.shares_stale = True
        self.amount_changes += 1
        name = task.job.project.name
        self._reallocated.add(name)
        self._project_changed(name)
        return super().allocation_changed(task)

    def victim_changed(self, task: Task) -> Iterable[Victims]:
        # Other tasks of its project may preempt it.
        self._project_changed(task.job.project.name)
        queue = self._queues.get(task.job.project)
        if queue is not None:
            self._unchecked[queue] = None
        return super().victim_changed(task)

    def _project_changed(self, project: str) -> None:
        self._changed.add(project)

    def group_changed(self, group: Group, job: Job) -> None:
        super().group_changed(group, job)
        self.shares_stale = True
        self._project_changed(group.shape.project)

    def owners_changed(self) -> None:
        self._root = None
        self._built = False
        self.shares_stale = True
        self.amount_changes += 1
        self.reconfigured.set()

    def usages_changed(self) -> None:
        self._usage_stale = self.shares_stale = True
        if self.traits.follows_usage:
            self._due.set_for_this_cycle()

    def nodes_changed(self) -> None:
        self.shares_stale = True

    def cycle_ended(self) -> None:
        super().cycle_ended()
        self.changed_leaves.clear()

    def freed_in_time_milli(self, state: CellView, job: Job, department: str | None = None) -> int:
        project = self.queue_of(state, job.project)
        if department is None:
            return project.freed_in_time[0]
        above = (queue for queue in project.path if not queue.is_project)
        return next(queue.freed_in_time[0] for queue in above if queue.name == department)

    def relies_on_overdue(self, state: CellView, task: Task) -> bool:
        request = requested(self._pool, task.job.shape)
        for queue in self.queue_of(state, task.job.project).path:
            never_freed = minus(queue.leaving, queue.freed_in_time)
            later, at_last = (
                first_exceeded(amounts, queue.limit, among=request)
                for amounts in (plus(queue.allocated, never_freed), queue.allocated)
            )
            # A limit that was lowered below the allocated amount leaves what is reserved.
            if later is not None and at_last is None:
                return True
        return False

    def dump(self) -> Mapping[str, Any]:
        return {**super().dump(), "shares_stale": self.shares_stale}

    def load(self, dump: Mapping[str, Any]) -> None:
        super().load(dump)
        self.shares_stale = dump["shares_stale"]


def _demand_changed(queue: Queue, before: Amounts) -> None:
    """Mark the siblings of a queue for division if its demand changed, and was met before or is met
    now. A demand that stays above the share changes no share.
    """
    now, fair, parent = queue.demand, queue.fair, queue.parent
    assert parent is not None
    if now == before and parent.divided:
        return
    if not parent.divided or any(
        now[i] != before[i] and min(now[i], before[i]) < fair[i] + UNITS[i] for i in RESOURCES
    ):
        parent.divided = False
        above: Queue | None = parent
        while above is not None:
            above.needs_division_below = True
            above = above.parent


def set_member(members: dict[M, None], member: M, is_member: bool) -> None:
    """Add a member to a set if `is_member`, else remove it."""
    if is_member:
        members[member] = None
    else:
        members.pop(member, None)


def index_of(view: PoolView) -> QuotaIndex:
    """Return the index of a pool with this policy."""
    index = view.pool.index
    assert isinstance(index, QuotaIndex), "the pool has another policy"
    return index


def queue_of(view: PoolView, task: Task) -> Queue:
    """Return the queue of the project of a task."""
    return index_of(view).queue_of(view.state, task.job.project)
