"""What the state keeps of a pool's policy, and where it learns that.

The state imports no policy: `machine` passes it the registry of policies.
"""

from dataclasses import dataclass
from typing import Protocol

from yardmaster_core.scheduling.state.strict_queues import PositionOf
from yardmaster_schemas.events.requests import PoolConfig


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a pool's policy changes of the state itself."""

    #: Whether it divides the pool into shares.
    shares: bool = False
    #: Whether it does so among jobs, so that tasks of two jobs are never equal.
    per_job: bool = False
    #: Whether a task may preempt others.
    preempts: bool = False
    #: In which strict queue a task waits, and where; None: the policy has none.
    strict_queue: PositionOf | None = None


class TraitsSource(Protocol):
    """The part of the registry of policies that the state uses."""

    def traits(self, config: PoolConfig | None) -> PolicyTraits:
        """The traits of a pool's policy; the default for no configuration or an unknown policy."""
