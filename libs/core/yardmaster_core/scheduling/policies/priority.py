"""`priority`: higher priority first, with or without preemption, with or without backfilling.

A smaller number is a higher priority. The policy follows Determined's priority scheduler, as its
newer documentation describes it and its resource manager computes it, with these differences:
victims that turn out unnecessary keep running, a task that must not start reserves nothing, and
nothing but the slots of a task's victims is kept from other tasks.

- Of equal priority, the earlier submission comes first; a requeued task keeps its position. A task
  that does not fit lets tasks of equal priority behind it pass.
- While a higher-priority task is pending for capacity or for its reserved slots, no lower-priority
  task starts. With `backfill`, lower-priority tasks may start if they can be preempted at once:
  they are preemptible and have no minimum run time. That needs `preemption`.
- A task that could never fit on the present nodes, or only on nodes that are cordoned or lost, lets
  lower priorities pass. With `impossible_block` it keeps them pending too, as in Determined.
- With `preemption`, a task that does not fit may preempt tasks of lower priority, the lowest
  priority first and the latest submission first; of its own priority only tasks of jobs submitted
  later, and only once they run: one that is starting was just let pass. It preempts only if it fits
  then, and the slots that it fits on are reserved for it. Tasks of any priority start on slots that
  are idle and not reserved.
- Tasks without GPUs and tasks with GPUs do not block each other. But a task with GPUs may preempt
  tasks without, for their CPUs and memory.

The planner asks, in this order: `order` by priority; `must_wait` (does a higher-priority task
wait?); for a task that does not fit, the preemption action, else `min_runtime_wait`.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.placement import any_placement
from yardmaster_core.scheduling.planner.policy import (
    Listing,
    Order,
    OrderKey,
    Policy,
    PoolView,
    Precedence,
    Preemption,
    PreemptionAction,
    QueueTraits,
    Rank,
    StartRules,
    StopReason,
)
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.policies.preemptible import PreemptibleIndex, has_ended, holders_of
from yardmaster_core.scheduling.state.blocked_equals import BlockedEquals
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.queue_class import PRIORITIES, QueueClass
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BEHIND, NO_CAPACITY
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.instants import LAST_MS
from yardmaster_schemas.reasons import Start, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """`preemption`: tasks may preempt running tasks of lower priority. `backfill`: tasks that can
    be preempted at once may start on capacity that a waiting higher-priority task cannot use.
    `impossible_block`: tasks that fit on no node, or only on cordoned or lost ones, keep tasks of
    lower priority pending.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    preemption: bool = True
    backfill: bool = True
    impossible_block: bool = False


def by_priority(_: PoolView, group: Group, task: Task) -> OrderKey:
    """Order by priority, the highest (smallest number) first, then by submission."""
    return group.priority, task.key


def precedence(_: PoolView, task: Task) -> Precedence:
    """Return the priority: slots reserved for a lower priority go to a higher one."""
    return None, (task.job.priority,)


def priority_first(traits: QueueTraits) -> Rank:
    """The highest priority first; tasks whose last starts failed last within their priority."""
    return traits.priority, traits.failed


def wait_behind_higher_priority(view: PoolView, group: Group, _: Task) -> Wait | None:
    """Return the wait reason of a group behind a higher-priority task that waits for capacity or
    for its reserved slots; None: it may start.

    A group that did not fit and does not fit now keeps that reason behind tasks with reserved
    slots: else each preemption would change the reasons of all lower priorities, and its end again.
    """
    shape, options = group.shape, view.options
    backfills = options.preemption and options.backfill and shape.preemptible
    if backfills and not group.min_runtimes:
        return None
    queue_classes = view.pool.queue_classes
    own_class = queue_classes[shape.queue_class]
    ahead, queue_class = own_class.highest_pending, own_class
    if backfills:
        # Tasks with GPUs may wait for tasks without GPUs, but not the other way round.
        for later in queue_classes[shape.queue_class + 1 :]:
            if later.protected and min(later.protected) < ahead:
                ahead, queue_class = min(later.protected), later
    if ahead >= group.priority:
        return None
    known = group.waits.get(view.pool.name)
    only_reserved = not own_class.mask & ((1 << group.priority) - 1)
    if only_reserved and queue_class is own_class and known and known[0].code in NO_CAPACITY:
        lack = _lack_of_capacity(view, shape)
        if lack is not None:
            return lack
    first = queue_class.first_pending(ahead)
    assert first is not None
    return Wait(
        code=WaitCode.BACKFILL_NOT_ALLOWED if options.preemption else WaitCode.BEHIND_TASK,
        numbers={"priority": group.priority, "priority_ahead": ahead},
        about=first.id,
    )


def _lack_of_capacity(view: PoolView, shape: Shape) -> Wait | None:
    """Return the wait reason of a shape that fits on no free capacity; None: it fits."""
    pool = view.pool
    assert pool.config is not None
    known: tuple[int, Wait | None] | None = view.memo.get(("lack", shape.fit))
    if known is None or known[0] != pool.free.changes:
        fits = any_placement(pool.free, shape, pool.config) is not None
        known = pool.free.changes, None if fits else no_capacity(pool, shape)
        view.memo["lack", shape.fit] = known
    return known[1]


def same_priority_and_kind(_: PoolView, group: Group) -> Hashable:
    """Return the priority and the group's properties on which `must_wait` depends: if one group of
    that key neither starts nor preempts, no later one does.
    """
    return _priority_and_kind(group)


def _priority_and_kind(group: Group) -> Hashable:
    return group.priority, group.shape.preemptible, group.min_runtimes > 0


def lowest_priority_first(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may preempt: lowest priority first, latest submission first.

    Of its own priority only tasks of jobs submitted later.
    """
    if _known_insufficient(view, task):
        return
    for_priority = task.job.priority
    classes = _victim_classes(view, task)
    for priority in sorted(holders_of(view), reverse=True):
        if priority < for_priority:
            break
        running = view.memo.get(("victims", priority))
        if running is None:
            running = holders_of(view)[priority].reverse_scan()
            view.memo["victims", priority] = running
        for victim in running:
            if priority == for_priority and not _submitted_later(victim, task):
                break
            if priority == for_priority and victim.phase is not Phase.RUNNING:
                continue
            if has_ended(victim):
                continue
            if (
                victim.job.shape.queue_class in classes
                and min_runtime_until_ms(view.state, victim) <= view.state.now_ms
            ):
                yield victim
    # All of them together do not suffice, and a later task may preempt no others.
    view.memo["insufficient", task.job.shape.fit_within_limits] = (
        for_priority,
        task.job.submitted_ms,
    )


def _victim_classes(view: PoolView, task: Task) -> tuple[int, ...]:
    """Return the queue classes of the tasks that `task` may preempt.

    A task with GPUs also preempts tasks without, for their CPUs and memory.
    """
    shape = task.job.shape
    if shape.cpu_milli or shape.memory_mib:
        return tuple(range(shape.queue_class + 1))
    return (shape.queue_class,)


def _known_insufficient(view: PoolView, task: Task) -> bool:
    """Whether an earlier search, or `could_fit_after_stops`, shows that no set of victims
    suffices.
    """
    shape = task.job.shape
    tried = view.memo.get(("insufficient", shape.fit_within_limits))
    if tried is not None and tried <= (task.job.priority, task.job.submitted_ms):
        return True
    return not could_fit_after_stops(view.pool, shape)


def _submitted_later(victim: Task, task: Task) -> bool:
    # Compared by job: tasks of one job, or of jobs submitted at the same time, do not preempt each
    # other.
    return victim.job.submitted_ms > task.job.submitted_ms


def min_runtime_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task whose victims are all within their minimum run time; `wait`
    if it has no victims.
    """
    if not view.options.preemption or not view.pool.has_min_runtimes:
        return wait
    own, victims, until_ms = task.job.priority, 0, LAST_MS
    for priority in holders_of(view):
        if priority < own:
            continue
        for queue_class in _victim_classes(view, task):
            protected = _protected(view, priority, queue_class)
            found = len(protected)
            if priority == own:
                # Only tasks of jobs submitted later.
                found = bisect_left(protected, -task.job.submitted_ms, key=_minus_submitted_ms)
            if found:
                victims += found
                until_ms = min(until_ms, protected[found - 1][1])
    if not victims:
        return wait
    numbers = {"victims": victims, "until_at_ms": until_ms}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def _protected(view: PoolView, priority: int, queue_class: int) -> list[tuple[int, int]]:
    """Return the tasks of a priority that are within their minimum run time, latest submission
    first: for each, its submission time and the earliest end of a minimum run time up to it (ms).

    The tasks are listed again only after a task started, stopped or got reserved slots.
    """
    changes = view.pool.future.changes
    key = ("protected", priority, queue_class)
    known: tuple[int, list[tuple[int, int]]] | None = view.memo.get(key)
    if known is None or known[0] != changes:
        found: list[tuple[int, int]] = []
        earliest_ms = LAST_MS
        for victim in holders_of(view)[priority].in_reverse():
            until_ms = min_runtime_until_ms(view.state, victim)
            if until_ms > view.state.now_ms and victim.job.shape.queue_class == queue_class:
                earliest_ms = min(earliest_ms, until_ms)
                found.append((victim.job.submitted_ms, earliest_ms))
        known = view.memo[key] = changes, found
    return known[1]


def _minus_submitted_ms(protected: tuple[int, int]) -> int:
    return -protected[0]


def stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task`."""
    job, pool = task.job, view.pool
    requested, held = pool.most_milli(job.shape), pool.held_milli(victim)
    return _stop(task.id, job.priority, requested, victim.job.priority, held)


@lru_cache(maxsize=256)
def _stop(task_id: str, for_priority: int, requested: int, priority: int, held: int) -> StopReason:
    return StopReason(
        rule="better_priority" if for_priority < priority else "earlier_submission",
        for_task=task_id,
        numbers={
            "priority": priority,
            "for_priority": for_priority,
            "held_milli": held,
            "asked_milli": requested,
        },
    )


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts."""
    queue_class = view.pool.queue_classes[task.job.shape.queue_class]
    backfilled = queue_class.highest_pending < task.job.priority
    rule = "backfill" if backfilled else "priority"
    return _start(rule, task.job.priority)


@lru_cache(maxsize=256)
def _start(rule: str, priority: int) -> Start:
    return Start(rule=rule, numbers={"priority": priority})


PREEMPT: Final = PreemptionAction(victims=lowest_priority_first, stop_reason=stop_reason)


def actions(options: PriorityOptions) -> tuple[PreemptionAction, ...]:
    """Return the ways in which a task may preempt others."""
    return (PREEMPT,) if options.preemption else ()


class PriorityIndex(PreemptibleIndex):
    """The preemptible tasks of a pool, and the groups behind others by the priority that is ahead
    of them, so that only those are woken for which no task of that priority is pending any more;
    and its groups that did not fit.
    """

    equals: BlockedEquals

    def __init__(self, pool: Pool, traits: Traits) -> None:
        super().__init__(pool, traits)
        self._pool = pool
        self._behind: dict[int, dict[Group, None]] = {}
        self._ahead_of: dict[Group, int] = {}
        #: The groups whose place in these two is looked up again when it is needed.
        self._stale: dict[Group, None] = {}
        self.equals = BlockedEquals(pool.name, _priority_and_kind, ())
        for group in pool.groups.values():
            self.wait_changed(group)

    def group_changed(self, group: Group, _: Job) -> None:
        self.equals.changed(group)

    def wait_changed(self, group: Group) -> None:
        self.equals.changed(group)
        if group.waits or group in self._ahead_of:
            self._stale[group] = None

    def _find_ahead(self, group: Group) -> None:
        ahead = self._ahead_of.pop(group, None)
        if ahead is not None:
            groups = self._behind[ahead]
            del groups[group]
            if not groups:
                del self._behind[ahead]
        record = group.waits.get(self._pool.name)
        if record is not None and group.queue.live and record[0].code in BEHIND:
            # A reason of another policy names no priority: the group is woken at once.
            ahead = record[0].numbers.get("priority_ahead", PRIORITIES)
            self._ahead_of[group] = ahead
            self._behind.setdefault(ahead, {})[group] = None

    def next_behind(self, queue_classes: Iterable[QueueClass]) -> Iterator[Group]:
        """Yield the groups behind a priority that has no pending task of their class."""
        for group in self._stale:
            self._find_ahead(group)
        self._stale.clear()
        pending = [each.mask | each.reserved_mask for each in queue_classes]
        for ahead in sorted(self._behind):
            if all(mask >> ahead & 1 for mask in pending):
                continue
            for group in self._behind[ahead]:
                if not pending[group.shape.queue_class] >> ahead & 1:
                    yield group


def priority_index(pool: Pool, options: PriorityOptions) -> PriorityIndex:
    """Return a new index of a pool with this policy."""
    preempts = options.preemption
    traits = Traits(
        preempts=preempts,
        preempts_equals=preempts,
        impossible_block=options.impossible_block,
    )
    return PriorityIndex(pool, traits)


PRIORITY: Final = Policy(
    name="priority",
    version=1,
    options=PriorityOptions,
    order=Order(key=by_priority, equivalence=same_priority_and_kind),
    start=StartRules(must_wait=wait_behind_higher_priority, reason=start_reason),
    preemption=Preemption(actions=actions, no_victims_wait=min_runtime_wait, precedence=precedence),
    listing=Listing(place=priority_first),
    index=priority_index,
)
