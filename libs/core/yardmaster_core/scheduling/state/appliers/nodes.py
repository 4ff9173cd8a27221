"""Appliers about nodes: joins, cordons, drains, silence, loss."""

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import (
    close_replica,
    note_accepted,
    schedule_decision,
)
from yardmaster_core.scheduling.state.appliers.reservations import check_reservations
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.enrollment import Enrolled, is_barred
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.nodes import MAX_DEAD_INCARNATIONS, Node
from yardmaster_core.scheduling.state.phases import Due, NodeState, ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.reserved_slots import update_ready
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.sources import agent_source


def node_cordoned_v1(state: ClusterState, event: adm.NodeCordonedV1, _: str) -> None:
    _cordon(state, state.node(event.node), cordoned=True, drain_ms=0)


def node_uncordoned_v1(state: ClusterState, event: adm.NodeUncordonedV1, _: str) -> None:
    _cordon(state, state.node(event.node), cordoned=False, drain_ms=0)


def node_draining_v1(state: ClusterState, event: adm.NodeDrainingV1, _: str) -> None:
    node = state.node(event.node)
    _cordon(state, node, cordoned=True, drain_ms=event.deadline_at_ms)
    state.deadline(event.deadline_at_ms, Due.DRAIN, node.name)
    for task in node.open.values():
        schedule_decision(state, task)


def _cordon(state: ClusterState, node: Node, *, cordoned: bool, drain_ms: int) -> None:
    node.cordoned = cordoned
    node.drain_ms = drain_ms
    state.dirty[node] = None
    state.update_availability(node)
    check_reservations(state, node)
    _wake_pool_of(state, node)


def node_slots_changed_v1(state: ClusterState, event: adm.NodeSlotsChangedV1, _: str) -> None:
    node = state.node(event.node)
    node.disabled = event.disabled
    node.stops_disabled = bool(event.stop and event.disabled)
    state.dirty[node] = None
    _update_disabled(state, node)
    check_reservations(state, node)
    if node.stops_disabled:
        for task in node.open.values():
            schedule_decision(state, task)
    pool = state.pool_of(node)
    if pool is not None:
        pool.nodes_changed()
        state.wake_index.wake_all(pool)


def _wake_pool_of(state: ClusterState, node: Node) -> None:
    pool = state.pool_of(node)
    if pool is not None:
        state.wake_index.wake_all(pool)


def _update_disabled(state: ClusterState, node: Node) -> None:
    """Disable the slots of a node in its pool's indexes."""
    pool = state.pool_of(node)
    if pool is not None and node.ordinal in pool.free.capacities:
        for index, capacity in pool.capacities_of(node):
            index.disable(capacity, node.disabled_slots)
        update_ready(node, state.pools)


def node_enrolled_v1(state: ClusterState, event: adm.NodeEnrolledV1, _: str) -> None:
    first = not state.enrolled
    row = state.enrolled.get(event.node)
    if row is None:
        row = state.enrolled[event.node] = Enrolled(event.node)
    elif event.revision <= row.revision:
        return  # a repeat
    row.config = event.enrollment
    row.revision = event.revision
    state.dirty[row] = None
    node = state.nodes.get(event.node)
    if node is not None:
        node.revoked_ms = 0
        state.dirty[node] = None
    # The first enrollment closes the cell, also for the nodes that already joined.
    for one in state.nodes.values() if first else () if node is None else (node,):
        _update_barred(state, one)


def node_revoked_v1(state: ClusterState, event: adm.NodeRevokedV1, _: str) -> None:
    row = state.enrolled.get(event.node)
    if row is None:
        raise ImpossibleEvent(event=event.TYPE, found=f"{event.node} was never enrolled")
    if row.config is None:
        return  # a repeat
    row.config = None
    state.dirty[row] = None
    node = state.nodes.get(event.node)
    if node is None:
        return
    # Drop a join that came before the revocation.
    node.pending = None
    state.dirty[node] = None
    if node.state is NodeState.UP:
        node.revoked_ms = state.now_ms
        state.revoked[node.name] = state.node_attention[node.name] = node
        for task in node.open.values():
            schedule_decision(state, task)
    # Also for a node that is gone, because a snapshot restores it for every node.
    _update_barred(state, node)


def _update_barred(state: ClusterState, node: Node) -> None:
    """Recompute whether the node's enrollment bars it from new tasks."""
    pool = state.pool_of(node)
    if pool is None:
        return
    node.barred = is_barred(state.enrolled, node, pool.name)
    state.dirty[node] = None
    state.update_availability(node)
    check_reservations(state, node)
    state.wake_index.wake_all(pool)


def node_joined_v1(state: ClusterState, event: nev.NodeJoinedV1, record_id: str) -> None:
    note_accepted(state, record_id)
    node = state.node(event.node)
    _forget_sources(state, node, event.incarnation)
    if node.state is NodeState.UP and node.incarnation == event.incarnation:
        node.silent_ms = 0
        # The agent may have been replaced by one with other executors or limits.
        node.fraction_limits = event.fraction_limits
        state.dirty[node] = None
        if node.executors != event.executors:
            _change_executors(state, node, event.executors)
        if not node.gpu_memory_mib and (memory_mib := event.gpu_memory_mib):
            _set_gpu_memory(state, node, memory_mib)
        return
    if node.open:
        node.pending = event
        state.node_attention[node.name] = node
        state.dirty[node] = None
        return
    install(state, node, event)


def _forget_sources(state: ClusterState, node: Node, joining: str) -> None:
    """Drop the last accepted claims of ended incarnations, whose further claims are stale.

    So `sources` does not grow with the incarnations of a node.
    """
    ended = node.dead if node.pending is None else [*node.dead, node.pending.incarnation]
    for incarnation in ended:
        if incarnation != joining:
            state.sources.pop(agent_source(node.name, incarnation), None)


def _change_executors(
    state: ClusterState, node: Node, executors: tuple[nev.ExecutorKind, ...]
) -> None:
    node.executors = executors
    pool = state.pool_of(node)
    if pool is not None:
        for index in pool.indexes:
            index.set_images(node.free.ordinal, runs_images=node.runs_images)
        pool.nodes_changed()
        check_reservations(state, node)
        state.wake_index.wake_all(pool)


def _set_gpu_memory(state: ClusterState, node: Node, memory_mib: int) -> None:
    """Set the memory of a node's GPUs; until now it was unknown."""
    node.gpu_memory_mib = memory_mib
    pool = state.pool_of(node)
    if pool is not None:
        for index, capacity in pool.capacities_of(node):
            index.set_gpu_memory(capacity, memory_mib)
        pool.nodes_changed()
        state.wake_index.wake_all(pool)


def install(state: ClusterState, node: Node, event: nev.NodeJoinedV1) -> None:
    """Install a new incarnation of a node that runs no replica."""
    _uninstall(state, node)
    if node.incarnation and node.incarnation != event.incarnation:
        node.dead = [*node.dead, node.incarnation][-MAX_DEAD_INCARNATIONS:]
    node.state = NodeState.UP
    node.incarnation = event.incarnation
    node.boot_id = event.boot_id
    node.schema_version = event.schema_version
    node.node_type = event.node_type
    node.labels = dict(event.labels)
    node.executors = event.executors
    node.fraction_limits = event.fraction_limits
    node.address = event.address
    node.gpus = event.gpus
    node.gpu_memory_mib = event.gpu_memory_mib
    node.cpu_milli = event.cpu_milli
    node.memory_mib = event.memory_mib
    node.port_first = event.port_first
    node.port_last = event.port_last
    node.ports = {}
    node.silent_ms = 0
    node.revoked_ms = 0
    node.pending = None
    pool = state.pool(event.pool)
    node.barred = is_barred(state.enrolled, node, pool.name)
    install_capacity(state, node, pool)
    state.dirty[node] = None
    # Those of its old incarnation.
    check_reservations(state, node)
    state.wake_index.wake_all(pool)


def install_capacity(state: ClusterState, node: Node, pool: Pool) -> None:
    """Add a node to the indexes of `pool`, with all its capacity free."""
    size = (node.gpus, node.cpu_milli, node.memory_mib, node.gpu_memory_mib)
    node.free = NodeCapacity(node.ordinal, *size)
    node.future = NodeCapacity(node.ordinal, *size)
    node.max_free = NodeCapacity(node.ordinal, *size)
    node.pool_name = pool.name
    pool.nodes[node.ordinal] = node
    for index, capacity in pool.capacities_of(node):
        index.add(capacity, node.node_type, node.name, runs_images=node.runs_images)
    _update_disabled(state, node)
    state.update_availability(node)


def _uninstall(state: ClusterState, node: Node) -> None:
    pool = state.pool_of(node)
    if pool is None:
        return
    pool.nodes.pop(node.ordinal, None)
    if node.ordinal in pool.free.capacities:
        for index, capacity in pool.capacities_of(node):
            index.remove(capacity, node.node_type, node.name)
    pool.reserved_idle_milli -= node.reserved_idle_milli
    node.reserved_idle_milli = 0
    pool.nodes_changed()
    node.pool_name = None
    state.wake_index.wake_all(pool)


def node_drained_v1(state: ClusterState, event: nev.NodeDrainedV1, record_id: str) -> None:
    note_accepted(state, record_id)
    node = state.node(event.node)
    node.state = NodeState.LEFT
    state.update_availability(node)
    state.dirty[node] = None
    check_reservations(state, node)
    _wake_pool_of(state, node)


def node_silence_observed_v1(state: ClusterState, event: dec.NodeSilenceObservedV1, _: str) -> None:
    """Note when the node was last heard; the planner decides in this cycle whether it is lost."""
    node = state.node(event.node)
    if node.incarnation == event.incarnation and node.state is NodeState.UP:
        state.journal.put(node, "silent_ms", event.last_heard_at_ms)
        state.dirty[node] = None
        if node.name not in state.node_attention:
            state.journal.record(state.node_attention.pop, node.name, None)
        state.node_attention[node.name] = node


def node_lost_v1(state: ClusterState, event: dec.NodeLostV1, _: str) -> None:
    node = state.node(event.node)
    if event.incarnation in node.dead or (
        node.incarnation == event.incarnation and node.state is NodeState.LOST
    ):
        return  # a repeat
    if node.incarnation != event.incarnation:
        raise ImpossibleEvent(event="NodeLost", found=f"{node.name} is {node.incarnation}")
    state.journal.record(_undo_loss, state, node, node.state)
    node.state = NodeState.LOST
    closed = sorted(node.open)
    for task_id, replica in closed:
        task = node.open[task_id, replica]
        run = task.run
        if run is not None and run.placements[replica].incarnation == node.incarnation:
            close_replica(state, task, run, replica, ReplicaState.LOST)
    state.update_availability(node)
    state.dirty[node] = None
    check_reservations(state, node)
    pool = state.pool_of(node)
    if pool is not None:
        state.wake_index.wake_after_node_loss(pool)


def _undo_loss(state: ClusterState, node: Node, before: NodeState) -> None:
    node.state = before
    state.update_availability(node)
