"""The GPUs on which a request by GPU memory stays within limits.

A smaller GPU takes a larger part of what a limit leaves. So each request by memory is placed, or
gets victims, only on GPUs that have so much memory that the whole task stays within every limit
there. Its replicas count as if all were on the smallest of these GPUs: a gang that would stay
within only with some replicas on smaller GPUs and some on larger ones waits for the larger ones.
"""

from collections.abc import Callable

from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.state.shapes import Shape, on_larger_gpus
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.reasons import Wait

#: The wait reason of a task that exceeds a bound of the policy with this gpu_milli, or None.
Exceeds = Callable[[PoolView, Task, int], Wait | None]


def placed_shape(view: PoolView, task: Task, exceeds: Exceeds) -> Shape:
    """Return the shape by which a task that requests memory of GPUs is placed: on GPUs with which
    it exceeds no limit; if it exceeds one on all of them, on the largest.
    """
    shape = task.job.shape
    memories = view.pool.free.memories(shape)
    for memory_mib in memories:
        if refused_on(view, task, memory_mib, exceeds) is None:
            break
    else:
        memory_mib = memories[-1] if memories else 0
    return on_larger_gpus(shape, memory_mib) if memories and memory_mib > memories[0] else shape


def refused_on(view: PoolView, task: Task, memory_mib: int, exceeds: Exceeds) -> Wait | None:
    """Return the wait reason of a task whose replicas all take GPUs of this memory, if it exceeds a
    limit then; else None.
    """
    milli = task.job.shape.gpu_milli_on(memory_mib)
    wait = limit_reached(view.state, view.pool, task, gpu_milli=milli)
    return wait or exceeds(view, task, milli)
