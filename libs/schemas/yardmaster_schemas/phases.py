"""The phases of a task, as the API names them."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where a task is in its life."""

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
        """Whether nothing follows."""
        return self in ENDED


ENDED: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.REJECTED})
