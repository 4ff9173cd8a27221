"""`fitgpp`: tasks that are not preemptible start at once; if one does not fit, the preemptible task
whose preemption costs least is preempted.

After "Low-latency job scheduling with preemption for the development of deep learning" (Yabuuchi,
Taniwaki, Omura; OpML 2019), whose formulas are read as

    Size(D)  = sqrt((cpu / cap.cpu)^2 + (memory / cap.memory)^2 + (gpu / cap.gpu)^2)
    Score(j) = Size(D_j) / max Size + s * GP_j / max GP

GP is the grace period; the maxima are over the running tasks. A victim qualifies if the task fits
on the victim's node without it, and if it was preempted fewer than `p` times. The victim with the
lowest score is preempted. If no victim qualifies, victims are drawn at random until the task fits,
those preempted fewer than `p` times before the others; drawn victims that turn out unnecessary keep
running.

The planner asks, in this order: `must_wait` (is an earlier task of the queue waiting for
capacity?), then for a task that does not fit the victims of its action (qualifying tasks by score,
then random ones) and why each of them is stopped.

With `backfill_s`, which the paper does not have, a task that waits for capacity lets later tasks of
its queue pass until it is overdue, and tasks that are not preemptible preempt at once, whatever
waits ahead of them (`bounded_queues.py`).

The paper leaves these questions open, and this module answers them so:

- There are two strict queues (`non_preemptible_first`). A task that is not preemptible and comes
  behind one that waits for its victims waits too, and preempts no task; preemptible tasks continue
  to start on slots that are not reserved.
- `cap` is, for each resource, the most that a node of the pool has, so that scores are comparable.
- What a gang holds counts as a whole, on whichever nodes. A gang qualifies if one replica of the
  task fits on one of the gang's nodes without it.
- For a task of several replicas, qualifying victims are preempted in the order of their scores
  until all replicas fit; victims that turn out unnecessary keep running.
- Amounts are integers, in millionths, so that all machines compute equal scores.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.placement import helps
from yardmaster_core.scheduling.planner.policy import (
    Listing,
    Order,
    OrderKey,
    Policy,
    PoolView,
    Precedence,
    Preemption,
    PreemptionAction,
    StartRules,
    StopReason,
)
from yardmaster_core.scheduling.planner.seeded_random import shuffled
from yardmaster_core.scheduling.policies.baselines import (
    non_preemptible_first,
    non_preemptible_place,
)
from yardmaster_core.scheduling.policies.bounded_queues import (
    BoundedQueues,
    overdue_ahead,
    passes_another,
)
from yardmaster_core.scheduling.policies.preemptible import PreemptibleIndex
from yardmaster_core.scheduling.policies.strict import (
    allowed_victims,
    first_in_queue,
    min_runtime_wait,
    only,
    protected_ahead,
    running_victims,
    wait_behind_first,
    wait_behind_task,
)
from yardmaster_core.scheduling.policies.strict_queues import strict_queues
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.tasks import Attempt, Group, Task
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.fields import CLOSED, Count, Positive
from yardmaster_schemas.reasons import Start, Wait

ONE: Final = 1_000_000
#: The rule by which a task starts that passes one of its queue.
BACKFILL: Final = Start(rule="backfill")

#: cpu_milli, memory_mib, gpu_milli.
Amounts = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitGppOptions:
    """`s_milli`: the weight of the grace period against the size, in thousandths. `p`: how often
    one task may be preempted while others qualify; None: no limit. `backfill_s`: how long (s) after
    its submission a waiting task lets later ones of its queue pass; None: it lets none pass.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    s_milli: Count = 4000
    p: Positive | None = 1
    backfill_s: Positive | None = None


class Scores:
    """The cost of preempting each running task of a pool, at one moment."""

    def __init__(self, view: PoolView) -> None:
        self._s_milli: int = view.options.s_milli
        self._capacity = capacity_of(view.pool)
        self._sizes: dict[Task, int] = {}
        self._longest_s = 0
        for task in running_victims(view):
            assert task.run is not None
            self._sizes[task] = size_of(amounts_held(task.run), self._capacity)
            self._longest_s = max(self._longest_s, task.job.spec.grace_s)
        self._largest = max(self._sizes.values(), default=0)
        #: Victims that qualify.
        self.fit: set[Task] = set()

    def size(self, task: Task) -> int:
        """Size(D), in millionths."""
        return self._sizes[task]

    def score(self, task: Task) -> int:
        """Score(j), in millionths."""
        grace = ONE * task.job.spec.grace_s // self._longest_s if self._longest_s else 0
        size = ONE * self._sizes[task] // self._largest if self._largest else 0
        return size + self._s_milli * grace // 1000


def capacity_of(pool: Pool) -> Amounts:
    """Return the most of each resource that one node of the pool has."""
    kept: tuple[int, Amounts] | None = pool.policy_cache.get("capacity")
    if kept is None or kept[0] != pool.topology:
        nodes = pool.nodes.values()
        most = (
            max((node.cpu_milli for node in nodes), default=0),
            max((node.memory_mib for node in nodes), default=0),
            max((node.gpus * WHOLE for node in nodes), default=0),
        )
        kept = pool.policy_cache["capacity"] = (pool.topology, most)
    return kept[1]


def amounts_held(run: Attempt) -> Amounts:
    """Return the resources that an attempt holds on all its nodes together."""
    cpu = memory = gpu = 0
    for placement in _held(run):
        cpu += placement.cpu_milli
        memory += placement.memory_mib
        gpu += placement.gpu_milli * len(placement.slots)
    return cpu, memory, gpu


def _held(run: Attempt) -> Iterator[Placement]:
    for placement, was in zip(run.placements, run.replicas, strict=True):
        if was < ReplicaState.RELEASED:
            yield placement


def size_of(held: Amounts, capacity: Amounts) -> int:
    """Size(D), in millionths."""
    parts = [ONE * d // cap if cap else 0 for d, cap in zip(held, capacity, strict=True)]
    return isqrt(sum(part * part for part in parts))


def best_victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield victims: first those that qualify, the lowest score first; then the others at random,
    those below the limit `p` first.
    """
    pool, limit = view.pool, view.options.p
    able = allowed_victims(view, task)
    if not able or not could_fit_after_stops(pool, task.job.shape):
        return
    scores = view.memo["scores"] = Scores(view)
    below = [victim for victim in able if limit is None or victim.preemptions < limit]
    victim_fit = _VictimFit(view, task.job.shape)
    scores.fit = {victim for victim in below if victim_fit.without(victim)}
    yield from sorted(scores.fit, key=lambda victim: (scores.score(victim), victim.key))
    assert pool.config is not None
    seed, purpose = pool.config.seed, f"fitgpp/{task.id}/{task.attempt}"
    yield from shuffled(seed, purpose, [victim for victim in below if victim not in scores.fit])
    if limit is not None:
        over = [victim for victim in able if victim.preemptions >= limit]
        yield from shuffled(seed, f"{purpose}/over", over)


class _VictimFit:
    """Checks whether one replica of a task fits on a victim's node without the victim."""

    def __init__(self, view: PoolView, shape: Shape) -> None:
        self._nodes = view.state.nodes
        self._shape = shape
        future = view.pool.future
        self._capacities = future.capacities
        self._allowed = future.available & future.matching(shape)

    def without(self, victim: Task) -> bool:
        """Whether a replica fits on one of the victim's nodes once the victim has released its
        slots.
        """
        run = victim.run
        assert run is not None
        by_node: dict[int, list[Placement]] = {}
        for placement in _held(run):
            by_node.setdefault(self._nodes[placement.node].ordinal, []).append(placement)
        return any(self._on(ordinal, freed) for ordinal, freed in by_node.items())

    def _on(self, ordinal: int, freed: list[Placement]) -> bool:
        if not self._allowed >> ordinal & 1:
            return False
        capacity, shape = self._capacities[ordinal], self._shape
        cpu_milli, memory_mib = capacity.cpu_milli, capacity.memory_mib
        for placement in freed:
            cpu_milli += placement.cpu_milli
            memory_mib += placement.memory_mib
        if cpu_milli < shape.cpu_milli or memory_mib < shape.memory_mib:
            return False
        after = NodeCapacity(ordinal, 0, cpu_milli, memory_mib, capacity.gpu_memory_mib)
        after.disabled, after.gpuless_left = capacity.disabled, capacity.gpuless_left
        free = after.slots = list(capacity.slots)
        for placement in freed:
            for slot in placement.slots:
                free[slot] += placement.gpu_milli
            after.gpuless_left += not placement.slots
        after.recount()
        return helps(after, shape)


def fitgpp_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task`; size and score in thousandths."""
    scores: Scores = view.memo["scores"]
    limit = view.options.p
    numbers = {
        "size": scores.size(victim) // 1000,
        "grace_s": victim.job.spec.grace_s,
        "score": scores.score(victim) // 1000,
        "times_stopped": victim.preemptions,
    }
    return StopReason(
        rule="lowest_score" if victim in scores.fit else "drawn",
        for_task=task.id,
        numbers=numbers if limit is None else {**numbers, "limit": limit},
    )


def by_position(_: PoolView, __: Group, task: Task) -> OrderKey:
    """Order queue by queue, and by position within a queue, as `by_queue_position`."""
    return (non_preemptible_first(task),)


def position_precedence(_: PoolView, task: Task) -> Precedence:
    """Return the queue and the position in it: slots reserved for a later task go to an earlier."""
    return None, non_preemptible_first(task)


def wait_behind(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task that must not pass another one of its queue; else None."""
    if view.options.backfill_s is None:
        return wait_behind_first(view, group, task)
    ahead = overdue_ahead(view, task, view.options.backfill_s) or protected_ahead(view, group)
    return None if ahead is None else wait_behind_task(task, ahead)


def start_rule(view: PoolView, task: Task) -> Start:
    """Return the rule by which a task starts: whether it passes another one of its queue."""
    if view.options.backfill_s is None:
        return first_in_queue(view, task)
    return BACKFILL if passes_another(view, task) else first_in_queue(view, task)


def fitgpp_index(pool: Pool, options: FitGppOptions) -> PreemptibleIndex:
    """Return a new index of a pool with this policy."""
    traits = Traits(preempts=True, counts_preemptions=True)
    if options.backfill_s is None:
        return strict_queues(non_preemptible_first, traits)(pool, options)
    return BoundedQueues(pool, replace(traits, behind_one=True))


FITGPP: Final = Policy(
    name="fitgpp",
    version=1,
    options=FitGppOptions,
    order=Order(key=by_position),
    start=StartRules(must_wait=wait_behind, reason=start_rule),
    preemption=Preemption(
        actions=only(PreemptionAction(victims=best_victims, stop_reason=fitgpp_stop_reason)),
        no_victims_wait=min_runtime_wait,
        precedence=position_precedence,
    ),
    index=fitgpp_index,
    listing=Listing(place=non_preemptible_place),
)
