"""The properties of histories of the policy `quota`, computed from the facts of the state.

`Queues` computes what each queue of a pool deserves, holds and gets, level by level, without the
policy's index. `Batch` is what the planner decides at once for one task: its victims, the slots
reserved for it, and those reserved for victims that are moved. Tasks that lose slots that are
reserved for them are among the victims of `reclaim`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from operator import add, sub
from typing import Final

from yardmaster_core.scheduling.planner.wait_reasons import fits_usable_nodes
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.policies.quota.division import NO_USAGE, QueueDemand, divide
from yardmaster_core.scheduling.policies.quota.options import QuotaOptions
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import PolicyStop

Queue = Department | Project
#: gpu_milli, cpu_milli, memory_mib.
Amounts = tuple[int, int, int]
#: The same; None: unlimited.
Bounds = tuple[int | None, int | None, int | None]

NONE: Final[Amounts] = (0, 0, 0)
#: Shares beyond what is deserved are multiples of these.
UNITS: Final[Amounts] = (1000, 1, 1)
RESOURCES: Final = range(3)
#: The rule of a stop for a task of the same project at a limit.
AT_LIMIT: Final = "at_limit"
#: Numbers of a stop for a consolidation.
MOVE_NUMBERS: Final = {"held_milli", "asked_milli"}


def plus(a: Amounts, b: Amounts) -> Amounts:
    """Return the sum."""
    gpu, cpu, memory = map(add, a, b)
    return gpu, cpu, memory


def minus(a: Amounts, b: Amounts) -> Amounts:
    """Return the difference."""
    gpu, cpu, memory = map(sub, a, b)
    return gpu, cpu, memory


def exceeds(amounts: Amounts, bounds: Bounds, *, of: Amounts = (1, 1, 1)) -> bool:
    """Whether an amount exceeds its bound, among the resources that `of` has."""
    return any(
        bound is not None and amount > bound and bool(asked)
        for amount, bound, asked in zip(amounts, bounds, of, strict=True)
    )


def added(rows: Sequence[Bounds]) -> Bounds:
    """Return the sum; what is unlimited in one row is unlimited."""
    gpu, cpu, memory = (
        None if None in amounts else sum(amount or 0 for amount in amounts)
        for amounts in zip(*rows, strict=True)
    )
    return gpu, cpu, memory


def smaller(a: Bounds, b: Bounds) -> Bounds:
    """Return the smaller bound of each resource."""
    gpu, cpu, memory = (
        min((bound for bound in pair if bound is not None), default=None)
        for pair in zip(a, b, strict=True)
    )
    return gpu, cpu, memory


def request_of(pool: Pool, task: Task) -> Amounts:
    """Return what a task requests of a pool; on whole nodes with the CPUs and memory of one."""
    shape, resources = task.job.shape, task.job.spec.resources
    cpu, memory = resources.cpu_milli * shape.replicas, resources.memory_mib * shape.replicas
    return pool.most_milli(shape), cpu, memory


def lost_with(pool: Pool, victim: Task) -> Amounts:
    """Return what a queue loses with a task: what its replicas hold that did not release it, GPUs
    as they are placed; or what is reserved.
    """
    run, reservation = victim.run, victim.reserved
    if run is None:
        assert reservation is not None
        return sum_of(reservation.placements)
    states = zip(run.replicas, run.placements, strict=True)
    held = sum_of([each for state, each in states if state < ReplicaState.RELEASED])
    if run.open < len(run.replicas):
        return held
    _, cpu, memory = request_of(pool, victim)
    return held[0], cpu, memory


def sum_of(placements: Sequence[dec.Placement]) -> Amounts:
    """Return what replicas hold together."""
    total = NONE
    for each in placements:
        milli = each.gpu_milli * len(each.slots)
        total = plus(total, (milli, each.cpu_milli, each.memory_mib))
    return total


@dataclass(slots=True)
class Held:
    """Amounts that the tasks of a queue hold, with and without those to release, and request."""

    allocated: Amounts = NONE
    used: Amounts = NONE
    #: `used` without what tasks hold that stop and are not overdue.
    kept: Amounts = NONE
    #: Of `used`, what tasks that cannot be preempted hold.
    non_preemptible: Amounts = NONE
    requested: Amounts = NONE
    #: What placed and what pending tasks that cannot be preempted hold and request.
    fixed: Amounts = NONE
    fixed_pending: Amounts = NONE


class Queues:
    """The queues of a pool at one moment, by their departments and projects."""

    def __init__(self, state: ClusterState, pool: Pool) -> None:
        assert pool.config is not None
        self.state = state
        self.pool = pool
        options = options_of(pool.config.policy)
        assert isinstance(options, QuotaOptions)
        self._by_weight = options.over_quota == "weight"
        self._proportional = options.over_subscribed == "proportional"
        self._lowered: dict[Queue, Bounds] = {}
        follows = options.usage_half_life_s > 0
        self._usage_weight = Fraction(options.usage_weight_permille if follows else 0, 1000)
        every: list[Queue] = [*state.departments.values(), *state.projects.values()]
        self._ages = {queue: at for at, queue in enumerate(every)}
        self._above = {queue: self._parent(queue) for queue in self._ages}
        self._usage = dict.fromkeys(self._ages, 0)
        for project in state.projects.values():
            usage = project.decayed_usage.get(pool.name)
            for queue in self.path(project):
                self._usage[queue] += usage.counted_milli if usage is not None else 0
        self.held = {queue: Held() for queue in self._ages}
        for task in state.tasks.values():
            self._count(task)
        for group in pool.groups.values():
            shape = group.shape
            if group.queue.live and not shape.start_failed and fits_usable_nodes(pool, shape):
                for task in group.queue.in_order():
                    for queue in self.path(task.job.project):
                        one = self.held[queue]
                        one.requested = plus(one.requested, request_of(pool, task))
                        if not task.job.spec.preemptible:
                            one.fixed_pending = plus(one.fixed_pending, request_of(pool, task))
        self.total = self._total()

    @cached_property
    def in_all(self) -> list["Queues"] | None:
        """The queues of all pools with this policy; None: this is the only one."""
        pools = [
            pool
            for pool in self.state.pools.values()
            if pool.config is not None and pool.config.policy.name == "quota"
        ]
        return [Queues(self.state, pool) for pool in pools] if len(pools) > 1 else None

    def has_more_in_all(self, project: Project, more: Amounts) -> bool:
        """Whether a project with `more` has more in all pools than it deserves in all."""
        if self.in_all is None:
            return False
        for queues in self.in_all:
            more = plus(more, queues.held[project].allocated)
        return exceeds(more, added([each.deserved(project) for each in self.in_all]))

    def has_too_many_non_preemptible(self, project: Project, more: Amounts, *, of: Amounts) -> bool:
        """Whether tasks of a project that cannot be preempted have more in all pools, with `more`,
        than it deserves in all, of the resources that `of` has.
        """
        non_preemptible = more
        for queues in self.in_all or ():
            non_preemptible = plus(non_preemptible, queues.held[project].non_preemptible)
        bounds = [each.deserved(project) for each in self.in_all or ()]
        return bool(bounds) and exceeds(non_preemptible, added(bounds), of=of)

    @cached_property
    def fair(self) -> dict[Queue, Amounts]:
        """The share of each queue."""
        shares: dict[Queue, Amounts] = {}
        self._divide(None, self.total, shares)
        return shares

    def _parent(self, queue: Queue) -> Department | None:
        if isinstance(queue, Project):
            return queue.department
        parent = queue.config.parent if queue.config is not None else None
        return self.state.departments.get(parent) if parent is not None else None

    def path(self, project: Project) -> tuple[Queue, ...]:
        """Return a project and the departments above it, from the top."""
        found: list[Queue] = [project]
        while (above := self._above[found[-1]]) is not None:
            found.append(above)
        return tuple(reversed(found))

    def differing(self, one: Task, other: Task) -> tuple[Queue, Queue]:
        """Return the first queues, from the top, that differ on the paths of two tasks."""
        paths = self.path(one.job.project), self.path(other.job.project)
        return next((a, b) for a, b in zip(*paths, strict=False) if a is not b)

    def allocate(self, project: Project, amounts: Amounts) -> None:
        """Count these amounts too as allocated, for a project and the departments above it."""
        for queue in self.path(project):
            held = self.held[queue]
            held.allocated = plus(held.allocated, amounts)

    def _count(self, task: Task) -> None:
        name, run, reservation = self.pool.name, task.run, task.reserved
        allocated = leaving = freed_in_time = returning = NONE
        if reservation is not None and reservation.pool_name == name:
            allocated = sum_of(reservation.placements)
        if run is not None and run.pool_name == name:
            states = zip(run.replicas, run.placements, strict=True)
            held = sum_of([p for state, p in states if state < ReplicaState.RELEASED])
            if not task.releasing:
                allocated = plus(allocated, held)
            elif reservation is None:
                leaving = held
                if run.stop is not None and not run.overdue:
                    freed_in_time = held
                if isinstance(run.stop, PolicyStop):
                    returning = held
        used = plus(allocated, leaving)
        for queue in self.path(task.job.project):
            one = self.held[queue]
            one.allocated = plus(one.allocated, allocated)
            one.used = plus(one.used, used)
            one.kept = plus(one.kept, minus(plus(allocated, leaving), freed_in_time))
            one.requested = plus(one.requested, plus(allocated, returning))
            if not task.job.spec.preemptible:
                one.non_preemptible = plus(one.non_preemptible, used)
                one.fixed = plus(one.fixed, plus(allocated, leaving))

    def _total(self) -> Amounts:
        total = NONE
        for node in self.pool.nodes.values():
            if node.usable:
                gpus = sum(slot not in node.disabled for slot in range(node.gpus))
                total = plus(total, (gpus * 1000, node.cpu_milli, node.memory_mib))
        return total

    # What is configured

    def _quota(self, queue: Queue) -> Quota | None:
        return queue.config.quotas.get(self.pool.name) if queue.config is not None else None

    def _below(self, queue: Queue | None) -> list[Queue]:
        return [each for each in self._ages if self._above[each] is queue]

    def deserved(self, queue: Queue) -> Bounds:
        """Return what a queue deserves: its quota, or with `over_subscribed: proportional` its part
        of what the department above it deserves, if that is less.
        """
        found = self._lowered.get(queue)
        if found is None:
            found = self._lowered[queue] = self._lower(queue)
        return found

    def _lower(self, queue: Queue) -> Bounds:
        own, above = self._configured(queue), self._above[queue]
        if not self._proportional or above is None:
            return own
        siblings = self._below(above)
        found = list(own)
        for i, bound in enumerate(self.deserved(above)):
            amounts = [self._configured(each)[i] for each in siblings]
            known = [amount for amount in amounts if amount is not None]
            total = sum(known)
            if bound is None or len(known) < len(amounts) or total <= bound:
                continue
            unit = UNITS[i]
            parts = [amount * bound // total // unit * unit for amount in known]
            rest = bound - sum(parts)
            order = sorted(
                range(len(known)),
                key=lambda at: (parts[at] * total - known[at] * bound, at),
            )
            for at in order:
                part = min(unit, rest)
                parts[at] += part
                rest -= part
            at = siblings.index(queue)
            found[i] = min(parts[at], known[at])
        gpu, cpu, memory = found
        return gpu, cpu, memory

    def _configured(self, queue: Queue) -> Bounds:
        """Return its quota; of a department without one, that of the queues in it together."""
        quota = self._quota(queue)
        if quota is not None:
            gpus = None if quota.deserved_unlimited else quota.deserved_milli or 0
            return gpus, quota.deserved_cpu_milli, quota.deserved_memory_mib
        below = [self._configured(each) for each in self._below(queue)]
        return added(below) if below else (0, None, None)

    def limit(self, queue: Queue) -> Bounds:
        """Return its limit, which is what it deserves if over-quota is off."""
        quota = self._quota(queue)
        if quota is None:
            return None, None, None
        limits = quota.limit_milli, quota.limit_cpu_milli, quota.limit_memory_mib
        if quota.over_quota:
            return limits
        return smaller(limits, self._configured(queue))

    # Shares

    def _divide(self, parent: Queue | None, total: Amounts, shares: dict[Queue, Amounts]) -> None:
        below = self._below(parent)
        gpus, cpus, memories = (self._shares(below, total[i], i) for i in RESOURCES)
        for at, queue in enumerate(below):
            shares[queue] = gpus[at], cpus[at], memories[at]
            self._divide(queue, shares[queue], shares)

    def _shares(self, siblings: list[Queue], total: int, i: int) -> list[int]:
        weights = [self._weight(queue, i) for queue in siblings]
        if not self._by_weight and not any(weights):
            weights = [1] * len(siblings)
        demands = []
        for at, (queue, weight) in enumerate(zip(siblings, weights, strict=True)):
            limit, requested = self.limit(queue)[i], self._requested(queue, i)
            demands.append(
                QueueDemand(
                    name=str(at),
                    rank=queue.config.rank if queue.config is not None else 100,
                    deserved=self.deserved(queue)[i],
                    demand=requested if limit is None else min(requested, limit),
                    weight=weight,
                    age=self._ages[queue],
                    usage=Fraction(self._usage[queue], self.total[i] or 1) if i == 0 else NO_USAGE,
                )
            )
        found = divide(total, demands, UNITS[i], self._usage_weight if i == 0 else NO_USAGE).shares
        return [found[demand.name] for demand in demands]

    def _requested(self, queue: Queue, i: int) -> int:
        """Return the amount of a resource that a queue holds and requests; tasks that cannot be
        preempted request at most what it deserves.
        """
        held, deserved = self.held[queue], self.deserved(queue)[i]
        if deserved is None:
            return held.requested[i]
        within = max(0, deserved - held.fixed[i])
        return held.requested[i] - max(0, held.fixed_pending[i] - within)

    def _weight(self, queue: Queue, i: int) -> int:
        quota = self._quota(queue)
        if not self._by_weight:
            return self._configured(queue)[i] or 0
        return quota.over_quota_weight if quota is not None and i == 0 else 1

    def most(self, queue: Queue) -> Amounts:
        """Return the most that it may hold without that queues beyond what they deserve reclaim it:
        its share, or what it deserves.
        """

        def of(i: int) -> int:
            deserved, limit = self.deserved(queue)[i], self.limit(queue)[i]
            most = self.total[i] if deserved is None else max(deserved, self.fair[queue][i])
            return most if limit is None else min(most, limit)

        return of(0), of(1), of(2)


@dataclass(slots=True)
class Batch:
    """The decisions that are made at once for one task that does not fit."""

    for_task: str
    pool: str
    stops: list[dec.PreemptionRequestedV1]
    #: Of tasks whose reserved slots are reclaimed.
    drops: list[dec.ReservationDroppedV1]
    #: The slots reserved for the task, and for victims that are moved, by task.
    reserved: dict[str, dec.SlotsReservedV1] = field(default_factory=dict)

    @property
    def moved(self) -> list[str]:
        """The victims that are moved."""
        return [stop.task_id for stop in self.stops if stop.stop.rule == "moved"]

    @property
    def stopped(self) -> list[str]:
        """The victims that are not moved."""
        return [stop.task_id for stop in self.stops if stop.stop.rule != "moved"]

    @property
    def action(self) -> str:
        """The action of the policy, by the numbers of its stops."""
        if not self.stops:
            return "reclaim"
        numbers = self.stops[0].stop.numbers
        if "for_priority" in numbers:
            return "preempt"
        return "consolidation" if set(numbers) == MOVE_NUMBERS else "reclaim"


def batch_at(state: ClusterState, decisions: Sequence[Event], at: int) -> Batch | None:
    """Return what is decided for the task for which `quota` takes slots of others from that
    decision on; None if none begins there.
    """
    first = decisions[at]
    for_task = _taken_for(first)
    if for_task is None or (at and _taken_for(decisions[at - 1]) == for_task):
        return None
    if isinstance(first, dec.ReservationDroppedV1):
        pool = first.pool
    else:
        assert isinstance(first, dec.PreemptionRequestedV1)
        run = state.task(first.task_id).run
        assert run is not None
        pool = run.pool_name
    batch = Batch(for_task, pool, [], [])
    for decision in decisions[at:]:
        match decision:
            case dec.ReservationDroppedV1() if not batch.stops and not batch.reserved:
                if _taken_for(decision) != for_task:
                    break
                batch.drops.append(decision)
            case dec.PreemptionRequestedV1() if not batch.reserved:
                if decision.stop.for_task != for_task:
                    break
                batch.stops.append(decision)
            case dec.SlotsReservedV1():
                if decision.task_id not in (for_task, *batch.moved):
                    break
                batch.reserved[decision.task_id] = decision
            case _:
                break
    return batch


def _taken_for(decision: Event) -> str | None:
    """Return the task for which `quota` preempts a task, or reclaims slots reserved for it."""
    match decision:
        case dec.PreemptionRequestedV1() if decision.stop.policy == "quota":
            return decision.stop.for_task
        case dec.ReservationDroppedV1() if any(map(_of_share, decision.numbers)):
            return decision.for_task
        case _:
            return None


def _of_share(number: str) -> bool:
    return number.startswith("for_fair_share_")


# The properties


def grows_beyond_share(state: ClusterState, batch: Batch) -> bool:
    """Whether the project of the task would be above its share, in the state before."""
    queues, task = Queues(state, state.pools[batch.pool]), state.task(batch.for_task)
    project = task.job.project
    after = plus(queues.held[project].allocated, request_of(queues.pool, task))
    for victim in map(state.task, batch.stopped):
        if victim.job.project is project:
            after = minus(after, lost_with(queues.pool, victim))
    return exceeds(after, queues.most(project))


def check_batch(state: ClusterState, batch: Batch) -> None:
    """Check what is decided for a task, in the state before."""
    pool = state.pools[batch.pool]
    assert pool.config is not None
    claimant = state.task(batch.for_task)
    options = options_of(pool.config.policy)
    assert isinstance(options, QuotaOptions)
    own = batch.reserved.get(batch.for_task)
    assert own is not None, f"{batch.for_task} gets no slots for its victims"
    assert own.victims == len(batch.stops)
    for task_id in batch.moved:
        to = batch.reserved.get(task_id)
        assert to is not None, f"{task_id} is moved, but no slots are reserved for it"
        run = state.task(task_id).run
        assert run is not None
        assert slots_of(to.placements) != slots_of(run.placements), f"{task_id} moves to its slots"
    queues = Queues(state, pool)
    victims = [state.task(task_id) for task_id in batch.stopped]
    _ran_long_enough(queues, claimant, batch, options.min_runtime_of == "queue")
    if batch.action == "consolidation":
        assert not victims, f"{victims[0].id} stops, but is not moved"
        assert len(batch.moved) <= options.max_moves, (
            f"{len(batch.moved)} tasks move for {claimant.id}"
        )
        for task_id in batch.moved:
            for place in batch.reserved[task_id].placements:
                assert _are_free(state, task_id, place), f"{task_id} waits for its new slots"
    elif batch.action == "preempt":
        non_preemptible = options.order == "document" and not claimant.job.spec.preemptible
        for victim in map(state.task, (*batch.stopped, *batch.moved)):
            assert victim.job.project is claimant.job.project
            assert non_preemptible or victim.job.priority > claimant.job.priority
    else:
        owners = [state.task(drop.task_id) for drop in batch.drops]
        faults = [
            _fault_of_reclaim(queues, claimant, order, options.saturation_permille)
            for order in _merged(owners, victims)
        ]
        assert None in faults, faults[0]


def _are_free(state: ClusterState, task_id: str, to: dec.Placement) -> bool:
    """Whether no other task holds, in the state before, what a replica of a task takes there."""
    held = dict.fromkeys(to.slots, to.gpu_milli)
    for (holder, replica), task in state.nodes[to.node].open.items():
        assert task.run is not None
        placement = task.run.placements[replica]
        for slot in placement.slots if holder != task_id else ():
            if slot in held:
                held[slot] += placement.gpu_milli
    return all(milli <= UNITS[0] for milli in held.values())


def _merged(one: Sequence[Task], other: Sequence[Task]) -> Iterator[list[Task]]:
    """Yield each order in which two sequences may have been one: of the victims of a task, those
    that lose reserved slots are recorded first.
    """
    size = len(one) + len(other)
    for places in combinations(range(size), len(one)):
        ones, others = iter(one), iter(other)
        yield [next(ones if at in places else others) for at in range(size)]


def _fault_of_reclaim(
    queues: Queues, claimant: Task, victims: Sequence[Task], saturation_permille: int
) -> str | None:
    """Return what is wrong with these victims, or None. Each victim leaves a queue that holds more
    than its share; or more than it deserves (in the pool, or as a project in all its pools), if the
    claimant's stays within what it deserves, and else only if the victim holds some of what its
    queue holds above that. And the claimant's does not become fuller.
    """
    ask, leaf = request_of(queues.pool, claimant), claimant.job.project
    after = plus(queues.held[leaf].allocated, ask)
    fair = queues.fair[leaf]
    if exceeds(after, fair):
        return f"{leaf.name} reclaims up to {after}, its share is {fair}"
    left = {queue: held.allocated for queue, held in queues.held.items()}
    involved = ask
    pairs = {}
    for victim in victims:
        own, its = queues.differing(claimant, victim)
        pairs[its] = own
        # A limit below what is deserved holds, so the rest may be taken.
        deserved = smaller(queues.deserved(its), queues.limit(its))
        what = f"{its.name} loses {victim.id}, but holds {left[its]}"
        taken = minus(left[its], queues.held[its].allocated)
        more_in_all = isinstance(its, Project) and queues.has_more_in_all(its, taken)
        if not more_in_all and not exceeds(left[its], deserved):
            return f"{what}, deserved are {deserved}"
        claimed = plus(queues.held[own].allocated, ask)
        guaranteed = not queues.has_more_in_all(leaf, ask)
        if not guaranteed or exceeds(claimed, queues.deserved(own)):
            most = queues.most(its)
            if not exceeds(left[its], most):
                return f"{what}, its share is {most}; {own.name}: {claimed}"
            if not exceeds(left[its], queues.deserved(its), of=lost_with(queues.pool, victim)):
                return f"{what}, and deserves all that {victim.id} holds; {own.name}: {claimed}"
        for queue in queues.path(victim.job.project):
            left[queue] = minus(left[queue], lost_with(queues.pool, victim))
        involved = plus(involved, lost_with(queues.pool, victim))
    for its, own in pairs.items():
        claimed = plus(left[own], ask)
        for i in RESOURCES:
            own_fair, its_fair = queues.fair[own][i], queues.fair[its][i]
            if involved[i] and own_fair and its_fair and claimed[i] > own_fair:
                fuller = claimed[i] * its_fair * saturation_permille
                if fuller >= left[its][i] * own_fair * 1000:
                    return f"{own.name} fills up past {its.name}"
    return None


def _ran_long_enough(queues: Queues, claimant: Task, batch: Batch, by_own_queue: bool) -> None:
    """No task is preempted, reclaimed or moved within the minimum run time of its queues."""
    for stop in batch.stops:
        victim = queues.state.task(stop.task_id)
        path = queues.path(victim.job.project)
        if batch.action == "consolidation":
            continue
        if batch.action == "reclaim" and not by_own_queue:
            path = path[: path.index(queues.differing(claimant, victim)[1]) + 1]
        seconds = 0
        for queue in path:
            config = queue.config
            if config is not None:
                preempt, reclaim = config.preempt_min_runtime_s, config.reclaim_min_runtime_s
                own = preempt if batch.action == "preempt" else reclaim
                seconds = seconds if own is None else own
        run = victim.run
        assert run is not None
        if seconds:
            assert run.running_ms, f"{victim.id} does not run yet, its queue protects {seconds} s"
            ran_ms = queues.state.now_ms - run.running_ms
            assert ran_ms >= seconds * 1000, f"{victim.id} ran {ran_ms} ms of {seconds} s"


def check_taken(
    state: ClusterState, decision: dec.SlotsAllocatedV1 | dec.SlotsReservedV1, task: Task
) -> None:
    """No level holds more than its limit, nor of tasks that cannot be preempted more than it
    deserves, after a task started or got reserved slots.

    Of GPU memory, the task counts as its part of the largest GPUs.
    """
    pool = state.pools[decision.pool]
    queues, ask = Queues(state, pool), request_of(pool, task)
    if task.job.shape.whole_nodes:
        # How many nodes it gets is not known before; the CPUs and memory of one count.
        ask = ask[0], 0, 0
    rounded = pool.least_milli(task.job.shape) - sum_of(decision.placements)[0]
    counted = (rounded, 0, 0)
    # With reserved slots it starts once those that stop in time are gone.
    is_reserved = isinstance(decision, dec.SlotsReservedV1)
    for queue in queues.path(task.job.project):
        held, limit, deserved = queues.held[queue], queues.limit(queue), queues.deserved(queue)
        used = plus(held.kept if is_reserved else held.used, counted)
        non_preemptible = plus(held.non_preemptible, counted)
        assert not exceeds(used, limit, of=ask), (
            f"{task.id} takes {queue.name} to {used}, its limit is {limit}"
        )
        if not task.job.spec.preemptible:
            assert not exceeds(non_preemptible, deserved, of=ask), (
                f"{task.id} takes {queue.name} to {non_preemptible}, deserved are {deserved}"
            )
    if not task.job.spec.preemptible:
        too_many = queues.has_too_many_non_preemptible(task.job.project, counted, of=ask)
        assert not too_many, f"{task.id} takes its project past what it deserves in all pools"


def needed_at_limit(state: ClusterState, pool: Pool, task: Task, victim: Task) -> bool:
    """Whether a limit would keep a task, which has reserved slots now, from starting while a task
    that was preempted for it at the limit is not gone.
    """
    run = victim.run
    assert run is not None
    if not isinstance(run.stop, PolicyStop) or run.stop.rule != AT_LIMIT:
        return False
    config = task.job.project.config
    if config is not None and config.limit_milli is not None:
        return True
    queues, ask, lost = Queues(state, pool), request_of(pool, task), lost_with(pool, victim)
    return any(
        exceeds(plus(queues.held[queue].kept, lost), queues.limit(queue), of=ask)
        for queue in queues.path(task.job.project)
    )


def slots_of(placements: Sequence[dec.Placement]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the node, incarnation and slots of all replicas, in one order."""
    return sorted((each.node, each.incarnation, each.slots) for each in placements)
