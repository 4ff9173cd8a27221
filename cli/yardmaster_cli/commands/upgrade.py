"""`yard upgrade`: show the rules in force, and switch to newer ones after an upgrade."""

import time
from typing import Final

import click

from yardmaster_cli.confirm import confirm
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.server.remote import plain
from yardmaster_cli.session import NounGroup, Session

#: How long `finish` waits until the scheduler uses the new rules, and the interval of its reads, in
#: seconds.
FOLLOWS_S: Final = 30.0
LOOK_S: Final = 0.2


@click.group("upgrade", cls=NounGroup)
def upgrade() -> None:
    """Show the rules in force; switch to newer ones after an upgrade."""


@upgrade.command("show")
def show(session: Session) -> None:
    """Show the rules in force and the newest that the server knows.

    While they differ, the release before can still run and lead. yard upgrade finish ends that.
    """
    session.out.whole(plain(session.remote.client.rules()), "rules")


@upgrade.command("finish")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def finish(session: Session, yes: bool) -> None:
    """Switch to the newest rules, after every service was upgraded.

    It cannot be taken back: programs of the release before stop with unknown_rules.
    """
    client, out = session.remote.client, session.out
    found = client.rules()
    if found.rules >= found.newest:
        out.say(f"rules {found.rules} are in force, the newest of the server's version")
        return
    if not yes:
        confirm(f"The release before can no longer run after the switch to {found.newest}.", out)
    accepted = client.put_rules(found.newest, if_match=f'"{found.rules}"')
    session.remote.await_verdict(accepted, f"rules {found.newest}", out)
    deadline = time.monotonic() + FOLLOWS_S
    while client.rules().rules < found.newest:
        if time.monotonic() > deadline:
            raise CliError(
                f"quota switched to rules {found.newest}, the scheduler has not followed "
                f"after {FOLLOWS_S:.0f} s",
                exit_code=Exit.CONFLICT,
                hint="upgrade every replica of the scheduler; its leader then follows",
            )
        time.sleep(LOOK_S)
    out.say(f"rules {found.newest} are in force")
