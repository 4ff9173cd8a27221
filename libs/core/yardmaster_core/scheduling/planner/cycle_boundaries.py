"""The begin and the end of a cycle.

At the begin, the time advances and due deadlines are handled. At the end, groups that stay pending
sleep until an event wakes them.
"""

from heapq import heapify, heappop
from typing import Final

from yardmaster_core.scheduling.state.appliers.attempts import (
    OVERDUE_MS,
    enqueue_if_ready,
    schedule_decision,
)
from yardmaster_core.scheduling.state.appliers.entitlements import reconsider_entitled
from yardmaster_core.scheduling.state.appliers.nodes import install
from yardmaster_core.scheduling.state.appliers.usages import (
    MINUTE_MS,
    count_usages,
    follow_held,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Due, NodeState, Phase
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group

#: Deadlines that no longer apply are removed only above this number of deadlines.
FEW: Final = 1024


def begin_cycle(state: ClusterState, cycle: int, now_ms: int, rules: int) -> ClusterState:
    """Begin a cycle of these rules at `now_ms` (milliseconds since the epoch).

    The cell's time never decreases. Tasks, nodes and groups whose deadline has passed are marked
    for this cycle.
    """
    state.cycle = cycle
    state.inputs_ended = False
    state.forgotten.clear()
    state.former_usage.clear()
    before_ms = state.now_ms
    state.now_ms = max(before_ms, now_ms)
    count_usages(state, before_ms)
    state.remove_ended()
    former, state.rules = state.rules, rules
    if former != rules:
        for pool in state.pools.values():
            # Results of the former rules.
            pool.policy_cache.clear()
    state.cycle_due = False
    # Revoked nodes are checked in every cycle, because their deadline changes with their pool and
    # with the replicas that they hold. So the log alone decides when a node is lost, not the checks
    # since a snapshot.
    state.revoked = {name: node for name, node in state.revoked.items() if node.revoked}
    state.node_attention.update(state.revoked)
    over: dict[Pool, None] = {}
    while state.deadlines and state.deadlines[0][0] <= state.now_ms:
        _, due, name, attempt = heappop(state.deadlines)
        if due == Due.DRAIN:
            for task in state.node(name).open.values():
                schedule_decision(state, task)
        elif due == Due.PROTECTION:
            over[state.pool(name)] = None
        else:
            found = state.tasks.get(name)
            if found is None or found.attempt != attempt or found.phase.final:
                continue
            if due == Due.HOLD:
                enqueue_if_ready(state, found)
            else:
                schedule_decision(state, found)
    for pool in over:
        for group in pool.protected:
            # Not all of them are due: a snapshot keeps only the deadlines of recorded waits.
            if _until_ms(pool, group) <= state.now_ms:
                state.wake_index.wake(pool, group)
    return state


def due_ms(state: ClusterState) -> int | None:
    """Return the next moment at which a cycle is needed although no record arrives, or None.

    The moment (milliseconds since the epoch) is now if the last cycle asked for another one.
    Otherwise it is the earliest of these: a revoked node is forfeited; a deadline passes that still
    applies; changed shares may be recorded; a minute begins, and decayed usage moves the shares of
    a pool with blocked groups.
    """
    if state.cycle_due:
        return state.now_ms
    moments = [
        moment
        for node in state.revoked.values()
        if (moment := node.forfeit_ms(state.config_of(node))) is not None
    ]
    while state.deadlines:
        moment, due, name, attempt = state.deadlines[0]
        if _still_applies(state, moment, due, name, attempt):
            moments.append(moment)
            break
        heappop(state.deadlines)
    moments += (
        pool.shares.next_ms
        for pool in state.pools.values()
        if pool.shares is not None and pool.index.shares_stale
    )
    minute_ms = (state.now_ms // MINUTE_MS + 1) * MINUTE_MS
    moments += (
        minute_ms
        for pool in state.pools.values()
        if pool.index.traits.follows_usage
        and next(state.wake_index.blocked(pool), None) is not None
    )
    return min(moments, default=None)


def _until_ms(pool: Pool, group: Group) -> int:
    return group.waits[pool.name][0].numbers.get("until_at_ms", 0)


def _still_applies(state: ClusterState, when_ms: int, due: int, name: str, attempt: int) -> bool:
    if due == Due.DRAIN:
        node = state.nodes.get(name)
        return node is not None and bool(node.drain_ms and node.open)
    if due == Due.PROTECTION:
        pool = state.pools[name]
        return any(_until_ms(pool, group) <= when_ms for group in pool.protected)
    task = state.tasks.get(name)
    if task is None or task.attempt != attempt:
        return False
    if due == Due.EXPIRY:
        return task.run is None and task.set_apart and not task.phase.final
    if due == Due.HOLD:
        return task.run is None and task.group is None and task.phase is Phase.PENDING
    run = task.run
    if due == Due.STOP:
        return run is not None and run.frees_slots and run.stop_deadline_ms + OVERDUE_MS <= when_ms
    if run is None or run.stop is not None:
        return False
    return due == Due.TIME_LIMIT or task.phase is Phase.STARTING


def _forget_deadlines(state: ClusterState) -> None:
    """Remove the deadlines of tasks that no longer apply, once they may be the majority.

    Otherwise the deadline of each start would stay until the start timeout.
    """
    if len(state.deadlines) <= FEW + 2 * state.deadlines_kept:
        return
    # Those of nodes and pools may apply again; of equal ones, one suffices.
    state.deadlines = [
        entry
        for entry in dict.fromkeys(state.deadlines)
        if entry[1] in (Due.DRAIN, Due.PROTECTION) or _still_applies(state, *entry)
    ]
    heapify(state.deadlines)
    state.deadlines_kept = len(state.deadlines)


def _shares_compared(state: ClusterState, pool: Pool) -> bool:
    """Whether the cycle compared the pool's shares with those recorded before (`share_records`)."""
    shares = pool.shares
    return shares is None or shares.cycle == state.cycle or shares.next_ms <= state.now_ms


def end_cycle(state: ClusterState, *, complete: bool) -> ClusterState:
    """End a cycle: groups that were considered and stay pending sleep until an event wakes them.

    Another cycle follows at once (`cycle_due`) in two cases: a node joins at this point, after its
    old incarnation was lost; or this cycle changed an input of the shares.

    An observed silence that did not lose its node is forgotten: the node may be heard again, and
    the silence is observed again while it lasts.
    """
    if complete:
        state.end_inputs()
    follow_held(state)
    for group in state.emptied:
        if not group.pending:
            state.forgotten[group.key] = dict(group.waits)
            state.forget(group)
    state.emptied.clear()
    _forget_deadlines(state)
    # The next cycle may still consider what this one had to.
    reconsider_entitled(state)
    state.wake_index.entitled.clear()
    for pool in state.pools.values():
        if not complete:
            state.wake_index.keep_awake(pool)
        pool.recheck = pool.all_woken = pool.blocked_woken = pool.equals_woken = False
        pool.started.clear()
    state.wake_index.limits_woken.clear()
    state.wake_index.freeing.clear()
    if not complete:
        return state
    for pool in state.pools.values():
        if _shares_compared(state, pool):
            pool.index.shares_stale = False
        pool.index.cycle_ended()
        state.cycle_due |= pool.index.due
    considered, state.node_attention = state.node_attention, {}
    state.attention.clear()
    for node in considered.values():
        if node.pending is not None and not node.open:
            install(state, node, node.pending)
            state.cycle_due = True
        if node.silent_ms and node.state is NodeState.UP:
            node.silent_ms = 0
            state.dirty[node] = None
    for pool in state.pools.values():
        if not state.cycle_due:
            pool.awake.clear()
        pool.woken.clear()
    return state
