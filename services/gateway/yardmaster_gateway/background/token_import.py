"""Records the users of a token file in the log, once.

A user that the log has never named is recorded. For all other users the log decides, also for users
that were removed. Two gateways may do this at the same time: quota refuses the second request for a
user.
"""

from collections.abc import Sequence
from typing import Final

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.errors import Busy
from yardmaster_gateway.identity.authentication import FileUser
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_gateway.request_writer import RequestOrigin
from yardmaster_schemas.envelope import ActorKind
from yardmaster_schemas.events.users import RoleGrantRequestedV1, Scope

#: Users that are recorded in one batch: with 64 tokens and roles each, half a MiB.
USERS_PER_BATCH: Final = 20
#: The pause before the next try, in seconds.
PAUSE_S: Final = 0.2
ACTOR: Final = "token_file"


async def import_users(gateway: Gateway) -> None:
    """Record the users of the token file that the log does not know, and wait for the verdicts.

    Wait without limit until the log is available and has its first record. A try with an unknown
    outcome is repeated.
    """
    clock, telemetry = gateway.ports.clock, gateway.ports.telemetry
    missing: list[FileUser] = []
    while True:
        try:
            await gateway.log_identity()
            await gateway.access.catch_up()
            known = gateway.access.users
            missing = [user for user in gateway.ports.file_users if user.name not in known]
            end = await _record(gateway, missing)
            while gateway.access.judged < end:
                await gateway.access.wait()
                await gateway.access.catch_up()
            break
        except (LogUnavailable, UnknownTopic, AppendOutcomeUnknown, Busy):
            await clock.sleep(PAUSE_S)
    gateway.imported = True
    for user in missing:
        if user.name in gateway.access.users:
            telemetry.info("user_imported", user=user.name)
        else:
            telemetry.warn("user_not_imported", user=user.name)


async def _record(gateway: Gateway, users: Sequence[FileUser]) -> int:
    """Append a request for each user; return the offset after the last one, 0 without users."""
    caller = Caller(ACTOR, "file", "file", ACTOR, ())
    origin = RequestOrigin(caller, None, ActorKind.SERVICE)
    end = 0
    for first in range(0, len(users), USERS_PER_BATCH):
        some = users[first : first + USERS_PER_BATCH]
        events = [(_request(gateway.cell, user), gateway.cell) for user in some]
        end = await gateway.writer.record(events, origin) + len(events)
    return end


def _request(cell: str, user: FileUser) -> RoleGrantRequestedV1:
    # One file may serve several cells; the log of a cell gets the roles in this cell.
    roles = tuple(r for r in user.roles if r.scope is not Scope.CELL or r.name == cell)
    return RoleGrantRequestedV1(
        principal=user.name, roles=roles, tokens=user.tokens, new=True, imported=True
    )
