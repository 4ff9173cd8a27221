"""The edges of a cycle: time goes on at its start, what still waits goes to sleep at its end."""

from heapq import heappop

from yardmaster_core.scheduling.planner.group_queue import NO_CAPACITY, code_of
from yardmaster_core.scheduling.state.appliers.attempts import consider, note
from yardmaster_core.scheduling.state.appliers.nodes import install
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.entities import Due, Group, NodeState, Phase, Pool
from yardmaster_schemas.reasons import WaitCode


def begin_cycle(state: ClusterState, cycle: int, now_ms: int) -> ClusterState:
    """Start a cycle at `now_ms`: time never falls, and what was due by then is looked at."""
    state.cycle = cycle
    state.now_ms = max(state.now_ms, now_ms)
    state.restless = False
    # Looked at in every cycle, since by when one is to have let go changes with what it holds and
    # with its pool. So the log alone says when it is lost, not what was looked at since a snapshot.
    state.revoked = {name: node for name, node in state.revoked.items() if node.revoked}
    state.node_attention.update(state.revoked)
    while state.deadlines and state.deadlines[0][0] <= state.now_ms:
        _, due, name, attempt = heappop(state.deadlines)
        if due == Due.DRAIN:
            for task in state.node(name).open.values():
                note(state, task)
        elif due == Due.PROTECTION:
            pool = state.pool(name)
            for group in pool.protected:
                # Not all of them: a snapshot keeps no deadlines but those of its waits.
                if _until_ms(pool, group) <= state.now_ms:
                    state.wake(pool, group)
        else:
            found = state.tasks.get(name)
            if found is None or found.attempt != attempt or found.phase.final:
                continue
            if due == Due.HOLD:
                consider(state, found)
            else:
                note(state, found)
    return state


def due_ms(state: ClusterState) -> int | None:
    """When time alone calls for a cycle: now, the soonest deadline that still means something, or
    never.
    """
    if state.restless:
        return state.now_ms
    whens = [when for node in state.revoked.values() if (when := node.forfeit_ms) is not None]
    while state.deadlines:
        when, due, name, attempt = state.deadlines[0]
        if _holds(state, when, due, name, attempt):
            whens.append(when)
            break
        heappop(state.deadlines)
    return min(whens, default=None)


def _until_ms(pool: Pool, group: Group) -> int:
    return group.waits[pool.name][0].numbers.get("until_at_ms", 0)


def _holds(state: ClusterState, when_ms: int, due: int, name: str, attempt: int) -> bool:
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
    """End a cycle: what was considered and still waits sleeps until something wakes it.

    Groups that wait for their victims stay awake, because what they were promised has to be kept
    from others in every cycle until they have it; meanwhile they stay awake in the pools they like
    less, which were passed over. A node that waited for its old incarnation to be lost is taken in
    here, which calls for another cycle at once, as does what this cycle itself changed of what
    shares rest on, or placed though somebody who waits may have it stopped. A silence that did not
    lose its node is forgotten: the node may be heard again, and is observed anew while it is not.
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
        state.restless |= _may_stop_what_was_placed(pool)
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


def _may_stop_what_was_placed(pool: Pool) -> bool:
    """Whether somebody waits for room who may have that stopped which the cycle just placed, and so
    could not have stopped yet.
    """
    worst, pool.lowest_placed_priority = pool.lowest_placed_priority, None
    if worst is None or not pool.preempts:
        return False
    if pool.strict_queues is None:
        may_stop = (
            group
            for group in pool.awake
            if group.priority <= worst and not group.shape.start_failed
        )
    else:
        # In strict lines nobody is placed past one who may have others stopped, but where that one
        # waited for the answer of a pool that he likes better.
        may_stop = (
            group
            for group in pool.awake
            if not group.shape.preemptible
            and not group.shape.start_failed
            and group.shape.pools[0] != pool.name
        )
    return any(code_of(group, pool) in NO_CAPACITY for group in may_stop)


def _waits_for_victims(group: Group, pool: str) -> bool:
    record = group.waits.get(pool)
    return record is not None and record[0].code is WaitCode.WAITING_FOR_VICTIMS


def _preferred_pool_preempts(group: Group, pool: Pool) -> bool:
    """Whether a pool that the group likes better stops others for it."""
    pools = group.shape.pools
    if pools[0] == pool.name:
        return False
    return any(_waits_for_victims(group, name) for name in pools[: pools.index(pool.name)])
