"""Cut the log of a cell that lost records: check the log, plan the cut, keep a copy, and cut."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from yardmaster.local_cluster import default_up_dir
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.log.source import LogSource, id_of, identify, log_source, opened, server_of
from yardmaster_cli.session import Session
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_localcluster.broker import KafkaBroker
from yardmaster_localcluster.data_lock import take_lock
from yardmaster_localcluster.layout import DataLayout, read
from yardmaster_localcluster.request import requested
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.machine.beginning import expired_records, later_beginnings
from yardmaster_runtime.replay.cut import CutPlan, plan_cut
from yardmaster_runtime.service import kafka_settings, on_kafka
from yardmaster_runtime.settings import KafkaOptions, SharedSettings
from yardmaster_schemas.access import ADMIN
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.events.machine import LogCutV1
from yardmaster_schemas.topics import (
    ASSIGNMENTS_PREFIX,
    CUTS,
    HEARTBEATS,
    INPUT_ORDER,
    REQUESTS,
)

#: A log is cut only if no topic grew for this time, in seconds. A running agent appends a heartbeat
#: every 2 s by default.
QUIET_S: Final = 10.0
#: The most lost jobs that the text names; -o json names all.
NAMED: Final = 20
LOCK_TIMEOUT_S: Final = 5.0


@contextmanager
def log_to_cut(
    session: Session, given: str | None, cell: str | None, snapshots: str | None
) -> Iterator[LogSource]:
    """The log that the options name, by default the log of a local cluster that is stopped.

    The broker of the stopped cluster runs within this context. Messages name such a log by its
    data directory.

    Raises: BadUsage: there is no such log. LocalClusterError: the broker does not start.
    """
    default = session.config.data.source == "default"
    data = DataLayout(
        default_up_dir(os.environ).absolute() if default else session.config.data_dir.absolute()
    )
    here = session.config.here
    running = here is not None and here.log is not None
    if given is not None or running or not (data.kafka / "server.properties").is_file():
        yield log_source(session, given, cell, snapshots)
        return
    password = data.kafka_credentials / ADMIN
    lock = take_lock(data.path)
    broker = KafkaBroker(
        data.kafka, log_file=data.logs / "kafka.log", admin_password=read(password)
    )
    try:
        broker.start()
        cells = requested(data).cells
        name = cell or cells[0]
        if name not in cells:
            raise BadUsage(f"there is no cell {name}", hint=f"cells: {', '.join(cells)}")
        options = KafkaOptions(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username=ADMIN,
            sasl_password_file=password,
        )
        url, number = f"kafka://{broker.bootstrap}", cells.index(name)
        settings = SharedSettings(log=url, cell=name, partition=number, kafka=options)
        shown = str(data.path)
        server = server_of(session, shown, named=not default)
        place = snapshots or os.environ.get("YARD_SNAPSHOTS") or str(data.snapshots)
        yield LogSource(settings, name, number, shown, session.out.note, server, place)
    finally:
        broker.stop()
        os.close(lock)


def drop_views(where: LogSource) -> None:
    """Remove the saved views of a local cluster, because they may contain records that were cut."""
    folder = Path(where.shown)
    if folder.is_dir():
        (DataLayout(folder).redis / "dump.rdb").unlink(missing_ok=True)


def cycle_of(text: str) -> int | None:
    """The cycle of `--to`: `cycle:N`, or None for `last`.

    Raises: BadUsage.
    """
    if text == "last":
        return None
    if text.startswith("cycle:") and text[6:].isdecimal():
        return int(text[6:])
    raise BadUsage(f"--to: {text} is not valid", hint="write cycle:88121, or last")


async def planned(where: LogSource, cycle: int | None) -> CutPlan:
    """Plan the cut.

    Raises:
        CliError: the log has no such cycle, or is not consistent up to it.
        LogBeginsLater: the first records have expired, and no snapshot covers them.
    """
    async with opened(where) as log:
        await identify(log, where)
        plan = await plan_cut(
            log,
            QuotaMachine(check),
            SchedulerMachine(),
            where.cell,
            cycle=cycle,
            number=where.partition,
            snapshots=where.store,
        )
    if cycle is not None and plan.cycle < cycle:
        raise CliError(
            f"the log cannot be kept up to cycle {cycle}: {plan.broken or 'it has no such cycle'}",
            exit_code=Exit.CHECK_FAILED,
            hint=f"the last consistent cycle is {plan.cycle}; --to last keeps the log up to it",
        )
    return plan


async def expired(where: LogSource) -> Mapping[Partition, int]:
    """The first offset of each topic that has lost its first records; views need these offsets."""
    async with opened(where) as log:
        return await later_beginnings(log, map(where.at, INPUT_ORDER))


def warning_of(firsts: Mapping[Partition, int]) -> str:
    """The consequences, all permanent, of cutting a log that has lost its first records."""
    return (
        f"warning: {expired_records(firsts)}, so no views can be built from this log. After the "
        "cut, views that have read a removed record stop with log_truncated, and no rebuild is "
        "possible: tasks are scheduled, but yard ls and yard show do not work. If there is a "
        "backup of the log, restore it instead of cutting. yard explain --at does not work on "
        "this log, before and after the cut; yard replay at works from the oldest snapshot on."
    )


def lines_of(plan: CutPlan) -> list[str]:
    """The plan as text."""
    lines = [f"the log is kept up to cycle {plan.cycle}"]
    for one in plan.event.kept:
        removed = f"{one.was - one.end} removed" if one.was > one.end else "none removed"
        lines.append(f"{one.topic}: {count_of(one.end, 'record')} kept, {removed}")
    lost = {
        "the log has lost the requests of these jobs": plan.lost.requests,
        "the log has lost the commands, names or notes of these jobs": plan.lost.details,
    }
    return lines + [f"{what}: {_named(jobs)}" for what, jobs in lost.items() if jobs]


def _named(jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return ", ".join(jobs[:NAMED]) + more


async def copy_file(where: LogSource, plan: CutPlan) -> Path:
    """The file for the copy: in the log's data directory, or without one in the working folder.

    Its name has the id of the log, so that one folder can contain copies of several logs.
    """
    async with opened(where) as log:
        log_id = await id_of(log, where.at(REQUESTS.name))
    named = [where.cell, f"before-cut-{plan.event.generation}", *([log_id[:8]] if log_id else [])]
    return _data_folder(where) / f"{'.'.join(named)}.db"


def _data_folder(where: LogSource) -> Path:
    if not on_kafka(where.settings):
        return file_of(where).parent
    return Path(where.shown) if Path(where.shown).is_dir() else Path()


async def check_unused(where: LogSource, plan: CutPlan) -> None:
    """Check that no service has written to the log since the plan, nor for `QUIET_S` seconds.

    On Kafka, a cut replaces topics with the partitions of all cells, so all cells are checked.

    Raises: CliError.
    """
    every_cell = on_kafka(where.settings)
    async with opened(where) as log:
        numbers = range(await _cells(log)) if every_cell else [where.partition]
        before = await _ends(log, numbers)
        before |= {Partition(one.topic, where.partition): one.was for one in plan.event.kept}
        await asyncio.sleep(QUIET_S)
        now = await _ends(log, numbers)
    grown = [at for at, end in now.items() if end != before[at]]
    if grown:
        names = ", ".join(str(at) if every_cell else at.topic for at in grown)
        raise CliError(
            f"services still write to {where.shown}: {names} changed in {QUIET_S:.0f} s",
            exit_code=Exit.CONFLICT,
            hint=f"stop all services of {'all cells' if every_cell else 'the cell'}, also the"
            " agents; their tasks continue",
        )


async def _cells(log: EventLog) -> int:
    from yardmaster_eventlog.kafka.cut import partitions

    return await partitions(log, REQUESTS.name)


async def _ends(log: EventLog, numbers: Iterable[int]) -> dict[Partition, int]:
    ends = {}
    for at in (Partition(topic, n) for n in numbers for topic in (*INPUT_ORDER, HEARTBEATS.name)):
        try:
            ends[at] = await log.end(at)
        except UnknownTopic:
            ends[at] = 0
    return ends


async def cut(where: LogSource, plan: CutPlan, copy: Path) -> None:
    """Copy the log to `copy`, then cut it as planned.

    Raises: CliError: the copy exists already. LogError: on Kafka, call `resume`.
    """
    if copy.exists():  # noqa: ASYNC240 nothing else runs
        raise CliError(
            f"{copy} exists already",
            exit_code=Exit.CONFLICT,
            hint="name another file with --copy, or complete an interrupted cut with --resume",
        )
    clock = SystemClock()
    async with opened(where) as log:
        # The log of a simulation lacks the topic `cuts`.
        await log.create_topics([CUTS], where.partition + 1)
    mark = plan.record(clock.now_ms())
    if on_kafka(where.settings):
        from yardmaster_eventlog.kafka.cut import back_up, refill

        topics = [partition.topic for partition in plan.ends]
        await back_up(kafka_settings(where.settings), clock, topics, copy, mark)
        await refill(kafka_settings(where.settings), clock, copy, plan.ends, ASSIGNMENTS_PREFIX)
        return
    file = LogFile(file_of(where), create=False, lock_timeout_s=LOCK_TIMEOUT_S)
    try:
        file.copy_to(copy)
        file.cut(plan.ends, ASSIGNMENTS_PREFIX, (Partition(CUTS.name, plan.number), mark))
    finally:
        file.close()


async def resumed(where: LogSource, copy: Path) -> None:
    """Complete an interrupted cut on Kafka from the copy.

    Raises:
        BadUsage: the copy is of another cell, or the log is not on Kafka.
        LogError: the log failed; call `resumed` again.
    """
    if not on_kafka(where.settings):
        raise BadUsage("--resume: a cut of a log in a file is never half done")
    file = LogFile(copy, create=False, lock_timeout_s=LOCK_TIMEOUT_S)
    try:
        (mark,) = file.read(file.find(Partition(CUTS.name)), 0, 1)
    finally:
        file.close()
    envelope = decode(mark.record)
    event = envelope.data
    if not isinstance(event, LogCutV1) or envelope.subject != where.cell:
        raise BadUsage(f"--resume: {copy} is not the copy of a cut of cell {where.cell}")
    from yardmaster_eventlog.kafka.cut import refill

    plan = CutPlan(cell=where.cell, number=where.partition, event=event, broken=None)
    await refill(kafka_settings(where.settings), SystemClock(), copy, plan.ends, ASSIGNMENTS_PREFIX)


def file_of(where: LogSource) -> Path:
    """The file of a log that is not on Kafka."""
    return Path(where.settings.log_url.removeprefix("sqlite:///"))
