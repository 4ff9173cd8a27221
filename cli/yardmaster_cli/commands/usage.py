"""`yard usage`: GPU-hours by project, user or pool."""

import click

from yardmaster_cli.output.formats import Column
from yardmaster_cli.server.remote import plain, rows
from yardmaster_cli.session import Session, command
from yardmaster_cli.times import now_ms, past_ms
from yardmaster_schemas.api import UsageBucket, UsageBy
from yardmaster_schemas.instants import rfc3339


@command("usage")
@click.option(
    "--from", "begin", metavar="T", default="30d", help="Start of the period: a time, or 30d (ago)."
)
@click.option(
    "--to", "end", metavar="T", help="End of the period: a time, or 1d (ago); default: now."
)
@click.option(
    "--by",
    type=click.Choice([each.value for each in UsageBy]),
    default=UsageBy.PROJECT.value,
    help="Group by project, user or pool (default: project).",
)
@click.option(
    "--bucket",
    type=click.Choice([each.value for each in UsageBucket]),
    help="Split into hours, days or months (UTC).",
)
def usage(session: Session, begin: str, end: str | None, by: str, bucket: str | None) -> None:
    """Show GPU-hours by project, user or pool.

    They include the tasks that still run, up to now.
    """
    now = now_ms()
    found = session.remote.client.usage(
        begin=rfc3339(past_ms(begin, now, "--from")),
        end=None if end is None else rfc3339(past_ms(end, now, "--to")),
        by=by,
        bucket=bucket,
    )
    columns = [
        Column(by.upper(), lambda row: row["name"]),
        Column("GPU_HOURS", lambda row: _hours(row["gpu_milli_seconds"]), right=True),
    ]
    if bucket is not None:
        columns.insert(0, Column("START", lambda row: f"{row['start_at'][:19]}Z"))
    session.out.items(rows(found.items), tuple(columns), name="name", document=plain(found))


def _hours(milli_seconds: int) -> str:
    whole, rest = divmod(milli_seconds, 1000 * 3600)
    return f"{whole}.{rest * 100 // (1000 * 3600):02d}"
