"""The interface of a policy: a value made of functions that the planner (`plan.py`) calls.

A `Policy` has seven parts. Each is a value with defaults: with them, tasks come by submission, each
starts where it fits, and none is preempted. The planner calls the functions in this order:

1. `Preemption.reclaim`: the running tasks to preempt because their claimant is above its share, for
   whichever task; `Wake.groups`: the groups that nothing woke and that may get slots now.
2. `Order.key`: the sort key of a pending group by its first task; the smallest comes first. Where
   the order changes with each start, `Order.candidates` makes the order of one cycle instead.
3. `StartRules.must_wait`: the reason, other than capacity and limits, why a task must wait;
   `StartRules.reason`: why a task starts.
4. For a task that does not fit `Preemption.precedence`: which slots reserved for others it takes
   over; then the `PreemptionAction`s, one after another.
5. `Preemption.no_victims_wait`: the wait reason of a task that found neither capacity nor victims.
6. `ShareReports.queues` and `Listing.ranks`: what the cycle records.

`Policy.index` makes the index of the policy, which the state notifies of each change
(`state/policy_index.py`) and the functions read. With the index of `policies/strict_queues.py` a
policy is strict: every task behind one of its queue that waits for capacity waits too. Then
`Order.key` and `StartRules.must_wait` are those of `policies/strict.py`.

A pool's placement strategy is configured apart from its policy (`placement.py`). Limits of projects
and jobs apply under every policy (`limits.py`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.searched_nodes import SearchedNodes
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.policy_index import PolicyIndex
from yardmaster_core.scheduling.state.pools import IndexSource, Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.events.decisions import Among, QueueShare
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Wait

#: A group, the task to consider, the tasks after it, and the turn.
Candidate = tuple[Group, Task, Iterator[Task], int]

#: Groups are considered in ascending order. Keys of one pool must be comparable and should differ.
OrderKey = tuple[Any, ...]

#: The numbers that order the claimants of a pool, the smallest first; empty: not in the queue.
Rank = tuple[int, ...]

#: Tasks of one scope have a fixed order by place, the smallest first; equal places: no order.
Precedence = tuple[Hashable, OrderKey]


@dataclass(frozen=True, slots=True, order=True)
class QueueTraits:
    """The traits of a pending task on which its place in a listed queue may depend.

    `failed`: its last starts failed.
    """

    priority: int
    preemptible: bool
    gpus: bool
    failed: bool


class CandidateOrder(Protocol):
    """The groups that wait for their turn in a cycle, each with its first task, in order."""

    def __bool__(self) -> bool:
        """Whether there is any."""

    def scope(self, group: Group) -> Hashable:
        """Return the scope of a group: the order of two groups follows from their places only if
        their scopes are equal.
        """

    def place(self, group: Group, task: Task) -> OrderKey:
        """Return the place of a group in its scope."""

    def push(self, candidate: Candidate) -> None:
        """Add a group."""

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        """Remove and return the first group, or None: there is none, or it must wait."""

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        """Whether the group, which is not among them, comes before all of them."""

    def hold(self, candidate: Candidate) -> bool:
        """Keep the first turns of groups of the same scope after that of this group, which is not
        among them, until it is released; return whether the order can do so.
        """
        ...

    def release(self, candidate: Candidate) -> None:
        """Add a group that was held."""


class PreemptionBudget(Protocol):
    """Limits which victims may be preempted together."""

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of `victims` may be preempted in addition to the victims spent so far; if so,
        count them as spent.
        """
        ...


class BudgetRules(Protocol):
    """The rules of a search for victims within a budget, in one cycle."""

    @property
    def searched(self) -> SearchedNodes:
        """The nodes on which earlier searches failed."""
        ...

    @property
    def limits(self) -> Mapping[Any, int]:
        """By owner of victims, the amount that limits them together."""
        ...

    def new_budget(self) -> PreemptionBudget:
        """Return an unspent budget."""
        ...

    def victims_of(self, owner: Any) -> Iterable[Task]:
        """Yield the victims of an owner in `limits`."""
        ...

    def among(self, tasks: Iterable[Task]) -> Iterable[Task]:
        """Yield those of `tasks` that are victims, in the order of `PreemptionAction.victims`."""
        ...

    def is_protected(self) -> bool:
        """Whether victims were left out of this search until a moment in time."""
        ...


class VictimSelection(Protocol):
    """Victims of one task that may be preempted together."""

    def add(self, victim: Task) -> bool:
        """Add `victim` if it may be preempted in addition to those added so far; return whether it
        was added.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why a policy stops an attempt; recorded as `PolicyStop`, with the policy's name.

    `rule` and the names of `numbers` are the policy's own, except `priority` and `for_priority`,
    the priorities of the stopped task and of `for_task`. `for_task` is the task that receives the
    slots, `about` the claimant above its share.
    """

    rule: str
    for_task: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    about: str | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """All that the functions of a policy may read: the cell, one pool, and the options there."""

    state: CellView
    pool: Pool
    options: Any
    #: Values that the policy keeps for this cycle.
    memo: dict[Any, Any] = field(default_factory=dict)
    #: Tasks that this cycle placed; the cycle does not preempt them.
    placed: set[Task] = field(default_factory=set)


def by_submission(_: PoolView, __: Group, task: Task) -> OrderKey:
    """Order groups by submission."""
    return 0, task.key


def no_equivalence(_: PoolView, __: Group) -> None:
    """Each group may get a different result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order in which the groups of pending tasks are considered.

    Attributes:
        key: the sort key of a group by its first task; the smallest comes first.
        candidates: the order of one cycle, for a number of turns, where the order changes with each
            start. It replaces `key`.
        equivalence: a key of groups that have the same result if they wait for the same capacity:
            if the first of them neither fits nor finds victims, the later ones do not either. None:
            the group has no equivalent.
    """

    key: Callable[[PoolView, Group, Task], OrderKey] = by_submission
    candidates: Callable[[PoolView, int], CandidateOrder] | None = None
    equivalence: Callable[[PoolView, Group], Hashable | None] = no_equivalence


def never_must_wait(_: PoolView, __: Group, ___: Task) -> None:
    """A task that does not fit lets the tasks behind it pass."""


def never_exceeds(_: PoolView, __: Task, ___: int) -> None:
    """The policy has no bounds."""


_IN_ORDER: Final = Start(rule="in_order")


def in_order(_: PoolView, __: Task) -> Start:
    """Return the only rule of a policy under which each task starts where it fits."""
    return _IN_ORDER


def always(_: Any) -> bool:
    """Tasks start on any idle capacity."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRules:
    """The rules by which tasks start.

    Attributes:
        must_wait: the reason, other than capacity and limits, why a task must not start now, get
            reserved slots or preempt; else None. It holds for all tasks of the group without
            reserved slots.
        exceeds: the wait reason with which a bound of the policy keeps a task from taking that
            gpu_milli; else None. For requests by GPU memory, which take another amount on each kind
            of GPU.
        reason: why a task starts.
        on_idle: for given options, whether tasks start on idle capacity, or only on slots that are
            reserved for them.
    """

    must_wait: Callable[[PoolView, Group, Task], Wait | None] = never_must_wait
    exceeds: Callable[[PoolView, Task, int], Wait | None] = never_exceeds
    reason: Callable[[PoolView, Task], Start] = in_order
    on_idle: Callable[[Any], bool] = always


def may_apply(_: PoolView, __: Task) -> bool:
    """Nothing is checked beforehand."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionAction:
    """One way in which a task that does not fit may preempt others.

    Attributes:
        victims: the running tasks that may be preempted for a task, in the order in which they are
            tried.
        stop_reason: why a victim is stopped for a task, with the numbers of both.
        drop_unneeded: victims that turn out unnecessary keep running.
        permits: victims are searched node by node, and get other slots where they fit: they are
            moved. Whether the victims that are not moved, in the order of `victims`, may be
            preempted together.
        judges_moved: `permits` gets the victims that are moved to free slots too. For an action
            that compares what the task's project holds before and after: a victim that stops would
            start on these slots again.
        selection: for actions with `permits`, a new selection for a task. A victim that it refuses
            is left out, so that it hides no other victim; any of the victims that it accepts are
            permitted together, but for what `permits` compares over all of them. None: `permits`
            alone decides.
        max_moves: all victims must be moved, and at most this number of them.
        budget: victims are searched node by node, without moves, within a budget.
        applies: at little cost, whether there may be victims for a task; it gets no turn of an
            action that does not apply.
    """

    victims: Callable[[PoolView, Task], Iterable[Task]]
    stop_reason: Callable[[PoolView, Task, Task], StopReason]
    drop_unneeded: bool = True
    permits: Callable[[PoolView, Task, Sequence[Task]], bool] | None = None
    judges_moved: bool = False
    selection: Callable[[PoolView, Task], VictimSelection] | None = None
    max_moves: int | None = None
    budget: Callable[[PoolView], BudgetRules] | None = None
    applies: Callable[[PoolView, Task], bool] = may_apply


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLimit:
    """How a task that a limit of its project keeps from starting may preempt tasks of the project.

    Attributes:
        victims: the running tasks that may be preempted, in the order in which they are tried.
        stop_reason: why a victim is stopped for a task.
        hold_without: whether the policy's limits let the task start once these victims, and all
            tasks that are stopping already, are gone.
        permits: whether the victims, of which each is needed, may be preempted for the task.
        waits: whether the policy lets the task start once these are gone, but not yet.
        wait: the wait reason of a task that found no victims, made from the one about the limit.
    """

    victims: Callable[[PoolView, Task], Iterable[Task]]
    stop_reason: Callable[[PoolView, Task, Task], StopReason]
    hold_without: Callable[[PoolView, Task, Sequence[Task]], bool]
    permits: Callable[[PoolView, Task, Sequence[Task]], bool]
    waits: Callable[[PoolView, Task], bool]
    wait: Callable[[PoolView, Task, Wait], Wait]


def no_actions(_: Any) -> tuple[PreemptionAction, ...]:
    """No task preempts others."""
    return ()


def nothing_above_share(_: PoolView) -> Iterable[tuple[Task, StopReason]]:
    """No claimant releases tasks."""
    return ()


def capacity_alone(_: PoolView, __: Task, wait: Wait) -> Wait:
    """Return the reason about the capacity."""
    return wait


def no_precedence(_: PoolView, __: Task) -> None:
    """No task takes over the reserved slots of another."""


def never_at_limit(_: Any) -> None:
    """At a limit a task waits until others end."""


def always_takes_over(_: PoolView, __: Task, ___: Sequence[Task]) -> bool:
    """The order alone decides which task takes over reserved slots."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The rules by which running tasks are preempted, and by which reserved slots change owners.

    Attributes:
        actions: for given options, the ways in which a task that does not fit may preempt others,
            in the order in which they are tried.
        reclaim: the running tasks that claimants above their share have to release, each with the
            reason.
        no_victims_wait: the wait reason of a task that found neither capacity nor victims, made
            from the one about the capacity. A policy whose actions leave out tasks within their
            minimum run time returns `victims_protected` if there are some, so that the task is
            considered again when that time ends.
        precedence: the scope and the place of a pending task. A task that does not fit takes over
            slots reserved for tasks of its scope with larger places. It must not depend on what
            tasks hold: else two tasks could displace each other in turn.
        takes_over: whether a task may take over the reserved slots of these tasks, by what it holds
            then.
        within_project: whether each scope belongs to one project, so that other tasks with reserved
            slots need not be looked at.
        at_limit: for given options, how a task preempts others of its project at a limit; None: it
            does not.
    """

    actions: Callable[[Any], tuple[PreemptionAction, ...]] = no_actions
    reclaim: Callable[[PoolView], Iterable[tuple[Task, StopReason]]] = nothing_above_share
    no_victims_wait: Callable[[PoolView, Task, Wait], Wait] = capacity_alone
    precedence: Callable[[PoolView, Task], Precedence | None] = no_precedence
    takes_over: Callable[[PoolView, Task, Sequence[Task]], bool] = always_takes_over
    within_project: bool = False
    at_limit: Callable[[Any], AtLimit | None] = never_at_limit


def by_submission_only(_: QueueTraits) -> Rank:
    """Only the submission orders tasks."""
    return ()


def never_in_rank(_: QueueTraits) -> bool:
    """The order depends on no claimant."""
    return False


def nothing_within(_: Any, __: QueueTraits) -> Rank:
    """Only the submission orders the tasks of a place and rank."""
    return ()


def no_claimants(_: Any) -> None:
    """The order depends on no claimant."""


def no_ranks(_: PoolView) -> Iterable[tuple[str, Rank]]:
    """No rank changes."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The order in which the queue of a pool is listed (`GET /v1/pools/NAME/queue`), by views that
    know tasks but no state: by `place`, then by the rank of the claimant, then by `within`, then by
    submission.

    Attributes:
        place: the place of a task by its traits.
        in_rank: whether the ranks of claimants order the tasks of a place.
        within: for given options, the place of a task by its traits among those of equal place and
            rank.
        claimants: for given options, what the claimants are: jobs, projects, users, or None.
        ranks: the claimants, as `ClaimantRank` names them, whose rank is not the recorded one, with
            that rank, which the planner records (ClaimantsRanked).
    """

    place: Callable[[QueueTraits], Rank] = by_submission_only
    in_rank: Callable[[QueueTraits], bool] = never_in_rank
    within: Callable[[Any, QueueTraits], Rank] = nothing_within
    claimants: Callable[[Any], Among | None] = no_claimants
    ranks: Callable[[PoolView], Iterable[tuple[str, Rank]]] = no_ranks


def no_queues(_: PoolView) -> Iterable[QueueShare]:
    """The pool is divided among no queues."""
    return ()


def no_shares(_: PoolView) -> Mapping[str, int]:
    """Projects have no shares."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReports:
    """The shares of departments and projects, as they are recorded and measured.

    Attributes:
        queues: what each department and project deserves, gets, holds and requests. The planner
            records it (`share_records.py`) while the index says that it may have changed
            (`shares_stale`).
        of_projects: the share of each project by name (gpu_milli), for metrics; the planner does
            not call it.
    """

    queues: Callable[[PoolView], Iterable[QueueShare]] = no_queues
    of_projects: Callable[[PoolView], Mapping[str, int]] = no_shares


def no_groups(_: PoolView) -> Iterable[Group]:
    """No group may get more without an input that wakes it."""
    return ()


def none_ahead(_: PoolView, __: Callable[[Group], bool]) -> Iterable[Group]:
    """The state wakes the groups that may take over reserved slots."""
    return ()


#: See `Wake.offer`.
Offer = Callable[[PoolView, Callable[[Group], bool], Set[Group], Task | None], Group | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """The groups that are considered again although nothing woke them.

    Attributes:
        groups: the groups that wait for their share, or for victims, and may get slots now.
        offer: the next group that did not fit and would now, in the policy's order; else None. It
            gets a function that tells whether a group fits, the groups that the cycle has
            considered, and a task: then it returns only a group of the same claimant that comes
            before this task. For policies whose index has `finds_fitting_groups`, so that a release
            wakes no group.
        ahead: the groups that did not fit and come before a task with reserved slots, which they
            may take over now; of groups with equal requests the first that may start. It gets a
            function that tells whether no limit and no rule keeps a group from starting. For the
            same policies.
        under_limits: the groups that did not fit and count towards the limits of these projects or
            of queues above them, which are checked after tasks of these projects started. None: all
            groups that did not fit are checked.
        behind: the groups that waited behind a task, which has just started or got reserved slots,
            and that need not wait any longer. None: there are none, or the state wakes them.
    """

    groups: Callable[[PoolView], Iterable[Group]] = no_groups
    offer: Offer | None = None
    ahead: Callable[[PoolView, Callable[[Group], bool]], Iterable[Group]] = none_ahead
    under_limits: Callable[[PoolView, Iterable[Project]], Iterable[Group]] | None = None
    behind: Callable[[PoolView, Task], Iterable[Group]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """Options of a policy that has none."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED


def no_index(_: Pool, __: Any) -> PolicyIndex:
    """Return an index that keeps nothing."""
    return PolicyIndex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to schedule a pool.

    Attributes:
        name: the name by which a pool's configuration selects the policy.
        version: the version of its meaning.
        options: a frozen dataclass that refuses unknown fields; every field has a default.
        order: the order in which pending groups are considered.
        start: the rules by which tasks start.
        preemption: the rules by which running tasks are preempted.
        listing: the order in which the queue is listed.
        shares: the shares of departments and projects, for records and metrics.
        wake: the groups that are considered again although nothing woke them.
        index: for a pool and given options, a new index.
        simulation_only: the policy is refused outside simulations.
    """

    name: str
    version: int
    options: type[Any] = NoOptions
    order: Order = Order()
    start: StartRules = StartRules()
    preemption: Preemption = Preemption()
    listing: Listing = Listing()
    shares: ShareReports = ShareReports()
    wake: Wake = Wake()
    index: Callable[[Pool, Any], PolicyIndex] = no_index
    simulation_only: bool = False


class PolicyRegistry(IndexSource, Protocol):
    """The registry of policies as the planner uses it; `policies.Registry` implements it."""

    def policy(self, ref: PolicyRef) -> Policy:
        """Return the policy that a pool's configuration names.

        Raises:
            UnknownPolicy.
        """

    def options(self, ref: PolicyRef) -> Any:
        """Return the options of that policy, parsed by its own model.

        Raises:
            UnknownPolicy, BadPolicyOptions.
        """
