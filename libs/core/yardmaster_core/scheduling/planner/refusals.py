"""Which claims of agents are accepted.

A claim is accepted only if it comes from the node that it is about, in that node's present
incarnation, concerns a replica placed there, and is a possible next state of that replica. Any
other claim is refused: it changes nothing, is recorded and quarantined, and never stops the cell.
"""

from yardmaster_core.checkpoint_uris import is_within
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.enrollment import join_refusal
from yardmaster_core.scheduling.state.phases import NodeState, ReplicaState
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS, follows, written_by_agent
from yardmaster_schemas.topics import NODE_EVENTS

ReplicaClaim = (
    nev.TaskStartedV1
    | nev.TaskPreparingV1
    | nev.CheckpointDoneV1
    | nev.TaskProgressedV1
    | nev.TaskExitedV1
    | nev.SlotsReleasedV1
)


def refusal(state: ClusterState, envelope: Envelope[Event]) -> RefusalCode | None:
    """Return why a record of `node-events` is refused in this state, or None."""
    event = envelope.data
    if NODE_EVENTS.name not in event.TOPICS:
        return RefusalCode.WRONG_TOPIC
    author = (event.node, event.incarnation)  # type: ignore[attr-defined]
    if not written_by_agent(envelope.source, *author):
        return RefusalCode.NOT_ITS_AUTHOR
    last = state.sources.get(envelope.source)
    if last is not None and (envelope.epoch, envelope.seq) <= last:
        return RefusalCode.REPEATED
    # Not compared with the time of its append, which a cut of the log changes (`yard log cut`).
    if envelope.epoch > state.now_ms + MAX_EPOCH_AHEAD_MS:
        return RefusalCode.EPOCH_AHEAD
    if isinstance(event, nev.NodeJoinedV1):
        return _join(state, event)
    node = state.nodes.get(event.node)  # type: ignore[attr-defined]
    if node is None or node.state is NodeState.ABSENT:
        return RefusalCode.UNKNOWN_NODE
    if node.state is not NodeState.UP or node.incarnation != event.incarnation:  # type: ignore[attr-defined]
        return RefusalCode.STALE_INCARNATION
    if isinstance(event, nev.NodeDrainedV1):
        return RefusalCode.CONTRADICTION if node.open else None
    assert isinstance(event, ReplicaClaim)
    return _replica(state, event)


def _join(state: ClusterState, event: nev.NodeJoinedV1) -> RefusalCode | None:
    node = state.nodes.get(event.node)
    if event.port_last < event.port_first:
        return RefusalCode.CONTRADICTION
    refused = join_refusal(state.enrolled, event)
    if refused is not None:
        return refused
    if node is None:
        return RefusalCode.CONTRADICTION if event.running else None
    if event.incarnation in node.dead:
        return RefusalCode.STALE_INCARNATION
    if event.incarnation == node.incarnation:
        if node.state is NodeState.LOST:
            return RefusalCode.STALE_INCARNATION
        offered = (event.pool, event.node_type, event.gpus, event.cpu_milli, event.memory_mib)
        known = (
            node.pool_name,
            *(node.node_type, node.gpus, node.cpu_milli, node.memory_mib),
        )
        return None if offered == known else RefusalCode.CONTRADICTION
    if node.state is NodeState.UP and not follows(event.incarnation, node.incarnation):
        # The agent of the present incarnation may run. If it does not, the node is lost when its
        # silence has lasted for the timeout of its pool.
        return RefusalCode.NODE_TAKEN
    return RefusalCode.CONTRADICTION if event.running else None


def _may_save(task: Task, uri: str) -> bool:
    """Whether the project of a task allows a checkpoint at a URI."""
    config = task.job.project.config
    return config is None or is_within(uri, config.checkpoint_prefixes)


def _replica(state: ClusterState, event: ReplicaClaim) -> RefusalCode | None:
    task = state.tasks.get(event.task_id)
    if task is None:
        return RefusalCode.UNKNOWN_TASK
    run = task.run
    if run is None or event.attempt != run.number:
        stale = event.attempt <= task.attempt
        return RefusalCode.STALE_ATTEMPT if stale else RefusalCode.UNKNOWN_ATTEMPT
    if event.replica >= len(run.placements):
        return RefusalCode.UNKNOWN_ATTEMPT
    placement = run.placements[event.replica]
    if placement.node != event.node or placement.incarnation != event.incarnation:
        return RefusalCode.NOT_ITS_AUTHOR
    if isinstance(event, nev.CheckpointDoneV1) and not _may_save(task, event.uri):
        return RefusalCode.CHECKPOINT_NOT_ALLOWED
    was = run.replicas[event.replica]
    if was >= ReplicaState.RELEASED:
        return RefusalCode.STALE_ATTEMPT
    if isinstance(event, nev.TaskPreparingV1):
        if was != ReplicaState.ALLOCATED:
            return RefusalCode.CONTRADICTION
        return RefusalCode.PULL_TOO_LONG if state.now_ms >= run.last_pull_ms else None
    if isinstance(event, nev.TaskStartedV1):
        return None if was == ReplicaState.ALLOCATED else RefusalCode.REPEATED
    if isinstance(event, nev.SlotsReleasedV1):
        if event.failure is not None and not event.never_started:
            return RefusalCode.CONTRADICTION
        expected = ReplicaState.ALLOCATED if event.never_started else ReplicaState.EXITED
        return None if was == expected else RefusalCode.CONTRADICTION
    if isinstance(event, nev.TaskExitedV1):
        return None if was == ReplicaState.STARTED else RefusalCode.CONTRADICTION
    return None if was != ReplicaState.ALLOCATED else RefusalCode.CONTRADICTION
