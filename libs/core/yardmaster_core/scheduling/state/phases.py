"""The phases of a task, of a replica and of a node, and the kinds of deadlines."""

from enum import IntEnum
from typing import Final

from yardmaster_schemas.events.decisions import Outcome
from yardmaster_schemas.members import plain_members


@plain_members
class Phase(IntEnum):
    """The phase of a task (docs/explanation/task.md)."""

    PENDING = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6

    @property
    def final(self) -> bool:
        """Whether no other phase follows."""
        return self >= Phase.SUCCEEDED


OUTCOMES: Final = {
    Outcome.SUCCEEDED: Phase.SUCCEEDED,
    Outcome.FAILED: Phase.FAILED,
    Outcome.CANCELLED: Phase.CANCELLED,
}


@plain_members
class ReplicaState(IntEnum):
    """The state of one replica of an attempt."""

    ALLOCATED = 0
    STARTED = 1
    EXITED = 2
    RELEASED = 3
    LOST = 4


@plain_members
class NodeState(IntEnum):
    """Whether tasks can run on a node."""

    ABSENT = 0  # named by an operator, never joined
    UP = 1
    LOST = 2
    LEFT = 3


@plain_members
class Due(IntEnum):
    """The kind of a deadline."""

    START = 0
    TIME_LIMIT = 1
    HOLD = 2
    DRAIN = 3
    PROTECTION = 4
    STOP = 5
    EXPIRY = 6
