"""A pool's configuration with its policy, options and placement strategy looked up.

It is resolved once per configuration, not in every cycle.
"""

from dataclasses import dataclass
from typing import Any

from yardmaster_core.fencing import fence_of
from yardmaster_core.scheduling.planner.placement import PlacementStrategy, strategy_of
from yardmaster_core.scheduling.planner.policy import Policy, PolicyRegistry
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_schemas.events.requests import PoolConfig


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The result of resolving `config`; `fence_s` is None if the pool has no fence."""

    config: PoolConfig
    policy: Policy
    options: Any
    strategy: PlacementStrategy
    fence_s: int | None


def resolved_config(pool: Pool, policies: PolicyRegistry) -> ResolvedConfig:
    """Return a configured pool's resolved configuration.

    Raises:
        UnknownPolicy, BadPolicyOptions, UnknownPlacement.
    """
    config = pool.config
    assert config is not None
    resolved: ResolvedConfig | None = pool.resolved
    if resolved is None or resolved.config is not config:
        ref = config.policy
        resolved = ResolvedConfig(
            config,
            policies.policy(ref),
            policies.options(ref),
            strategy_of(config),
            fence_of(config),
        )
        pool.resolved = resolved
    return resolved
