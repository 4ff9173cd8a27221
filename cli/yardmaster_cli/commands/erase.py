"""`yard erase`: permanently delete what users wrote about a job, and what it ran."""

import click

from yardmaster_cli.confirm import confirm
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.session import Session, command


@command("erase")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Erase without asking.")
def erase(session: Session, refs: tuple[str, ...], yes: bool) -> None:
    """Permanently delete names, labels, commands, environments and notes of finished jobs.

    For operators and the project's admins. Decisions stay, and replay still proves them. What is
    erased is hidden at once; it leaves the log's files when they are compacted, output after its
    retention, and backups as you keep them: see docs/how-to/operate.md.
    """
    remote, out = session.remote, session.out
    found = [remote.resolve(ref) for ref in refs]
    for ref in found:
        if ref.index is not None:
            raise BadUsage(
                f"{ref.id} is a task", hint=f"name its whole job: yard erase {ref.job_id}"
            )
    if not yes:
        names = ", ".join(ref.id for ref in found)
        confirm(f"This permanently erases {names}.", out)
    pending = [(ref, remote.client.erase(ref.job_id)) for ref in found]
    for ref, accepted in pending:
        remote.await_verdict(accepted, ref.id, out)
        out.say(ref.id)
