"""The tree of queues of a pool: departments, which may be nested, and the projects in them.

A queue knows what it deserves, its limit, its share, and the amounts that its tasks hold and
request, all of one pool. The amounts of a queue include those of the queues below it, so a change
of a task costs one step per level. A leaf is a queue without children: a project, or a department
without projects.
"""

from collections.abc import Iterator, Sequence

from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    UNITS,
    UNLIMITED,
    Amounts,
    Bounds,
    minus,
    plus,
    within,
)
from yardmaster_core.scheduling.policies.quota.division import QueueDemand, divide
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_schemas.events.requests import DEFAULT_RANK, Quota


class Queue:
    """A department or project in one pool; the root stands for the pool.

    The amounts of its tasks: `held` is the amount that tasks hold and will not release, `leaving`
    the amount that tasks are about to release. Of `leaving`, `freed_in_time` is the part of tasks
    that stop and are not overdue, and `returning` the part that tasks will request again.
    `reserved` is reserved for tasks, and `pending` is requested by tasks
    without reserved slots. `non_preemptible` is the part of held, leaving and reserved amounts that
    belongs to tasks that cannot be preempted, and `pending_non_preemptible` that of `pending`.
    """

    __slots__ = (
        *("age", "allocatable", "at_limit", "blocked", "children", "deserved", "divided", "fair"),
        *("freed_in_time", "held", "leaving", "limit", "name", "needs_division_below"),
        *("non_preemptible", "parent", "path"),
        *("pending", "pending_non_preemptible", "place", "preempt_s", "quota", "rank"),
        *("reclaim_s", "reserved", "returning", "usage_milli", "waiting", "weights"),
    )

    def __init__(self, name: str, parent: "Queue | None", age: tuple[int, int]) -> None:
        self.name = name
        self.parent = parent
        #: Departments before projects, each in the order of creation.
        self.age = age
        #: The queue and those above it, without the root, from the top.
        self.path: tuple[Queue, ...] = () if parent is None else (*parent.path, self)
        self.children: list[Queue] = []
        if parent is not None:
            parent.children.append(self)
        self.quota: Quota | None = None
        self.rank = DEFAULT_RANK
        self.deserved: Bounds = UNLIMITED
        self.limit: Bounds = UNLIMITED
        #: By resource, the weight by which the rest is divided among siblings.
        self.weights: Amounts = (1, 1, 1)
        #: Minimum run time (s) against tasks of the same project, and against reclaim by other
        #: queues; None: that of the queue above.
        self.preempt_s: int | None = None
        self.reclaim_s: int | None = None
        self.held = self.non_preemptible = NOTHING
        self.leaving = self.freed_in_time = self.returning = NOTHING
        self.reserved = self.pending = self.pending_non_preemptible = NOTHING
        #: The share, and the most that the queue may hold before others reclaim.
        self.fair: Amounts = NOTHING
        self.allocatable: Amounts = NOTHING
        #: The decayed usage of the projects in the queue (`decayed_usage.py`).
        self.usage_milli = 0
        #: Whether the shares of the children are up to date; and whether the share of the queue, or
        #: that of a queue below it, must be divided again.
        self.divided = False
        self.needs_division_below = True
        #: The groups of a project with pending tasks.
        self.waiting: dict[Group, None] = {}
        #: The groups of a project that did not fit, or have reserved slots.
        self.blocked: dict[Group, None] = {}
        #: The groups of a project that wait for a limit.
        self.at_limit: dict[Group, None] = {}
        #: The numbers of this queue in the last ranks of the projects below it (`ranks.py`).
        self.place: tuple[int, ...] = ()

    @property
    def is_project(self) -> bool:
        """Whether the queue is a project, not a department."""
        return bool(self.age[0])

    @property
    def allocated(self) -> Amounts:
        """The amounts that tasks of the queue hold and will not release, and those reserved for
        them.
        """
        return plus(self.held, self.reserved)

    @property
    def used(self) -> Amounts:
        """The amounts that count towards the limit: the allocated and the leaving amounts."""
        return plus(self.allocated, self.leaving)

    @property
    def demand(self) -> Amounts:
        """The amounts that tasks of the queue hold and request, within its limit. Tasks that cannot
        be preempted request no more than with what they hold is deserved.
        """
        held, returning, reserved, pending = (
            self.held,
            self.returning,
            self.reserved,
            self.pending,
        )
        total = (
            held[0] + returning[0] + reserved[0] + pending[0],
            held[1] + returning[1] + reserved[1] + pending[1],
            held[2] + returning[2] + reserved[2] + pending[2],
        )
        if self.pending_non_preemptible != NOTHING:
            total = minus(total, self._never_granted())
        # rule: shares: limits bound requests
        return total if self.limit == UNLIMITED else within(total, self.limit)

    def _never_granted(self) -> Amounts:
        """The amounts requested by tasks that cannot be preempted, beyond what is deserved."""

        def of(resource: int) -> int:
            deserved, pending = self.deserved[resource], self.pending_non_preemptible[resource]
            if deserved is None:
                return 0
            return max(0, pending - max(0, deserved - self.non_preemptible[resource]))

        return of(0), of(1), of(2)

    def leaves(self) -> Iterator["Queue"]:
        """The leaves below the queue; the queue alone if it is a leaf."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def ancestors(self) -> Iterator["Queue"]:
        """The queue and those above it, without the root, from the bottom."""
        return reversed(self.path)


def configure(queue: Queue, owner: Department | Project, pool: str) -> None:
    """Give a queue the settings of its department or project."""
    config = owner.config
    queue.quota = config.quotas.get(pool) if config is not None else None
    if config is not None:
        queue.rank = config.rank
        queue.preempt_s, queue.reclaim_s = (
            config.preempt_min_runtime_s,
            config.reclaim_min_runtime_s,
        )
    quota = queue.quota
    if quota is None:
        return
    queue.limit = (quota.limit_milli, quota.limit_cpu_milli, quota.limit_memory_mib)


def derive_settings(queue: Queue, *, by_weight: bool) -> None:
    """Compute the deserved amounts and the weights of a queue, after those of the queues below it.

    A department without a quota deserves the sum of what its projects deserve. With over-quota off,
    the deserved amounts also bound the limit. With `by_weight`, the weights are the configured
    ones, else the deserved amounts.
    """
    for child in queue.children:
        derive_settings(child, by_weight=by_weight)
    # If no sibling deserves anything, all have equal parts.
    equal = [not any(child.weights[i] for child in queue.children) for i in RESOURCES]
    # rule: shares: equal if nothing is deserved
    if not by_weight and any(equal):
        for child in queue.children:
            gpu, cpu, memory = (1 if equal[i] else child.weights[i] for i in RESOURCES)
            child.weights = (gpu, cpu, memory)
    if queue.parent is None:
        return
    quota = queue.quota
    if quota is not None:
        # rule: unlimited next to 0
        gpus = None if quota.deserved_unlimited else quota.deserved_milli or 0
        queue.deserved = (gpus, quota.deserved_cpu_milli, quota.deserved_memory_mib)
        # rule: over-quota off
        if not quota.over_quota:
            queue.limit = _smaller(queue.limit, queue.deserved)
    else:
        queue.deserved = _sum(queue)
    # rule: shares: by weight
    # rule: shares: in proportion to what is deserved
    if by_weight:
        # rule: shares: weights
        weight = quota.over_quota_weight if quota is not None else 1
        # As in KAI-Scheduler: weights are of GPUs.
        # rule: shares: weights are of GPUs
        queue.weights = (weight, 1, 1)
    else:
        gpu, cpu, memory = (amount or 0 for amount in queue.deserved)
        queue.weights = (gpu, cpu, memory)


def lower_deserved(queue: Queue) -> None:
    """Lower what the queues below each department deserve, in proportion, so that they deserve no
    more together than the department; from the top.

    The pool itself bounds nothing. Where a queue deserves an unlimited amount, nothing is lowered.
    """
    if queue.parent is not None and queue.children:
        below = [_lowered(queue.deserved[i], queue.children, i) for i in RESOURCES]
        for child, gpu, cpu, memory in zip(queue.children, *below, strict=True):
            child.deserved = (gpu, cpu, memory)
    for child in queue.children:
        lower_deserved(child)


def _lowered(bound: int | None, queues: Sequence[Queue], resource: int) -> list[int | None]:
    """Return what queues deserve of a resource, lowered in proportion to `bound` together."""
    amounts = [queue.deserved[resource] for queue in queues]
    known = [amount for amount in amounts if amount is not None]
    if bound is None or len(known) < len(amounts) or sum(known) <= bound:
        return amounts
    rows = [
        QueueDemand(name=str(at), rank=0, deserved=0, demand=amount, weight=amount, age=at)
        for at, amount in enumerate(known)
    ]
    shares = divide(bound, rows, UNITS[resource]).shares
    return [min(shares[row.name], row.demand) for row in rows]


def _sum(queue: Queue) -> Bounds:
    """Return the deserved amounts of a queue without a quota: of a department, the sum of its
    children; of a project, no GPUs, but any CPUs and memory.
    """
    # rule: a department without a quota deserves the sum
    # rule: a project without a quota deserves no GPUs
    # rule: a project without a quota may use any CPUs
    return added(queue.children) if queue.children else (0, None, None)


def added(queues: Sequence[Queue]) -> Bounds:
    """Return the sum of the deserved amounts of queues; unlimited if one of them is."""

    def of(resource: int) -> int | None:
        total = 0
        for queue in queues:
            deserved = queue.deserved[resource]
            if deserved is None:
                return None
            total += deserved
        return total

    return of(0), of(1), of(2)


def _smaller(a: Bounds, b: Bounds) -> Bounds:
    """Return the smaller bound of each resource; None is no bound."""

    def of(resource: int) -> int | None:
        x, y = a[resource], b[resource]
        return y if x is None else x if y is None else min(x, y)

    return of(0), of(1), of(2)


def differing(first: Queue, second: Queue) -> tuple[Queue, Queue]:
    """Return the topmost ancestors of two leaves that differ; they are siblings."""
    for ancestors in zip(first.path, second.path, strict=False):
        # rule: reclaim: first ancestors that differ
        if ancestors[0] is not ancestors[1]:
            return ancestors
    raise AssertionError("a queue is no sibling of itself")


def is_over_share(queue: Queue, amounts: Amounts, resource: int) -> bool:
    """Whether a queue that holds these amounts is over-utilized: it has more of a resource than its
    share. The share of a queue with an unlimited quota is its limit, even if it holds more than the
    present nodes have.
    """
    unlimited = queue.deserved[resource] is None
    most = queue.limit[resource] if unlimited else queue.allocatable[resource]
    return most is not None and amounts[resource] > most
