"""The running tasks that may be preempted, by priority."""

from collections.abc import Iterable
from typing import Any

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.policy_index import PolicyIndex, Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task


class Holders(OrderedTasks[Task]):
    """Preemptible tasks of one pool and priority that hold slots and are not stopping.

    Some may have ended (`Attempt.ended`): they are no victims, but count as such within their
    minimum run time. Else, until they release their slots, tasks with a minimum run time would pass
    the task that waits for these slots.
    """

    __slots__ = ("pool_name", "priority")

    def __init__(self, pool_name: str, priority: int) -> None:
        super().__init__()
        self.pool_name = pool_name
        self.priority = priority

    def is_live(self, task: Task) -> bool:
        """Whether `task` holds slots and is not stopping."""
        run = task.run
        return (
            run is not None
            and run.stop is None
            and run.open > 0
            and run.pool_name == self.pool_name
            and task.job.priority == self.priority
        )


class Victims(Holders):
    """Preemptible tasks of one pool and priority that may still be preempted."""

    __slots__ = ()

    def is_live(self, task: Task) -> bool:
        """Whether `task` may still be preempted."""
        return super().is_live(task) and not has_ended(task)


def has_ended(task: Task) -> bool:
    """Whether every replica of a task that holds slots has ended."""
    return task.run is not None and task.run.ended


class PreemptibleIndex(PolicyIndex):
    """The preemptible tasks that hold slots of a pool, by priority."""

    def __init__(self, pool: Pool, traits: Traits) -> None:
        self.traits = traits
        self._pool_name = pool.name
        self.holders: dict[int, Holders] = {}
        holders = (task for node in pool.nodes.values() for task in node.open.values())
        for task in dict.fromkeys(holders):
            if task.job.spec.preemptible:
                self.victim_changed(task)

    def victim_changed(self, task: Task) -> Iterable[Holders]:
        """Add a task to those of its priority; return them."""
        priority = task.job.priority
        found = self.holders.get(priority)
        if found is None:
            found = self.holders[priority] = Holders(self._pool_name, priority)
        found.add(task)
        return (found,)


def preemptible_index(pool: Pool, _: Any) -> PreemptibleIndex:
    """Return the index of a policy under which tasks preempt others; it is a `Policy.index`."""
    return PreemptibleIndex(pool, Traits(preempts=True))


def holders_of(view: PoolView) -> dict[int, Holders]:
    """Return the preemptible tasks of a pool that hold slots, by priority."""
    index = view.pool.index
    assert isinstance(index, PreemptibleIndex), "the policy does not list running tasks"
    return index.holders
