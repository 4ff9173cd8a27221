"""The registry of policies: a policy is a file here and a row in `POLICIES`."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from yardmaster_core.errors import BadPolicyOptions, UnknownPlacement, UnknownPolicy
from yardmaster_core.scheduling.planner.placement import strategy_named
from yardmaster_core.scheduling.planner.policy import Policy
from yardmaster_core.scheduling.policies.baselines import FIFO, LRTP, RAND, SJF
from yardmaster_core.scheduling.policies.fair_share.fair_share import FAIR_SHARE
from yardmaster_core.scheduling.policies.fitgpp import FITGPP
from yardmaster_core.scheduling.policies.priority import PRIORITY
from yardmaster_core.scheduling.policies.quota.quota import QUOTA
from yardmaster_core.scheduling.policies.starved_first.starved_first import STARVED_FIRST
from yardmaster_core.scheduling.state.policy_index import PolicyIndex
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_schemas import plain
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig
from yardmaster_schemas.reasons import AdmissionCode

POLICIES: Final[Mapping[tuple[str, int], Policy]] = {
    (p.name, p.version): p
    for p in (PRIORITY, FAIR_SHARE, QUOTA, STARVED_FIRST, FITGPP, FIFO, LRTP, RAND, SJF)
}


class Registry:
    """The policies by name and version; implements `PolicyRegistry`."""

    def __init__(self, policies: Mapping[tuple[str, int], Policy]) -> None:
        self._policies = policies
        # Cells configure few policies; parsing their options in every cycle would cost more.
        self._parsed = lru_cache(maxsize=1024)(self._parse)

    def policy(self, ref: PolicyRef) -> Policy:
        found = self._policies.get((ref.name, ref.version))
        if found is None:
            known = ", ".join(f"{name} {version}" for name, version in self._policies)
            raise UnknownPolicy(name=ref.name, version=ref.version, known=known)
        return found

    def options(self, ref: PolicyRef) -> Any:
        return self._parsed(ref.name, ref.version, json.dumps(ref.options, sort_keys=True))

    def index(self, pool: Pool) -> PolicyIndex:
        if pool.config is None:
            return PolicyIndex()
        ref = pool.config.policy
        policy = self._policies.get((ref.name, ref.version))
        if policy is None:
            return PolicyIndex()  # planning by it raises UnknownPolicy
        return policy.index(pool, self.options(ref))

    def _parse(self, name: str, version: int, options: str) -> Any:
        policy = self.policy(PolicyRef(name=name, version=version))
        try:
            return plain.load(policy.options, json.loads(options))
        except SchemaError as error:
            raise BadPolicyOptions(name=name, found=error.fields.get("found")) from None


REGISTRY: Final = Registry(POLICIES)
policy_of = REGISTRY.policy
options_of = REGISTRY.options


def check(config: PoolConfig) -> AdmissionCode | None:
    """Return why a pool configuration is refused, or None.

    Some policies are for simulations only.
    """
    try:
        options_of(config.policy)
        strategy_named(config.placement)
        if policy_of(config.policy).simulation_only:
            return AdmissionCode.POLICY_FOR_SIMULATIONS
    except UnknownPolicy:
        return AdmissionCode.POLICY_UNKNOWN
    except (BadPolicyOptions, UnknownPlacement):
        return AdmissionCode.POLICY_OPTIONS_INVALID
    return None
