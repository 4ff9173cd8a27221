"""What a pool's configuration says about planning, read once and not in every cycle."""

from dataclasses import dataclass
from typing import Any

from yardmaster_core.fencing import fence_of
from yardmaster_core.scheduling.planner.placement import Strategy, strategy_of
from yardmaster_core.scheduling.planner.policy import Policy, PolicyRegistry
from yardmaster_core.scheduling.state.entities import Pool
from yardmaster_schemas.events.requests import PoolConfig


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool is planned, as `config` says."""

    config: PoolConfig
    policy: Policy
    options: Any
    choose: Strategy
    fence_s: int | None


def rules_of(pool: Pool, policies: PolicyRegistry) -> Rules:
    """The rules of a pool, which must be configured; made once for each configuration.

    Raises:
        UnknownPolicy, BadPolicyOptions, UnknownPlacement.
    """
    config = pool.config
    assert config is not None
    rules: Rules | None = pool.rules
    if rules is None or rules.config is not config:
        ref = config.policy
        rules = Rules(
            config,
            policies.policy(ref),
            policies.options(ref),
            strategy_of(config),
            fence_of(config),
        )
        pool.rules = rules
    return rules
