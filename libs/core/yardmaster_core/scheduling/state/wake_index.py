"""Which groups the planner considers: pending groups by the event that wakes them.

A group that was considered and stays pending sleeps. Its wait reason tells what may help it: freed
slots, the group that blocks it, a limit of an owner, or time. `store_wait` puts the group into the
collections of that reason, and the methods that begin with `wake` take groups from there when such
an event happens. Awake groups are considered in the next cycle.

All of it is derived from the recorded waits, so neither snapshots nor digests contain it.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from yardmaster_core.scheduling.state.journal import Journal
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BEHIND, BLOCKING, LIMITED, UNTIL, blocks
from yardmaster_schemas.reasons import Wait, WaitCode


class WakeIndex:
    """The sleeping groups of all pools, by what they wait for."""

    __slots__ = ("_journal", "by_memory", "entitled", "freeing", "limited", "limits_woken")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: Groups that wait for a limit, by the job, project or department that has it.
        self.limited: dict[str, dict[tuple[Pool, Group], None]] = {}
        #: Of these, the owners whose groups this cycle's inputs woke.
        self.limits_woken: dict[str, None] = {}
        #: The projects and departments whose entitlements this cycle's inputs changed.
        self.entitled: dict[str, None] = {}
        #: The owners of limits whose tasks began to release slots, or lost reserved ones, in this
        #: cycle.
        self.freeing: dict[str, None] = {}
        #: Groups that did not fit and request memory of GPUs: where a limit leaves more, they may
        #: use smaller GPUs.
        self.by_memory: dict[tuple[Pool, Group], None] = {}

    # Waking

    def wake(self, pool: Pool, group: Group) -> None:
        """Have `group` considered in `pool`."""
        journal = self._journal
        if group not in pool.awake:
            pool.awake[group] = None
            if journal.changes is not None:
                journal.changes.append((pool.awake.pop, (group, None)))
        if journal.unpruned is not None:
            # Even if it was awake: it may have been considered in this cycle already.
            pool.woken.append(group)

    def wake_all(self, pool: Pool) -> None:
        """Wake every group of `pool`, whose nodes, policy or entitlements changed."""
        for group in pool.groups.values():
            self.wake(pool, group)

    def wake_after_node_loss(self, pool: Pool) -> None:
        """Wake every group of `pool`, once for all nodes that a cycle loses."""
        if not pool.all_woken:
            self._journal.put(pool, "all_woken", True)
            self.wake_all(pool)

    def wake_blocked(self, pool: Pool) -> None:
        """Wake the groups of `pool` that did not fit and that freed slots can help.

        A policy that finds these groups itself wakes them instead. Of equal groups the cycle
        considers the first.
        """
        if pool.index.traits.finds_fitting_groups:
            return
        equals = pool.index.equals
        if equals is not None:
            self._journal.put(pool, "equals_woken", True)
            equals.refresh()
        for group in self.blocked(pool) if equals is None else equals.others:
            self.wake(pool, group)
        for group in pool.reserved_groups:
            self.wake(pool, group)

    def wake_after_release(self, pool: Pool) -> None:
        """Wake the groups that released slots of `pool` may help.

        Once for all releases of a cycle: groups get wait reasons only after them.
        """
        if not pool.blocked_woken:
            self._journal.put(pool, "blocked_woken", True)
            self.wake_blocked(pool)

    def keep_awake(self, pool: Pool) -> None:
        """Keep the groups awake that an incomplete cycle had to consider."""
        if pool.recheck:
            self.wake_blocked(pool)
            self.wake_limited()
        if pool.equals_woken:
            # Which of them the cycle has considered is not known.
            for group in self.blocked(pool):
                self.wake(pool, group)

    def blocked(self, pool: Pool) -> Iterator[Group]:
        """The groups of `pool` that did not fit and may fit once slots are freed."""
        for queue_class in pool.queue_classes:
            for groups in queue_class.blocked.values():
                for group in groups:
                    if group.waits[pool.name][0].code in BLOCKING:
                        yield group

    def wake_earlier_equals(self, pool: Pool, task: Task) -> None:
        """Wake the groups of `pool` that may preempt `task`, of the same priority, from now on.

        Tasks with GPUs may preempt tasks without, for their CPUs and memory.
        """
        if not pool.index.traits.preempts_equals:
            return
        job = task.job
        for queue_class in pool.queue_classes[job.shape.queue_class :]:
            blocked = queue_class.blocked.get(job.priority)
            first = queue_class.first(job.priority) if blocked else None
            if blocked and first is not None and first.job.submitted_ms < job.submitted_ms:
                for group in blocked:
                    self.wake(pool, group)

    def wake_behind(self, pool: Pool) -> None:
        """Wake the groups behind others that may be next; with strict queues one of each queue."""
        for group in pool.index.next_behind(pool.queue_classes):
            self.wake(pool, group)

    # Limits

    def limited_groups(self) -> Iterator[tuple[Pool, Group]]:
        """The groups that wait for a limit, each with the pool in which it waits."""
        for limited in self.limited.values():
            yield from limited

    def limited_by_freeing(self) -> Iterator[tuple[Pool, Group]]:
        """The groups that wait for a limit of the owners in `freeing`, and those whose GPUs may
        depend on it.
        """
        for owner in list(self.freeing):
            yield from list(self.limited.get(owner, ()))
        if self.freeing:
            yield from list(self.by_memory)

    def note_freeing(self, owners: Iterable[str]) -> None:
        """Note that tasks of these owners begin to release slots, or lost reserved ones."""
        for owner in owners:
            if owner not in self.freeing:
                self._journal.record(self.freeing.pop, owner, None)
                self.freeing[owner] = None

    def wake_limited(self) -> None:
        """Wake the groups that wait for a limit, or for what their queues deserve."""
        for pool, group in self.limited_groups():
            self.wake(pool, group)

    def wake_limited_by(self, owner: str) -> None:
        """Wake the groups that wait for a limit of this job, project or department, and those whose
        GPUs may depend on it.
        """
        for pool, group in chain(self.limited.get(owner, ()), self.by_memory):
            self.wake(pool, group)

    def wake_below_limits(self, owners: Iterable[str]) -> None:
        """Wake the groups that wait for a limit of these owners, which hold less than before.

        Once for all releases of a cycle, as `wake_after_release`.
        """
        for owner in owners:
            if owner not in self.limits_woken:
                self._journal.record(self.limits_woken.pop, owner, None)
                self.limits_woken[owner] = None
                self.wake_limited_by(owner)

    # Storing groups by their waits

    def store_wait(self, pool: Pool, group: Group) -> None:
        """Index `group` by its recorded wait in `pool`, if it has one and pending tasks."""
        record = group.waits.get(pool.name)
        if record is None or not group.queue.live:
            return
        code = record[0].code
        queue_class = pool.queue_classes[group.shape.queue_class]
        if blocks(group.shape, code, impossible=pool.index.traits.impossible_block):
            queue_class.block(group, protected=code is WaitCode.VICTIMS_PROTECTED)
            if group.shape.gpu_memory_mib:
                self.by_memory[pool, group] = None
        elif code in BEHIND:
            queue_class.behind[group] = None
        owner = _limit_owner(group, record[0])
        if owner is not None:
            self.limited.setdefault(owner, {})[pool, group] = None
        if code in UNTIL:
            pool.protected[group] = None

    def remove_wait(self, pool: Pool, group: Group) -> None:
        """Remove `group` from the collections of its recorded wait in `pool`."""
        pool.queue_classes[group.shape.queue_class].remove(group)
        pool.protected.pop(group, None)
        self.by_memory.pop((pool, group), None)
        record = group.waits.get(pool.name)
        owner = _limit_owner(group, record[0]) if record is not None else None
        if owner is not None and owner in self.limited:
            limited = self.limited[owner]
            limited.pop((pool, group), None)
            if not limited:
                del self.limited[owner]


def _limit_owner(group: Group, wait: Wait) -> str | None:
    """Return the name of the owner of the limit that a group waits for; None: it waits for none."""
    if wait.code is WaitCode.AT_MAX_SLOTS:
        return group.shape.job_id
    return wait.about if wait.code in LIMITED else None
