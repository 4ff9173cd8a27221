"""Entries of a node agent's ledger."""

from yardmaster_node_agent.agent_state import (
    Assignment,
    Exit,
    Head,
    Offer,
    Piece,
    Replica,
    ReplicaKey,
    ReplicaState,
    StopOrder,
)
from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.expiring import Stream
from yardmaster_schemas.events.node_events import RunIdentity
from yardmaster_schemas.events.requests import DetailsRef

OFFER = Offer(pool="default", node_type="generic", gpus=4, cpu_milli=8000, memory_mib=1000)
HEAD = Head(
    node="n1", incarnation="0123456789ab", epoch=1, offer=OFFER, api_port=4000, host="0" * 64
)


def assignment(index: int = 0, *, decision: int = 7) -> Assignment:
    return Assignment(
        key=ReplicaKey(f"4kq7w2mz9c1f.{index}", 1, 0),
        cause="scheduler/main.abcdefabcdef/3/9",
        decision=decision,
        project="nlp",
        pool="default",
        tasks=10,
        replicas=1,
        slots=(0, 1),
        gpu_milli=500,
        cpu_milli=1000,
        memory_mib=64,
        master_addr="127.0.0.1",
        master_port=None,
        details=DetailsRef(offset=3, digest="0" * 64),
        checkpoint=Checkpoint(uri="s3://a/b", step=3),
        grace_s=60,
    )


def replica(index: int = 0) -> Replica:
    made = Replica(assignment=assignment(index), token="f" * 64)
    made.state = ReplicaState.EXITED
    made.identity = RunIdentity.of_process(4711, 12_345, "3f0c6a52-8d11-4b0e-9a6c-5f2d1e0b7c44")
    made.stop = StopOrder(code="priority", deadline_ms=5, cause=None, kill_at_ms=5, signalled=True)
    made.exit = Exit(signal=9)
    made.output.last = (Piece(stream=Stream.STDOUT, start=0, end=9, seq=0),)
    return made
