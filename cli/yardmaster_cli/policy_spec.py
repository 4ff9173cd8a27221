"""The policy of a new log, as a user names it."""

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from yardmaster_cli.errors import BadUsage
from yardmaster_schemas.fields import Name

if TYPE_CHECKING:
    from yardmaster_schemas.events.requests import PolicyRef, PoolConfig

DEFAULT_POLICY: Final = "priority"


class PolicySpec(BaseModel):
    """The policy of the pool `default` in a new log; later `yard pools set` changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = DEFAULT_POLICY
    options: dict[str, bool | int | str] = {}


def checked_policy(spec: PolicySpec) -> "PolicyRef":
    """The policy that a spec names.

    Raises:
        BadUsage: the policy does not exist, or does not have these options.
    """
    # Imported here, because only a start that names a policy needs the registry of policies.
    from yardmaster_core.errors import BadPolicyOptions
    from yardmaster_core.scheduling.policies import POLICIES, options_of
    from yardmaster_schemas.events.requests import PolicyRef

    policy = PolicyRef(name=spec.name, options=dict(spec.options))
    offered = [each.name for each in POLICIES.values() if not each.simulation_only]
    if spec.name not in offered:
        simulated = any(spec.name == each.name for each in POLICIES.values())
        what = f"policy {spec.name} is for yard simulate only" if simulated else ""
        raise BadUsage(
            what or f"there is no policy {spec.name}", hint=f"policies: {', '.join(offered)}"
        )
    try:
        options_of(policy)
    except BadPolicyOptions as error:
        raise BadUsage(
            str(error), hint="options of each policy: docs/reference/policies.md"
        ) from None
    return policy


def policy_problem(config: "PoolConfig") -> str | None:
    """The error in a pool's policy, options or placement; None: this program accepts them."""
    # Imported here: only a refused pool needs the registry.
    from yardmaster_core.errors import CoreError
    from yardmaster_core.scheduling.planner.placement import strategy_named
    from yardmaster_core.scheduling.policies import options_of

    try:
        options_of(config.policy)
        strategy_named(config.placement)
    except CoreError as error:
        return str(error)
    return None
