"""What a policy is: a value made of small strategies. The planner (`plan.py`) asks them, in this
order.

- `order`: of groups that wait, whose first task is considered first (a sort key, smallest first);
- `may_start`: what, other than room, keeps a group from starting now;
- `victims`: which running tasks may be stopped for a task, in the order in which to try them;
- `stop_for`: why a victim is stopped, with the numbers of both sides; `start`: why a task starts.

Where a task is placed is the pool's own choice (`placement.py`); limits of projects and jobs hold
under every policy (`limits.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from yardmaster.core.scheduling.entities import Group, Pool, Task
from yardmaster.core.scheduling.indexes import QueueKey
from yardmaster.core.scheduling.state import ClusterState
from yardmaster.schemas.reasons import Start, Stop, Wait

#: Smaller is considered first; must differ between groups that wait in one pool.
OrderKey = tuple[int, QueueKey]


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a strategy may look at: the state as the cycle has made it so far, one pool of it, its
    options.
    """

    state: ClusterState
    pool: Pool
    options: Any


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
    victims: Callable[[PoolView, Task], Iterable[Task]]
    protected: Callable[[PoolView, Task], Wait | None]
    stop_for: Callable[[PoolView, Task, Task], Stop]
    start: Callable[[PoolView, Task], Start]
