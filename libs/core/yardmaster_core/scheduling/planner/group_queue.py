"""Who is to be considered in one pool in one cycle, and in which order.

Groups come in the policy's order, each with its first task, and have two turns: one to start, one
to have others stopped. Of one rank (the first of the policy's key) all have their first turn before
any has its second; tasks whose last starts failed come after both.

Groups that wait for the same room equivalent, as the policy says, stand behind the first of them:
where that one finds none, those behind it keep the answer that they have.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import Policy, PoolView
from yardmaster_core.scheduling.state.entities import Group, Pool, Task
from yardmaster_schemas.reasons import WaitCode

#: First of the policy's key, whether the turn is to start (0) or to have others stopped (1), the
#: rest of that key.
SortKey = tuple[Any, ...]
#: A group, its task to be considered, those that come after that one, and which turn it is.
Candidate = tuple[Group, Task, Iterator[Task], int]
Entry = tuple[SortKey, int, Candidate]
Follower = tuple[SortKey, int, Group]

#: What one may wait for that its equivalence wait for too.
NO_CAPACITY: Final = frozenset({WaitCode.INSUFFICIENT_FREE, WaitCode.FRAGMENTED})


class GroupQueue:
    """The lines of one pool."""

    def __init__(self, view: PoolView, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        #: By turn.
        self._heaps: tuple[list[Entry], list[Entry]] = ([], [])
        self._queued: set[Group] = set()
        #: Those who stand behind the first of their equivalence, by that one.
        self._followers: dict[Group, list[Follower]] = {}
        #: Groups that were told to wait.
        self.done: set[Group] = set()

    def __bool__(self) -> bool:
        """Whether anybody is to be considered."""
        return any(self._heaps)

    def add(self, groups: Iterable[Group]) -> None:
        """Have groups considered that neither are to be nor were told to wait."""
        equivalent: dict[Hashable, list[Follower]] = {}
        for group in groups:
            if group in self._queued or group in self.done or not group.queue.live:
                continue
            self._queued.add(group)
            equivalence = self._equivalence_of(group)
            if equivalence is None:
                self.push_next(group, group.queue.in_order())
                continue
            task = group.queue.first
            equivalent.setdefault(equivalence, []).append(
                (self._key(group, task, 0), id_order(task), group)
            )
        for line in equivalent.values():
            heapify(line)
            self._push_leader(line)

    def requeue(self, groups: Iterable[Group]) -> None:
        """The same, also of those that were told to wait."""
        again = list(groups)
        self.done.difference_update(again)
        self.add(again)

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        """The next in line; None when there is nobody, or who is next is `must_wait`."""
        while (entry := self._pop(must_wait)) is not None:
            group, task, rest, _ = entry[2]
            if task.group is group:
                return entry[2]
            self.push_next(group, rest)
        return None

    def _pop(self, must_wait: Callable[[Group], bool]) -> Entry | None:
        first, second = self._heaps
        line = second if not first or (second and second[0] < first[0]) else first
        if not line or not must_wait(line[0][2][0]):
            return heappop(line) if line else None
        if line is first and second:
            # An equal that came before has had its first turn, and need not wait with those behind.
            (rank, _, *place), (other_rank, _, *other_place) = first[0][0], second[0][0]
            came_before = rank == other_rank and other_place < place
            if came_before and not must_wait(second[0][2][0]):
                return heappop(second)
        return None

    def push(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Let a group's task have that turn when it comes."""
        key = self._key(group, task, turn)
        heappush(self._heaps[turn], (key, id_order(task), (group, task, rest, turn)))

    def push_next(self, group: Group, rest: Iterator[Task]) -> None:
        """Let the group's next task be considered, if there is one."""
        task = next(rest, None)
        if task is None:
            self.remove(group)
            self.requeue_followers(group)
        else:
            self.push(group, task, rest, 0)

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        """Whether nobody in line comes before a group's task."""
        key = self._key(group, task, turn)
        return not any(line and line[0][0] < key for line in self._heaps)

    def requeue_followers(self, group: Group) -> None:
        """The group's first task got what it asked for: its equivalence are to be considered
        too.
        """
        line = self._followers.pop(group, None)
        if line:
            self._push_leader(line)

    def remove(self, group: Group) -> None:
        """The group is not to be considered for now."""
        self._queued.discard(group)

    def finish(self, group: Group) -> None:
        """The group was told to wait: so are its equivalence, unless they were told another
        reason.
        """
        self.remove(group)
        self.done.add(group)
        line = self._followers.get(group)
        pool = self._view.pool
        if line and code_of(group, pool) is code_of(line[0][-1], pool):
            del self._followers[group]
            self._queued.difference_update(each for *_, each in line)
        else:
            self.requeue_followers(group)

    def _key(self, group: Group, task: Task, turn: int) -> SortKey:
        rank, *place = self._policy.order(self._view, group, task)
        # A task whose last starts failed has both turns after all others of its rank, so that it
        # does not take what one of them preempted others for.
        return rank, turn + 2 * group.shape.start_failed, *place

    def _equivalence_of(self, group: Group) -> Hashable | None:
        """What groups have in common that find room or do not find it equivalent; None: it is on
        its own, or its answer is not known yet.
        """
        shape = group.shape
        code = code_of(group, self._view.pool)
        if code not in NO_CAPACITY or len(shape.pools) > 1:
            return None
        rank = self._policy.equivalence(self._view, group)
        return None if rank is None else (rank, shape.fit, shape.start_failed, code)

    def _push_leader(self, line: list[Follower]) -> None:
        group = heappop(line)[2]
        if line:
            self._followers[group] = line
        self.push_next(group, group.queue.in_order())


def code_of(group: Group, pool: Pool) -> WaitCode | None:
    """The recorded reason why a group waits in a pool."""
    known = group.waits.get(pool.name)
    return known[0].code if known is not None else None


def id_order(task: Task) -> int:
    """Breaks ties between order keys that a policy made equal: the order of admission, then the
    index.
    """
    return task.job.seq * 10_000 + task.index
