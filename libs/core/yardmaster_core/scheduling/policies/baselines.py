"""The policies that FitGpp is compared with in its paper: `fifo`, `lrtp`, `rand`; and `sjf`.

- `fifo`: one strict queue by submission. No task passes another and no task is preempted.
- `lrtp` and `rand`: two strict queues, as under `fitgpp`: non-preemptible tasks come before
  preemptible ones. For a non-preemptible task that does not fit, preemptible tasks are preempted
  until it fits: with `lrtp` the tasks with the longest remaining time first, with `rand` in random
  order. As in the paper, victims that turn out unnecessary are preempted too.
- `sjf`: the shortest runtime estimate first. It is for simulations only, because users could get
  ahead with false estimates.

The planner asks, in this order: `must_wait` (is an earlier task of the queue waiting for
capacity?), then under `lrtp` and `rand`, for a task that does not fit, the preemption action.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from yardmaster_core.scheduling.planner.policy import (
    Listing,
    Order,
    Policy,
    PoolView,
    Preemption,
    PreemptionAction,
    QueueTraits,
    Rank,
    StartRules,
    StopReason,
)
from yardmaster_core.scheduling.planner.seeded_random import shuffled
from yardmaster_core.scheduling.policies.strict import (
    allowed_victims,
    by_queue_position,
    first_in_queue,
    min_runtime_wait,
    only,
    queue_precedence,
    stop_for_task,
    wait_behind_first,
)
from yardmaster_core.scheduling.policies.strict_queues import QueuePosition, strict_queues
from yardmaster_core.scheduling.state.policy_index import Traits
from yardmaster_core.scheduling.state.tasks import Task


def by_submission(task: Task) -> QueuePosition:
    """One queue, the earliest submission first."""
    return 0, task.key


def non_preemptible_first(task: Task) -> QueuePosition:
    """Two queues, non-preemptible tasks before preemptible ones; in each the earliest submission
    first.

    A preempted task keeps its submission time. Tasks that wait for their first start were submitted
    later than running tasks, so it returns to the front of its queue.
    """
    return int(task.job.spec.preemptible), task.key


def non_preemptible_place(traits: QueueTraits) -> Rank:
    """The queue of `non_preemptible_first`."""
    return (traits.preemptible,)


def by_estimate(task: Task) -> QueuePosition:
    """One queue: the shortest estimate first, then the earliest submission; tasks without an
    estimate last.
    """
    estimate_s = task.job.spec.runtime_estimate_s
    return 0, (estimate_s is None, estimate_s or 0, task.key)


def remaining_ms(view: PoolView, task: Task) -> int:
    """Return the remaining run time of a task by its estimate, in ms; 0 if it has none or exceeds
    it.
    """
    estimate_s = task.job.spec.runtime_estimate_s
    run = task.run
    if estimate_s is None or run is None:
        return 0
    ran_ms = task.ran_ms + (view.state.now_ms - run.running_ms if run.running_ms else 0)
    return max(0, estimate_s * 1000 - ran_ms)


def longest_remaining_first(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield victims, the longest remaining time first, then the latest submission."""
    found = [
        (remaining_ms(view, victim), victim.key, victim) for victim in allowed_victims(view, task)
    ]
    found.sort(reverse=True)
    return (victim for _, _, victim in found)


def in_random_order(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield victims in random order, from the pool's seed."""
    assert view.pool.config is not None
    found = allowed_victims(view, task)
    view.memo["candidates"] = len(found)
    return shuffled(view.pool.config.seed, f"rand/{task.id}/{task.attempt}", found)


def lrtp_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task` under `lrtp`."""
    left_s = remaining_ms(view, victim) // 1000
    return stop_for_task(view, victim, task, "longest_remaining", remaining_s=left_s)


def rand_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task` under `rand`."""
    candidates = view.memo["candidates"]
    return stop_for_task(view, victim, task, "drawn", candidates=candidates)


FIFO: Final = Policy(
    name="fifo",
    version=1,
    order=Order(key=by_queue_position),
    start=StartRules(must_wait=wait_behind_first, reason=first_in_queue),
    preemption=Preemption(precedence=queue_precedence),
    index=strict_queues(by_submission),
)

# The tasks of one group must have one estimate, so each job is a claimant of its own.
SJF: Final = replace(
    FIFO,
    name="sjf",
    index=strict_queues(by_estimate, Traits(equal_within="job")),
    simulation_only=True,
)

LONGEST_REMAINING: Final = PreemptionAction(
    victims=longest_remaining_first, stop_reason=lrtp_stop_reason, drop_unneeded=False
)
DRAWN: Final = PreemptionAction(
    victims=in_random_order, stop_reason=rand_stop_reason, drop_unneeded=False
)

LRTP: Final = Policy(
    name="lrtp",
    version=1,
    order=Order(key=by_queue_position),
    start=StartRules(must_wait=wait_behind_first, reason=first_in_queue),
    preemption=Preemption(
        actions=only(LONGEST_REMAINING),
        no_victims_wait=min_runtime_wait,
        precedence=queue_precedence,
    ),
    index=strict_queues(non_preemptible_first, Traits(preempts=True)),
    listing=Listing(place=non_preemptible_place),
)

RAND: Final = replace(LRTP, name="rand", preemption=replace(LRTP.preemption, actions=only(DRAWN)))
