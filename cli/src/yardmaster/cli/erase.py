"""`yard erase`: what was said of a job in words, and what it ran, gone for good."""

import click

from yardmaster.cli.errors import BadUsage
from yardmaster.cli.session import Session, command


@command("erase")
@click.argument("refs", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(session: Session, refs: tuple[str, ...], yes: bool) -> None:
    """Erase the name, labels, command, environment and notes of jobs that have ended.

    For operators and the project's admins. What was decided stays, and replay still proves it. What
    is erased is shown no more at once; it leaves the log's files with their compaction, output with
    its retention, and backups as you keep them: see docs/operations.md.
    """
    remote, out = session.remote, session.out
    found = [remote.resolve(ref) for ref in refs]
    for ref in found:
        if ref.index is not None:
            raise BadUsage(f"{ref.id} is a task", hint=f"a job is erased whole: {ref.job_id}")
    if not yes and out.terminal:
        names = ", ".join(ref.id for ref in found)
        click.confirm(f"erase {names} for good?", abort=True, err=True)
    pending = [(ref, remote.client.erase(ref.job_id)) for ref in found]
    for ref, accepted in pending:
        remote.settle(accepted, ref.id, out)
        out.say(ref.id)
