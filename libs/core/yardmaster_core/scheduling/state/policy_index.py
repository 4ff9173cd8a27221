"""The index that a policy keeps of its pool: the port between the state and the policies.

The state imports no policy. It notifies a pool's index of changes, and the policy's
functions read the index. The registry of policies makes the indexes (`pools.IndexSource`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks
from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.reasons import WaitCode


class PolicyIndex:
    """The index of a policy that keeps nothing; other indexes override what they need.

    A new index of the same state must give the same answers: the content of an index follows from
    the facts of the state. Only the values of `dump` are restored, at the end of a draft and from a
    snapshot. `queue_changed`, `wait_recorded`, `wait_cleared`, `job_changed`, `usage_changed` and
    `allocation_changed` are also called when a draft undoes the change. `may_be_preempted` is not:
    the index reads from a task whether it may still be preempted.
    """

    #: Whether each job is a claimant of its own, so that its tasks are equal to no other job's.
    per_job = False
    #: Whether each user is a claimant, so that its tasks are equal to no other user's.
    per_user = False
    #: Whether no task passes the first one of its queue.
    strict = False
    #: Whether a task may preempt others; and whether it may preempt those of its own priority.
    preempts = False
    preempts_equals = False
    #: Whether the policy finds the groups that released slots may help (`Wake`); else the state
    #: wakes all that did not fit.
    finds_fitting_groups = False
    #: Whether the preemptions of each task are counted (`Task.preemptions`).
    counts_preemptions = False
    #: Whether the results for its tasks depend on what projects hold in other pools.
    follows_pools = False
    #: The half-life of the decayed usages of projects (ms); 0: none are kept.
    usage_half_life_ms = 0
    #: Whether shares depend on them.
    follows_usage = False

    def queue_changed(self, group: Group, job: Job) -> None:
        """A task of `job` joined or left `group`."""

    def wait_recorded(self, group: Group, code: WaitCode) -> None:
        """A wait reason was recorded for a group with pending tasks."""

    def wait_cleared(self, group: Group) -> None:
        """A group lost its wait reason, or its last pending task."""

    def job_changed(self, job: Job) -> None:
        """The demand, the held amount or a limit of a job changed in any of its pools."""

    def usage_changed(self, task: Task) -> Iterable[OrderedTasks[Task]]:
        """The held amount of a task in the pool changed; return the collections to prune."""
        return ()

    def may_be_preempted(self, task: Task) -> Iterable[OrderedTasks[Task]]:
        """A preemptible task began to hold slots of the pool, or its priority changed.

        Returns the collections to prune.
        """
        return ()

    def allocation_changed(self, task: Task) -> None:
        """The slots of a task or the pool's reservations changed, or a task began to release."""

    def node_changed(self, node: Node) -> None:
        """The free capacity of a node changed, or the set of its tasks that may be preempted.

        A decrease is reported too: a task then needs more victims, and a policy may refuse those.
        """

    def claimants_changed(self) -> None:
        """Limits or weights of owners changed, or the rule that makes tasks equal."""

    def nodes_changed(self) -> None:
        """Nodes joined or left the pool, or offer something else."""

    def usages_counted(self) -> None:
        """A minute has passed, and the decayed usages of projects have changed."""

    def input_changed(self, *, from_next_cycle: bool) -> None:
        """An input changed on which the result for other tasks may depend.

        `from_next_cycle`: the planner changed it, so the next cycle must consider it too.
        """

    def wakes_behind(self, code: WaitCode) -> bool:
        """Whether the groups behind a group are considered when it gets this wait reason."""
        return False

    def next_behind(self, queue_classes: Iterable[QueueClass]) -> Iterable[Group]:
        """Yield the groups to consider when the groups in front of them no longer block."""
        for queue_class in queue_classes:
            yield from queue_class.behind

    @property
    def due(self) -> bool:
        """Whether the pool must be planned although no group was woken."""
        return False

    @property
    def shares_stale(self) -> bool:
        """Whether the shares of the queues may differ from those that were compared last."""
        return False

    def shares_compared(self) -> None:
        """A cycle compared the shares with those that were recorded last."""

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
