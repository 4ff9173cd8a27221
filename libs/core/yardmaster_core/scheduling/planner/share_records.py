"""Records the shares of a pool's queues at the end of its pass, for views and reports.

Only policies with `ShareReports.queues` have such records. A cycle records shares that changed.
While shares keep changing, the records become rarer, down to one a minute of the cell's time
(`RecordedShares`).
`cycle_boundaries.due_ms` asks for the cycle that records the last change.
"""

from collections.abc import Sequence

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.policy import PolicyRegistry, PoolView
from yardmaster_core.scheduling.planner.resolved_config import resolved_config
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.recorded_shares import extended
from yardmaster_schemas.events.decisions import MAX_SHARES, QueueShare, SharesDividedV1


def record_shares(draft: Draft, policies: PolicyRegistry) -> None:
    """Record the shares of each pool where they changed.

    Raises:
        CycleFull: they are recorded in the next cycle.
    """
    state = draft.state
    for _, pool in sorted(state.pools.items()):
        before = pool.shares
        if pool.config is None or not pool.index.shares_stale:
            continue
        if before is not None and state.now_ms < before.next_ms:
            continue
        resolved = resolved_config(pool, policies)
        queues = tuple(resolved.policy.shares.queues(PoolView(state, pool, resolved.options)))
        if not queues and before is None:
            continue
        parts = [queues[at : at + MAX_SHARES] for at in range(0, len(queues), MAX_SHARES)] or [()]
        if before is None or before.digest != _digest(parts):
            _record(draft, pool, parts)


def _digest(parts: Sequence[tuple[QueueShare, ...]]) -> str:
    digest = ""
    for queues in parts:
        digest = extended(digest, queues)
    return digest


def _record(draft: Draft, pool: Pool, parts: Sequence[tuple[QueueShare, ...]]) -> None:
    draft.require(len(parts))
    for part, queues in enumerate(parts):
        draft.record(SharesDividedV1(pool=pool.name, part=part, queues=queues), pool.name, None)
