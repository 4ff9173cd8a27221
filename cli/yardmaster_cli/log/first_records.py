"""Set up a log: create the topics, and append the first records that services need.

The first records of a cell are one batch: LogCreated, then the requests of a gateway to create the
pool, department and project `default`, which a first job needs. Because it is one batch, a setup
that was interrupted can be repeated, and a further setup changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.policy_spec import PolicySpec, checked_policy
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.log_format import check_log_format
from yardmaster_runtime.service import kafka_settings, on_kafka, open_log
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
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import REQUESTS, TOPICS, assignments

DEFAULT: Final = "default"
LOG_ID_DIGITS: Final = 32
#: The pause between tries while the log cannot be reached, in seconds.
RETRY_S: Final = 0.5
MAX_CELLS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The cells and defaults of a new log.

    Attributes:
        cells: the names of the cells, in the order of their partitions in every topic.
        actor: the actor of the first records.
        nodes: the nodes whose topics are created; an agent also creates the topic of its node.
        policy: the policy of the pool `default` in a new cell.
        passwords: the password of each broker user to create; each user gets its access rules.
    """

    mode: LogMode
    cells: tuple[str, ...]
    actor: str = "setup"
    nodes: tuple[str, ...] = ()
    policy: PolicySpec = field(default_factory=PolicySpec)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a setup: the id of the log, and the cells that were created."""

    log_id: str
    new_cells: tuple[str, ...]


async def set_up(log: EventLog, clock: Clock, chance: Chance, site: Site) -> Found:
    """Create the topics, and append the first records of each empty cell.

    Raises:
        CliError: the log has other cells, another mode or too few partitions, or the policy does
            not exist.
        LogError: the log cannot be reached, or failed.
    """
    nodes = [assignments(node) for node in site.nodes]
    await log.create_topics([*TOPICS.values(), *nodes], len(site.cells))
    known = [await _created(log, number, cell) for number, cell in enumerate(site.cells)]
    policy = checked_policy(site.policy) if None in known else None
    ids = {created.log_id: created for created in known if created is not None}
    if len(ids) > 1:
        raise CliError(
            "the partitions of the cells belong to different logs",
            exit_code=Exit.CONFLICT,
            hint="use a separate broker, or separate topics, for each log",
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
                f"the log was created for mode {created.mode.value}, not {site.mode.value}",
                exit_code=Exit.CONFLICT,
            )
    return Found(log_id, tuple(new))


async def _created(log: EventLog, number: int, cell: str) -> LogCreatedV1 | None:
    """The first record of a cell; None when its partition is empty."""
    where = Partition(REQUESTS.name, number)
    try:
        first = await log.read(where, 0, max_records=1)
    except UnknownTopic:
        raise CliError(
            f"the log's topics have no partition {number} for the cell {cell}",
            exit_code=Exit.CONFLICT,
            hint="a log keeps the number of cells that its topics were created with",
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
            f"partition {number} of {REQUESTS.name} contains {found}, not the cell {cell}",
            exit_code=Exit.CONFLICT,
            hint="name the cells in the order of their first setup",
        )
    return event


def _first_records(
    site: Site, cell: str, log_id: str, policy: PolicyRef, now_ms: int
) -> Sequence[Record]:
    created = LogCreatedV1(log_id=log_id, mode=site.mode, cell=cell, format=LOG_FORMAT)
    setup, gateway = f"setup/{site.actor}", "gateway/setup"
    pool, department, project = (
        PoolChangeRequestedV1(pool=DEFAULT, config=PoolConfig(policy=policy), if_revision=0),
        DepartmentChangeRequestedV1(department=DEFAULT, config=DepartmentConfig(), if_revision=0),
        ProjectChangeRequestedV1(
            project=DEFAULT, config=ProjectConfig(department=DEFAULT), if_revision=0
        ),
    )
    events: list[tuple[Event, str, str]] = [
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
                # Each source writes only once, so the epoch is 0. Quota could refuse an epoch
                # from this host's clock.
                epoch=0,
                seq=seq,
                subject=subject,
                time_ms=now_ms,
                actor=Actor(kind=ActorKind.SERVICE, id=site.actor),
                data=event,
            ),
            cell,
        )
        for seq, (event, subject, source) in enumerate(events)
    ]


async def _create_users(settings: LogSettings, passwords: Mapping[str, str]) -> None:
    if passwords and on_kafka(settings):
        from yardmaster_eventlog.kafka.users import create_users

        rate = settings.kafka.agent_byte_rate
        await create_users(kafka_settings(settings), passwords, agent_byte_rate=rate)


async def wait_and_set_up(
    settings: LogSettings, clock: Clock, chance: Chance, site: Site, limit_s: float
) -> Found:
    """Set up the log that the settings name; retry while it cannot be reached.

    Raises: as `set_up`; OtherLogFormat; LogUnavailable after `limit_s` seconds.
    """
    deadline_s = clock.monotonic_s() + limit_s
    while True:
        try:
            log = await open_log(settings, clock)
            try:
                if on_kafka(settings):
                    await check_log_format(log, settings.log_url)
                await _create_users(settings, site.passwords)
                return await set_up(log, clock, chance, site)
            finally:
                await log.close()
        except (LogUnavailable, AppendOutcomeUnknown):
            # The next try finds the records if they were written despite the error.
            if clock.monotonic_s() >= deadline_s:
                raise
        await clock.sleep(RETRY_S)
