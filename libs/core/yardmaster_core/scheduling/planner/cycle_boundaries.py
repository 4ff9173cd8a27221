"""The begin and the end of a cycle.

At the begin, the time advances and due deadlines are handled. At the end, groups that stay pending
sleep until an event wakes them.
"""

from heapq import heappop

from yardmaster_core.scheduling.planner.group_queue import NO_CAPACITY, code_of
from yardmaster_core.scheduling.state.appliers.attempts import enqueue_if_ready, schedule_decision
from yardmaster_core.scheduling.state.appliers.nodes import install
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Due, NodeState, Phase
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_schemas.reasons import WaitCode


def begin_cycle(state: ClusterState, cycle: int, now_ms: int) -> ClusterState:
    """Begin a cycle at `now_ms` (milliseconds since the epoch).

    The cell's time never decreases. Tasks, nodes and groups whose deadline has passed are marked
    for this cycle.
    """
    state.cycle = cycle
    state.now_ms = max(state.now_ms, now_ms)
    state.restless = False
    # Revoked nodes are checked in every cycle, because their deadline changes with their pool and
    # with the replicas that they hold. So the log alone decides when a node is lost, not the checks
    # since a snapshot.
    state.revoked = {name: node for name, node in state.revoked.items() if node.revoked}
    state.node_attention.update(state.revoked)
    while state.deadlines and state.deadlines[0][0] <= state.now_ms:
        _, due, name, attempt = heappop(state.deadlines)
        if due == Due.DRAIN:
            for task in state.node(name).open.values():
                schedule_decision(state, task)
        elif due == Due.PROTECTION:
            pool = state.pool(name)
            for group in pool.protected:
                # Not all of them are due: a snapshot keeps only the deadlines of recorded waits.
                if _until_ms(pool, group) <= state.now_ms:
                    state.wake(pool, group)
        else:
            found = state.tasks.get(name)
            if found is None or found.attempt != attempt or found.phase.final:
                continue
            if due == Due.HOLD:
                enqueue_if_ready(state, found)
            else:
                schedule_decision(state, found)
    return state


def due_ms(state: ClusterState) -> int | None:
    """Return the moment at which time alone requires a cycle (milliseconds since the epoch).

    That is now, or the earliest deadline that still applies, or None.
    """
    if state.restless:
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
    if due == Due.HOLD:
        return task.run is None and task.group is None and task.phase is Phase.PENDING
    run = task.run
    if run is None or run.stop is not None:
        return False
    return due == Due.TIME_LIMIT or task.phase is Phase.STARTING


def end_cycle(state: ClusterState, *, complete: bool) -> ClusterState:
    """End a cycle: groups that were considered and stay pending sleep until an event wakes them.

    Groups that wait for their victims stay awake, because their reserved slots must be kept from
    other groups in every cycle until they start. Meanwhile they also stay awake in the pools that
    they prefer less.

    Another cycle follows at once (`restless`) in three cases: a node joins here that waited for its
    old incarnation to be lost; this cycle changed an input of the shares; or it placed a task that
    a pending task may preempt.

    An observed silence that did not lose its node is forgotten: the node may be heard again, and
    the silence is observed again while it lasts.
    """
    for group in state.emptied:
        if not group.queue.live:
            state.forget(group)
    state.emptied.clear()
    for pool in state.pools.values():
        if pool.recheck and not complete:
            state.wake_pool(pool)
            state.wake_limited()
        pool.recheck = False
        if not complete:
            pool.lowest_placed_priority = None
    if not complete:
        return state
    for pool in state.pools.values():
        state.restless |= _may_preempt_placed_task(pool)
        pool.reshare = pool.reshare_next
        pool.reshare_next = False
        state.restless |= pool.reshare
    for node in state.node_attention.values():
        if node.pending is not None and not node.open:
            install(state, node, node.pending)
            state.restless = True
        if node.silent_ms and node.state is NodeState.UP:
            node.silent_ms = 0
            state.dirty[node] = None
    state.attention.clear()
    state.node_attention.clear()
    for pool in state.pools.values():
        if pool.awake and not state.restless:
            pool.awake = {
                group: None
                for group in pool.awake
                if (pool.stopping and _waits_for_victims(group, pool.name))
                or _preferred_pool_preempts(group, pool)
            }
        pool.woken.clear()
    return state


def _may_preempt_placed_task(pool: Pool) -> bool:
    """Whether a group that waits for capacity may preempt a task that this cycle placed.

    In the cycle itself it could not.
    """
    lowest, pool.lowest_placed_priority = pool.lowest_placed_priority, None
    if lowest is None or not pool.preempts:
        return False
    if pool.strict_queues is None:
        may_preempt = (
            group
            for group in pool.awake
            if group.priority <= lowest and not group.shape.start_failed
        )
    else:
        # Under a strict policy no task is placed past one that may preempt, unless that one waited
        # for the result of a pool that it prefers.
        may_preempt = (
            group
            for group in pool.awake
            if not group.shape.preemptible
            and not group.shape.start_failed
            and group.shape.pools[0] != pool.name
        )
    return any(code_of(group, pool) in NO_CAPACITY for group in may_preempt)


def _waits_for_victims(group: Group, pool: str) -> bool:
    record = group.waits.get(pool)
    return record is not None and record[0].code is WaitCode.WAITING_FOR_VICTIMS


def _preferred_pool_preempts(group: Group, pool: Pool) -> bool:
    """Whether tasks are preempted for the group in a pool that it prefers."""
    pools = group.shape.pools
    if pools[0] == pool.name:
        return False
    return any(_waits_for_victims(group, name) for name in pools[: pools.index(pool.name)])
