"""Running tasks that may be preempted: by priority, and by the claimant that they belong to."""

from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
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


class ReclaimableTasks(OrderedTasks[Task]):
    """Preemptible tasks of one claimant that hold slots of one pool and are not releasing them."""

    __slots__ = ("pool_name",)

    def __init__(self, pool_name: str) -> None:
        super().__init__()
        self.pool_name = pool_name

    def is_live(self, task: Task) -> bool:
        """Whether `task` may still be preempted."""
        run = task.run
        return (
            run is not None
            and run.pool_name == self.pool_name
            and run.open > 0
            and not task.releasing
        )
