"""Two queues in which a task is passed by later ones for a limited time.

A task that waits for capacity lets later tasks of its queue pass, until it was submitted so long
ago that it is overdue: then none passes it, and what they release is left to it.
"""

from collections.abc import Iterable, Iterator

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.preemptible import PreemptibleIndex
from yardmaster_core.scheduling.policies.waiting_groups import WaitingGroups
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BEHIND, BLOCKING


class BoundedQueues(PreemptibleIndex):
    """The groups of one pool that wait for capacity, by submission: those that are preemptible and
    those that are not.
    """

    def __init__(self, pool: Pool, traits: Traits) -> None:
        super().__init__(pool, traits)
        self._pool = pool
        self._waiting = {kind: WaitingGroups(self._waits) for kind in (False, True)}
        for group in pool.groups.values():
            self._add(group)

    def group_changed(self, group: Group, _: Job) -> None:
        self._add(group)

    def wait_changed(self, group: Group) -> None:
        self._add(group)

    def first_waiting(self, *, preemptible: bool) -> Task | None:
        """Return the task of a queue that waits for capacity and was submitted first, or None."""
        return self._waiting[preemptible].first()

    def next_behind(self, queue_classes: Iterable[QueueClass]) -> Iterator[Group]:
        """Yield the groups behind others that do not wait for the same task as before."""
        first_waiting = {kind: self.first_waiting(preemptible=kind) for kind in (False, True)}
        first_protected = [each.first_protected() for each in self._pool.queue_classes]
        for queue_class in queue_classes:
            for group in queue_class.behind:
                preemptible = group.shape.preemptible
                same = [first_waiting[preemptible]]
                # Behind a task of the other queue only while its victims are protected.
                if preemptible and group.min_runtimes:
                    same += first_protected
                about = group.waits[self._pool.name][0].about
                if all(task is None or task.id != about for task in same):
                    yield group

    def _add(self, group: Group) -> None:
        self._waiting[group.shape.preemptible].add(group)

    def _waits(self, group: Group) -> bool:
        """Whether a group waits for capacity, or, with a minimum run time, behind a task of the
        other queue.

        A task that may not preempt others, because its last starts failed, holds up none.
        """
        record = group.waits.get(self._pool.name)
        if record is None or not group.queue.live:
            return False
        code = record[0].code
        if code not in BLOCKING and not (group.min_runtimes and code in BEHIND):
            return False
        return group.shape.preemptible or not group.shape.start_failed


def _first_ahead(view: PoolView, task: Task) -> Task | None:
    index = view.pool.index
    assert isinstance(index, BoundedQueues), "the pool's policy has no bounded queues"
    first = index.first_waiting(preemptible=task.job.spec.preemptible)
    return first if first is not None and first.key < task.key else None


def passes_another(view: PoolView, task: Task) -> bool:
    """Whether a task of the queue of `task` that was submitted earlier waits for capacity."""
    return _first_ahead(view, task) is not None


def overdue_ahead(view: PoolView, task: Task, after_s: int) -> Task | None:
    """Return the first task that waits in the queue of `task`, if it comes before `task` and was
    submitted at least `after_s` (s) ago; else None.
    """
    first = _first_ahead(view, task)
    if first is None or first.job.submitted_ms + after_s * 1000 > view.state.now_ms:
        return None
    return first
