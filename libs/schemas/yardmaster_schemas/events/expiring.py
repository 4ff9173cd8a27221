"""Topics that expire: `heartbeats`, `task-logs`, `quarantine`. No decision is read from them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    Count,
    Incarnation,
    LongText,
    Millis,
    Name,
    Positive,
    ReplicaIndex,
    ShortText,
    TaskId,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import HEARTBEATS, QUARANTINE, TASK_LOGS


class Stream(StrEnum):
    """An output stream of a process; `agent` holds the agent's own messages about it."""

    STDOUT = "stdout"
    STDERR = "stderr"
    AGENT = "agent"


@event(HEARTBEATS, name="NodeHeartbeat")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeatV1(Event):
    """A node is alive; the agent counts `running` replicas and `gpu_milli_used` of its slots."""

    node: Name
    incarnation: Incarnation
    sent_at_ms: Millis
    running: Count
    gpu_milli_used: Count


@event(TASK_LOGS, name="TaskOutput")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutputV1(Event):
    """A piece of a replica's output; `seq` counts the pieces of the replica's attempt from 0."""

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    stream: Stream
    seq: Count
    at_ms: Millis
    text: LongText


@event(QUARANTINE, name="RecordQuarantined")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuarantinedV1(Event):
    """A copy of a refused record with the reason; `raw_value` is base64, cut at 64 KiB."""

    topic: Name
    partition: Count
    offset: Count
    code: RefusalCode
    found: ShortText
    raw_key: Annotated[str, Field(max_length=8192)]
    raw_value: Annotated[str, Field(max_length=90_000)]
