"""`yard explain`: why a task is pending, was stopped, ended or was refused.

The gateway answers for the present; the log itself answers for any other time (`--at`).
"""

import click

from yardmaster_cli.log.options import log_options
from yardmaster_cli.output.describe import explain_lines
from yardmaster_cli.server.remote import plain
from yardmaster_cli.session import Session, command
from yardmaster_cli.times import MOMENT_FORMS


@command("explain")
@click.argument("ref", metavar="REF")
@click.option("--at", "moment", metavar="T", help=f"Explain the task at {MOMENT_FORMS}.")
@log_options
def explain(
    session: Session, ref: str, moment: str | None, file: str | None, cell: str | None
) -> None:
    """Show why a task is pending, was stopped or was refused, with the numbers of each pool.

    With --log or --at, the command reads the answer from the event log instead of the server; --at
    selects an earlier time.
    """
    out = session.out
    more: list[str] = []
    if moment is None and file is None:
        remote = session.remote
        why = plain(remote.client.explain(remote.one_task(ref)))
        if out.for_people and why["phase"] in ("pending", "failed"):
            # Imported here: the client for output needs models, which are slow to import.
            from yardmaster_cli.commands.logs import failed_fetch

            more = failed_fetch(remote, why["task_id"])
    else:
        # Imported here: reading a log needs libraries that only extras install.
        from yardmaster_cli.log.explanation import explain_from_log

        why = explain_from_log(session, ref, moment, file, cell)
    out.one(why, lambda: [*explain_lines(out, why, None), *more], "task_id")
