"""Topics that expire: `heartbeats`, `task-logs`, `quarantine`. Nothing in them decides anything."""

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
    """Which output of a process; `agent` is the agent's own word about it."""

    STDOUT = "stdout"
    STDERR = "stderr"
    AGENT = "agent"


@event(HEARTBEATS, name="NodeHeartbeat")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeatV1(Event):
    """A node lives: `running` replicas, `gpu_milli_used` of its slots, by the agent's count."""

    node: Name
    incarnation: Incarnation
    sent_at_ms: Millis
    running: Count
    gpu_milli_used: Count


@event(TASK_LOGS, name="TaskOutput")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutputV1(Event):
    """A piece of a replica's output; `seq` counts pieces of the attempt's replica from 0."""

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
    """A copy of a record that was refused, and why; `raw_value` is base64, cut at 64 KiB."""

    topic: Name
    partition: Count
    offset: Count
    code: RefusalCode
    found: ShortText
    raw_key: Annotated[str, Field(max_length=8192)]
    raw_value: Annotated[str, Field(max_length=90_000)]
