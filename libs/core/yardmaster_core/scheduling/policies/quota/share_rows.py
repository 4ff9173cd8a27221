"""The shares of the queues of a pool: those to record, and those for metrics."""

from collections.abc import Iterator, Mapping

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming import amounts
from yardmaster_core.scheduling.policies.claiming.amounts import NOTHING, plus
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.decisions import Amounts, Bounds, QueueShare


def queue_shares(view: PoolView) -> Iterator[QueueShare]:
    """Yield the queues that deserve, hold or request something, each after its parent; siblings
    by name, departments first.
    """
    index = index_of(view)
    root = index.divide(view.state)
    kept: set[Queue] = set()
    for queue in _below(root):
        deserves = queue.quota is not None and any(bound != 0 for bound in queue.deserved)
        if (
            deserves
            or queue.usage_milli
            or any(amount != NOTHING for amount in (queue.held, queue.reserved, _requested(queue)))
        ):
            kept.update(queue.path)
    for queue in _below(root):
        if queue in kept:
            yield _share(queue, has_usage=bool(index.traits.usage_half_life_ms))


def project_shares(view: PoolView) -> Mapping[str, int]:
    """Return the share of each project (gpu_milli) by name, if it has one or holds GPUs."""
    root = index_of(view).divide(view.state)
    return {
        queue.name: queue.fair[0]
        for queue in _below(root)
        if _level(queue) is Level.PROJECT and (queue.fair[0] or queue.used[0])
    }


def _below(queue: Queue) -> Iterator[Queue]:
    """Yield all queues below a queue, each after its parent."""
    for child in sorted(queue.children, key=lambda child: (child.age[0], child.name)):
        yield child
        yield from _below(child)


def _level(queue: Queue) -> Level:
    return Level.PROJECT if queue.is_project else Level.DEPARTMENT


def _share(queue: Queue, *, has_usage: bool) -> QueueShare:
    parent = queue.parent
    return QueueShare(
        name=queue.name,
        level=_level(queue),
        parent=parent.name if parent is not None and parent.path else None,
        deserved=_bounds(queue.deserved),
        limit=_bounds(queue.limit),
        fair_share=_amounts(queue.fair),
        held=_amounts(queue.held),
        reserved=_amounts(queue.reserved),
        requested=_amounts(_requested(queue)),
        usage_milli=queue.usage_milli if has_usage else None,
    )


def _requested(queue: Queue) -> amounts.Amounts:
    return plus(queue.pending, queue.returning)


def _amounts(of: amounts.Amounts) -> Amounts:
    gpu, cpu, memory = of
    return Amounts(gpu_milli=gpu, cpu_milli=cpu, memory_mib=memory)


def _bounds(of: amounts.Bounds) -> Bounds:
    gpu, cpu, memory = of
    return Bounds(gpu_milli=gpu, cpu_milli=cpu, memory_mib=memory)
