"""The shares of a pool's claimants in the running cycle."""

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.fair_share.claimants import Claimant, held_by
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import DemandTracker
from yardmaster_core.scheduling.policies.fair_share.division import VARIANTS
from yardmaster_core.scheduling.policies.fair_share.index import index_of
from yardmaster_core.scheduling.policies.fair_share.shares import Shares
from yardmaster_core.scheduling.state.projects import Project


def demands_of(view: PoolView) -> DemandTracker:
    """Return the demands of the claimants.

    Counted once per division: other starts and stops change no share until the next cycle.
    """
    found: DemandTracker | None = view.memo.get("demands")
    if found is None:
        found = view.memo["demands"] = index_of(view).current_demands(view.state)
    return found


def shares_of(view: PoolView) -> Shares:
    """Return the shares; divide the pool at the first call in a cycle, and keep the result in the
    memo.
    """
    found: Shares | None = view.memo.get("shares")
    if found is None:
        divide = VARIANTS[view.options.variant]
        found = view.memo["shares"] = demands_of(view).divide(view.state.pools, divide)
        view.memo["divided_at"] = view.pool.max_free_changes
    return found


def divide_again(view: PoolView) -> None:
    """Divide the pool again, because a task that cannot be preempted started."""
    del view.memo["demands"], view.memo["shares"]
    view.memo.pop("above", None)
    shares_of(view)


def used_by(view: PoolView, claimant: Claimant) -> int:
    """Return what a claimant holds and what is reserved for its tasks (gpu_milli)."""
    return held_by(view.pool, claimant) + view.pool.reserved_milli.get(claimant, 0)


def name_of(claimant: Claimant) -> str:
    """Return the name of a project, or the id of a job."""
    return claimant.name if isinstance(claimant, Project) else claimant.id
