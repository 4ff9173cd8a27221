"""The policy of the embedded mode's log, compared with the policy that `yard dev` requests."""

from typing import Final

from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.log.first_records import DEFAULT
from yardmaster_cli.policy_spec import PolicySpec, checked_policy
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import options_of
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_schemas.events.requests import PolicyRef, PoolChangeRequestedV1
from yardmaster_schemas.topics import REQUESTS

#: The request for the first pool is one of this many records at the start of a log.
_FIRST_RECORDS: Final = 10


async def check_policy_of_log(log: EventLog, cell: str, requested: PolicySpec) -> None:
    """Check that the pool `default` has the requested policy and options; replays the log.

    Raises:
        CliError: the pool has another policy, or other options.
    """
    policy = await _policy_of_log(log, cell)
    if policy is None:
        return
    wanted = checked_policy(requested)
    if policy.name == wanted.name:
        now, then = options_of(policy), options_of(wanted)
        differ = [name for name in requested.options if getattr(now, name) != getattr(then, name)]
        if not differ:
            return
        what = ", ".join(f"{name}={_shown(getattr(now, name))}" for name in differ)
        changes = " ".join(f"option.{name}={_shown(requested.options[name])}" for name in differ)
    else:
        what = f"policy {policy.name}"
        options = [f"option.{name}={_shown(value)}" for name, value in requested.options.items()]
        changes = " ".join([f"policy={wanted.name}", *options])
    raise CliError(
        f"pool {DEFAULT} of this log has {what}: --policy and --policy-option apply to a new log, "
        "and do not change an existing one",
        exit_code=Exit.CONFLICT,
        hint=f"start without them, then run: yard pools set {DEFAULT} {changes}; "
        "or start a new log: --data DIR",
    )


async def _policy_of_log(log: EventLog, cell: str) -> PolicyRef | None:
    """The policy of the pool `default`: the decided one, else the first requested one.

    None: the log has no such pool.
    """
    found = await state_at(log, SchedulerMachine(), cell)
    if found.cycle:
        pool = found.state.pools.get(DEFAULT)
        if pool is not None and pool.config is not None:
            return pool.config.policy
    for stored in await log.read(Partition(REQUESTS.name, 0), 0, max_records=_FIRST_RECORDS):
        event = decode(stored.record).data
        if isinstance(event, PoolChangeRequestedV1) and event.pool == DEFAULT:
            return event.config.policy
    return None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
