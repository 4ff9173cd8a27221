"""The appliers of ranks and shares of claimants; they can be undone while a draft is open."""

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.recorded_shares import with_part
from yardmaster_core.scheduling.state.tasks import Job
from yardmaster_schemas.events.decisions import Among, ClaimantsRankedV1, SharesDividedV1


def shares_divided_v1(state: ClusterState, event: SharesDividedV1, _: str) -> None:
    pool = state.pool(event.pool)
    state.journal.put(pool, "shares", with_part(pool.shares, event, state.now_ms, state.cycle))
    state.dirty[pool] = None


def claimants_ranked_v1(state: ClusterState, event: ClaimantsRankedV1, _: str) -> None:
    pool = state.pool(event.pool)
    for each in event.ranks:
        if event.among is Among.USER:
            set_user_rank(state, pool, each.claimant, each.rank)
            continue
        claimant = (
            state.jobs.get(each.claimant)
            if event.among is Among.JOB
            else state.projects.get(each.claimant)
        )
        if claimant is not None:
            set_rank(state, pool, claimant, each.rank)


def set_rank(
    state: ClusterState, pool: Pool, claimant: Job | Project, rank: tuple[int, ...]
) -> None:
    """Set the recorded place of a claimant; an empty `rank` removes it."""
    before = claimant.ranks.get(pool.name, ())
    state.journal.record(set_rank, state, pool, claimant, before)
    if rank:
        claimant.ranks[pool.name] = rank
        pool.ranked[claimant] = None
    else:
        claimant.ranks.pop(pool.name, None)
        pool.ranked.pop(claimant, None)
    state.dirty[claimant] = None


def set_user_rank(state: ClusterState, pool: Pool, claimant: str, rank: tuple[int, ...]) -> None:
    """Set the recorded place of a claimant among users; an empty `rank` removes it."""
    before = pool.user_ranks.get(claimant, ())
    state.journal.record(set_user_rank, state, pool, claimant, before)
    pool.set_user_rank(claimant, rank)
    state.dirty[pool] = None
