"""The queue of groups to consider in one pool in one cycle.

Groups come in the policy's order, each with its first task. A group has a turn to start and one
for each of the policy's preemption actions, at least two in all: in the second it may get slots
that are being released. All groups of one tier (the first element of the policy's sort key) have
one turn before any has the next. Tasks whose last starts failed come after all turns of the others.

Groups that the policy calls equivalent and that wait for the same capacity are queued behind the
first of them (the leader). If the leader does not fit, the followers keep their recorded wait
reason. Likewise groups of one project and scope that request the same amount and wait for the same
limit; where tasks preempt others at a limit, only equivalent groups with equal requests, because
the leader may need capacity, or CPUs under the limit, that its followers do not.

Where the pool's index keeps the equal groups that did not fit (`BlockedEquals`), only their leaders
are queued, and a leader that gets slots is followed by the next group of its class.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from yardmaster_core.scheduling.planner.policy import (
    Candidate,
    CandidateOrder,
    OrderKey,
    Policy,
    PoolView,
)
from yardmaster_core.scheduling.state.blocked_equals import BlockedEquals, EqualsKey
from yardmaster_core.scheduling.state.ordered_tasks import QueueKey
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import LIMITED, NO_CAPACITY
from yardmaster_schemas.reasons import WaitCode

#: The first element of the policy's sort key (the tier), the turn (0: start), the rest of that key.
SortKey = tuple[Any, ...]
Entry = tuple[SortKey, int, Candidate]
Follower = tuple[SortKey, int, Group]


class GroupQueue:
    """The groups to consider in one pool, in order."""

    def __init__(
        self, view: PoolView, policy: Policy, *, turns: int, fits: Callable[[Group], bool]
    ) -> None:
        self._view = view
        self._equivalence = policy.order.equivalence
        self._preempts_at_limit = policy.preemption.at_limit(view.options) is not None
        self._offer = policy.wake.offer
        ordered = policy.order.candidates
        self._candidates: CandidateOrder = (
            SortedCandidates(view, policy.order.key, turns)
            if ordered is None
            else ordered(view, turns)
        )
        #: Whether no queued group comes before a group's task.
        self.comes_first = self._candidates.comes_first
        self._queued: set[Group] = set()
        #: Leader -> its followers.
        self._followers: dict[Group, list[Follower]] = {}
        self._equals = view.pool.index.equals
        #: The leaders of classes of the index, with their class.
        self._leaders: dict[Group, EqualsKey] = {}
        #: By class: the key of its leader. The groups of the class after it count as queued.
        self._reached: dict[EqualsKey, QueueKey] = {}
        #: Groups that got a wait reason in this cycle.
        self.done: set[Group] = set()
        #: By group, the candidates that are held until it has had its turns; the groups that were
        #: held in this cycle, their scopes, and the scopes of those that they were held for.
        self._held: dict[Group, list[Candidate]] = {}
        self._were_held: set[Group] = set()
        self._scopes_held: set[Hashable] = set()
        self._scopes_ahead: set[Hashable] = set()
        #: Groups that are not queued any more; they are not offered again.
        self._left: set[Group] = set()
        self._fits = fits

    def __bool__(self) -> bool:
        """Whether any group is left to consider."""
        return bool(self._candidates)

    def add(self, groups: Iterable[Group]) -> None:
        """Queue groups that are neither queued nor done."""
        equivalent: dict[Hashable, list[Follower]] = {}
        for group in groups:
            if group in self._queued or group in self.done or not group.pending:
                continue
            if self._equals is not None and self._reached and self._follows(self._equals, group):
                continue
            self._queued.add(group)
            equivalence = self._equivalence_of(group)
            if equivalence is None:
                self.push_next(group, _tasks_of(group))
                continue
            task = group.queue.first
            equivalent.setdefault(equivalence, []).append(
                (self._candidates.place(group, task), id_order(task), group)
            )
        for followers in equivalent.values():
            heapify(followers)
            self._push_leader(followers)

    def awake(self) -> Iterator[Group]:
        """Yield the groups that a cycle begins to consider, of equal ones the first."""
        pool = self._view.pool
        if self._equals is not None and pool.equals_woken:
            self._equals.refresh()
            for key in self._equals.classes():
                entry = self._equals.next_of(key, None)
                if entry is not None and entry[1].queue.live:
                    yield entry[1]
        for group in pool.awake:
            if group.queue.live:
                yield group

    def add_equals(self) -> None:
        """Queue the first group of each class of equal groups that did not fit, if the pool's index
        keeps these classes.
        """
        equals = self._equals
        if equals is None:
            return
        equals.refresh()
        self._leaders.clear()
        self._reached.clear()
        for key in equals.classes():
            self._lead(key, None)

    def _lead(self, key: EqualsKey, after: QueueKey | None) -> None:
        """Queue the first group of a class, or the first one after the key `after`."""
        assert self._equals is not None
        while (entry := self._equals.next_of(key, after)) is not None:
            after, group = entry
            if group not in self._queued and group.pending:
                self._queued.add(group)
                self._leaders[group] = key
                self._reached[key] = after
                self.push_next(group, _tasks_of(group))
                return
        self._reached.pop(key, None)

    def _follows(self, equals: BlockedEquals, group: Group) -> bool:
        """Whether a group counts as queued behind the leader of its class."""
        placed = equals.place_of(group)
        if placed is None:
            return False
        reached = self._reached.get(placed[0])
        return reached is not None and reached < placed[1]

    def requeue(self, groups: Iterable[Group]) -> None:
        """Queue groups, even if they are done."""
        again = list(groups)
        self.done.difference_update(again)
        self.add(again)

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        """Return the next candidate, or None: the queue is empty, or the next group must wait."""
        if self._offer is not None:
            self._queue_offered()
        while (candidate := self._candidates.pop(must_wait)) is not None:
            group, task, rest, turn = candidate
            if task.group is not group:
                self.push_next(group, rest)
            elif turn or self._offer is None or not self._queue_offered(before=task):
                return candidate
            else:
                self.push(*candidate)
        return None

    def _queue_offered(self, before: Task | None = None) -> bool:
        """Queue the next group that fits now although no event woke it; with `before`, only one
        that comes before this task and has the same claimant. Return whether one was added.

        The first such group of all may belong to another claimant, so that it does not keep the
        task from passing those of its own.
        """
        assert self._offer is not None
        offered = self._offer(self._view, self._fits, self._left, before)
        if offered is None or offered in self._queued:
            return False
        self.requeue((offered,))
        return offered in self._queued

    def offer_again(self) -> None:
        """Let the policy offer again groups that this cycle has considered."""
        # Not the same set: the policy remembers which groups it passed over.
        self._left = set()

    def push(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Queue a group's task for its turn `turn`."""
        self._candidates.push((group, task, rest, turn))

    def push_next(self, group: Group, rest: Iterator[Task]) -> None:
        """Queue the group's next task, if there is one; else let its followers be considered."""
        task = next(rest, None)
        if task is None:
            self.remove(group)
            self.requeue_followers(group)
        else:
            self.push(group, task, rest, 0)

    def hold(self, candidate: Candidate, ahead: Group) -> bool:
        """Hold a candidate, and those behind it, until a group that is queued has had its turns;
        return False if it is not held.

        It is held at most once, for a group of another scope. No group of a scope for which others
        were held is held itself: so no groups wait for each other.
        """
        group = candidate[0]
        if ahead not in self._queued or group in self._were_held:
            return False
        scope, its_scope = self._candidates.scope(group), self._candidates.scope(ahead)
        if scope == its_scope or scope in self._scopes_ahead or its_scope in self._scopes_held:
            return False
        if not self._candidates.hold(candidate):
            return False
        self._were_held.add(group)
        self._scopes_held.add(scope)
        self._scopes_ahead.add(its_scope)
        self._held.setdefault(ahead, []).append(candidate)
        return True

    def requeue_followers(self, group: Group) -> None:
        """Queue the group's followers: its first task got slots, so they may get some too."""
        followers = self._followers.pop(group, None)
        if followers:
            self._push_leader(followers)
        key = self._leaders.pop(group, None)
        if key is not None:
            self._lead(key, self._reached[key])

    def remove(self, group: Group) -> None:
        """Take a group out of the queue; it may be added again."""
        self._left.add(group)
        self._unqueue(group)

    def _unqueue(self, group: Group) -> None:
        """Count a group as not queued, and add the candidates that were held for it."""
        self._queued.discard(group)
        for candidate in self._held.pop(group, ()):
            self._candidates.release(candidate)

    def finish(self, group: Group) -> None:
        """Mark a group that got a wait reason as done.

        Its followers with the same recorded reason are done too; else they are queued.
        """
        self.remove(group)
        self.done.add(group)
        followers = self._followers.get(group)
        pool = self._view.pool
        if followers and _same_reason(group, followers[0][-1], pool):
            del self._followers[group]
            for *_, each in followers:
                self._unqueue(each)
        key = self._leaders.get(group)
        if key is not None and code_of(group, pool) is key[-1]:
            del self._leaders[group]
            del self._reached[key]
        self.requeue_followers(group)

    def _equivalence_of(self, group: Group) -> Hashable | None:
        """Return the key of a group; if one group with this key does not fit, the others do not.

        None: the group has no equivalent, or its own result is not known yet.
        """
        shape = group.shape
        code = code_of(group, self._view.pool)
        if len(shape.pools) > 1 or group.reserved.live:
            return None
        if code is WaitCode.AT_LIMIT:
            # Of its project or department; a limit of its job has another code.
            about = group.waits[self._view.pool.name][0].about
            requested: Hashable = shape.total_gpu_milli
            if self._preempts_at_limit:
                requested = self._equivalence(self._view, group), shape.fit_within_limits
            elif shape.gpu_memory_mib:
                requested = shape.fit_within_limits
            # The leader comes before its followers.
            scope = self._candidates.scope(group)
            return scope, shape.project, about, requested, shape.start_failed, code
        if code not in NO_CAPACITY:
            return None
        equivalent = self._equivalence(self._view, group)
        if equivalent is None:
            return None
        return equivalent, shape.fit_within_limits, shape.start_failed, code

    def _push_leader(self, followers: list[Follower]) -> None:
        group = heappop(followers)[2]
        if followers:
            self._followers[group] = followers
        self.push_next(group, _tasks_of(group))


class SortedCandidates:
    """`CandidateOrder` by the policy's sort key, which does not change while a group waits."""

    def __init__(
        self, view: PoolView, key: Callable[[PoolView, Group, Task], OrderKey], turns: int
    ) -> None:
        self._view = view
        self._order_key = key
        self._turns = turns
        #: The groups in their first turn, and those in a later one.
        self._heaps: tuple[list[Entry], list[Entry]] = ([], [])

    def __bool__(self) -> bool:
        return any(self._heaps)

    def scope(self, group: Group) -> None:
        """Return None: places are compared within the pool."""

    def place(self, group: Group, task: Task) -> SortKey:
        return self._key(group, task, 0)

    def push(self, candidate: Candidate) -> None:
        group, task, _, turn = candidate
        key = self._key(group, task, turn)
        heappush(self._heaps[min(turn, 1)], (key, id_order(task), candidate))

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        first, second = self._heaps
        heap = second if not first or (second and second[0] < first[0]) else first
        if not heap or not must_wait(heap[0][2][0]):
            return heappop(heap)[2] if heap else None
        if heap is first and second:
            # A group of the same tier that comes earlier has had its first turn; it need not wait
            # with the groups behind it.
            (tier, _, *rest_of_key), (other_tier, _, *other_rest) = first[0][0], second[0][0]
            came_before = tier == other_tier and other_rest < rest_of_key
            if came_before and not must_wait(second[0][2][0]):
                return heappop(second)[2]
        return None

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        key = self._key(group, task, turn)
        first, second = self._heaps
        return not (first and first[0][0] < key) and not (second and second[0][0] < key)

    def hold(self, candidate: Candidate) -> bool:
        return False

    def release(self, candidate: Candidate) -> None:
        self.push(candidate)

    def _key(self, group: Group, task: Task, turn: int) -> SortKey:
        tier, *rest_of_key = self._order_key(self._view, group, task)
        # A task whose last starts failed has its turns after all others of its tier: so it does
        # not take slots for which one of them preempted tasks.
        return tier, turn + self._turns * group.shape.start_failed, *rest_of_key


def _tasks_of(group: Group) -> Iterator[Task]:
    """Yield a group's tasks: first those with reserved slots, which may start on other slots.

    Tasks may leave during the iteration, and after the last one with reserved slots others may
    get some.
    """
    yield from group.reserved.in_order()
    yield from group.queue.in_order()


def code_of(group: Group, pool: Pool) -> WaitCode | None:
    """Return the recorded wait code of a group in a pool, or None."""
    known = group.waits.get(pool.name)
    return known[0].code if known is not None else None


def _same_reason(group: Group, other: Group, pool: Pool) -> bool:
    """Whether two groups wait for the same reason, and at the limit of the same owner."""
    code = code_of(group, pool)
    if code is not code_of(other, pool):
        return False
    return code not in LIMITED or group.waits[pool.name][0].about == other.waits[pool.name][0].about


def id_order(task: Task) -> int:
    """Return a task's admission order, then its index: it breaks ties of a policy's sort keys."""
    return task.job.seq * 10_000 + task.index
