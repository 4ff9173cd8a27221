"""The ranks of projects in the listed queue of a pool.

`QueueOrder` compares queues by the task that each would start next, so its order changes with each
start. The listed order compares what queues hold now, whatever their next task requests, and
rounds: a small change writes no record. A rank has a part of four numbers for each queue from the
top department to the project, so it changes for the projects below a department whose part changes.
"""

from collections.abc import Iterator
from typing import Final

from yardmaster_core.scheduling.planner.policy import PoolView, Rank
from yardmaster_core.scheduling.policies.claiming.amounts import RESOURCES
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_schemas.fields import MAX_QUEUE_RANK

#: The largest part of its share that a queue is ranked by; without a share of what it requests, it
#: comes after.
MOST_PERMILLE: Final = 1_000_000


def place_of(queue: Queue, *, all_over: bool) -> Rank:
    """Return the place of a queue among its siblings: that of `queue_heap.queue_key`, rounded.

    The numbers are: 2 above its share, plus 1 unless more of all that it requests is deserved; its
    rank, the highest first; the largest part of a share that it holds (permille); its age.
    """
    standing, fair, most = queue.standing, queue.fair, queue.allocatable
    pending, deserved = queue.pending, queue.deserved
    above = [standing[i] > fair[i] for i in RESOURCES]
    is_over = all(above) if all_over else any(above)
    starved = any(pending)
    without_share = False
    for i in RESOURCES:
        bound = deserved[i]
        starved &= bound is None or standing[i] + bool(pending[i]) <= bound
        without_share |= bool(pending[i] and not most[i])
    permille = max(standing[i] * 1000 // (most[i] or 1) for i in RESOURCES)
    is_project, number = queue.age
    return (
        2 * is_over + (not starved),
        MAX_QUEUE_RANK - queue.rank,
        min(permille, MOST_PERMILLE - 1) + MOST_PERMILLE * without_share,
        2 * number + is_project,
    )


def rank_of(view: PoolView, project: Project) -> Rank:
    """Return the rank of a project now."""
    index = index_of(view)
    index.divide(view.state)
    leaf = index.queue_of(view.state, project)
    all_over = follows_kai(view)
    return tuple(n for queue in leaf.path for n in place_of(queue, all_over=all_over))


def changed_ranks(view: PoolView) -> Iterator[tuple[Project, Rank]]:
    """Yield the projects whose rank is not the recorded one, with their rank.

    A project without pending tasks has none. A project stays in `unranked` until its recorded rank
    is found to be right, because a draft may be rolled back.
    """
    index = index_of(view)
    index.divide(view.state)
    unranked, pool = index.unranked, view.pool.name
    all_over = follows_kai(view)
    for queue in list(unranked):
        place = place_of(queue, all_over=all_over)
        if place != queue.place:
            queue.place = place
            unranked.update(dict.fromkeys(_inner(queue)))
    for queue in list(unranked):
        project = view.state.projects.get(queue.name) if not queue.children else None
        if project is None or index.queue_of(view.state, project) is not queue:
            del unranked[queue]
            continue
        rank: Rank = ()
        if queue.waiting:
            rank = tuple(number for each in queue.path for number in each.place)
        if rank == project.ranks.get(pool, ()):
            del unranked[queue]
        else:
            yield project, rank


def _inner(queue: Queue) -> Iterator[Queue]:
    """Yield the projects with pending tasks below a queue."""
    for child in queue.children:
        if child.waiting:
            yield child
        yield from _inner(child)
