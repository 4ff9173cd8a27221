"""The registry of policies: a policy is a file here and a row in `POLICIES`."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from yardmaster.core.errors import BadPolicyOptions, UnknownPlacement, UnknownPolicy
from yardmaster.core.scheduling.entities import Pool
from yardmaster.core.scheduling.lines import Lines
from yardmaster.core.scheduling.placement import strategy
from yardmaster.core.scheduling.policies.baselines import FIFO, LRTP, RAND, SJF
from yardmaster.core.scheduling.policies.fair_share import FAIR_SHARE
from yardmaster.core.scheduling.policies.fitgpp import FITGPP
from yardmaster.core.scheduling.policies.priority import PRIORITY
from yardmaster.core.scheduling.policy import Policy
from yardmaster.schemas import plain
from yardmaster.schemas.errors import SchemaError
from yardmaster.schemas.events.requests import PolicyRef, PoolConfig
from yardmaster.schemas.reasons import AdmissionCode

POLICIES: Final[Mapping[tuple[str, int], Policy]] = {
    (p.name, p.version): p for p in (PRIORITY, FAIR_SHARE, FITGPP, FIFO, LRTP, RAND, SJF)
}


def policy_of(ref: PolicyRef) -> Policy:
    """The policy that a pool's configuration names.

    Raises:
        UnknownPolicy.
    """
    found = POLICIES.get((ref.name, ref.version))
    if found is None:
        known = ", ".join(f"{name} {version}" for name, version in POLICIES)
        raise UnknownPolicy(name=ref.name, version=ref.version, known=known)
    return found


def options_of(ref: PolicyRef) -> Any:
    """The options of a pool's policy, as the policy's own model reads them.

    Raises:
        UnknownPolicy, BadPolicyOptions.
    """
    return _options(ref.name, ref.version, json.dumps(ref.options, sort_keys=True))


@lru_cache(maxsize=1024)
def _options(name: str, version: int, options: str) -> Any:
    policy = policy_of(PolicyRef(name=name, version=version))
    try:
        return plain.load(policy.options, json.loads(options))
    except SchemaError as error:
        raise BadPolicyOptions(name=name, found=error.fields.get("found")) from None


def divides(config: PoolConfig | None) -> tuple[bool, bool]:
    """Whether a pool's policy gives out shares, and whether it does so among jobs.

    Nothing is said of a policy that is unknown: whoever plans by it stops.
    """
    policy = POLICIES.get((config.policy.name, config.policy.version)) if config else None
    if config is None or policy is None:
        return False, False
    return policy.surplus is not None, policy.per_job(options_of(config.policy))


def preempts(config: PoolConfig | None) -> bool:
    """Whether tasks of a pool may have others stopped for themselves."""
    policy = POLICIES.get((config.policy.name, config.policy.version)) if config else None
    return config is not None and policy is not None and policy.preempts(options_of(config.policy))


def lines_of(pool: Pool) -> Lines | None:
    """The lines of a pool whose policy is strict, with those who wait in them; None: it is not."""
    config = pool.config
    policy = POLICIES.get((config.policy.name, config.policy.version)) if config else None
    if policy is None or policy.line is None:
        return None
    return Lines(pool, policy.line)


def check(config: PoolConfig) -> AdmissionCode | None:
    """Why a pool may not be configured so, or None; some policies only simulations may use."""
    try:
        options_of(config.policy)
        strategy(config.placement)
        if policy_of(config.policy).simulated:
            return AdmissionCode.POLICY_FOR_SIMULATIONS
    except UnknownPolicy:
        return AdmissionCode.POLICY_UNKNOWN
    except (BadPolicyOptions, UnknownPlacement):
        return AdmissionCode.POLICY_OPTIONS_INVALID
    return None
