"""What a pool's configuration says about planning, read once and not in every cycle."""

from dataclasses import dataclass
from typing import Any

from yardmaster.core.fencing import fence_of
from yardmaster.core.scheduling.entities import Pool
from yardmaster.core.scheduling.placement import Strategy, strategy_of
from yardmaster.core.scheduling.policies import options_of, policy_of
from yardmaster.core.scheduling.policy import Policy
from yardmaster.schemas.events.requests import PoolConfig


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool is planned, as `config` says."""

    config: PoolConfig
    policy: Policy
    options: Any
    choose: Strategy
    fence_s: int | None


def rules_of(pool: Pool) -> Rules:
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
            config, policy_of(ref), options_of(ref), strategy_of(config), fence_of(config)
        )
        pool.rules = rules
    return rules
