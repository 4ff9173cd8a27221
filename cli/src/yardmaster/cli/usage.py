"""`yard usage`: who held how much GPU time, by project, user or pool."""

from typing import Any

import click

from yardmaster.cli.cells import parse_time
from yardmaster.cli.errors import BadUsage
from yardmaster.cli.output import Column
from yardmaster.cli.remote import plain, rows
from yardmaster.cli.session import Session, YardCommand, now_ms
from yardmaster.schemas.api import UsageBucket, UsageBy
from yardmaster.schemas.instants import rfc3339
from yardmaster.schemas.quantities import duration_s


class _UsageCommand(YardCommand):
    """Takes `--from -30d` as the moment it means, not as another option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join `--from` and `--to` with what follows them."""
        joined: list[str] = []
        words = iter(args)
        for word in words:
            following = next(words, None) if word in ("--from", "--to") else None
            joined.append(word if following is None else f"{word}={following}")
        return super().parse_args(ctx, joined)


@click.command("usage", cls=_UsageCommand)
@click.option("--from", "begin", metavar="T", default="-30d", help="From a time or -30d on.")
@click.option("--to", "end", metavar="T", help="Up to a time or -1d; without it up to now.")
@click.option(
    "--by",
    type=click.Choice([each.value for each in UsageBy]),
    default=UsageBy.PROJECT.value,
    help="What it is summed up by.",
)
@click.option(
    "--bucket",
    type=click.Choice([each.value for each in UsageBucket]),
    help="Cut into hours, days or months (UTC).",
)
def usage(session: Session, begin: str, end: str | None, by: str, bucket: str | None) -> None:
    """Show GPU time held, by the cycles' time; what is held still counts up to now."""
    now = now_ms()
    found = session.remote.client.usage(
        begin=rfc3339(_moment(begin, now, "--from")),
        end=None if end is None else rfc3339(_moment(end, now, "--to")),
        by=by,
        bucket=bucket,
    )
    columns = [
        Column(by.upper(), lambda row: row["name"]),
        Column("GPU_HOURS", lambda row: _hours(row["gpu_milli_seconds"]), right=True),
    ]
    if bucket is not None:
        columns.insert(0, Column("START", lambda row: _start(row["start_at"], bucket)))
    session.out.items(rows(found.items), tuple(columns), name="name", document=plain(found))


def _moment(text: str, now: int, option: str) -> int:
    """Milliseconds since the epoch of `-30d` or of a time.

    Raises:
        BadUsage: it is neither.
    """
    if text.startswith("-"):
        try:
            return max(0, now - 1000 * duration_s(text[1:]))
        except ValueError as error:
            raise BadUsage(f"{option}: {error}") from None
    at_ms = parse_time(text)
    if at_ms is None or at_ms < 0:
        raise BadUsage(f"{option}: {text} is no time", hint="write -30d or 2026-01-31T12:00:00Z")
    return at_ms


def _hours(milli_seconds: int) -> str:
    whole, rest = divmod(milli_seconds, 1000 * 3600)
    return f"{whole}.{rest * 100 // (1000 * 3600):02d}"


def _start(at: str, bucket: str) -> Any:
    return {"hour": at[:13] + "Z", "day": at[:10], "month": at[:7]}[bucket]
