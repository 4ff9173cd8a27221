"""The index that `fair_share` keeps of its pool."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.searched_nodes import SearchedNodes
from yardmaster_core.scheduling.policies.carried_over import CarriedOverFlag
from yardmaster_core.scheduling.policies.fair_share.claimants import Claimant, claimant_of
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import DemandTracker
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.policy_index import PolicyIndex, Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.reasons import WaitCode

#: Tasks that passed others are removed only above this number.
FEW: Final = 64


class ReclaimableTasks(OrderedTasks[Task]):
    """Preemptible tasks of one claimant that hold slots of one pool and are not releasing them."""

    __slots__ = ("pool_name",)

    def __init__(self, pool_name: str) -> None:
        super().__init__()
        self.pool_name = pool_name

    def is_live(self, task: Task) -> bool:
        """Whether `task` may still be preempted."""
        run = task.run
        return (
            run is not None
            and run.pool_name == self.pool_name
            and run.open > 0
            and not task.releasing
        )


class FairShareIndex(PolicyIndex):
    """The demands of a pool's claimants, and whether the pool must be divided again."""

    def __init__(self, pool: Pool, among: str, *, whole_tasks: bool) -> None:
        if among == "job":
            self.traits = Traits(equal_within="job")
        self._pool = pool
        self._among = among
        self._whole_tasks = whole_tasks
        #: Built on first use.
        self.demands: DemandTracker | None = None
        #: By claimant: its preemptible tasks, if the claimant ever had to release a task.
        self.reclaimable: dict[Claimant, ReclaimableTasks] = {}
        #: Groups that wait because their claimant has its share.
        self.over_share: dict[Group, None] = {}
        for group in pool.groups.values():
            self.wait_changed(group)
        #: Whether an input of the division changed.
        self._due = CarriedOverFlag("due")
        self._due.set_for_this_cycle()
        #: The tasks that were preempted since the last change that was no answer to decisions. They
        #: are not preempted again, and preempt none, before the next one: else tasks take turns.
        self.preempted: dict[str, None] = {}
        self._preempted_tasks: dict[str, Task] = {}
        self.searched = SearchedNodes()
        #: By claimant: preemptible tasks that started on reserved slots, at least those that do not
        #: run yet.
        self._passing: dict[Claimant, dict[Task, None]] = {}
        #: How many were added, and the number above which those that run are removed: they may be
        #: the majority then.
        self._noted, self._most_noted = 0, FEW
        for node in pool.nodes.values():
            for task in node.open.values():
                self._note_passing(task)

    def passing_milli(self, claimant: Claimant) -> int:
        """Return what those preemptible tasks of a claimant hold that started on reserved slots and
        do not run yet (gpu_milli). They are preempted for none before.
        """
        passing = self._passing.get(claimant)
        if passing is None:
            return 0
        by_job = self._pool.held_by_job
        return sum(
            by_job[task.job].tasks.get(task, 0)
            for task in passing
            if task.starts_past_others and task.job in by_job
        )

    def _note_passing(self, task: Task) -> None:
        if task.starts_past_others and task.job.spec.preemptible:
            self._passing.setdefault(claimant_of(task.job, self._among), {})[task] = None
            self._noted += 1

    def current_demands(self, state: CellView) -> DemandTracker:
        """Return the updated demands of the pool's claimants."""
        if self.demands is None:
            self.demands = DemandTracker(
                state, self._pool, self._among, whole_tasks=self._whole_tasks
            )
        self.demands.update(state)
        return self.demands

    def reclaimable_of(self, claimant: Claimant) -> ReclaimableTasks:
        """Return the tasks that a claimant may have to release."""
        found = self.reclaimable.get(claimant)
        if found is None:
            found = self.reclaimable[claimant] = ReclaimableTasks(self._pool.name)
            for task in sorted(self._preemptible_of(claimant)):
                found.add(task)
        return found

    def _preemptible_of(self, claimant: Claimant) -> list[Task]:
        """Return the preemptible tasks of a claimant that hold slots of the pool."""
        usage = self._pool.held_by_job
        if isinstance(claimant, Job):
            jobs = [claimant] if claimant in usage else []
        else:
            holders = self._pool.held_by_project.get(claimant)
            jobs = list(holders.jobs) if holders is not None else []
        return [task for job in jobs if job.spec.preemptible for task in usage[job].tasks]

    def group_changed(self, group: Group, job: Job) -> None:
        if self.demands is not None:
            self.demands.stale[group if group.shape.job_id is None else job] = None

    def job_changed(self, job: Job) -> None:
        if self.demands is not None:
            self.demands.stale[job] = None

    def wait_changed(self, group: Group) -> None:
        self.over_share.pop(group, None)
        if group.wait_code(self._pool.name) is WaitCode.OVER_FAIR_SHARE:
            self.over_share[group] = None

    def allocation_changed(self, task: Task) -> list[OrderedTasks[Task]]:
        changed: list[OrderedTasks[Task]] = []
        stop = task.run.stop if task.run is not None else None
        if stop is not None and stop.for_task is not None:
            self.preempted[task.id] = None
            self._preempted_tasks[task.id] = task
        if task.run is not None and task.run.passed_others:
            self._note_passing(task)
        if not self.reclaimable or not task.job.shape.queue_class:
            return changed
        job, project = task.job, task.job.project
        if job.spec.preemptible:
            for claimant in (job, project):
                tasks = self.reclaimable.get(claimant)
                if tasks is not None:
                    tasks.add(task)
                    changed.append(tasks)
        if job not in self._pool.held_by_job:
            self.reclaimable.pop(job, None)
            if project not in self._pool.held_by_project:
                self.reclaimable.pop(project, None)
        return changed

    def node_changed(self, node: Node) -> None:
        self.searched.changed.add(node.ordinal)

    def nodes_changed(self) -> None:
        self.searched.clear()

    def owners_changed(self) -> None:
        self.demands = None

    def disturbed(self) -> None:
        if self.preempted:
            self._search_again()
            self.preempted = {}
            self._preempted_tasks = {}
            self._due.set_for_this_cycle()

    def _search_again(self) -> None:
        """Forget the searches on nodes of tasks that may be preempted again."""
        for task_id in self.preempted:
            task = self._preempted_tasks.get(task_id)
            if task is None:  # named by a snapshot
                self.searched.clear()
            elif task.run is not None:
                for name in task.run.nodes:
                    ordinal = self._pool.future.named.get(name)
                    if ordinal is not None:
                        self.searched.changed.add(ordinal)

    def input_changed(self, *, from_next_cycle: bool) -> None:
        if from_next_cycle:
            self._due.set()
        else:
            self._due.set_for_this_cycle()

    @property
    def due(self) -> bool:
        return bool(self._due)

    def inputs_ended(self) -> None:
        self._due.inputs_ended()

    def cycle_ended(self) -> None:
        if self._noted > self._most_noted:
            passing, self._passing, self._noted = self._passing, {}, 0
            for task in chain.from_iterable(passing.values()):
                self._note_passing(task)
            self._most_noted = FEW + 2 * self._noted
        self._due.cycle_ended()
        self.searched.cycle_ended()

    def dump(self) -> Mapping[str, Any]:
        return {**self._due.dump(), "preempted": list(self.preempted)}

    def load(self, dump: Mapping[str, Any]) -> None:
        self._due.load(dump)
        self.preempted = dict.fromkeys(dump["preempted"])


def index_of(view: PoolView) -> FairShareIndex:
    """Return the index of a pool with this policy."""
    index = view.pool.index
    assert isinstance(index, FairShareIndex), "the pool has another policy"
    return index
