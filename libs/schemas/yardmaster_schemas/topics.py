"""The catalog of topics: key, retention, limits, writers and readers of each."""

from dataclasses import dataclass
from typing import Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic.

    Attributes:
        key: the meaning of a record's key: cell, job, node, task, or topic (quarantine).
        retention_ms: how long records are kept; None is forever.
        compacted: only the newest record of a key is kept; a tombstone erases it.
        max_batch_bytes: the largest batch (and so the largest part of a cycle) that is accepted.
        compression: the brokers' compression; agents' topics stay uncompressed, so that a record
            costs its reader no more memory than its size.
        claims: whether the topic is written by others than a state machine: then a wrong record in
            it is refused, and is never fatal.
        writers, readers: the services that may write and read it; only an operator's tool writes
            to a topic without writers.
    """

    name: str
    key: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    retention_ms: int | None = None
    compacted: bool = False
    max_batch_bytes: int = MIB
    compression: str = "producer"
    claims: bool = False


DETAILS: Final = Topic(
    name="details",
    key="job",
    compacted=True,
    writers=("gateway",),
    readers=("gateway", "node_agent", "views", "auditor"),
)
REQUESTS: Final = Topic(
    name="requests",
    key="cell",
    claims=True,
    writers=("gateway",),
    readers=("gateway", "quota", "views", "auditor"),
)
ADMISSIONS: Final = Topic(
    name="admissions",
    key="cell",
    writers=("quota",),
    readers=("quota", "scheduler", "gateway", "views", "auditor"),
)
NODE_EVENTS: Final = Topic(
    name="node-events",
    key="cell",
    claims=True,
    max_batch_bytes=128 * KIB,
    compression="uncompressed",
    writers=("node_agent",),
    readers=("scheduler", "gateway", "views", "auditor"),
)
DECISIONS: Final = Topic(
    name="decisions",
    key="cell",
    writers=("scheduler",),
    readers=("scheduler", "quota", "gateway", "views", "auditor"),
)
HEARTBEATS: Final = Topic(
    name="heartbeats",
    key="node",
    retention_ms=2 * HOUR_MS,
    claims=True,
    max_batch_bytes=128 * KIB,
    compression="uncompressed",
    writers=("node_agent",),
    readers=("scheduler", "views", "auditor", "node_agent"),
)
TASK_LOGS: Final = Topic(
    name="task-logs",
    key="task",
    retention_ms=7 * DAY_MS,
    claims=True,
    max_batch_bytes=128 * KIB,
    compression="uncompressed",
    writers=("node_agent",),
    readers=("gateway", "views", "auditor"),
)
QUARANTINE: Final = Topic(
    name="quarantine",
    key="topic",
    retention_ms=30 * DAY_MS,
    max_batch_bytes=4 * MIB,
    writers=("quota", "scheduler"),
    readers=("views", "auditor", "node_agent"),
)

CUTS: Final = Topic(
    name="cuts",
    key="cell",
    writers=(),
    readers=("quota", "scheduler", "node_agent", "auditor"),
)

ASSIGNMENTS_PREFIX: Final = "assignments."
#: Types of the decisions that agents execute, and that the relay copies to them.
ASSIGNED: Final = (
    "SlotsAllocated",
    "PreemptionRequested",
    "StopRequested",
    "AllocationRevoked",
    "NodeLost",
)


def assignments(node: str) -> Topic:
    """Return the topic of the decisions that one node's agent executes."""
    return Topic(
        name=f"{ASSIGNMENTS_PREFIX}{node}",
        key="cell",
        retention_ms=7 * DAY_MS,
        writers=("scheduler",),
        # The scheduler's relay reads its own newest copy, so that it sends no decision twice.
        readers=("node_agent", "scheduler"),
    )


TOPICS: Final = {
    t.name: t
    for t in (
        DETAILS,
        REQUESTS,
        ADMISSIONS,
        NODE_EVENTS,
        DECISIONS,
        HEARTBEATS,
        TASK_LOGS,
        QUARANTINE,
        CUTS,
    )
}
#: The order in which a cycle's inputs are applied.
INPUT_ORDER: Final = (REQUESTS.name, ADMISSIONS.name, NODE_EVENTS.name, DECISIONS.name)


def topic(name: str) -> Topic | None:
    """Return the catalog's entry for a topic's name, or None."""
    if name.startswith(ASSIGNMENTS_PREFIX):
        return assignments(name.removeprefix(ASSIGNMENTS_PREFIX))
    return TOPICS.get(name)
