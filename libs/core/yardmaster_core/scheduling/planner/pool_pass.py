"""Plan a pool in a cycle: which tasks start, which tasks are preempted for them, and why the others
stay pending.

The planner is the same for every policy; a policy supplies functions that the planner calls
(`policy.py`). Groups are considered in the policy's order, each by its first task. After a task was
placed, or got reserved slots, its group is queued again with its next task. After a group got a
wait reason, it is done for this cycle, because its tasks are equal. So the cost of a cycle depends
on the groups that were woken and the tasks that start, not on the number of pending tasks.

If a task does not fit now, but will fit once stopping tasks are gone, it gets these slots reserved.
Each cycle first starts the tasks whose reserved slots are free. The other tasks start on capacity
that is idle and not reserved. If a task with reserved slots starts there, its reservation is
dropped. A task that does not fit takes over the reserved slots of tasks behind it, before tasks
are preempted for it (`later_owners.py`). Where it may do so in this cycle, tasks behind it that
could not be preempted at once start on such slots last.

Among groups of the same tier, every task that fits, or gets slots that are being released, is
served before any task is preempted for the others. So no task is preempted for capacity that a task
of the same tier then takes.

It is one file because `PoolPass` is one algorithm over one set of caches.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from enum import Enum, auto
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Final

from yardmaster_core.scheduling.planner.budgeted_search import BudgetedSearch
from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.group_queue import GroupQueue
from yardmaster_core.scheduling.planner.later_owners import LaterOwners, OwnersBehind
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.moving_search import MovingSearch, Preemption
from yardmaster_core.scheduling.planner.placement import ReplicaSlots, place
from yardmaster_core.scheduling.planner.placement_search import PlacementSearch
from yardmaster_core.scheduling.planner.policy import (
    AtLimit,
    Candidate,
    PoolView,
    PreemptionAction,
    StopReason,
)
from yardmaster_core.scheduling.planner.pool_decisions import PoolDecisions
from yardmaster_core.scheduling.planner.pool_preference import PoolPreference
from yardmaster_core.scheduling.planner.resolved_config import ResolvedConfig
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.events.decisions import MAX_RANKED, ClaimantRank, ClaimantsRankedV1
from yardmaster_schemas.events.requests import PoolOrder
from yardmaster_schemas.reasons import NUMBERS, Wait, WaitCode

#: The rule of a stop after which the task starts on other slots, which are reserved for it.
MOVED: Final = "moved"


class GroupResult(Enum):
    """The result for a task, and so for its group."""

    #: It was placed: consider the group's next task.
    STARTED = auto()
    #: Slots are reserved for it: consider the group's next task, unless the policy is strict.
    RESERVED = auto()
    #: It has reserved slots, and fits on no others: consider the tasks without.
    KEPT = auto()
    #: It does not fit now: consider it again, with the next action.
    NO_CAPACITY = auto()
    #: It waits behind a task that has a turn to come: the queue considers it after that.
    HELD = auto()
    #: Its wait reason is recorded, and holds for all tasks of the group.
    WAITS = auto()


#: Results after which the next task of the group is considered. In a strict queue no task passes
#: one that waits for its victims.
_CONTINUE_STRICT: Final = frozenset({GroupResult.STARTED})
_CONTINUE: Final = frozenset({GroupResult.STARTED, GroupResult.RESERVED})


def _waits_for_no_pool(_: Group) -> bool:
    return False


class PoolPass:
    """The part of a cycle that plans one pool."""

    def __init__(
        self, draft: Draft, pool: Pool, resolved: ResolvedConfig, preference: PoolPreference
    ) -> None:
        self.draft = draft
        self.pool = pool
        self.policy = resolved.policy
        self.strategy = resolved.strategy
        self.preference = preference
        self.strict_order = resolved.config.pool_order is PoolOrder.STRICT
        self.offers_groups = resolved.policy.wake.offer is not None
        self.view = PoolView(draft.state, pool, resolved.options)
        self.placements = PlacementSearch(
            self.view, resolved.strategy, resolved.policy.start.exceeds
        )
        self.decisions = PoolDecisions(draft, self.view, self.policy, resolved.fence_s)
        self._must_wait = self.policy.start.must_wait
        self._starts_on_idle = self.policy.start.on_idle(resolved.options)
        self._groups_behind = self.policy.wake.behind
        self.actions = self.policy.preemption.actions(resolved.options)
        self._at_limit = self.policy.preemption.at_limit(resolved.options)
        turns = max(2, 1 + len(self.actions))
        self.queue = GroupQueue(self.view, self.policy, turns=turns, fits=self._fits_now)
        self.later_owners = LaterOwners(self.view, self.policy)
        self._begun = False
        #: Tasks that start on their reserved slots once the other tasks were considered.
        self._deferred: set[Task] = set()
        #: Groups that were left to a pool that they prefer less, because it could start a task.
        self._left_to_later: dict[Group, None] = {}
        #: The node of the last placement in the current group, if the next task may go there too.
        self._capacity: NodeCapacity | None = None

    # Most passes search no victims, so the searches are made on first use.

    @cached_property
    def victim_search(self) -> MovingSearch:
        """The search by the policy's order of victims."""
        return MovingSearch(self.draft, self.pool, self.strategy, self.placements.shape_of)

    @cached_property
    def budgeted_search(self) -> BudgetedSearch:
        """The search within a budget."""
        return BudgetedSearch(self.draft, self.pool, self.strategy, self.placements.shape_of)

    def start_ready(self) -> None:
        """Start the tasks whose reserved slots are free, on exactly these slots.

        Those that could not be preempted at once, and whose slots an earlier task may take over,
        are deferred: else the earlier one would have to wait for their end.
        """
        if any(map(_is_protected, self.pool.ready)):
            self._deferred = set(filter(_is_protected, self._behind_claimants()))
        for task in self._ready():
            if task not in self._deferred:
                self.decisions.start_reserved(task)

    def start_deferred(self) -> bool:
        """Start the deferred tasks whose slots no earlier task took over; return whether there are
        any.
        """
        if not self._deferred:
            return False
        deferred, self._deferred = self._deferred, set()
        started = False
        for task in self._ready():
            if task in deferred:
                self.decisions.start_reserved(task)
                started = True
        return started

    def _ready(self) -> Iterator[Task]:
        """Yield the tasks whose reserved slots are free, in order; they may start meanwhile."""
        for task in sorted(self.pool.ready):
            # A task that is moved may still hold its former slots.
            if task.group is not None and not self._must_wait_at_limit(task):
                yield task

    def _behind_claimants(self) -> set[Task]:
        """Return the tasks with reserved slots that come behind one which may take over some of
        them in this cycle: at once, or when others have taken the capacity that it fits on now.
        """
        behind: set[Task] = set()
        covered: set[tuple[Hashable, int]] = set()
        for scope, group in self.later_owners.by_place(self.queue.awake()):
            queue_class = group.shape.queue_class
            if (scope, queue_class) in covered:
                continue
            if owners := self._owners_to_pass(group, fitting=True):
                behind.update(owners)
                covered.update((scope, each) for each in range(queue_class + 1))
        return behind

    def _owners_to_pass(self, group: Group, *, fitting: bool = False) -> OwnersBehind | None:
        """Return the tasks behind a group if it takes over reserved slots of some of them, or with
        `fitting` if it needs none yet; else None.
        """
        task = group.queue.first
        owners = self.later_owners.of(task)
        if not owners or group.shape.start_failed or not self._may_start(group):
            return None
        if self.placements.find(self.pool.future, task) is not None:
            return owners if fitting else None
        return owners if self._needed_of(task, owners) else None

    def _may_start(self, group: Group) -> bool:
        """Whether no limit and no rule of the policy keeps a group from starting."""
        task = group.queue.first
        return (
            limit_reached(self.draft.state, self.pool, task) is None
            and self._must_wait(self.view, group, task) is None
        )

    def _must_wait_at_limit(self, task: Task) -> bool:
        """Whether a task must wait until the tasks that were preempted for it at a limit are gone,
        although its reserved slots are free.
        """
        if self._at_limit is None:
            return False
        # A reservation beyond a limit that was lowered is dropped.
        limited = limit_reached(self.draft.state, self.pool, task) is not None
        return limited or self._at_limit.waits(self.view, task)

    def record_ranks(self) -> None:
        """Record the places in the queue that changed; only policies with claimants have places."""
        listing = self.policy.listing
        among = listing.claimants(self.view.options)
        if among is None:
            return
        changed = [
            ClaimantRank(claimant=claimant, rank=rank)
            for claimant, rank in listing.ranks(self.view)
        ]
        changed.sort(key=attrgetter("rank", "claimant"))
        for at in range(0, len(changed), MAX_RANKED):
            some = tuple(changed[at : at + MAX_RANKED])
            event = ClaimantsRankedV1(pool=self.pool.name, among=among, ranks=some)
            self.draft.record(event, self.pool.name, None)

    def run(self) -> bool:
        """Consider queued groups in order until one must wait for a pool that it prefers.

        Returns whether any group was considered.
        """
        if not self._begun:
            self._begun = True
            pool = self.pool
            index = pool.index
            if index.due or index.traits.follows_pools or pool.awake or pool.reconsidered:
                self._reclaim()
            if not self._recheck() and pool.equals_woken:
                # Not where another policy was configured meanwhile: that woke all groups.
                self.queue.add_equals()
            pool.woken.clear()
            self.queue.add(chain(pool.awake, pool.reconsidered))
        else:
            self._queue_woken()
        considered = False

        def must_wait(group: Group) -> bool:
            return self.preference.is_undecided(group, self.pool.name)

        while (candidate := self.queue.pop(must_wait)) is not None:
            group, task, rest, turn = candidate
            considered = True
            if len(group.shape.pools) > 1 and self._is_sent_to_preferred(group, task, turn):
                # Now it is undecided there, so that the groups behind it do not pass it here.
                self.queue.push(group, task, rest, turn)
                continue
            if turn and self.offers_groups and self._fits_since(task):
                # In the order of the first turn, before tasks behind it get the same slots.
                self.queue.push(group, task, rest, 0)
                continue
            self._consider_group(group, task, rest, turn)
            self._queue_woken()
        if not self.queue and self._recheck():
            self._queue_woken()
            considered = True
        return considered

    def consider_first(self, may_decide: "Callable[[PoolPass, Task, int], bool]") -> bool:
        """Consider the first group without the results of the pools that it prefers, if
        `may_decide` accepts its task and turn. Returns whether it was considered.

        The groups behind it do not pass it: they might start on capacity that it waits for, and
        could not be preempted for it in this cycle.
        """
        candidate = self.queue.pop(_waits_for_no_pool)
        if candidate is None:
            return False
        group, task, rest, turn = candidate
        if not may_decide(self, task, turn):
            self.queue.push(group, task, rest, turn)
            return False
        self._consider_group(group, task, rest, turn)
        self._queue_woken()
        return True

    def take_back(self) -> bool:
        """Queue the groups that were left to a later pool and do not all start there; return
        whether there are any.
        """
        if not self._left_to_later:
            return False
        left, self._left_to_later = self._left_to_later, {}
        again = [
            group
            for group in left
            if group.queue.live
            and not self.preference.starts_in_later(group.queue.first, self.pool.name)
        ]
        self.queue.requeue(again)
        return bool(again)

    def is_alone_in_starting(self, task: Task, turn: int) -> bool:
        """Whether no pool that the task prefers can start it at once, or is used in strict order.

        Only for its first turn, as `may_start_unpreferred`: later ones preempt.
        """
        preference, name = self.preference, self.pool.name
        return not (
            turn
            or preference.is_strict_before(task, name)
            or preference.starts_in_preferred(task, name)
        )

    def may_start_unpreferred(self, task: Task, turn: int) -> bool:
        """Whether the task can start here at once, and no pool that it prefers is used in strict
        order.
        """
        if turn or self.preference.is_strict_before(task, self.pool.name):
            return False
        return self.can_start(task)

    def decides_anyway(self, _: Task, __: int) -> bool:
        """Return True: the order of tasks comes before the preference between pools."""
        return True

    def _is_sent_to_preferred(self, group: Group, task: Task, turn: int) -> bool:
        """Whether a pool that the task prefers can start it at once, although nothing woke the
        group there; then that pool considers it.
        """
        if turn or self.pool.name == group.shape.pools[0]:
            return False
        return self.preference.consider_in_preferred(group, task, self.pool.name)

    def consider_again(self, group: Group) -> None:
        """Consider the group in this pool, even if it has a result."""
        self.pool.reconsider(group)
        # At once, so that the group counts as undecided here.
        self.queue.requeue((group,))

    def will_consider(self, group: Group) -> bool:
        """Whether the group is awake in this pool and has no result yet."""
        pool = self.pool
        awake = group in pool.awake or group in pool.reconsidered
        # Without pending tasks there is nothing to consider, and so no result.
        return awake and group.pending > 0 and group not in self.queue.done

    def _recheck(self) -> bool:
        """Reconsider all groups that wait for capacity, or for a limit of owners that began to
        release slots, if that is due; where the policy finds the groups that fit, those that take
        over slots reserved for a task behind them.

        Returns whether it was due.
        """
        if not self.draft.take_recheck(self.pool):
            return False
        wake_index = self.draft.state.wake_index
        equals = self.pool.index.equals
        if self.pool.index.traits.finds_fitting_groups:
            self.queue.offer_again()
            self._reconsider_ahead()
        else:
            self.queue.add_equals()
            blocked = wake_index.blocked(self.pool) if equals is None else equals.others
            for group in chain(blocked, self.pool.reserved_groups):
                self.pool.reconsider(group)
        for pool, group in wake_index.limited_by_freeing():
            pool.reconsider(group)
        return True

    def _reclaim(self) -> None:
        """Preempt tasks of claimants above their share; reconsider groups whose claimant may get
        more.
        """
        for victim, stop in self.policy.preemption.reclaim(self.view):
            self.decisions.stop(victim, stop)
        for group in self.policy.wake.groups(self.view):
            self.pool.reconsider(group)
        if not self.pool.recheck:
            self._reconsider_ahead()

    def _reconsider_ahead(self) -> None:
        """Reconsider the groups that take over slots reserved for a task behind them."""
        for group in self.policy.wake.ahead(self.view, self._may_start):
            if self._owners_to_pass(group):
                self.pool.reconsider(group)

    def recheck_limits(self, projects: Iterable[Project]) -> None:
        """Reconsider groups that keep others pending but have reached a limit since other tasks of
        their owner, in one of `projects`, started; such a group must not block others.

        These are groups that wait for capacity, and in queues those with minimum run times that
        wait behind a task of another queue.
        """
        under_limits = self.policy.wake.under_limits
        if under_limits is not None:
            for group in under_limits(self.view, projects):
                if limit_reached(self.draft.state, self.pool, group.queue.first) is not None:
                    self.pool.reconsider(group)
            return
        in_queues = self.pool.index.traits.behind_one
        for queue_class in self.pool.queue_classes:
            blocking = [*chain.from_iterable(queue_class.blocked.values())]
            if in_queues:
                blocking += [group for group in queue_class.behind if group.min_runtimes]
            for group in blocking:
                if limit_reached(self.draft.state, self.pool, group.queue.first) is not None:
                    self.pool.reconsider(group)

    def _consider_group(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Consider the group's tasks while the group is first in the queue."""
        self._capacity = None
        pool = self.pool
        continue_on = _CONTINUE_STRICT if pool.index.traits.strict else _CONTINUE
        while True:
            result = self._consider((group, task, rest, turn))
            if result is GroupResult.HELD:
                return
            if result is GroupResult.KEPT:
                # The other tasks with reserved slots are equal.
                rest = group.queue.in_order()
            elif result not in continue_on:
                break
            else:
                self.queue.requeue_followers(group)
                if self._groups_behind is not None:
                    for behind in self._groups_behind(self.view, task):
                        self.pool.reconsider(behind)
            offers_rest = turn > 0 and self._offers_rest(turn, result)
            if offers_rest:
                # Also to those that did not fit before in this cycle.
                self.queue.offer_again()
                turn = 0
            following = next(rest, None)
            if following is None:
                self.queue.remove(group)
                return
            task = following
            if offers_rest or pool.woken or not self.queue.comes_first(group, task, turn):
                self.queue.push(group, task, rest, turn)
                return
        if result is GroupResult.NO_CAPACITY:
            following_turn = self._next_turn(task, turn)
            if following_turn is not None:
                self.queue.push(group, task, rest, following_turn)
                return
            self._wait_for_capacity(group, task)
        if result is GroupResult.RESERVED:
            # In a strict queue. The recorded reason, also that of its equals, is no result.
            self.queue.requeue_followers(group)
        self.queue.finish(group)

    def _offers_rest(self, turn: int, result: GroupResult) -> bool:
        """Whether a task got slots that may be a part of what was released for it: by an action
        that moves victims, or at once, as it took over reserved slots. The rest is offered to all
        groups in the order of their first turn, and to the group of the task too.
        """
        if result is GroupResult.STARTED:
            return True
        if result is not GroupResult.RESERVED or turn > len(self.actions):
            return False
        return self.actions[turn - 1].permits is not None

    def _next_turn(self, task: Task, turn: int) -> int | None:
        """Return the next turn in which a task may get slots, or None.

        Without an action that applies, it may still take over reserved slots.
        """
        if not self.actions:
            return 1
        applying = (
            at
            for at, action in enumerate(self.actions, 1)
            if at > turn and action.applies(self.view, task)
        )
        following = next(applying, None)
        if following is None and not turn and self.later_owners.of(task):
            return 1
        return following

    def _queue_woken(self) -> None:
        woken = self.pool.woken
        if woken:
            self.queue.requeue(woken)
            woken.clear()

    def _consider(self, candidate: Candidate) -> GroupResult:
        group, task, _, turn = candidate
        wait = limit_reached(self.draft.state, self.pool, task) or self._must_wait(
            self.view, group, task
        )
        if task.reserved is not None:
            kept = (
                wait is not None
                or task in self._deferred
                or self.preference.must_keep_reservation(task, self.pool.name)
            )
            placement = None if kept else self.placements.find(self.pool.free, task)
            if placement is None:
                return GroupResult.KEPT
            self.decisions.start_elsewhere(task, placement)
            return GroupResult.STARTED
        if wait is not None:
            if wait.code is WaitCode.AT_LIMIT and self._at_limit is not None:
                if self._preempt_at_limit(self._at_limit, task):
                    return GroupResult.RESERVED
                wait = self._at_limit.wait(self.view, task, wait)
            if self._is_held(candidate, wait):
                return GroupResult.HELD
            self.decisions.wait(group, task, wait)
            return GroupResult.WAITS
        if turn:
            return self._preempt_or_wait(group, task, turn)
        if not self._starts_on_idle:
            return GroupResult.NO_CAPACITY
        capacity = self._capacity
        if capacity is not None and not task.failed_nodes:
            shape = self.placements.shape_of(task)
            if capacity.holds(shape):
                self.decisions.start(task, [(capacity, capacity.pick(shape))])
                return GroupResult.STARTED
        placement = self.placements.find(self.pool.free, task)
        if placement is None:
            if self.preference.starts_in_later(task, self.pool.name):
                self._left_to_later[group] = None
                self.decisions.wait(group, task, self.placements.wait(task))
                return GroupResult.WAITS
            reserved = self._reserve_released(task)
            return GroupResult.RESERVED if reserved else GroupResult.NO_CAPACITY
        self.decisions.start(task, placement)
        self._capacity = placement[0][0] if self.strategy.sticky and len(placement) == 1 else None
        return GroupResult.STARTED

    def _is_held(self, candidate: Candidate, wait: Wait) -> bool:
        """Whether a task waits behind another one that has a turn to come in this cycle: then it is
        considered after that turn, and the tasks behind it after it.
        """
        if wait.code is not WaitCode.BEHIND_TASK or wait.about is None or candidate[-1]:
            return False
        ahead = self.draft.state.task(wait.about).group
        return ahead is not None and self.queue.hold(candidate, ahead)

    def can_start(self, task: Task) -> bool:
        """Whether the task can start in this pool at once."""
        group = task.group
        assert group is not None
        return (
            self._starts_on_idle
            and not self.preference.must_keep_reservation(task, self.pool.name)
            and limit_reached(self.draft.state, self.pool, task) is None
            and self._must_wait(self.view, group, task) is None
            and self.placements.find(self.pool.free, task) is not None
        )

    def _fits_since(self, task: Task) -> bool:
        """Whether a task that waits for a turn to preempt others needs none: others left it slots
        since its first turn, for instance those of a reservation that was reclaimed.
        """
        if not self._starts_on_idle or task.shape.start_failed:
            return False
        if self.placements.find(self.pool.free, task) is not None:
            return True
        return bool(self.pool.stopping) and (
            self.placements.find(self.pool.future, task) is not None
        )

    def _preempt_or_wait(self, group: Group, task: Task, turn: int) -> GroupResult:
        """Reserve slots that other tasks release, else preempt tasks by the action of this turn,
        else record why the task waits.

        A task whose last starts failed starts on free capacity only: it preempts no task, and gets
        no slots of a task that was preempted for another one.
        """
        shape = group.shape
        if shape.start_failed:
            self.decisions.wait(group, task, self.placements.wait(task))
            return GroupResult.WAITS
        action = self.actions[turn - 1] if turn <= len(self.actions) else None
        # What other victims of this action release is offered in the order of the first turn
        # (`_offers_rest`).
        if (action is None or action.permits is None) and self._reserve_released(task):
            return GroupResult.RESERVED
        if action is not None and not action.applies(self.view, task):
            action = None
        owners = self.later_owners.of(task)
        if owners and (taken := self._take_over(task, owners)):
            return taken
        if action is not None:
            if action.permits is not None:
                found = self.victim_search.preemption(
                    self.view,
                    task,
                    action,
                    self._candidates(task, action),
                    self.placements.seed_key(task),
                )
                if found is not None:
                    self._move_for(task, found, action)
                    return GroupResult.RESERVED
            elif victims := self._victims(task, action, owners):
                self._preempt_for(task, victims, action.stop_reason)
                return GroupResult.RESERVED
        if turn < len(self.actions):
            return GroupResult.NO_CAPACITY
        self._wait_for_capacity(group, task)
        return GroupResult.WAITS

    def _left_out(self, victim: Task) -> bool:
        """Whether a task must not be preempted in this cycle.

        A task that starts on its reserved slots was just let pass, also by higher priorities.
        """
        return victim in self.decisions.placed or victim.starts_past_others

    def _candidates(self, task: Task, rules: PreemptionAction | AtLimit) -> Iterator[Task]:
        """Yield the running tasks that may be preempted for a task."""
        return (v for v in rules.victims(self.view, task) if not self._left_out(v))

    def _victims(self, task: Task, action: PreemptionAction, owners: OwnersBehind) -> list[Task]:
        """Return those of `owners`, of reserved slots, and of the candidates without which the task
        fits; empty: there are none.
        """
        if action.budget is not None:
            victims = partial(action.victims, self.view, task)
            rules = partial(action.budget, self.view)
            return self.budgeted_search.within(task, victims, rules, self._left_out)
        candidates = self._candidates(task, action)
        some = chain(owners, candidates) if action.drop_unneeded else candidates
        return self.victim_search.for_task(task, some, drop_unneeded=action.drop_unneeded)

    def _wait_for_capacity(self, group: Group, task: Task) -> None:
        """Record that a task did not fit and found no victims."""
        wait = self.placements.wait(task)
        if wait.code in NO_CAPACITY:
            # Else not even the end of all victims would help.
            wait = self.policy.preemption.no_victims_wait(self.view, task, wait)
        tries = self.victim_search.tries[task]
        if tries and "tries" in NUMBERS[wait.code]:
            wait = replace(wait, numbers={**wait.numbers, "tries": tries})
        self.decisions.wait(group, task, wait)

    def _fits_now(self, group: Group) -> bool:
        """Whether the group's next task fits on slots that are free or are being released."""
        if not self._starts_on_idle:
            return False
        if self.placements.holds(self.pool.free, group.shape):
            return True
        return (
            bool(self.pool.stopping)
            and bool(group.queue.live)
            and not group.shape.start_failed
            and self.placements.holds(self.pool.future, group.shape)
        )

    def _reserve_released(self, task: Task) -> bool:
        """Reserve slots that stopping tasks will release, if the task fits on them; return whether
        it does. Not for a task whose last starts failed: it starts on free capacity only.
        """
        if not self.pool.stopping or task.shape.start_failed:
            return False
        placement = self.placements.find(self.pool.future, task)
        if placement is None:
            return False
        self._reserve(task, placement)
        return True

    def _take_over(self, task: Task, owners: OwnersBehind) -> GroupResult | None:
        """Give the task slots that are reserved for some of `owners`; None: it does not fit there.

        The task starts if all these slots are free; else they are reserved for it.
        """
        needed = self._needed_of(task, owners)
        if not needed:
            return None
        self.draft.require(len(needed) + 1)
        for owner in needed:
            self.decisions.displace(owner, task)
        placement = self.placements.find(self.pool.free, task) if self._starts_on_idle else None
        if placement is not None:
            self.decisions.start(task, placement)
            return GroupResult.STARTED
        self._reserve_for(task)
        return GroupResult.RESERVED

    def _needed_of(self, task: Task, owners: OwnersBehind) -> list[Task]:
        """Return those of `owners` whose reserved slots the task needs; empty: it does not fit
        there, or must not take them over.
        """
        if not owners or self.later_owners.known_insufficient(task, owners):
            return []
        needed = self.victim_search.for_task(task, owners)
        if not needed:
            self.later_owners.note_insufficient(task, owners)
            return []
        return needed if self.policy.preemption.takes_over(self.view, task, needed) else []

    def _preempt_for(
        self,
        task: Task,
        victims: list[Task],
        stop_reason: Callable[[PoolView, Task, Task], StopReason],
    ) -> None:
        """Preempt the victims for the task, and reserve the slots that it then fits on.

        Those of `victims` that have reserved slots lose them.
        """
        self.draft.require(len(victims) + 1)
        stopped = 0
        for victim in victims:
            if victim.reserved is not None:
                self.decisions.displace(victim, task)
                continue
            self.decisions.stop(victim, stop_reason(self.view, victim, task))
            stopped += 1
        self._reserve_for(task, stopped)

    def _reserve_for(self, task: Task, victims: int = 0) -> None:
        """Reserve slots for the task, which fits once the tasks that stop are gone."""
        shape = self.placements.shape_of(task)
        placement = place(self.pool.future, shape, self.strategy, self.placements.seed_key(task))
        assert placement is not None, "the task does not fit without its victims"
        self._reserve(task, placement, victims)

    def _reserve(self, task: Task, placement: list[ReplicaSlots], victims: int = 0) -> None:
        self.decisions.reserve(task, placement, victims)
        self.later_owners.add(task)

    def _preempt_at_limit(self, rules: AtLimit, task: Task) -> bool:
        """Preempt tasks of the project with which the task would exceed a limit. Reserve slots for
        it, on which it starts once they, and the tasks that stop already, are gone; return whether
        it then fits.
        """
        if task.shape.start_failed or self.preference.starts_in_later(task, self.pool.name):
            return False
        state, pool, view = self.draft.state, self.pool, self.view

        def hold(victims: list[Task]) -> bool:
            victims_milli = sum(map(pool.unreleased_milli, victims))

            def freed(department: str | None) -> int:
                return victims_milli + pool.index.freed_in_time_milli(state, task.job, department)

            limited = limit_reached(state, pool, task, freed=freed)
            return limited is None and rules.hold_without(view, task, victims)

        victims = self.victim_search.under_limit(task, self._candidates(task, rules), hold)
        if victims is None or not rules.permits(view, task, victims):
            return False
        self._preempt_for(task, victims, rules.stop_reason)
        return True

    def _move_for(self, task: Task, found: Preemption, action: PreemptionAction) -> None:
        """Preempt the victims for the task, and reserve slots for it and for those that move."""
        self.draft.require(len(found.victims) + len(found.moved) + 1)
        # What a moved victim holds stays with its owner, so it must not count as gone in the
        # numbers of the others.
        moves = {
            victim: replace(action.stop_reason(self.view, victim, task), rule=MOVED)
            for victim in found.victims
            if victim in found.moved
        }
        owners = [victim for victim in found.victims if victim.run is None]
        for owner in owners:
            self.decisions.displace(owner, task, action.stop_reason(self.view, owner, task))
        for victim in found.victims:
            if victim.run is not None and victim not in moves:
                self.decisions.stop(victim, action.stop_reason(self.view, victim, task))
        for victim, reason in moves.items():
            self.decisions.stop(victim, reason)
        self._reserve(task, found.placement, len(found.victims) - len(owners))
        for victim, placement in found.moved.items():
            self._reserve(victim, placement)


def _is_protected(task: Task) -> bool:
    """Whether a task cannot be preempted as soon as it runs."""
    spec = task.job.spec
    return not spec.preemptible or spec.min_runtime_s > 0
