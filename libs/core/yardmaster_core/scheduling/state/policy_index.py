"""The index that a policy keeps of its pool: the port between the state and the policies.

The state imports no policy. It notifies a pool's index of changes, and the policy's
functions read the index. The registry of policies makes the indexes (`pools.IndexSource`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from yardmaster_core.scheduling.state.blocked_equals import BlockedEquals
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.tasks import Group, Job, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The rules of a policy that the state follows; by default those of a policy under which no
    task is preempted for another.

    Attributes:
        equal_within: tasks with equal requests are equal within the pool, or only if they are of
            one user or of one job.
        strict: no task passes the first one of its queue.
        behind_one: a group behind others waits for one task, not for all of a priority.
        preempts: a task may preempt others.
        preempts_equals: a task may preempt others of its own priority.
        impossible_block: a task that fits on no node, or only on cordoned or lost ones, keeps
            those behind it pending.
        counts_preemptions: the preemptions of each task are counted (`Task.preemptions`).
        finds_fitting_groups: the policy finds the groups that released slots may help (`Wake`), so
            that a release wakes none.
        follows_pools: the results for its tasks depend on what projects hold in other pools.
        usage_half_life_ms: the half-life of the decayed usages of projects; 0: none are kept.
        follows_usage: shares depend on them.
    """

    equal_within: Literal["pool", "user", "job"] = "pool"
    strict: bool = False
    behind_one: bool = False
    preempts: bool = False
    preempts_equals: bool = False
    impossible_block: bool = False
    counts_preemptions: bool = False
    finds_fitting_groups: bool = False
    follows_pools: bool = False
    usage_half_life_ms: int = 0
    follows_usage: bool = False


#: The traits of a plain policy.
PLAIN: Final = Traits()


class PolicyIndex:
    """The index of a policy that keeps nothing; other indexes override what they need.

    A new index of the same state must give the same answers: the content of an index follows from
    the facts of the state. Only the values of `dump` are restored, at the end of a draft and from a
    snapshot. `group_changed`, `wait_changed`, `job_changed` and `allocation_changed` are called too
    when a draft undoes the change. `victim_changed` is not: the index reads from a task whether it
    may still be preempted.
    """

    #: The rules of the policy that the state follows.
    traits: Traits = PLAIN
    #: The groups that did not fit, by what makes them equal, so that released slots wake only the
    #: first group of each class. None: they wake every group that did not fit.
    equals: BlockedEquals | None = None
    #: Whether the shares of the queues may differ from those that a cycle compared last with the
    #: recorded ones; that cycle clears it.
    shares_stale: bool = False

    def group_changed(self, group: Group, job: Job) -> None:
        """A task of `job` joined or left `group`."""

    def wait_changed(self, group: Group) -> None:
        """A group got or lost a wait reason, or its first or last pending task."""

    def job_changed(self, job: Job) -> None:
        """The demand, the held amount or a limit of a job changed in any of its pools."""

    def allocation_changed(self, task: Task) -> Iterable[OrderedTasks[Task]]:
        """A task of the pool holds or reserves other slots, or began to release its slots.

        Returns the collections that the task may have left; the caller removes its entries there.
        """
        return ()

    def victim_changed(self, task: Task) -> Iterable[OrderedTasks[Task]]:
        """A preemptible task holds slots of the pool, has another priority, or may be preempted for
        others than before.

        Returns the collections to prune.
        """
        return ()

    def node_changed(self, node: Node) -> None:
        """The free capacity of a node changed, or the set of its tasks that may be preempted.

        A decrease is reported too: a task then needs more victims, and a policy may refuse those.
        """

    def nodes_changed(self) -> None:
        """Nodes joined or left the pool, or offer something else."""

    def owners_changed(self) -> None:
        """Limits or weights of owners changed, or the rule that makes tasks equal."""

    def usages_changed(self) -> None:
        """A minute has passed, and the decayed usages of projects have changed."""

    def disturbed(self) -> None:
        """Something changed in any pool that is not an answer of agents to decisions: a job, a
        limit, a node, or a task ended.
        """

    def input_changed(self, *, from_next_cycle: bool) -> None:
        """An input changed on which the result for other tasks may depend.

        `from_next_cycle`: the planner changed it, so the next cycle must consider it too.
        """

    def next_behind(self, queue_classes: Iterable[QueueClass]) -> Iterable[Group]:
        """Yield the groups to consider when the groups in front of them no longer block."""
        for queue_class in queue_classes:
            yield from queue_class.behind

    @property
    def due(self) -> bool:
        """Whether the pool must be planned although no group was woken."""
        return False

    def freed_in_time_milli(self, state: Any, job: Job, department: str | None = None) -> int:
        """The gpu_milli that tasks of the job's project hold that stop and are not overdue, or that
        tasks of a department above it do, if slots may be reserved for a task that a limit lets
        start only once those are gone; else 0.

        `state`: a `CellView`, which this module must not import.
        """
        return 0

    def relies_on_overdue(self, state: Any, task: Task) -> bool:
        """Whether a limit lets a task start on its reserved slots only once tasks are gone that do
        not release theirs in time.

        `state`: a `CellView`, as above.
        """
        return False

    def inputs_ended(self) -> None:
        """The planner decides from now on; what changed so far, it sees in this cycle."""

    def cycle_ended(self) -> None:
        """A cycle considered everything."""

    def dump(self) -> Mapping[str, Any]:
        """The facts that only the index keeps, for snapshots and to undo a draft."""
        return {}

    def load(self, dump: Mapping[str, Any]) -> None:
        """Set what `dump` returned.

        Raises:
            KeyError: something is missing.
        """
