"""The task of a project that has waited for so long that later ones must not pass it.

With `reserve_oldest_s` this is the task that was submitted first, of those that fit in the share of
their project, once it has been pending for that time. Then no task of the project that comes after
it starts on nodes that it could use. Tasks of other projects start there; it reclaims from those
that are beyond their share.
"""

from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView
from yardmaster_core.scheduling.planner.wait_reasons import fits_usable_nodes
from yardmaster_core.scheduling.policies.claiming.amounts import first_exceeded, requested
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.project_order import order_in_project
from yardmaster_core.scheduling.policies.waiting_groups import (
    may_use_equal_nodes,
    reserved_from_ms,
    wait_behind,
    with_reservation,
)
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.reasons import Wait


def wait_for_oldest(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task that comes after the one of its project that has waited for
    too long, and could take slots from it; else None.
    """
    after_s = view.options.reserve_oldest_s
    if after_s is None:
        return None
    oldest = _oldest(view, task)
    if oldest is None or oldest is task or oldest.group is None or oldest.group is group:
        return None
    if reserved_from_ms(oldest, after_s) > view.state.now_ms:
        return None
    if _place(view, group, task) < _place(view, oldest.group, oldest):
        return None
    if not may_use_equal_nodes(view, oldest.group, group):
        return None
    return wait_behind(task, oldest)


def _oldest(view: PoolView, task: Task) -> Task | None:
    """Return the task of the project of `task` that waits, fits in the share of the project and was
    submitted first; else None. Tasks that fit on no usable node, whatever else they wait for, keep
    no others pending.
    """
    index = index_of(view)
    index.divide(view.state)
    return index.first_waiting(
        queue_of(view, task),
        lambda group: (
            _fits_share(view, group.queue.first) and fits_usable_nodes(view.pool, group.shape)
        ),
    )


def _fits_share(view: PoolView, task: Task) -> bool:
    """Whether a task fits in the share of its project if that holds nothing else."""
    fair = queue_of(view, task).fair
    return first_exceeded(requested(view.pool, task.job.shape), fair) is None


def with_reserved_from(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task that does not fit; if later ones wait behind it, with the
    moment from which they do.
    """
    after_s = view.options.reserve_oldest_s
    if after_s is None or reserved_from_ms(task, after_s) > view.state.now_ms:
        return wait
    return with_reservation(task, after_s, wait) if _oldest(view, task) is task else wait


def unreported_oldest(view: PoolView, task: Task) -> Group | None:
    """Return the group of the task that `task` waits behind, if its recorded reason does not say
    since when; else None.
    """
    after_s = view.options.reserve_oldest_s
    oldest = _oldest(view, task) if after_s is not None else None
    if oldest is None or oldest.group is None:
        return None
    if reserved_from_ms(oldest, after_s) > view.state.now_ms:
        return None
    wait = oldest.group.waits[view.pool.name][0]
    reported = "reserved_from_at_ms" in wait.numbers or wait.code not in NO_CAPACITY
    return None if reported else oldest.group


def _place(view: PoolView, group: Group, task: Task) -> OrderKey:
    return order_in_project(view)(view, group), task.key
