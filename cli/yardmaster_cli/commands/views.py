"""`yard views rebuild`, and the comparison of views with the log for `yard replay verify --views`.

The follower of the views service rebuilds views and produces the rows for the comparison.
"""

import asyncio
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError

from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.log.options import log_options
from yardmaster_cli.log.source import (
    LogSource,
    id_of,
    identify,
    log_source,
    needing_every_record,
    opened,
)
from yardmaster_cli.output.formats import Output
from yardmaster_cli.session import Session, YardGroup
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.reader import first_offset
from yardmaster_projections.fold import FOLDS
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import LogRow
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.topics import REQUESTS
from yardmaster_views.compare import Compared, Comparison
from yardmaster_views.follower import Metrics
from yardmaster_views.rebuild import Rebuild, Rebuilt
from yardmaster_views.settings import ViewsSettings

#: The hint for views that cannot be rebuilt or checked because the log lost its first records.
NOT_REBUILT: Final = (
    "views that have read these records continue, and nothing was changed; else restore the log "
    "from a backup, or Redis from a copy (docs/how-to/recover.md)"
)


@click.group("views", cls=YardGroup)
def views() -> None:
    """Rebuild the views that gateways read."""


@views.command("rebuild")
@log_options
@click.option("--redis", metavar="URL", help="Redis of the views (also: YARD_REDIS__URL).")
@click.option(
    "--only", type=click.Choice(tuple(FOLDS)), help="Rebuild only the views, or only metered usage."
)
def rebuild(
    session: Session, file: str | None, cell: str | None, redis: str | None, only: str | None
) -> None:
    """Rebuild the views from the log.

    Services keep running. Gateways switch to the new views when these are complete.
    """
    where = log_source(session, file, cell)
    found = redis_settings(session, where, redis)
    with needing_every_record("a rebuild of the views", NOT_REBUILT):
        done = asyncio.run(_rebuild(session.out, where, found, [only] if only else list(FOLDS)))
    items = [
        {
            "view": one.view,
            "generation": one.generation,
            "position": str(one.position),
            "records": one.folded,
            "keys_dropped": one.dropped,
        }
        for one in done
    ]
    session.out.one(
        {"items": items},
        lambda: [
            f"{one.view}: {count_of(one.folded, 'record')} folded, up to {one.position}; "
            f"generation {one.generation} is active, {count_of(one.dropped, 'key')} of older ones "
            "deleted"
            for one in done
        ],
        "items",
    )


async def _rebuild(
    out: Output, where: LogSource, redis: RedisSettings, names: Sequence[str]
) -> list[Rebuilt]:
    done = []
    clock = SystemClock()

    def report(now: Rebuilt) -> None:
        share = 100 * now.folded // now.records if now.records else 100
        out.note(f"{now.view}: {now.folded} of {count_of(now.records, 'record')}, {share} %")

    async with opened(where) as log:
        await identify(log, where)
        await check_same_log(log, where, redis)
        metrics = _metrics(clock)
        for name in names:
            work = Rebuild(
                log=log,
                redis=redis,
                cell=where.cell,
                partition=where.partition,
                fold=FOLDS[name],
                clock=clock,
                metrics=metrics,
            )
            done.append(await work.run(report))
    return done


def redis_settings(session: Session, where: LogSource, url: str | None) -> RedisSettings:
    """The Redis of the views: `url`, else the services' settings, else the log's cluster's Redis.

    Raises:
        BadUsage: the settings are not valid.
    """
    try:
        known = ViewsSettings().redis
        if url is not None:
            return RedisSettings(**{**dict(known), "url": url})
        here = session.config.here
        if "url" in known.model_fields_set:
            return known
        if here is not None and here.redis is not None and where.settings.log == here.log:
            return local_redis(here.redis, here.credentials)
        if where.settings.log.startswith("sqlite:"):
            raise BadUsage(
                "the views of this log are in the memory of yard dev, not in Redis",
                hint="give --redis URL if a views service reads this log",
            )
        return known
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        name = "--redis" if url is not None else "YARD_" + "__".join(map(str, found["loc"])).upper()
        raise BadUsage(f"{name}: {found['msg']}") from None


def local_redis(url: str, credentials: str | None) -> RedisSettings:
    """The Redis of a cluster on this machine, with the user that may rebuild the views."""
    if credentials is None:
        return RedisSettings(url=url)
    user = "views"
    return RedisSettings(url=url, username=user, password_file=Path(credentials) / "redis" / user)


async def check_same_log(log: EventLog, where: LogSource, redis: RedisSettings) -> None:
    """Check that the views in Redis belong to this log; views without a log id are empty.

    Raises:
        CliError: the views belong to another log.
        LogError, ViewsUnavailable, ViewsDamaged.
    """
    store = RedisViewStore(redis, where.cell, SystemClock())
    try:
        shown = await store.get(LogRow, where.cell)
    finally:
        await store.close()
    if shown is None:
        return
    if await first_offset(log, where.at(REQUESTS.name)):
        return  # the record with the id has expired
    log_id = await id_of(log, where.at(REQUESTS.name)) or "nothing"
    if shown.log_id != log_id:
        raise CliError(
            f"the views in {redis.url} belong to another log: they show log {shown.log_id}, and "
            f"{where.shown} is log {log_id}",
            exit_code=Exit.CONFLICT,
            hint="name the Redis of this log with --redis redis://HOST:PORT/DB; or empty this one, "
            "if no other cluster uses it",
        )


async def compare(log: EventLog, where: LogSource, redis: RedisSettings) -> list[Compared]:
    """Compare every row in Redis with the log.

    Raises: as `check_same_log` and `Comparison.run`.
    """
    await check_same_log(log, where, redis)
    clock = SystemClock()
    metrics = _metrics(clock)
    done = []
    for name, fold in FOLDS.items():
        store = RedisViewStore(redis, where.cell, clock, space=name)
        try:
            work = Comparison(
                log=log,
                store=store,
                cell=where.cell,
                partition=where.partition,
                fold=fold,
                clock=clock,
                metrics=metrics,
            )
            done.append(await work.run())
        finally:
            await store.close()
    return done


def compared_json(done: Sequence[Compared]) -> list[dict[str, Any]]:
    """The comparison as part of a JSON report."""
    return [
        {
            "view": one.view,
            "ok": one.ok,
            "position": str(one.position),
            "rows": one.rows,
            "differing": one.differing,
            "differences": [
                {
                    "kind": each.kind,
                    "key": each.key,
                    "found": each.found,
                    "position": str(each.position),
                }
                for each in one.differences
            ],
        }
        for one in done
    ]


def compared_lines(done: Sequence[Compared]) -> list[str]:
    """The comparison as text."""
    lines = []
    for one in done:
        lines += [
            f"DIFFERS: {one.view} {each.kind} {each.key} {each.found} (at {each.position})"
            for each in one.differences
        ]
        more = one.differing - len(one.differences)
        if more:
            lines.append(f"   and {more} more")
        verdict = "none differs" if one.ok else f"{one.differing} differ"
        lines.append(
            f"{one.view}: {count_of(one.rows, 'row')} compared up to {one.position}, {verdict}"
        )
    return lines


def _metrics(clock: SystemClock) -> Metrics:
    return Metrics(Telemetry("views", now_ms=clock.now_ms, stream=StringIO(), level="warning"))
