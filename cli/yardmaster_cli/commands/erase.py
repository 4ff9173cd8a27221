"""`yard erase`: delete names, labels, commands, environments, notes and artifacts of jobs."""

import click

from yardmaster_cli.confirm import confirm
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.session import Session, command


@command("erase")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def erase(session: Session, refs: tuple[str, ...], yes: bool) -> None:
    """Permanently delete names, labels, commands, notes and artifacts of ended jobs.

    Only operators and admins of the project may do this. The data is hidden at once. Log compaction
    deletes it from disk; task output is deleted when its retention ends. Backups still contain it.
    Decisions stay, and replay still verifies them. The page docs/how-to/operate.md has more.
    """
    remote, out = session.remote, session.out
    found = [remote.resolve(ref) for ref in refs]
    for ref in found:
        if ref.index is not None:
            raise BadUsage(
                f"{ref.id} is a task", hint=f"erase its whole job: yard erase {ref.job_id}"
            )
    if not yes:
        names = ", ".join(ref.id for ref in found)
        confirm(f"This permanently erases {names}.", out)
    pending = [(ref, remote.client.erase(ref.job_id)) for ref in found]
    for ref, accepted in pending:
        remote.await_verdict(accepted, ref.id, out)
        out.say(ref.id)
