"""The base of the indexes of policies under which tasks take slots from other owners: the amounts
that each task counts as, the tasks that may be preempted, and whether tasks may take more than
before.

Changes only mark tasks and groups as stale. The index of a policy counts them again, from the facts
of the state, when the policy next reads it. So the cost of a cycle depends on the number of
changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.carried_over import (
    CarriedOver,
    CarriedOverFlag,
    dump_all,
)
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    UNITS,
    Amounts,
    placed_amounts,
    plus,
    unreleased_amounts,
)
from yardmaster_core.scheduling.policies.preemptible import Victims
from yardmaster_core.scheduling.state.policy_index import PolicyIndex, Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.reasons import PolicyStop

#: The amounts that a task counts as: held, non_preemptible, leaving, freed_in_time, returning,
#: reserved.
Counted = tuple[Amounts, Amounts, Amounts, Amounts, Amounts, Amounts]
UNCOUNTED: Final[Counted] = (NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)

O = TypeVar("O")  # noqa: E741


def counted(task: Task, pool: str) -> Counted:
    """Return the amounts that a task counts as in a pool.

    Slots that the task is about to release are `leaving` instead of `held`. They are
    `freed_in_time` too if the task stops and its stop is not overdue: only these count as future
    capacity. They are `returning` too if a policy stopped the task, because it will request them
    again. If the task cannot be preempted, `non_preemptible` is the sum of held, leaving and
    reserved amounts.
    """
    held = leaving = freed_in_time = returning = reserved = NOTHING
    run, reservation = task.run, task.reserved
    if reservation is not None and reservation.pool_name == pool:
        reserved = placed_amounts(reservation.placements)
    if run is not None and run.pool_name == pool and run.open:
        amounts = unreleased_amounts(run)
        if not task.releasing:
            held = amounts
        elif reservation is None:
            leaving = amounts
            if run.frees_slots:
                freed_in_time = amounts
            if isinstance(run.stop, PolicyStop):
                returning = amounts
    non_preemptible = NOTHING
    if not task.job.spec.preemptible:
        non_preemptible = plus(plus(held, leaving), reserved)
    return held, non_preemptible, leaving, freed_in_time, returning, reserved


class ClaimingIndex(PolicyIndex, Generic[O]):
    """The stale tasks and groups of owners, and the tasks that may be preempted."""

    def __init__(self, pool: Pool, traits: Traits) -> None:
        self.traits = traits
        self._pool = pool
        #: Whether all tasks and groups were counted once; until then none are marked as stale.
        self._built = False
        self._stale_tasks: dict[Task, None] = {}
        self._stale_groups: dict[Group, None] = {}
        #: The tasks that may be preempted, by owner and priority.
        self.victims: dict[O, dict[int, Victims]] = {}
        for task in holders(pool):
            if task.job.spec.preemptible:
                self._add_victim(task)
        #: Whether a task may claim more than before.
        self._due = CarriedOverFlag("due")
        #: Whether a task may find other victims than before: tasks hold other slots, or others may
        #: be preempted.
        self._victims_due = CarriedOverFlag("victims_due")
        self._carried: list[CarriedOver[Any]] = [self._due, self._victims_due]
        self._due.set_for_this_cycle()
        self._victims_due.set_for_this_cycle()

    def owner_of(self, job: Job) -> O:
        """Return the owner of a job's tasks."""
        raise NotImplementedError

    def running(self, view: PoolView, owner: O, *, below: int | None = None) -> Iterator[Task]:
        """Yield the preemptible tasks of an owner that hold slots: the lowest priority first, then
        the latest submission. `below`: only tasks of a lower priority than this one.
        """
        of = self.victims.get(owner, {})
        # rule: victims: lowest priority first
        for priority in sorted(of, reverse=True):
            # rule: preempt: strictly lower
            if below is not None and priority <= below:
                return
            scan = view.memo.get(("victims", owner, priority))
            if scan is None:
                # rule: victims: latest submission first
                scan = view.memo["victims", owner, priority] = of[priority].reverse_scan()
            # Tasks that this cycle placed are not preempted. The scan yields some of them if the
            # collection already had entries for them.
            yield from (task for task in scan if task not in view.placed)

    def allocation_changed(self, task: Task) -> Iterable[Victims]:
        self._due.set()
        self._victims_due.set()
        if self._built:
            self._stale_tasks[task] = None
        return ()

    def group_changed(self, group: Group, job: Job) -> None:
        self._due.set()
        if self._built:
            self._stale_groups[group] = None

    def victim_changed(self, task: Task) -> Iterable[Victims]:
        self._due.set()
        self._victims_due.set()
        return (self._add_victim(task),)

    def _add_victim(self, task: Task) -> Victims:
        """Add a task to the tasks of its owner that may be preempted; return the collection."""
        priority = task.job.priority
        of = self.victims.setdefault(self.owner_of(task.job), {})
        found = of.get(priority)
        if found is None:
            found = of[priority] = Victims(self._pool.name, priority)
        found.add(task)
        return found

    def input_changed(self, *, from_next_cycle: bool) -> None:
        if from_next_cycle:
            self._due.set()
            self._victims_due.set()
        else:
            self._due.set_for_this_cycle()
            self._victims_due.set_for_this_cycle()

    @property
    def due(self) -> bool:
        return bool(self._due)

    def inputs_ended(self) -> None:
        for carried in self._carried:
            carried.inputs_ended()

    def cycle_ended(self) -> None:
        for carried in self._carried:
            carried.cycle_ended()

    def dump(self) -> Mapping[str, Any]:
        return dump_all(self._carried)

    def load(self, dump: Mapping[str, Any]) -> None:
        for carried in self._carried:
            carried.load(dump)


def holders(pool: Pool) -> dict[Task, None]:
    """Return the tasks that hold slots of a pool."""
    return dict.fromkeys(task for node in pool.nodes.values() for task in node.open.values())


def usable(pool: Pool) -> Amounts:
    """Return the amounts of all nodes that take tasks together, without disabled slots."""
    key = "usable"
    known: tuple[int, Amounts] | None = pool.policy_cache.get(key)
    if known is None or known[0] != pool.topology:
        total = NOTHING
        for node in pool.nodes.values():
            if node.usable:
                gpus = (node.gpus - len(node.disabled_slots)) * UNITS[0]
                total = plus(total, (gpus, node.cpu_milli, node.memory_mib))
        known = pool.policy_cache[key] = (pool.topology, total)
    return known[1]
