"""Steps that keep the decayed usages of projects; each is taken outside of drafts."""

from dataclasses import replace
from typing import Final

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.decayed_usage import AVERAGE_BITS, LEAST, DecayedUsage
from yardmaster_core.scheduling.state.pools import Pool

MINUTE_MS: Final = 60_000


def follow_held(state: ClusterState) -> None:
    """Update the decayed usage of each project whose held amount changed in this cycle."""
    for pool, project in state.usage_due:
        half_life_ms = pool.index.traits.usage_half_life_ms
        former = project.decayed_usage.get(pool.name)
        known = former or DecayedUsage(0, 0, state.now_ms)
        held_milli = project.used_milli.get(pool.name, 0)
        if not half_life_ms or held_milli == known.held_milli:
            continue
        state.former_usage[project, pool.name] = former
        project.decayed_usage[pool.name] = replace(
            known,
            average=known.average_at(state.now_ms, half_life_ms),
            held_milli=held_milli,
            at_ms=state.now_ms,
        )
        state.dirty[project] = None
    state.usage_due.clear()


def count_usages(state: ClusterState, before_ms: int) -> None:
    """At the begin of a minute, set the usages that shares use, and drop those below `LEAST`.

    Does nothing if no minute began since `before_ms`.
    """
    minute_ms = state.now_ms // MINUTE_MS * MINUTE_MS
    if before_ms >= minute_ms:
        return
    for pool in state.pools.values():
        half_life_ms = pool.index.traits.usage_half_life_ms
        if not half_life_ms:
            continue
        changed = False
        for project in state.projects.values():
            known = project.decayed_usage.get(pool.name)
            if known is None:
                continue
            average = known.average_at(minute_ms, half_life_ms)
            counted_milli = average >> AVERAGE_BITS
            if not known.held_milli and average < LEAST:
                del project.decayed_usage[pool.name]
            elif counted_milli != known.counted_milli:
                project.decayed_usage[pool.name] = replace(known, counted_milli=counted_milli)
            else:
                continue
            state.dirty[project] = None
            changed = True
        if changed:
            pool.index.usages_changed()


def follow_half_life(state: ClusterState, pool: Pool, before_ms: int) -> None:
    """Continue the usages of a pool with the half-life of its index; without one, drop them.

    `before_ms`: the half-life until now; 0: none.
    """
    after_ms = pool.index.traits.usage_half_life_ms
    if after_ms == before_ms:
        return
    for project in state.projects.values():
        known = project.decayed_usage.pop(pool.name, None)
        held_milli = project.used_milli.get(pool.name, 0)
        if after_ms and (known is not None or held_milli):
            project.decayed_usage[pool.name] = _continued(state, known, held_milli, before_ms)
        if known is not None or pool.name in project.decayed_usage:
            state.dirty[project] = None


def _continued(
    state: ClusterState, known: DecayedUsage | None, held_milli: int, half_life_ms: int
) -> DecayedUsage:
    now_ms = state.now_ms
    if known is None:
        return DecayedUsage(0, held_milli, now_ms)
    average = known.average_at(now_ms, half_life_ms)
    return DecayedUsage(average, held_milli, now_ms, known.counted_milli)
