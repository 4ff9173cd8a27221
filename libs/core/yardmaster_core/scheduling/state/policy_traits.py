"""The traits of a pool's policy that the state depends on, and the port through which it gets them.

The state imports no policy: `machine` passes it the registry of policies.
"""

from dataclasses import dataclass
from typing import Protocol

from yardmaster_core.scheduling.state.strict_queues import PositionOf
from yardmaster_schemas.events.requests import PoolConfig


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """The effect of a policy on the state of its pool."""

    #: Whether the policy divides the pool into shares.
    shares: bool = False
    #: Whether the shares are per job, so that tasks of different jobs are never equal.
    per_job: bool = False
    #: Whether a task may preempt other tasks.
    preempts: bool = False
    #: The strict queue and position of a task; None: the policy has no strict queues.
    strict_queue: PositionOf | None = None


class TraitsSource(Protocol):
    """The part of the registry of policies that the state uses."""

    def traits(self, config: PoolConfig | None) -> PolicyTraits:
        """The traits of a pool's policy; the default for no configuration or an unknown policy."""
