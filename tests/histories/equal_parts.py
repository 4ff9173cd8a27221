"""The properties of `starved_first`, computed from the facts of the state alone.

Of tasks that may be preempted, no owner keeps more than its equal part and one of them while
another owner below its part, which would not hold more then, has a task that would start without
them. And an owner loses a task only while it holds more than its part, and more than the other
owner will hold; and it keeps more than the other owner held, or nothing if that held nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from tests.histories.capacity import shape_within_limits
from tests.histories.stated_rules import is_at_bound
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.placement import any_placement
from yardmaster_core.scheduling.planner.wait_reasons import never_fits
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.scheduling.state.wait_codes import LIMITED
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.reasons import PolicyStop, WaitCode

#: Tasks with these wait reasons request nothing for now.
AT_LIMIT: Final = LIMITED | {WaitCode.EXCEEDS_MAX_SLOTS}


def assert_equal_parts(state: ClusterState) -> None:
    """Assert it in each pool with this policy; the state must be idle."""
    for pool in state.pools.values():
        if pool.config is not None and pool.config.policy.name == "starved_first":
            Division(state, pool).check()


def assert_may_lose(
    state: ClusterState, victim: Task, claimant: Task, moving: Collection[Task]
) -> None:
    """Assert that a task could be preempted for another; `victim` is stopping already.

    `moving`: tasks that get reserved slots at the end of this preemption.
    """
    assert victim.run is not None
    now = Division(state, state.pools[victim.run.pool_name], moving)
    owner, other = now.owner(victim), now.owner(claimant)
    before = now.allocated[owner] + _milli(_open(victim))
    after = now.allocated[other] + now.pool.most_milli(claimant.shape)
    assert now.allocated[other] < now.parts[other], f"{other} preempts above its part {now.parts}"
    kept, held = now.allocated[owner], now.allocated[other]
    may_lose = before > max(now.parts[owner], after) and (kept > held or kept == held == 0)
    assert may_lose, (
        f"{owner} loses {victim.id} for {claimant.id}, but holds {before} of {now.parts}"
    )


class Division:
    def __init__(self, state: ClusterState, pool: Pool, moving: Collection[Task] = ()) -> None:
        assert pool.config is not None
        self.state = state
        self.pool = pool
        self.config = pool.config
        self.moving = moving
        self.by_user = pool.config.policy.options.get("owners", "user") == "user"
        self.tasks = list(state.tasks.values())
        self.allocated: dict[str, int] = {}
        non_preemptible: dict[str, int] = {}
        demand: dict[str, int] = {}
        for task in self.tasks:
            owner = self.owner(task)
            held = _milli(self.kept(task))
            self.allocated[owner] = self.allocated.get(owner, 0) + held
            non_preemptible[owner] = non_preemptible.get(owner, 0) + (
                0 if task.job.spec.preemptible else held
            )
            demand[owner] = demand.get(owner, 0) + held + self.requested(task)
        level, total = 0, self.total()

        def parts() -> dict[str, int]:
            return {
                owner: min(demand[owner], max(non_preemptible[owner], level)) for owner in demand
            }

        step = max(1, total)
        while step:
            # The largest level at which the parts are no more than the pool has.
            level += step
            if sum(parts().values()) > total or level > total:
                level -= step
                step //= 2
        self.parts = parts()

    def owner(self, task: Task) -> str:
        user = task.job.user if self.by_user else None
        return f"project {task.job.project.name}" if user is None else f"user {user}"

    def total(self) -> int:
        usable = [node for node in self.pool.nodes.values() if node.usable]
        return sum((node.gpus - len(node.disabled_slots)) * 1000 for node in usable)

    def kept(self, task: Task) -> list[Placement]:
        """The slots that a task holds and will not release, and those reserved for it."""
        name, run, reserved = self.pool.name, task.run, task.reserved
        found = list(reserved.placements) if reserved and reserved.pool_name == name else []
        stays = not task.releasing or task in self.moving
        if run is not None and run.pool_name == name and stays:
            found += _open(task)
        return found

    def requested(self, task: Task) -> int:
        """The amount that a task requests, or will request again when its preemption is over."""
        run, group = task.run, task.group
        if task.reserved is not None or task in self.moving:
            return 0
        if run is not None:
            leaves = run.pool_name == self.pool.name and isinstance(run.stop, PolicyStop)
            return _milli(_open(task)) if leaves else 0
        if group is None or self.pool.name not in group.shape.pools or group.shape.start_failed:
            return 0
        wait = group.waits.get(self.pool.name)
        limited = wait is not None and wait[0].code in AT_LIMIT
        if limited or never_fits(self.pool, group.shape):
            return 0
        return self.pool.most_milli(group.shape)

    def check(self) -> None:
        seen = set()
        for task in self.tasks:
            group = task.group
            if group is None or task.reserved is not None or group.shape.start_failed:
                continue
            owner, asked = self.owner(task), self.pool.most_milli(task.shape)
            if (owner, group) in seen or not asked or self.allocated[owner] >= self.parts[owner]:
                continue
            seen.add((owner, group))
            if self.pool.name != task.shape.pools[0] or limit_reached(self.state, self.pool, task):
                continue
            if group.wait_code(self.pool.name) is WaitCode.BEHIND_TASK:
                continue  # its owner has a task that comes first
            if is_at_bound(self.state, self.pool, task):
                continue  # a further one that cannot be preempted waits, whatever is free
            if self.allocated[owner] + asked > self.parts[owner] and self._others_return(owner):
                continue
            self._starts_not_without_others(task, owner, asked)

    def _others_return(self, owner: str) -> bool:
        """Whether preempted tasks of an owner that holds less are stopping: meanwhile a task
        preempts only within the equal part of its owner.
        """
        return any(
            task.run is not None
            and self.requested(task)
            and self.allocated[self.owner(task)] < self.allocated[owner]
            for task in self.tasks
        )

    def _starts_not_without_others(self, task: Task, owner: str, asked: int) -> None:
        """Try all tasks that others may lose, and those of each node alone."""
        nodes = [None, *(node.name for node in self.pool.nodes.values())]
        for node in nodes:
            victims = [
                victim
                for other in self.parts
                if other != owner
                for victim in self._may_lose(other, self.allocated[owner] + asked, node)
            ]
            if victims and self._fits_without(task, victims):
                names = [victim.id for victim in victims]
                raise AssertionError(f"{owner} {self.parts} has {task.id}, others keep {names}")

    def _may_lose(self, owner: str, after: int, node: str | None) -> Iterator[Task]:
        """The tasks without each of which an owner still holds more than its part, or `after`."""
        left = self.allocated[owner]
        own = [task for task in self.tasks if self.owner(task) == owner]
        for victim in sorted(own, key=lambda one: (one.job.priority, one.key), reverse=True):
            run = victim.run
            if run is None or run.stop is not None or run.ended:
                continue
            if run.pool_name != self.pool.name or not victim.job.spec.preemptible:
                continue
            if min_runtime_until_ms(self.state, victim) > self.state.now_ms:
                continue
            if victim.starts_past_others or (node is not None and node not in run.nodes):
                continue
            held = _milli(_open(victim))
            if left - held > self.parts[owner] and left > after:
                left -= held
                yield victim

    def _fits_without(self, task: Task, victims: Sequence[Task]) -> bool:
        changes = self.pool.future.changes
        self._shift(victims, 1)
        shape = shape_within_limits(self.state, self.pool, task)
        found = any_placement(self.pool.future, shape, self.config)
        self._shift(victims, -1)
        self.pool.future.changes = changes
        return found is not None

    def _shift(self, victims: Sequence[Task], sign: int) -> None:
        for victim in victims:
            for p in _open(victim):
                amounts = (sign * p.gpu_milli, sign * p.cpu_milli, sign * p.memory_mib, sign)
                self.pool.future.shift(self.state.nodes[p.node].future, p.slots, *amounts)


def _open(task: Task) -> list[Placement]:
    run = task.run
    assert run is not None
    states = zip(run.replicas, run.placements, strict=True)
    return [placement for state, placement in states if state < ReplicaState.RELEASED]


def _milli(placements: Iterable[Placement]) -> int:
    return sum(p.gpu_milli * len(p.slots) for p in placements)
