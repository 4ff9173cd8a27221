"""The ranks of projects in the listed queue of a pool.

`QueueOrder` compares queues by the task that each would start next, so its order changes with each
start. The listed order compares only the amounts that queues hold now, and rounds them, so that a
small change writes no record. A rank consists of four numbers for each queue from the top
department to the project. If those of a department change, the ranks of all projects below it
change.
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

#: Parts of a share above this one count as equal. A queue without a share of a requested resource
#: comes after them.
MOST_PERMILLE: Final = 1_000_000


def place_of(queue: Queue, *, over_in_all: bool) -> Rank:
    """Return the place of a queue among its siblings, by the rules of `queue_heap.queue_key`.

    The four numbers:

    1. 4 if the queue is over-utilized, plus 2 unless it deserves more of each resource that it
       requests, plus 1 unless its share has more of each of these;
    2. the `rank` of its settings, so that the highest comes first;
    3. the largest part of a share that it holds (permille);
    4. its age.
    """
    allocated, fair, most = queue.allocated, queue.fair, queue.allocatable
    pending, deserved = queue.pending, queue.deserved
    above = [allocated[i] > fair[i] for i in RESOURCES]
    is_over = all(above) if over_in_all else any(above)
    within_deserved = within_share = any(pending)
    without_share = False
    for i in RESOURCES:
        bound = deserved[i]
        within_deserved &= bound is None or allocated[i] + bool(pending[i]) <= bound
        within_share &= not pending[i] or allocated[i] < fair[i]
        without_share |= bool(pending[i] and not most[i])
    permille = max(allocated[i] * 1000 // (most[i] or 1) for i in RESOURCES)
    is_project, number = queue.age
    return (
        4 * is_over + 2 * (not within_deserved) + (not within_share),
        MAX_QUEUE_RANK - queue.rank,
        min(permille, MOST_PERMILLE - 1) + MOST_PERMILLE * without_share,
        2 * number + is_project,
    )


def rank_of(view: PoolView, project: Project) -> Rank:
    """Return the present rank of a project."""
    index = index_of(view)
    index.divide(view.state)
    project_queue = index.queue_of(view.state, project)
    over_in_all = follows_kai(view)
    return tuple(
        n for queue in project_queue.path for n in place_of(queue, over_in_all=over_in_all)
    )


def changed_ranks(view: PoolView) -> Iterator[tuple[str, Rank]]:
    """Yield the projects whose rank is not the recorded one, with their rank.

    A project without pending tasks has no rank. A project stays in `rank_stale` until its recorded
    rank is found to be right, because a draft may be rolled back.
    """
    index = index_of(view)
    index.divide(view.state)
    rank_stale, pool = index.rank_stale, view.pool.name
    over_in_all = follows_kai(view)
    for queue in list(rank_stale):
        place = place_of(queue, over_in_all=over_in_all)
        if place != queue.place:
            queue.place = place
            rank_stale.update(dict.fromkeys(_inner(queue)))
    for queue in list(rank_stale):
        project = view.state.projects.get(queue.name) if not queue.children else None
        if project is None or index.queue_of(view.state, project) is not queue:
            del rank_stale[queue]
            continue
        rank: Rank = ()
        if queue.waiting:
            rank = tuple(number for each in queue.path for number in each.place)
        if rank == project.ranks.get(pool, ()):
            del rank_stale[queue]
        else:
            yield project.name, rank


def _inner(queue: Queue) -> Iterator[Queue]:
    """Yield the projects with pending tasks below a queue."""
    for child in queue.children:
        if child.waiting:
            yield child
        yield from _inner(child)
