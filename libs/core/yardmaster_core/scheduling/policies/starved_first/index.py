"""The index of `starved_first`: the GPUs that the tasks of each owner hold and request, and the
equal parts.

A change of an owner costs a search in the sorted list of owners. The level up to which the pool is
divided is computed again, in n log n of the owners, only if it may have moved: an owner whose
demand is above the level before and after a change moves nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.wait_reasons import never_fits
from yardmaster_core.scheduling.policies.claiming.amounts import GPU
from yardmaster_core.scheduling.policies.claiming.index import (
    ClaimingIndex,
    counted,
    holders,
    usable,
)
from yardmaster_core.scheduling.policies.starved_first.equal_parts import equal_level
from yardmaster_core.scheduling.policies.waiting_groups import (
    WaitingGroups,
    waits_for_its_owner,
)
from yardmaster_core.scheduling.state.ordered_tasks import QueueKey
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BEHIND, LIMITED
from yardmaster_schemas.reasons import WaitCode

#: `user` and its id, or `project` and its name.
OwnerName = tuple[str, str]
#: The amounts that a task counts as (gpu_milli): allocated, non_preemptible, returning.
Milli = tuple[int, int, int]
NOTHING: Final[Milli] = (0, 0, 0)
#: A limit keeps tasks with these wait reasons from starting.
AT_LIMIT: Final = LIMITED | {WaitCode.EXCEEDS_MAX_SLOTS}
#: These tasks wait until their owner holds less in tasks that cannot be preempted.
AT_BOUND: Final = frozenset({WaitCode.AT_DESERVED, WaitCode.EXCEEDS_DESERVED})


def place_within_owner(group: Group) -> tuple[int, QueueKey]:
    """Return the place of a group among those of its owner."""
    return group.priority, group.queue.first.key


class Owner:
    """A user or project in one pool, with amounts in gpu_milli."""

    __slots__ = ("allocated", "name", "non_preemptible", "pending", "returning", "waiting")

    def __init__(self, name: OwnerName) -> None:
        self.name = name
        #: The amount that tasks hold and will not release, or that is reserved for them; and the
        #: part of it that belongs to tasks that cannot be preempted.
        self.allocated = self.non_preemptible = 0
        #: The amount that preempted tasks release and will request again; and the amount that
        #: pending tasks request.
        self.returning = self.pending = 0
        #: Groups with pending tasks, by the request of one task.
        self.waiting: dict[int, dict[Group, None]] = {}

    @property
    def demand(self) -> int:
        """The amount that tasks of the owner hold and request."""
        return self.allocated + self.returning + self.pending

    @property
    def requests(self) -> list[int]:
        """The amounts above 0 that single pending tasks of the owner request."""
        return [asked for asked in self.waiting if asked]

    def part(self, level: int) -> int:
        """Return the equal part of the owner in a pool that is divided up to `level`."""
        return min(self.demand, max(self.non_preemptible, level))


class OwnersIndex(ClaimingIndex[OwnerName]):
    """The owners of a pool."""

    def __init__(
        self, pool: Pool, *, by_user: bool, non_preemptible_permille: int, reserves: bool = False
    ) -> None:
        self._by_user = by_user
        #: Whether tasks may wait behind the oldest one of their owner.
        self._reserves = reserves
        self._non_preemptible_permille = non_preemptible_permille
        super().__init__(pool, Traits(equal_within="user" if by_user else "pool", preempts=True))
        #: Owners that hold or request something, or have pending tasks.
        self.owners: dict[OwnerName, Owner] = {}
        #: The allocated amount and the name of each owner in `owners`, ascending.
        self._sorted: list[tuple[int, OwnerName]] = []
        #: Of owners with preempted tasks that did not return yet, the same.
        self._returning: list[tuple[int, OwnerName]] = []
        #: Owners that are being counted, with non_preemptible and demand before the count.
        self._changing: dict[Owner, tuple[int, int]] = {}
        self._tasks: dict[Task, Milli] = {}
        #: By group: its owner, the request of one of its tasks, and the amount that counts as
        #: pending.
        self._groups: dict[Group, tuple[Owner, int, int]] = {}
        #: The number of the set of nodes for which groups were counted: a group that exceeds all
        #: nodes requests nothing.
        self._topology = -1
        #: The level up to which the pool is divided; None: it must be computed again.
        self._level: int | None = None
        #: The level when groups were woken in this cycle, and in the last complete one.
        self._level_now: int | None = None
        self._level_before: int | None = None
        #: By owner, the groups that its own tasks may keep from starting.
        self._waiting: dict[OwnerName, WaitingGroups] = {}
        #: By owner, the groups that wait behind other tasks, by priority, then by submission.
        self._behind: dict[OwnerName, WaitingGroups] = {}
        #: Groups that a limit keeps from starting.
        self._limited: dict[Group, None] = {}
        for group in pool.groups.values():
            self.wait_changed(group)
        #: Owners whose amounts changed in this cycle, in the order of the changes. An `OwnerOrder`
        #: remembers up to where it has read them.
        self.changed_owners: list[Owner] = []
        #: Owners whose rank may have changed since they were ranked.
        self.rank_stale: dict[OwnerName, None] = {}
        #: Owners that may hold more in tasks that cannot be preempted than when their groups were
        #: considered: since then they released some, the pool got nodes, or all was counted again.
        self.bound_stale: dict[OwnerName, None] = {}

    def owner_of(self, job: Job) -> OwnerName:
        """Return the submitting user; or the project, also of a job whose user is not known."""
        if self._by_user and job.user is not None:
            return "user", job.user
        return "project", job.project.name

    # Reading

    def owner(self, job: Job) -> Owner:
        """Return the owner of a job's tasks, with all changes counted."""
        self.count()
        return self._owner(self.owner_of(job))

    def level(self) -> int:
        """Return the level up to which the pool is divided."""
        self.count()
        if self._level is None:
            total = usable(self._pool)[0]
            self._level = equal_level(
                total, ((o.non_preemptible, o.demand) for o in self.owners.values())
            )
        return self._level

    def part(self, owner: Owner) -> int:
        """Return the equal part of an owner."""
        return owner.part(self.level())

    def most_non_preemptible(self) -> int:
        """Return the most that the tasks of one owner that cannot be preempted may hold: a part of
        all GPUs of the pool, also of cordoned and lost nodes, rounded up to a whole GPU.
        """
        pool = self._pool
        key = "most_non_preemptible"
        known: tuple[int, int] | None = pool.policy_cache.get(key)
        if known is None or known[0] != pool.topology:
            gpus = sum(node.gpus for node in pool.nodes.values())
            most = -(-gpus * self._non_preemptible_permille // 1000) * WHOLE
            known = pool.policy_cache[key] = pool.topology, most
        return known[1]

    def groups_within_bound(self) -> Iterator[Group]:
        """Yield the groups that wait until their owner holds less in tasks that cannot be
        preempted, and no longer have to.

        An owner stays in `bound_stale` until it has none, because a draft may be rolled back.
        """
        self.count()
        for name in list(self.bound_stale):
            owner = self.owners.get(name)
            room = self.most_non_preemptible() - owner.non_preemptible if owner is not None else 0
            found = [
                group
                for asked, groups in (owner.waiting.items() if owner is not None else ())
                if asked <= room
                for group in groups
                if group.wait_code(self._pool.name) in AT_BOUND
            ]
            if not found:
                del self.bound_stale[name]
            yield from found

    def first_waiting(self, job: Job, accepted: Callable[[Group], bool]) -> Task | None:
        """Return the task of the owner of a job that waits and was submitted first, of the groups
        that `accepted` accepts; or None.
        """
        self.count()
        waiting = self._waiting.get(self.owner_of(job))
        return waiting.first(accepted) if waiting is not None else None

    def behind(self, job: Job, accepted: Callable[[Group], bool]) -> list[Group]:
        """Return the groups of the owner of a job that wait behind other tasks, in the order of the
        owner, up to the first one that `accepted` does not accept.
        """
        self.count()
        behind = self._behind.get(self.owner_of(job))
        return behind.leading(accepted) if behind is not None else []

    def _is_behind(self, group: Group) -> bool:
        return bool(group.queue.live) and group.wait_code(self._pool.name) in BEHIND

    def _waits(self, group: Group) -> bool:
        # Its owner alone decides how much of what cannot be preempted the owner holds.
        at_bound = group.wait_code(self._pool.name) is WaitCode.AT_DESERVED
        return at_bound or waits_for_its_owner(group, self._pool.name)

    def above(self) -> Iterator[Owner]:
        """Yield the owners that hold more than their equal parts, those with the most first."""
        level = self.level()
        for allocated, name in reversed(self._sorted):
            if allocated <= level:
                return
            owner = self.owners[name]
            if allocated > owner.part(level):
                yield owner

    def below(self) -> Iterator[Owner]:
        """Yield the owners that hold less than their equal parts, those with the fewest first."""
        level = self.level()
        for allocated, name in self._sorted:
            if allocated >= level:
                return
            owner = self.owners[name]
            if allocated < owner.part(level):
                yield owner

    def least_returning(self) -> int | None:
        """Return the least that an owner holds whose preempted tasks did not return to the queue
        yet; None: there is none.
        """
        self.count()
        return self._returning[0][0] if self._returning else None

    def take_news(self) -> bool:
        """Whether the parts, or the tasks that may be preempted, changed since the last cycle."""
        self._level_now = self.level()
        return self._level_now != self._level_before or bool(self._victims_due)

    def held_by(self, task: Task) -> int:
        """Return the amount that a task holds and will not release, or that is reserved for it."""
        self.count()
        return self._tasks.get(task, NOTHING)[0]

    # Counting

    def count(self) -> None:
        """Count stale tasks and groups again."""
        pool = self._pool
        if not self._built:
            self._build()
        if self._topology != pool.topology:
            self._topology = pool.topology
            self._level = None
            self._stale_groups.update(dict.fromkeys(pool.groups.values()))
            self._mark_bounds_stale()
        for task in self._stale_tasks:
            self._count_task(task)
        self._stale_tasks.clear()
        for group in self._stale_groups:
            self._count_group(group)
        self._stale_groups.clear()
        for owner, (non_preemptible, demand) in self._changing.items():
            self._note_change(owner, non_preemptible, demand)
        self._changing.clear()

    def _build(self) -> None:
        """Empty all caches, and mark all tasks and groups as stale."""
        self._built = True
        self.owners.clear()
        self._sorted.clear()
        self._returning.clear()
        self._tasks.clear()
        self._groups.clear()
        self._waiting.clear()
        self._behind.clear()
        self.changed_owners.clear()
        self.rank_stale = dict.fromkeys(
            self._ranked_users()
            if self._by_user
            else (("project", each.name) for each in self._pool.ranked if isinstance(each, Project))
        )
        self._level = None
        self._stale_tasks = dict.fromkeys((*holders(self._pool), *self._pool.reserved))
        self._stale_groups = dict.fromkeys(self._pool.groups.values())
        # A count from nothing does not see which owners hold less than before.
        self._mark_bounds_stale()

    def _mark_bounds_stale(self) -> None:
        """Mark all owners with pending tasks as `bound_stale`."""
        for group in self._pool.groups.values():
            # A group may have lost its last task in this cycle.
            if group.pending:
                self.bound_stale[self.owner_of(group.first.job)] = None

    def _ranked_users(self) -> Iterator[OwnerName]:
        for claimant in self._pool.user_ranks:
            project = claimant.removeprefix("project/")
            yield ("user", claimant) if project == claimant else ("project", project)

    def _owner(self, name: OwnerName) -> Owner:
        """Return an owner by name; an unknown owner is added."""
        owner = self.owners.get(name)
        if owner is None:
            owner = self.owners[name] = Owner(name)
            insort(self._sorted, (0, name))
        return owner

    def _count_task(self, task: Task) -> None:
        """Count a task again, and add the difference to the amounts of its owner."""
        before = self._tasks.get(task, NOTHING)
        held, non_preemptible, _, _, returning, reserved = counted(task, self._pool.name)
        allocated = held[GPU] + reserved[GPU]
        # A task is preemptible or not as a whole.
        now = (allocated, allocated if non_preemptible[GPU] else 0, returning[GPU])
        if now == before:
            return
        if now == NOTHING:
            del self._tasks[task]
        else:
            self._tasks[task] = now
        more = [a - b for a, b in zip(now, before, strict=True)]
        owner = self._owner(self.owner_of(task.job))
        self._change(owner, *more)
        if now[1] < before[1]:
            self.bound_stale[owner.name] = None

    def _count_group(self, group: Group) -> None:
        """Count the pending tasks of a group again, for its owner at this time."""
        known = self._groups.pop(group, None)
        if known is not None:
            owner, asked, milli = known
            of = owner.waiting[asked]
            del of[group]
            if not of:
                del owner.waiting[asked]
            self._change(owner, pending=-milli)
        if not group.pending:
            return
        owner = self._owner(self.owner_of(group.first.job))
        asked = self._pool.most_milli(group.shape)
        milli = asked * self._counting(group)
        self._groups[group] = owner, asked, milli
        owner.waiting.setdefault(asked, {})[group] = None
        self._change(owner, pending=milli)
        if self._reserves:
            waiting = self._waiting.get(owner.name)
            if waiting is None:
                waiting = self._waiting[owner.name] = WaitingGroups(self._waits)
                self._behind[owner.name] = WaitingGroups(self._is_behind, place_within_owner)
            waiting.add(group)
            self._behind[owner.name].add(group)

    def _counting(self, group: Group) -> int:
        """Return the number of pending tasks of a group that count towards the demand of its owner:
        those that could start and have no reserved slots.
        """
        if group in self._limited or group.shape.start_failed:
            return 0
        if never_fits(self._pool, group.shape):
            return 0
        return group.queue.live

    def _change(
        self,
        owner: Owner,
        allocated: int = 0,
        non_preemptible: int = 0,
        returning: int = 0,
        pending: int = 0,
    ) -> None:
        """Add to the amounts of an owner, and note its amounts before the first change."""
        self._changing.setdefault(owner, (owner.non_preemptible, owner.demand))
        if owner.returning:
            del self._returning[bisect_left(self._returning, (owner.allocated, owner.name))]
        owner.non_preemptible += non_preemptible
        owner.returning += returning
        owner.pending += pending
        if owner.returning:
            insort(self._returning, (owner.allocated + allocated, owner.name))
        if allocated:
            del self._sorted[bisect_left(self._sorted, (owner.allocated, owner.name))]
            owner.allocated += allocated
            insort(self._sorted, (owner.allocated, owner.name))

    def _note_change(self, owner: Owner, non_preemptible: int, demand: int) -> None:
        """Note that an owner may have another place and part.

        `non_preemptible` and `demand`: its amounts before.

        A task that starts changes what its owner holds and requests, but not the demand.
        """
        level, now = self._level, owner.demand
        changed = (non_preemptible, demand) != (owner.non_preemptible, now)
        if (
            changed
            and level is not None
            and (min(demand, now) <= level or max(non_preemptible, owner.non_preemptible) > level)
        ):
            self._level = None
        self.changed_owners.append(owner)
        self.rank_stale[owner.name] = None
        if not now and not owner.waiting:
            del self.owners[owner.name]
            del self._sorted[bisect_left(self._sorted, (0, owner.name))]

    # Changes

    def wait_changed(self, group: Group) -> None:
        limited = group.wait_code(self._pool.name) in AT_LIMIT
        if self._reserves and self._built:
            self._stale_groups[group] = None
        if self._reserves and group.queue.live:
            # Other tasks may have to wait behind it.
            self._due.set()
        if not limited and group not in self._limited:
            return
        if limited:
            self._limited[group] = None
        else:
            del self._limited[group]
        self._due.set()
        if self._built:
            self._stale_groups[group] = None

    def group_changed(self, group: Group, job: Job) -> None:
        super().group_changed(group, job)
        if not group.pending:
            # Its owner may lose its only task now: see `preempt`.
            self._victims_due.set()

    def owners_changed(self) -> None:
        self._built = False

    def nodes_changed(self) -> None:
        self._due.set_for_this_cycle()

    def cycle_ended(self) -> None:
        super().cycle_ended()
        self._level_before, self._level_now = self._level_now, None
        self.changed_owners.clear()


def index_of(view: PoolView) -> OwnersIndex:
    """Return the index of a pool with this policy."""
    index = view.pool.index
    assert isinstance(index, OwnersIndex), "the pool has another policy"
    return index
