"""The phases of a task, with their names in the API."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """A task's phase in its life cycle."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def final(self) -> bool:
        """Whether a task in this phase has ended, so that no other phase follows."""
        return self in ENDED


ENDED: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.REJECTED})
