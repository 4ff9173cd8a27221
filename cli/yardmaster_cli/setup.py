"""`yard setup`: the topics and the first records of a log, before any service can work on it.

A cell's first records are one batch: LogCreated, then what a first job needs, asked for as a
gateway asks: the pool, department and project `default`. So a setup that was cut short is repeated
whole, and a later one changes nothing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from yardmaster_cli.devdata import PolicySpec
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.session import Session, command
from yardmaster_core.errors import BadPolicyOptions
from yardmaster_core.scheduling.policies import POLICIES, options_of
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, NotOurLog, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.chance import Chance, SystemChance
from yardmaster_runtime.clock import Clock, SystemClock
from yardmaster_runtime.service import open_log
from yardmaster_runtime.settings import LogSettings
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    LogCreatedV1,
    LogMode,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
)
from yardmaster_schemas.quantities import duration_s
from yardmaster_schemas.topics import REQUESTS, TOPICS, assignments

DEFAULT: Final = "default"
LOG_ID_DIGITS: Final = 32
#: Between two tries while the log cannot be reached, in seconds.
RETRY_S: Final = 0.5
MAX_CELLS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a log is made for.

    Attributes:
        cells: each at its partition's number, in every topic.
        actor: who asked for the first records.
        nodes: whose topics are made too; an agent also makes its own.
        policy: of the pool `default` in a cell that is new.
    """

    mode: LogMode
    cells: tuple[str, ...]
    actor: str = "setup"
    nodes: tuple[str, ...] = ()
    policy: PolicySpec = field(default_factory=PolicySpec)


@dataclass(frozen=True, slots=True)
class Found:
    """What `set_up` left behind: the log's identity, and the cells that it began."""

    log_id: str
    new_cells: tuple[str, ...]


async def set_up(log: EventLog, clock: Clock, chance: Chance, site: Site) -> Found:
    """Make the topics, and write the first records of each cell that has none.

    Raises:
        CliError: the log is another cell's or mode's, or has too few partitions; no such policy.
        LogError: the log cannot be reached, or failed.
    """
    nodes = [assignments(node) for node in site.nodes]
    await log.create_topics([*TOPICS.values(), *nodes], len(site.cells))
    known = [await _created(log, number, cell) for number, cell in enumerate(site.cells)]
    policy = checked_policy(site.policy) if None in known else None
    ids = {created.log_id: created for created in known if created is not None}
    if len(ids) > 1:
        raise CliError(
            "the cells' partitions say that they are of different logs",
            exit_code=Exit.CONFLICT,
            hint="use a broker, or topics, of their own for each log",
        )
    log_id = next(iter(ids), None) or chance.hex("log id", LOG_ID_DIGITS)
    new: list[str] = []
    for number, (cell, created) in enumerate(zip(site.cells, known, strict=True)):
        if created is None and policy is not None:
            records = _first_records(site, cell, log_id, policy, clock.now_ms())
            await log.append(Partition(REQUESTS.name, number), records)
            new.append(cell)
        elif created is not None and created.mode is not site.mode:
            raise CliError(
                f"the log was made for mode {created.mode.value}, not {site.mode.value}",
                exit_code=Exit.CONFLICT,
            )
    return Found(log_id, tuple(new))


async def _created(log: EventLog, number: int, cell: str) -> LogCreatedV1 | None:
    """What a cell's partition begins with; None when it is empty."""
    where = Partition(REQUESTS.name, number)
    try:
        first = await log.read(where, 0, max_records=1)
    except UnknownTopic:
        raise CliError(
            f"the log's topics have no partition {number} for the cell {cell}",
            exit_code=Exit.CONFLICT,
            hint="how many cells a log has is settled when its topics are made",
        ) from None
    if not first:
        return None
    try:
        event = decode(first[0].record).data
    except SchemaError:
        event = None
    if not isinstance(event, LogCreatedV1) or event.cell != cell:
        found = f"cell {event.cell}" if isinstance(event, LogCreatedV1) else "something else"
        raise CliError(
            f"partition {number} of {REQUESTS.name} holds {found}, not the cell {cell}",
            exit_code=Exit.CONFLICT,
            hint="name the cells in the order in which they were first set up",
        )
    return event


def _first_records(
    site: Site, cell: str, log_id: str, policy: PolicyRef, now_ms: int
) -> Sequence[Record]:
    created = LogCreatedV1(log_id=log_id, mode=site.mode, cell=cell)
    setup, gateway = f"setup/{site.actor}", "gateway/setup"
    pool, department, project = (
        PoolChangeRequestedV1(pool=DEFAULT, config=PoolConfig(policy=policy), if_revision=0),
        DepartmentChangeRequestedV1(department=DEFAULT, config=DepartmentConfig(), if_revision=0),
        ProjectChangeRequestedV1(
            project=DEFAULT, config=ProjectConfig(department=DEFAULT), if_revision=0
        ),
    )
    asked: list[tuple[Event, str, str]] = [
        (created, cell, setup),
        (pool, DEFAULT, gateway),
        (department, DEFAULT, gateway),
        (project, DEFAULT, gateway),
    ]
    return [
        encode(
            Envelope(
                type=event.TYPE,
                version=event.VERSION,
                source=source,
                epoch=now_ms,
                seq=seq,
                subject=subject,
                time_ms=now_ms,
                actor=Actor(kind=ActorKind.SERVICE, id=site.actor),
                data=event,
            ),
            cell,
        )
        for seq, (event, subject, source) in enumerate(asked)
    ]


def checked_policy(spec: PolicySpec) -> PolicyRef:
    """The policy that a spec names.

    Raises:
        BadUsage: there is no such policy, or it does not have these options.
    """
    policy = PolicyRef(name=spec.name, options=dict(spec.options))
    offered = [each.name for each in POLICIES.values() if not each.simulated]
    if spec.name not in offered:
        simulated = any(spec.name == each.name for each in POLICIES.values())
        what = f"policy {spec.name} is for yard simulate only" if simulated else ""
        raise BadUsage(
            what or f"there is no policy {spec.name}", hint=f"policies: {', '.join(offered)}"
        )
    try:
        options_of(policy)
    except BadPolicyOptions as error:
        raise BadUsage(str(error), hint="options of each policy: docs/policies.md") from None
    return policy


async def wait_and_set_up(
    settings: LogSettings, clock: Clock, chance: Chance, site: Site, limit_s: float
) -> Found:
    """Set up the log that the settings name; one that is away is tried again until the limit.

    Raises: what `set_up` raises; LogUnavailable after `limit_s` seconds.
    """
    deadline_s = clock.monotonic_s() + limit_s
    while True:
        try:
            log = await open_log(settings, clock)
            try:
                return await set_up(log, clock, chance, site)
            finally:
                await log.close()
        except (LogUnavailable, AppendOutcomeUnknown):
            # What may have been written is found, or not, by the next try.
            if clock.monotonic_s() >= deadline_s:
                raise
        await clock.sleep(RETRY_S)


@command("setup")
@click.option("--log", "url", metavar="URL", help="kafka://HOST:PORT[,...] (default: YARD_LOG).")
@click.option("--cells", default="main", metavar="A[,B]", help="The log's cells, in this order.")
@click.option("--wait", default="60s", metavar="TIME", help="How long the log may be away.")
def setup(session: Session, url: str | None, cells: str, wait: str) -> None:
    """Make a log's topics and first records; repeated, it changes nothing.

    How brokers are reached (TLS, users, replication) is what YARD_KAFKA__... says, as for services.
    """
    names = tuple(name.strip() for name in cells.split(",") if name.strip())
    if not 1 <= len(names) <= MAX_CELLS or len(set(names)) < len(names):
        raise BadUsage(f"--cells {cells}: 1 to {MAX_CELLS} different names are expected")
    settings = LogSettings() if url is None else LogSettings(log=url)
    if not settings.log:
        raise BadUsage("which log?", hint="name it with --log kafka://HOST:PORT or YARD_LOG")
    try:
        limit_s = duration_s(wait)
    except ValueError as error:
        raise BadUsage(f"--wait: {error}") from None
    mode = LogMode.KAFKA if settings.log.startswith("kafka:") else LogMode.EMBEDDED
    site = Site(mode=mode, cells=names)
    try:
        found = asyncio.run(wait_and_set_up(settings, SystemClock(), SystemChance(), site, limit_s))
    except NotOurLog as error:
        raise BadUsage(str(error)) from None
    made = f"new: {', '.join(found.new_cells)}" if found.new_cells else "nothing was missing"
    document = {"log_id": found.log_id, "cells": list(names), "new_cells": list(found.new_cells)}
    session.out.one(
        document, lambda: [f"log {found.log_id}, cells {', '.join(names)}; {made}"], "log_id"
    )
