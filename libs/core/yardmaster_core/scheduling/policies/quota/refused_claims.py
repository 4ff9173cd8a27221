"""The groups that would find no victims whatever the search does, so that they are not considered.

A group that did not fit and whose project stays within its share is considered again whenever
anything changed, because what it may reclaim depends on what all others hold. `RefusedClaims` tells
for which of these groups no node could have enough, even without all tasks of the projects from
which anything may be reclaimed. It follows from the state alone, so a machine that was restored
considers the same groups.
"""

from typing import Final

from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.preempt import has_own_victims
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.reclaim import (
    may_lose_tasks,
    most_reserved_on_one_node,
)
from yardmaster_core.scheduling.policies.quota.start import wait_for_quota
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import Fit
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.reasons import WaitCode

#: The number of every wait of a group whose project stayed within its share at the last search.
_WITHIN_SHARE: Final = "others_above"


class RefusedClaims:
    """The groups of a pool that one cycle need not consider."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._index = index_of(view)
        self._own = "preempt" in view.options.claiming
        #: The projects that changed.
        self._changed = {queue.name for queue in self._index.changed_queues(view.state)}
        #: By the department of the projects.
        self._most: dict[Queue | None, int] = {}
        #: Whether tasks of a queue may be reclaimed by siblings.
        self._losing: dict[Queue, bool] = {}
        self._codes: dict[Fit, WaitCode] = {}

    def contains(self, project_queue: Queue, group: Group) -> bool:
        """Whether a blocked group finds no victims, and waits for the reason that is recorded.

        It says no of each group that something else than the victims of other projects might help.
        """
        shape, name, pool = group.shape, project_queue.name, self._view.pool
        if shape.replicas > 1 or shape.whole_nodes or name in self._changed:
            return False
        if len(shape.pools) > 1:
            # Its later pools wait for the result in this one.
            return False
        record = group.waits.get(pool.name)
        if record is None:
            return False
        wait = record[0]
        if wait.code not in NO_CAPACITY or _WITHIN_SHARE not in wait.numbers:
            return False
        if pool.least_milli(shape) <= self._most_on_one_node(project_queue):
            return False
        if not group.queue.live:
            return False
        task = group.queue.first
        # A task may take over slots that are reserved for others of its project.
        if task.job.project in pool.reserved_by_project:
            return False
        return not (
            self._code(group) is not wait.code
            or limit_reached(self._view.state, pool, task) is not None
            or (self._own and has_own_victims(self._view, task))
            or wait_for_quota(self._view, group, task) is not None
        )

    def _most_on_one_node(self, project_queue: Queue) -> int:
        """Return the most gpu_milli that one node could have free, if all tasks were gone that a
        task of this project may reclaim slots from, and others were moved.
        """
        parent = project_queue.parent
        most = self._most.get(parent)
        if most is None:
            losing = self._that_may_lose_tasks(project_queue)
            most = self._index.node_bounds.most_on_one_node(losing)
            most = self._most[parent] = most + most_reserved_on_one_node(self._view)
        return most

    def _that_may_lose_tasks(self, project_queue: Queue) -> frozenset[Project]:
        """Return the projects with preemptible tasks that tasks of this project, or of a sibling,
        may reclaim slots from. The check costs a step per project with preemptible tasks.
        """
        view, index, losing = self._view, self._index, self._losing
        above = project_queue.path[:-1]
        found: list[Project] = []
        for project in index.victims:
            path = index.queue_of(view.state, project).path
            # The first queue that is none of those above the claiming project.
            at = next((at for at, queue in enumerate(path) if queue not in above), 0)
            reclaimee = path[at]
            known = losing.get(reclaimee)
            if known is None:
                known = losing[reclaimee] = may_lose_tasks(view, reclaimee)
            if known:
                found.append(project)
        return frozenset(found)

    def _code(self, group: Group) -> WaitCode:
        fit = group.shape.fit
        code = self._codes.get(fit)
        if code is None:
            code = self._codes[fit] = no_capacity(self._view.pool, group.shape).code
        return code
