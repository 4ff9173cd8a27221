"""What a policy is: a value made of small strategies. The planner (`plan.py`) asks them, in this
order.

- `surplus`: what is over a share and has to be given back, whoever asks; `wakes`: of those who wait
  for a share, who may have more of it now;
- `order`: of groups that wait, whose first task is considered first (a sort key, smallest first);
- `may_start`: what, other than room, keeps a group from starting now; `may_reserve`: what keeps one
  that may not from being promised what is being freed, and from having others stopped;
- `victims`: which running tasks may be stopped for a task, in the order in which to try them;
- `stop_for`: why a victim is stopped, with the numbers of both sides; `start`: why a task starts.

`line` makes a policy strict: it says in which line a task waits and where, and whoever comes behind
one that waits for room waits too. Then `order` and `may_start` are those of `policies/strict.py`.

`alike` says of which groups that wait for the same room the later ones find none, nor anybody to
stop, where the first finds none, all else that keeps them from starting being equal too.

Of the options, `preempts` says whether a task may have others stopped for itself, and `per_job`
whether the policy treats a job as a claimant of its own, so that its tasks are equal to no other
job's. `spares` says that victims whose going turns out not to help run on, `simulated` that the
policy is for simulations only. Where a task is placed is the pool's own choice (`placement.py`);
limits of projects and jobs hold under every policy (`limits.py`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from yardmaster_core.scheduling.planner.limits import Reservations
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.entities import Group, Pool, Task
from yardmaster_core.scheduling.state.policy_traits import TraitsSource
from yardmaster_core.scheduling.state.strict_queues import PositionOf
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.reasons import Start, Stop, Wait

#: Smaller is considered first; those of one pool must be comparable, and should differ.
OrderKey = tuple[Any, ...]


class PreemptionBudget(Protocol):
    """Which of those who can be stopped may be, together."""

    def permits(self, victim: Task) -> bool:
        """Whether one more may be stopped."""
        ...

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of these may be stopped too; if so they count from now on."""
        ...


#: Who waits, who can be stopped, which of them may be: who is to be.
FindVictims = Callable[[Iterable[Task], Sequence[Task], PreemptionBudget], set[Task]]


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a strategy may look at: the state as the cycle has made it so far, one pool of it, its
    options, what the cycle has promised.
    """

    state: ClusterState
    pool: Pool
    options: Any
    reservations: Reservations = field(default_factory=Reservations)
    #: What the policy has worked out for this cycle.
    memo: dict[Any, Any] = field(default_factory=dict)
    #: Of running tasks those with whom gone waiting ones fit (`VictimSearch.for_tasks`).
    find_victims: FindVictims | None = None


def never(_: Any) -> bool:
    """`per_job` of policies to which jobs are none of their business, `preempts` of those under
    which no task preempts others.
    """
    return False


def no_equivalence(_: PoolView, __: Group) -> None:
    """`alike` of policies under which each group may be answered otherwise."""


def no_victims(_: PoolView, __: Task) -> Iterable[Task]:
    """`victims` of policies under which no task has others stopped for itself."""
    return ()


def no_groups(_: PoolView) -> Iterable[Group]:
    """`wakes` of policies that give out no shares."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to schedule a pool. `options` is a closed frozen dataclass, every field with a
    default.
    """

    name: str
    version: int
    options: type[Any]
    order: Callable[[PoolView, Group, Task], OrderKey]
    may_start: Callable[[PoolView, Group], Wait | None]
    may_reserve: Callable[[PoolView, Group], Wait | None]
    victims: Callable[[PoolView, Task], Iterable[Task]]
    min_runtime_wait: Callable[[PoolView, Task], Wait | None]
    stop_reason: Callable[[PoolView, Task, Task], Stop]
    start_reason: Callable[[PoolView, Task], Start]
    equivalence: Callable[[PoolView, Group], Hashable | None] = no_equivalence
    reclaim: Callable[[PoolView], Iterable[tuple[Task, Stop]]] | None = None
    wake: Callable[[PoolView], Iterable[Group]] = no_groups
    preempts: Callable[[Any], bool] = never
    per_job: Callable[[Any], bool] = never
    strict_queue: PositionOf | None = None
    drop_unneeded: bool = True
    simulation_only: bool = False


class PolicyRegistry(TraitsSource, Protocol):
    """The registry of policies as the planner uses it; `policies.REGISTRY` implements it."""

    def policy(self, ref: PolicyRef) -> Policy:
        """The policy that a pool's configuration names.

        Raises:
            UnknownPolicy.
        """

    def options(self, ref: PolicyRef) -> Any:
        """The options of that policy, parsed by its own model.

        Raises:
            UnknownPolicy, BadPolicyOptions.
        """
