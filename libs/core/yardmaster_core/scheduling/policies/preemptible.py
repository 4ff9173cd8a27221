"""The running tasks that may be preempted, by priority."""

from collections.abc import Iterable
from typing import Any

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.policy_index import PolicyIndex, Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task


class Victims(OrderedTasks[Task]):
    """Preemptible tasks of one pool and priority that hold slots and are not stopping."""

    __slots__ = ("pool_name", "priority")

    def __init__(self, pool_name: str, priority: int) -> None:
        super().__init__()
        self.pool_name = pool_name
        self.priority = priority

    def is_live(self, task: Task) -> bool:
        """Whether `task` may still be preempted."""
        run = task.run
        return (
            run is not None
            and run.stop is None
            and run.open > 0
            and not run.ended
            and run.pool_name == self.pool_name
            and task.job.priority == self.priority
        )


class PreemptibleIndex(PolicyIndex):
    """The preemptible tasks that hold slots of a pool, by priority."""

    def __init__(self, pool: Pool, traits: Traits) -> None:
        self.traits = traits
        self._pool_name = pool.name
        self.victims: dict[int, Victims] = {}
        holders = (task for node in pool.nodes.values() for task in node.open.values())
        for task in dict.fromkeys(holders):
            if task.job.spec.preemptible:
                self.victim_changed(task)

    def victim_changed(self, task: Task) -> Iterable[Victims]:
        """Add a task to the victims of its priority; return them."""
        priority = task.job.priority
        found = self.victims.get(priority)
        if found is None:
            found = self.victims[priority] = Victims(self._pool_name, priority)
        found.add(task)
        return (found,)


def preemptible_index(pool: Pool, _: Any) -> PreemptibleIndex:
    """Return the index of a policy under which tasks preempt others; it is a `Policy.index`."""
    return PreemptibleIndex(pool, Traits(preempts=True))


def victims_of(view: PoolView) -> dict[int, Victims]:
    """Return the tasks of a pool that may be preempted, by priority."""
    index = view.pool.index
    assert isinstance(index, PreemptibleIndex), "the policy does not list running tasks"
    return index.victims
