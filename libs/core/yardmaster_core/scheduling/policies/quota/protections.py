"""The delay after which a task may preempt others, and the minimum run times of queues."""

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.tasks import Task


def delayed_until_ms(view: PoolView, task: Task) -> int:
    """Return the moment (ms since the epoch) until which a task must not preempt others; 0: it
    may.
    """
    delay_ms: int = view.options.preemption_delay_s * 1000
    until_ms = task.queued_ms + delay_ms
    # Without a delay the task may preempt at once, even if the clock behind `queued_ms` is ahead.
    return until_ms if delay_ms and until_ms > view.state.now_ms else 0


def queue_min_runtime_s(queue: Queue, *, reclaim: bool) -> int:
    """Return the minimum run time (s) that is set for the queue, else for the nearest queue above
    it that has one; else 0.

    With `reclaim` it is the minimum run time against reclaim by other queues, else the minimum run
    time against preemption by tasks of the same project.
    """
    # rule: protections: of the nearest queue
    for ancestor in queue.ancestors():
        min_runtime_s = ancestor.reclaim_s if reclaim else ancestor.preempt_s
        if min_runtime_s is not None:
            return min_runtime_s
    return 0
