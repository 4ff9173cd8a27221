"""`quota`: departments and projects with guaranteed quotas, and the rest divided among them.

After Run:ai's scheduler, as its documentation describes it, and its open descendant KAI-Scheduler
at d5bc503a. Where the two differ, an option selects; `order: document` and `order: kai` select for
all options that are not set.

- Each queue (a department or project) deserves amounts of GPUs, CPUs and memory, and may have
  limits. The total of a pool is divided level by level: first each queue gets what it deserves and
  requests, then the rest is divided by rank and weight (`division.py`). The result is the share of
  the queue.
- The most deprived queue starts a task first (`order.py`). Within a project, tasks come by
  priority, then by submission (`project_order.py`). Tasks start on any idle capacity, also beyond
  the share of their project.
- A task that cannot be preempted starts only if its project, and every department above it, then
  holds no more than it deserves (`start.py`).
- A task that does not fit tries, in the order of `actions`: to preempt tasks of lower priority of
  its own project (`preempt.py`); to have preemptible tasks moved to other slots
  (`consolidation.py`); if its project stays within its share, to reclaim slots from queues that
  hold more than their share or than they deserve (`reclaim.py`). Others are moved for a task
  beyond its project's share only after the tasks within theirs tried to reclaim.

In a cycle the planner first asks for the groups to wake (`wake.py`). Then, for each group in the
order of queues, it asks whether the group may start, and tries the preemption actions.
"""

from collections.abc import Hashable
from fractions import Fraction
from functools import lru_cache
from typing import Final

from yardmaster_core.scheduling.planner.policy import (
    AtLimit,
    CandidateOrder,
    Listing,
    Order,
    Policy,
    PoolView,
    Preemption,
    PreemptionAction,
    ShareReports,
    StartRules,
    Wake,
)
from yardmaster_core.scheduling.policies.quota.consolidation import (
    consolidation,
    may_move_beyond_share,
    may_move_within_share,
    reclaims_after_moves,
)
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex
from yardmaster_core.scheduling.policies.quota.listing import (
    always_in_rank,
    claimant_kind,
    failed_last,
    listed_order,
    project_precedence,
    within_project,
)
from yardmaster_core.scheduling.policies.quota.options import QuotaOptions, follows_kai
from yardmaster_core.scheduling.policies.quota.order import QueueOrder
from yardmaster_core.scheduling.policies.quota.preempt import AT_LIMIT, PREEMPT, may_take_over
from yardmaster_core.scheduling.policies.quota.project_order import order_in_project
from yardmaster_core.scheduling.policies.quota.ranks import changed_ranks
from yardmaster_core.scheduling.policies.quota.reclaim import RECLAIM
from yardmaster_core.scheduling.policies.quota.share_rows import project_shares, queue_shares
from yardmaster_core.scheduling.policies.quota.start import (
    exceeds_quota,
    no_victims_wait,
    start_reason,
    wait_for_quota,
)
from yardmaster_core.scheduling.policies.quota.wake import (
    ahead_of_owners,
    groups_to_wake,
    offer,
    under_limits,
)
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group


def candidates(view: PoolView, turns: int) -> CandidateOrder:
    """Return the order of pending groups in one cycle."""
    claiming = actions(view.options)
    after = 1 + claiming.index(PREEMPT) if PREEMPT in claiming else 0
    within = order_in_project(view)
    return QueueOrder(view, turns, over_in_all=follows_kai(view), within=within, after=after)


@lru_cache(maxsize=256)
def actions(options: QuotaOptions) -> tuple[PreemptionAction, ...]:
    """Return the ways in which a task may preempt others, in the order of the actions."""
    found: dict[str, tuple[PreemptionAction, ...]] = {
        "preempt": (PREEMPT,),
        "reclaim": (RECLAIM,),
        "consolidation": (consolidation(options.max_moves),),
    }
    # rule: moves: beyond the share after every reclaim
    if reclaims_after_moves(options):
        within, beyond = (
            consolidation(options.max_moves, applies)
            for applies in (may_move_within_share, may_move_beyond_share)
        )
        found |= {"consolidation": (within,), "reclaim": (RECLAIM, beyond)}
    return tuple(action for name in options.claiming for action in found[name])


def at_limit(options: QuotaOptions) -> AtLimit | None:
    """Return how a task preempts others of its project at a limit; None: it does not."""
    # rule: preempt: at a limit
    return AT_LIMIT if "preempt" in options.claiming else None


def starts_on_idle(options: QuotaOptions) -> bool:
    """Whether tasks start on idle capacity."""
    # rule: actions: allocate
    return "allocate" in options.in_order


def equivalence(view: PoolView, group: Group) -> Hashable:
    """Return the properties on which the result for a group depends, apart from its request."""
    return group.shape.project, group.priority, group.shape.preemptible, group.min_runtimes > 0


def quota_index(pool: Pool, options: QuotaOptions) -> QuotaIndex:
    """Return a new index of a pool with this policy."""
    return QuotaIndex(
        pool,
        by_weight=options.over_quota == "weight",
        usage_half_life_ms=options.usage_half_life_s * 1000,
        # rule: shares: usage_weight_permille
        usage_weight=Fraction(options.usage_weight_permille, 1000),
        reserves=options.reserve_oldest_s is not None,
        lowers_deserved=options.over_subscribed == "proportional",
    )


QUOTA: Final = Policy(
    name="quota",
    version=1,
    options=QuotaOptions,
    order=Order(key=listed_order, candidates=candidates, equivalence=equivalence),
    start=StartRules(
        must_wait=wait_for_quota, exceeds=exceeds_quota, reason=start_reason, on_idle=starts_on_idle
    ),
    preemption=Preemption(
        actions=actions,
        no_victims_wait=no_victims_wait,
        precedence=project_precedence,
        takes_over=may_take_over,
        within_project=True,
        at_limit=at_limit,
    ),
    listing=Listing(
        place=failed_last,
        in_rank=always_in_rank,
        within=within_project,
        claimants=claimant_kind,
        ranks=changed_ranks,
    ),
    shares=ShareReports(queues=queue_shares, of_projects=project_shares),
    wake=Wake(groups=groups_to_wake, offer=offer, ahead=ahead_of_owners, under_limits=under_limits),
    index=quota_index,
)
