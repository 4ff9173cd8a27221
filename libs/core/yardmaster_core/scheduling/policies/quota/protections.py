"""From when on a task may preempt others, and for how long queues protect their tasks."""

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.tasks import Task


def delayed_until_ms(view: PoolView, task: Task) -> int:
    """Return until when a task must not preempt others (ms); 0: it may."""
    delay_ms: int = view.options.preemption_delay_s * 1000
    until_ms = task.queued_ms + delay_ms
    # The clock of its gateway may be ahead.
    return until_ms if delay_ms and until_ms > view.state.now_ms else 0


def queue_min_runtime_s(queue: Queue, *, reclaim: bool) -> int:
    """The minimum run time (s) that is set for a queue or the next one above it; else 0."""
    for each in queue.ancestors():
        seconds = each.reclaim_s if reclaim else each.preempt_s
        if seconds is not None:
            return seconds
    return 0
