"""The topics and the first records of a log, before any service can work on it.

A cell's first records are one batch: LogCreated, then what a first job needs, asked for as a
gateway asks: the pool, department and project `default`. So a setup that was cut short is repeated
whole, and a later one changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.policy_spec import PolicySpec, checked_policy
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
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
