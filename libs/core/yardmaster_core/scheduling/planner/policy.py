"""The interface of a policy: a value made of functions that the planner (`plan.py`) calls.

The planner calls them in this order:

1. `reclaim`: the running tasks to preempt because their claimant is above its share, for whichever
   task; `wake`: the groups that waited for their share and may get more now. Only policies with
   shares have them.
2. `order`: the sort key of a pending group by its first task; the smallest comes first. Where the
   order changes with each start, `candidates` makes the order of one cycle instead, for so many
   turns.
3. `may_start`: the reason, other than capacity and limits, why a task must not start now, get
   reserved slots or preempt. It holds for all tasks of the group without reserved slots.
4. `start_reason`: why a task starts.
5. `claims`: for given options, the ways in which a task that does not fit may preempt others, in
   the order in which to try them. Each has `victims`, the running tasks that may be preempted for a
   task in the order in which to try them, and `stop_reason`, why a victim is stopped.
6. `min_runtime_wait`: if no claim found victims, the wait reason of a task whose victims are within
   their minimum run time. If it has none, `no_victims_wait`: the wait reason of a task that found
   neither capacity nor victims, made from the one about the capacity.

`index` makes the index of the policy, which the state notifies of each change
(`state/policy_index.py`) and the functions read. With the index of
`policies/strict_queues.py` a policy is strict: every task behind one of its queue that waits for
capacity waits too. Then `order` and `may_start` are those of `policies/strict.py`.

`offer` returns the next group that did not fit, and would now, in the policy's order. It gets a
function that tells whether a group fits, and the groups that the cycle has considered. Policies
with `PolicyIndex.finds_fitting_groups` have it.

`equivalence` returns a key. Groups with the same key that wait for the same capacity have the same
result: if the first of them neither fits nor finds victims, the later ones do not either.

`under_limits` returns the groups that did not fit and count towards the limits of these projects or
of queues above them; without it, all that did not fit are checked.

`shares` returns the queues that the pool is divided among, which the planner records
(`share_records.py`) while the index says that they may have changed (`shares_stale`).

`simulation_only` policies are refused outside simulations. The planner does not call
`project_shares`: it returns the share of each project for metrics, by name, in gpu_milli.

The queue of a pool is served in the policy's order (`GET /v1/pools/NAME/queue`), by views that know
tasks but no state: `place` gives the place of a task by its traits. Where the order depends on what
others demand, `claimants` tells what the claimants are, and the planner records each rank that
`ranks` returns (ClaimantsRanked): within a place for which `in_rank` is true, tasks come in the
order of their claimants' ranks. Within equal places and ranks, they come by the traits that
`within` orders for given options, then by submission.

A pool's placement strategy is configured apart from its policy (`placement.py`). Limits of projects
and jobs apply under every policy (`limits.py`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.policy_index import PolicyIndex
from yardmaster_core.scheduling.state.pools import IndexSource, Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.events.decisions import Among, QueueShare
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.reasons import Start, Wait

#: A group, the task to consider, the tasks after it, and the turn.
Candidate = tuple[Group, Task, Iterator[Task], int]

#: Groups are considered in ascending order. Keys of one pool must be comparable and should differ.
OrderKey = tuple[Any, ...]


#: The numbers that order the claimants of a pool, the smallest first; empty: not in the queue.
Rank = tuple[int, ...]


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

    def place(self, group: Group, task: Task) -> OrderKey:
        """Return the place of a group among those that the policy calls equivalent to it."""

    def push(self, candidate: Candidate) -> None:
        """Add a group."""

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        """Remove and return the first group, or None: there is none, or it must wait."""

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        """Whether the group, which is not among them, comes before all of them."""


class PreemptionBudget(Protocol):
    """Limits which victims may be preempted together."""

    def permits(self, victim: Task) -> bool:
        """Whether `victim` may be preempted in addition to the victims spent so far."""
        ...

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of `victims` may be preempted too; if so, count them as spent."""
        ...


#: From pending tasks, possible victims and a budget to the victims to preempt.
FindVictims = Callable[[Iterable[Task], Sequence[Task], PreemptionBudget], set[Task]]


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
    """The data that a policy's functions may read.

    The state with the decisions of the cycle so far, one pool, and the policy's options.
    """

    state: ClusterState
    pool: Pool
    options: Any
    #: Values that the policy keeps for this cycle.
    memo: dict[Any, Any] = field(default_factory=dict)
    #: See `VictimSearch.for_tasks`.
    find_victims: FindVictims | None = None
    #: Tasks that this cycle placed; the cycle does not preempt them.
    placed: set[Task] = field(default_factory=set)


def by_submission(_: PoolView, __: Group, task: Task) -> OrderKey:
    """`order` of policies under which only the submission orders tasks, or that have
    `candidates`.
    """
    return 0, task.key


def always(_: Any) -> bool:
    """`starts_on_idle` of policies under which tasks start on any idle capacity."""
    return True


def no_equivalence(_: PoolView, __: Group) -> None:
    """`equivalence` of policies under which each group may get a different result."""


def may_apply(_: PoolView, __: Task) -> bool:
    """`applies` of claims that check nothing beforehand."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One way in which a task that does not fit may preempt others.

    `stop_reason` gets the victim, then the task. With `drop_unneeded`, victims that turn out
    unnecessary keep running.

    With `permits`, victims are searched node by node, and get other slots where they fit: they are
    moved. `permits` gets the task and the victims that are not moved, in the order of `victims`,
    and tells whether they may be preempted together. With `max_moves`, all victims must be moved,
    and so many at most.

    `applies` tells at little cost whether there may be victims for a task; it gets no turn of a
    claim that does not apply.
    """

    victims: Callable[[PoolView, Task], Iterable[Task]]
    stop_reason: Callable[[PoolView, Task, Task], StopReason]
    drop_unneeded: bool = True
    permits: Callable[[PoolView, Task, Sequence[Task]], bool] | None = None
    max_moves: int | None = None
    applies: Callable[[PoolView, Task], bool] = may_apply


def no_claims(_: Any) -> tuple[Claim, ...]:
    """`claims` of policies under which no single task preempts others."""
    return ()


def no_min_runtime_wait(_: PoolView, __: Task) -> None:
    """`min_runtime_wait` of policies that preempt no task."""


def capacity_alone(_: PoolView, __: Task, wait: Wait) -> Wait:
    """`no_victims_wait` of policies under which the capacity is the reason."""
    return wait


def no_shares(_: PoolView) -> Mapping[str, int]:
    """`project_shares` of policies that give projects no shares."""
    return {}


def by_submission_only(_: QueueTraits) -> Rank:
    """`place` of policies under which only the submission orders tasks."""
    return ()


def nothing_within(_: Any, __: QueueTraits) -> Rank:
    """`within` of policies under which only the submission orders the tasks of a place and rank."""
    return ()


def no_index(_: Pool, __: Any) -> PolicyIndex:
    """`index` of policies that keep nothing."""
    return PolicyIndex()


def no_claimants(_: Any) -> None:
    """`claimants` of policies whose order depends on no claimant."""


def never_in_rank(_: QueueTraits) -> bool:
    """`in_rank` of policies whose order depends on no claimant."""
    return False


def no_groups(_: PoolView) -> Iterable[Group]:
    """`wake` of policies without shares."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A way to schedule a pool.

    `options` is a frozen dataclass that refuses unknown fields; every field has a default.
    """

    name: str
    version: int
    options: type[Any]
    may_start: Callable[[PoolView, Group, Task], Wait | None]
    start_reason: Callable[[PoolView, Task], Start]
    order: Callable[[PoolView, Group, Task], OrderKey] = by_submission
    candidates: Callable[[PoolView, int], CandidateOrder] | None = None
    starts_on_idle: Callable[[Any], bool] = always
    claims: Callable[[Any], tuple[Claim, ...]] = no_claims
    min_runtime_wait: Callable[[PoolView, Task], Wait | None] = no_min_runtime_wait
    no_victims_wait: Callable[[PoolView, Task, Wait], Wait] = capacity_alone
    equivalence: Callable[[PoolView, Group], Hashable | None] = no_equivalence
    reclaim: Callable[[PoolView], Iterable[tuple[Task, StopReason]]] | None = None
    wake: Callable[[PoolView], Iterable[Group]] = no_groups
    project_shares: Callable[[PoolView], Mapping[str, int]] = no_shares
    place: Callable[[QueueTraits], Rank] = by_submission_only
    in_rank: Callable[[QueueTraits], bool] = never_in_rank
    within: Callable[[Any, QueueTraits], Rank] = nothing_within
    claimants: Callable[[Any], Among | None] = no_claimants
    ranks: Callable[[PoolView], Iterable[tuple[Job | Project, Rank]]] | None = None
    shares: Callable[[PoolView], Iterable[QueueShare]] | None = None
    offer: Callable[[PoolView, Callable[[Group], bool], Set[Group]], Group | None] | None = None
    under_limits: Callable[[PoolView, Iterable[Project]], Iterable[Group]] | None = None
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
