"""The slots that jobs and projects hold in one pool, and the part that they will release."""

from yardmaster_core.scheduling.state.tasks import Job, Task


class HeldByJob:
    """The slots that the tasks of one job hold in one pool, in gpu_milli."""

    __slots__ = ("milli", "releasing", "releasing_milli", "tasks")

    def __init__(self) -> None:
        #: Sum over all open replicas.
        self.milli = 0
        #: The same by task.
        self.tasks: dict[Task, int] = {}
        #: The tasks that are about to release their slots, with the gpu_milli of each.
        self.releasing: dict[Task, int] = {}
        self.releasing_milli = 0

    def count_releasing(self, task: Task) -> int:
        """Count what `task` is about to release; return the change of the sum."""
        milli = self.tasks.get(task, 0)
        releasing = milli if milli and task.releasing else 0
        if not releasing and not self.releasing:
            return 0
        change = releasing - self.releasing.pop(task, 0)
        if releasing:
            self.releasing[task] = releasing
        self.releasing_milli += change
        return change


class HeldByProject:
    """The jobs of one project that hold slots of one pool."""

    __slots__ = ("jobs", "releasing_milli")

    def __init__(self) -> None:
        self.jobs: dict[Job, HeldByJob] = {}
        #: gpu_milli that they are about to release.
        self.releasing_milli = 0
