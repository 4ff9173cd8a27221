"""Whether a task fits once other tasks are gone, by trying it on the pool's future capacity."""

from collections.abc import Iterable

from yardmaster_core.scheduling.planner.gpu_memory import placed_shape
from yardmaster_core.scheduling.planner.placement import any_placement
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies import options_of, policy_of
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Task


def fits_without(state: CellView, pool: Pool, task: Task, victims: Iterable[Task]) -> bool:
    """Whether a task fits in a pool without these tasks; the pool's capacity is as before then."""
    assert pool.config is not None
    victims = list(victims)
    changes = pool.future.changes
    _shift(state, pool, victims, 1)
    found = any_placement(pool.future, shape_within_limits(state, pool, task), pool.config)
    _shift(state, pool, victims, -1)
    pool.future.changes = changes
    return found is not None


def shape_within_limits(state: CellView, pool: Pool, task: Task) -> Shape:
    """Return the request of a task; by memory, on GPUs where limits let it start: on others it is
    not placed.
    """
    if not task.job.shape.gpu_memory_mib:
        return task.job.shape
    assert pool.config is not None
    policy = pool.config.policy
    view = PoolView(state, pool, options_of(policy))
    return placed_shape(view, task, policy_of(policy).start.exceeds)


def _shift(state: CellView, pool: Pool, victims: Iterable[Task], sign: int) -> None:
    for victim in victims:
        run = victim.run
        assert run is not None
        for was, p in zip(run.replicas, run.placements, strict=True):
            if was < ReplicaState.RELEASED:
                amounts = (sign * p.gpu_milli, sign * p.cpu_milli, sign * p.memory_mib, sign)
                pool.future.shift(state.nodes[p.node].future, p.slots, *amounts)
