"""`yard log dump|tail|stat|cut`: read the event log itself, and shorten it."""

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from yardmaster.yaml_tree import nearest
from yardmaster_cli.confirm import confirm
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.log.moments import Moment, parse_moment
from yardmaster_cli.log.options import log_options, raw_option, snapshots_option, types_option
from yardmaster_cli.log.source import LogSource, log_source, on_log
from yardmaster_cli.output.cells import When
from yardmaster_cli.output.formats import Column, Output
from yardmaster_cli.server.remote import REF, REF_HINT
from yardmaster_cli.session import Session, YardGroup, detaching
from yardmaster_cli.times import MOMENT_FORMS, now_ms
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.order import PAGE, Entry, LogOrder
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.reader import decoded, first_offset
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.plain import dump as plain_json
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import INPUT_ORDER, REQUESTS, TOPICS

#: The longest wait of `tail -f` before it can react to a signal, in seconds.
FOLLOW_S: Final = 5.0


@click.group("log", cls=YardGroup)
def log() -> None:
    """Read the event log: dump, tail, stat. Shorten it: cut.

    Without --log and YARD_LOG, the commands read the log of the local cluster in --data.
    """


def record_json(entry: Entry, *, raw: bool = False) -> dict[str, Any]:
    """A record as the JSON object of `GET /v1/events`; with `raw`, also the bytes of the record."""
    return {
        "position": str(entry.position),
        "topic": entry.topic,
        "partition": entry.stored.partition.number,
        "offset": entry.stored.offset,
        **_envelope_json(entry.envelope),
        **({"raw": _raw_json(entry.stored.record)} if raw else {}),
    }


def _raw_json(record: Record) -> dict[str, Any]:
    """The bytes of a record in base64, so that every reader can compute its digest."""
    return {
        "key": b64encode(record.key).decode(),
        "headers": [[name, b64encode(value).decode()] for name, value in record.headers],
        "value": None if record.value is None else b64encode(record.value).decode(),
    }


def _envelope_json(envelope: Envelope[Any] | None) -> dict[str, Any]:
    if envelope is None:
        return {"type": None, "undecodable": True}
    return {
        "id": envelope.id,
        "type": envelope.type,
        "version": envelope.version,
        "subject": envelope.subject,
        "at": rfc3339(envelope.time_ms),
        "actor": f"{envelope.actor.kind.value}/{envelope.actor.id}",
        "cause": envelope.cause,
        "data": plain_json(envelope.data),
    }


@dataclass(frozen=True, slots=True)
class _Filter:
    """Selects the records of some types (empty: all) about one job or task (None: all)."""

    types: Sequence[str]
    about: str | None = None

    def wants(self, entry: Entry) -> bool:
        envelope = entry.envelope
        if self.types and (envelope is None or envelope.type not in self.types):
            return False
        if self.about is None:
            return True
        if envelope is None:
            return False
        # A job matches all of its tasks; a task matches the events of its job too.
        job = self.about.partition(".")[0]
        return envelope.subject in (self.about, job) or envelope.subject.startswith(
            f"{self.about}."
        )


def _types(given: Sequence[str]) -> Sequence[str]:
    """The types that `--type` names; each use of the option is a list separated by commas.

    Raises: BadUsage for an unknown type.
    """
    given = [name.strip() for text in given for name in text.split(",") if name.strip()]
    known = sorted({name for name, _ in EVENTS})
    for name in given:
        if name not in known:
            like = nearest(name, known)
            raise BadUsage(
                f"--type: unknown event type {name}",
                hint=f"did you mean {like}?" if like else f"types: {', '.join(known)}",
            )
    return given


async def _about(log: EventLog, where: LogSource, given: str) -> str:
    """Search the log for the job or task that `--task` names by id or prefix; return its id.

    Raises: CliError when no job of the log, or more than one, has this prefix.
    """
    match = REF.match(given)
    if match is None:
        raise BadUsage(f"--task {given}: not a valid id", hint=REF_HINT)
    prefix, index = match[1], match[2]
    found: set[str] = set()
    partition = where.at(REQUESTS.name)
    offset = await first_offset(log, partition)
    while page := await log.read(partition, offset, max_records=PAGE):
        offset = page[-1].offset + 1
        for stored in page:
            headers = dict(stored.record.headers)
            subject = headers.get("ce_subject", b"").decode("ascii", "replace")
            if headers.get("ce_type") == b"TaskSubmitted" and subject.startswith(prefix):
                found.add(subject)
    if not found:
        raise CliError(f"no job id of the log starts with {prefix}", exit_code=Exit.NOT_FOUND)
    if len(found) > 1:
        raise CliError(
            f"{prefix} is ambiguous: {', '.join(sorted(found)[:10])}",
            exit_code=Exit.NOT_FOUND,
            hint="give a longer prefix of the id",
        )
    job = found.pop()
    return job if index is None else f"{job}.{index}"


def _print(out: Output, entry: Entry, *, raw: bool) -> None:
    if out.format == "name":
        out.say(str(entry.position) if entry.envelope is None else entry.envelope.id)
    else:
        out.say(json.dumps(record_json(entry, raw=raw), ensure_ascii=False))


@log.command("dump")
@log_options
@click.option(*("--from", "start"), metavar="T", help=f"Start of the records: {MOMENT_FORMS}.")
@click.option("--to", "end", metavar="T", help="End of the records, in the same forms.")
@types_option
@click.option(
    "--task",
    metavar="ID",
    help="Print only records about this job or task; an id or a prefix.",
)
@raw_option
def dump(
    session: Session,
    file: str | None,
    cell: str | None,
    start: str | None,
    end: str | None,
    types: tuple[str, ...],
    task: str | None,
    raw: bool,
) -> None:
    """Print records as JSON lines with their positions, in causal order."""
    now = now_ms()
    first = parse_moment(start, now, "--from") if start else None
    last = parse_moment(end, now, "--to") if end else None
    wanted_types = _types(types)
    where = log_source(session, file, cell)
    out = session.out
    left = out.limit

    async def work(source: EventLog) -> None:
        nonlocal left
        about = None if task is None else await _about(source, where, task)
        wanted = _Filter(wanted_types, about)
        order = LogOrder(source, await start_of(source, where), where.partition)
        async for entry in between(order, first, last):
            if not wanted.wants(entry):
                continue
            if left is not None and left <= 0:
                return
            left = None if left is None else left - 1
            _print(out, entry, raw=raw)

    on_log(where, work)


async def start_of(log: EventLog, where: LogSource) -> Position:
    """The position before the oldest remaining record of each topic."""
    position = Position.start(where.cell)
    for topic in INPUT_ORDER:
        position = position.at(topic, await first_offset(log, where.at(topic)))
    return position


async def between(
    order: LogOrder, first: Moment | None, last: Moment | None
) -> AsyncIterator[Entry]:
    """Yield the entries from `first` to `last`, both included; None: no bound."""
    begun = first is None
    async for entry in order.entries():
        begun = begun or (first is not None and first.passed(entry))
        if begun:
            yield entry
        if last is not None and last.passed(entry):
            return


@log.command("tail")
@log_options
@click.option(
    *("-n", "count"),
    type=click.IntRange(min=0),
    metavar="N",
    default=10,
    show_default=True,
    help="Number of records of each topic.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new records until Ctrl-C.")
@types_option
@raw_option
def tail(
    session: Session,
    file: str | None,
    cell: str | None,
    count: int,
    follow: bool,
    types: tuple[str, ...],
    raw: bool,
) -> None:
    """Print the newest records of each topic as JSON lines."""
    wanted = _Filter(_types(types))
    where = log_source(session, file, cell)
    out = session.out

    async def work(source: EventLog) -> None:
        ends = {where.at(topic): 0 for topic in INPUT_ORDER}
        for partition in ends:
            wanted_from = max(0, await source.end(partition) - count)
            ends[partition] = max(wanted_from, await first_offset(source, partition))
        position = Position.start(where.cell)
        while True:
            for partition in ends:
                while page := await source.read(partition, ends[partition], max_records=PAGE):
                    for stored in page:
                        position = position.at(partition.topic, stored.offset + 1)
                        entry = Entry(stored, decoded(stored), position)
                        if wanted.wants(entry):
                            _print(out, entry, raw=raw)
                    ends[partition] = page[-1].offset + 1
            if not follow:
                return
            await source.wait(ends, FOLLOW_S)

    with detaching("yard log tail -f"):
        on_log(where, work)


@log.command("cut")
@log_options
@snapshots_option
@click.option(
    "--to",
    "end",
    metavar="cycle:N|last",
    help="Last cycle of the scheduler to keep; last: the last consistent one.",
)
@click.option(
    "--copy", type=click.Path(path_type=Path), metavar="FILE", help="File for the copy of the log."
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Complete an interrupted cut of a log on Kafka from its copy.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def cut_log(
    session: Session,
    file: str | None,
    cell: str | None,
    snapshots: str | None,
    end: str | None,
    copy: Path | None,
    resume: Path | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Shorten a log that lost records to its last consistent state.

    Services that have read more of a log than it has stop with log_truncated. Stop all services,
    also the agents, cut the log, and start them again: agents first. Nodes join as new
    incarnations, which kills the tasks that run on them; they are requeued. Requests are kept.

    The log is copied to a file first, in the folder of its file or the data directory of its
    cluster. On Kafka, topics are then created again from the copy. Jobs whose requests or commands
    the log has lost are named. If the log has lost its first records too, the command warns: views
    that have read what is removed cannot be rebuilt.
    Without --log, the log of the local cluster in --data is cut, after `yard down`.
    """
    from yardmaster_cli.log.cut import cycle_of, log_to_cut, resumed

    if (end is None) == (resume is None):
        raise BadUsage("give --to or --resume", hint="--to last, --to cycle:88121")
    cycle = None if end is None else cycle_of(end)
    with log_to_cut(session, file, cell, snapshots) as where:
        if resume is not None:
            asyncio.run(resumed(where, resume))
            session.out.note("the cut is complete")
        else:
            _cut(session, where, cycle, copy, dry_run=dry_run, yes=yes)


def _cut(
    session: Session,
    where: LogSource,
    cycle: int | None,
    copy: Path | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    from yardmaster_cli.log.cut import (
        check_unused,
        copy_file,
        cut,
        drop_views,
        expired,
        lines_of,
        planned,
        warning_of,
    )

    plan = asyncio.run(planned(where, cycle))
    firsts = asyncio.run(expired(where))
    if plan.broken is not None:
        session.out.note(f"found: {plan.broken}")
    document = {
        "log": where.shown,
        "cycle": plan.cycle,
        "generation": plan.event.generation,
        "topics": [
            {"topic": one.topic, "kept": one.end, "removed": one.was - one.end}
            for one in plan.event.kept
        ],
        "lost_requests": list(plan.lost.requests),
        "lost_details": list(plan.lost.details),
        "expired": [
            {"topic": place.topic, "partition": place.number, "first": first}
            for place, first in firsts.items()
        ],
    }
    session.out.one(document, lambda: lines_of(plan), "cycle")
    if firsts:
        session.out.note(warning_of(firsts))
    if dry_run:
        return
    if not yes:
        confirm(f"This would cut {where.shown} after cycle {plan.cycle}.", session.out)
    copy = copy or asyncio.run(copy_file(where, plan))
    asyncio.run(check_unused(where, plan))
    asyncio.run(cut(where, plan, copy))
    if not firsts:
        drop_views(where)
    session.out.note(
        f"the log is of generation {plan.event.generation}; {copy} has the log before the cut"
    )


@log.command("stat")
@log_options
@click.option("--types", is_flag=True, help="Count the records of each event type.")
def stat(session: Session, file: str | None, cell: str | None, types: bool) -> None:
    """Count the records of each topic.

    Also prints their bytes, the times of the first and the last record, and the last term and
    cycle. TOMBSTONES are erased records. UNDECODABLE records cannot be read by this version.
    """
    where = log_source(session, file, cell)
    counted = on_log(where, lambda source: count_topics(source, where.partition))
    if types:
        _show_types(session.out, counted)
        return
    columns = (
        Column("TOPIC", lambda row: row["topic"]),
        Column("RECORDS", lambda row: row["records"], right=True),
        Column("BYTES", lambda row: row["bytes"], right=True),
        Column("FIRST", lambda row: When(row["first_at"])),
        Column("LAST", lambda row: When(row["last_at"])),
        Column("TERM", lambda row: row["term"], right=True),
        Column("CYCLES", lambda row: row["cycles"], right=True),
        Column("TOMBSTONES", lambda row: row["tombstones"] or None, right=True),
        Column("UNDECODABLE", lambda row: row["undecodable"] or None, right=True),
    )
    session.out.items(counted, columns, name="topic", document={"log": where.shown})


def _show_types(out: Output, counted: Sequence[dict[str, Any]]) -> None:
    columns = (
        Column("TOPIC", lambda row: row["topic"]),
        Column("TYPE", lambda row: row["type"]),
        Column("RECORDS", lambda row: row["records"], right=True),
    )
    listed = [
        {"topic": row["topic"], "type": name, "records": number}
        for row in counted
        for name, number in sorted(row["types"].items())
    ]
    out.items(listed, columns, name="type")


async def _page(
    source: EventLog, partition: Partition, offset: int | None
) -> Sequence[StoredRecord]:
    """Read records from `offset` on; None: from the oldest record.

    There are no records if the log lacks the topic: the log of a simulation has no topic `cuts`.
    """
    try:
        if offset is None:
            offset = await first_offset(source, partition)
        return await source.read(partition, offset, max_records=PAGE)
    except UnknownTopic:
        return ()


async def count_topics(source: EventLog, number: int = 0) -> list[dict[str, Any]]:
    """The counts of each topic."""
    found = []
    for topic in TOPICS:
        partition = Partition(topic, number)
        row: dict[str, Any] = {
            "topic": topic,
            "records": 0,
            "bytes": 0,
            "first_at": None,
            "last_at": None,
            "term": None,
            "cycles": None,
            "tombstones": 0,
            "undecodable": 0,
        }
        types: Counter[str] = Counter()
        offset: int | None = None
        while page := await _page(source, partition, offset):
            offset = page[-1].offset + 1
            for stored in page:
                row["records"] += 1
                row["bytes"] += stored.record.size
                row["last_at"] = rfc3339(stored.appended_ms)
                row["first_at"] = row["first_at"] or row["last_at"]
                if stored.record.value is None and TOPICS[topic].compacted:
                    row["tombstones"] += 1
                    continue
                envelope = decoded(stored)
                if envelope is None:
                    row["undecodable"] += 1
                    continue
                types[envelope.type] += 1
                if isinstance(envelope.data, TermStartedV1):
                    row["term"] = max(row["term"] or 0, envelope.data.term)
                elif isinstance(envelope.data, CycleCommittedV1):
                    row["cycles"] = max(row["cycles"] or 0, envelope.data.cycle)
        found.append({**row, "types": dict(types)})
    return found
