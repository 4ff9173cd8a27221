"""`log dump` gives the log in the order in which it was decided on."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.logs import (
    LogBuilder,
    admitted,
    allocated,
    joined,
    log_created,
    placed,
    pool_configured,
    submitted,
)
from yardmaster_cli.commands.log import between, count_topics, record_json
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.log.moments import Moment, parse_moment
from yardmaster_cli.main import run
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.order import Entry, LogOrder
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import PolicyRef, PoolChangeRequestedV1, PoolConfig
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import TOPICS

JOB = "4kq7w2mz9c1f"
POOL = PoolChangeRequestedV1(pool="default", config=PoolConfig(policy=PolicyRef(name="priority")))


def story() -> LogBuilder:
    """A pool, a node, a job; the scheduler's one cycle takes them. One request is left over."""
    log = LogBuilder()
    log.request(log_created())
    log.quota.cycle()
    log.claim(joined("n1"))
    log.judged(POOL, pool_configured())
    log.judged(submitted(JOB), admitted(JOB))
    log.scheduler.cycle(allocated(f"{JOB}.0", placed("n1", 0)))
    log.request(submitted("9b3xd0h5t6vn"))
    return log


async def filled(log: EventLog, builder: LogBuilder) -> EventLog:
    await log.create_topics(list(TOPICS.values()))
    await builder.write_to(log)
    return log


async def entries(builder: LogBuilder) -> list[Entry]:
    log = await filled(MemoryLog(ManualClock()), builder)
    return [entry async for entry in LogOrder(log, Position.start("main")).entries()]


def types(found: list[Entry]) -> list[str]:
    return [entry.envelope.type if entry.envelope else "?" for entry in found]


async def test_inputs_of_a_cycle_come_before_its_decisions() -> None:
    assert types(await entries(story())) == [
        "TermStarted",  # the scheduler's, which no input precedes
        "TermStarted",
        "LogCreated",
        "CycleCommitted",
        "PoolChangeRequested",
        "PoolConfigured",
        "CycleCommitted",
        "TaskSubmitted",
        "TaskAdmitted",
        "CycleCommitted",
        "NodeJoined",
        "SlotsAllocated",
        "CycleCommitted",
        "TaskSubmitted",
    ]


async def test_every_record_is_given_once_and_positions_only_rise() -> None:
    builder = story()
    found = await entries(builder)
    assert len(found) == len(builder.entries)
    for earlier, later in pairwise(found):
        assert later.position.covers(earlier.position)
    assert str(found[-1].position) == "main@r4.a6.n1.d3"


async def test_a_record_that_cannot_be_decoded_is_given_as_such() -> None:
    builder = story()
    builder.raw("node-events")
    last = (await entries(builder))[-1]
    assert last.topic == "node-events"
    assert record_json(last)["undecodable"] is True


async def test_moments_bound_what_is_given() -> None:
    log = await filled(MemoryLog(ManualClock()), story())
    first = parse_moment("main@r2", 0, "--from")
    last = parse_moment("cycle:1", 0, "--to")
    found = [entry async for entry in between(LogOrder(log, Position.start("main")), first, last)]
    assert types(found)[0] == "PoolChangeRequested"
    assert types(found)[-2:] == ["SlotsAllocated", "CycleCommitted"]


@pytest.mark.parametrize(
    "text", ["yesterday", "main@", "main@x4", "-2", "cycle:x", "2026-13-31", "20260131"]
)
def test_what_is_no_moment_is_bad_usage(text: str) -> None:
    with pytest.raises(BadUsage):
        parse_moment(text, 0, "--at")


def test_moments_are_positions_times_and_cycles() -> None:
    assert parse_moment("-2h", 10_000_000, "--at") == Moment(at_ms=2_800_000)
    assert parse_moment("2h", 10_000_000, "--at") == Moment(at_ms=2_800_000)
    assert parse_moment("1970-01-02", 0, "--at") == Moment(at_ms=86_400_000)
    assert parse_moment("1970-01-01T00:00:01Z", 0, "--at") == Moment(at_ms=1000)
    assert parse_moment("cycle:7", 0, "--at") == Moment(cycle=7)


async def written(path: Path, builder: LogBuilder | None = None) -> Path:
    log = await filled(await SqliteLog.open(path, ManualClock()), builder or story())
    await log.close()
    return path


async def test_a_topic_is_counted_by_records_types_and_cycles(tmp_path: Path) -> None:
    log = await SqliteLog.open(await written(tmp_path / "log.db"), ManualClock())
    rows = {row["topic"]: row for row in await count_topics(log)}
    await log.close()
    assert rows["admissions"]["cycles"] == 3
    assert rows["decisions"]["term"] == 1
    assert rows["requests"]["types"]["TaskSubmitted"] == 2
    assert rows["details"]["records"] == 0


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return asyncio.run(written(tmp_path / "log.db"))


def test_dump_is_json_lines_filtered_by_type_and_task(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "dump", "--log", str(log_file), "--type", "TaskSubmitted"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["subject"] for line in lines] == [JOB, "9b3xd0h5t6vn"]
    assert lines[0]["position"].startswith("main@")
    assert run(["log", "dump", "--log", str(log_file), "--task", f"{JOB}.0", "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def dumped(
    log_file: Path, capsys: pytest.CaptureFixture[str], *args: str, code: int = 0
) -> tuple[list[str], str]:
    """The types that a dump prints (or its lines, where they are no JSON), and its errors."""
    assert run(["log", "dump", "--log", str(log_file), *args]) == code
    said = capsys.readouterr()
    lines = said.out.splitlines()
    return [json.loads(line)["type"] if line[0] == "{" else line for line in lines], said.err


def test_dump_takes_the_beginning_of_an_id_and_a_job_means_all_its_tasks(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_job = ["TaskSubmitted", "TaskAdmitted", "SlotsAllocated"]
    for text in (JOB, JOB[:4], f"{JOB}.0", f"{JOB[:4]}.0"):
        assert dumped(log_file, capsys, "-q", "--task", text) == (of_job, "")
    assert (
        "no job id of the log starts with zz"
        in dumped(log_file, capsys, "--task", "zz", code=101)[1]
    )
    assert "not a valid id" in dumped(log_file, capsys, "--task", "x_y", code=2)[1]


def test_an_id_that_several_jobs_begin_with_is_ambiguous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = LogBuilder()
    builder.request(log_created())
    builder.request(submitted(JOB))
    builder.request(submitted(f"{JOB[:-1]}z"))
    asyncio.run(written(tmp_path / "log.db", builder))
    found, said = dumped(tmp_path / "log.db", capsys, "--task", JOB[:4], code=101)
    assert found == []
    assert f"{JOB[:4]} is ambiguous: {JOB}, {JOB[:-1]}z" in said


def test_one_option_names_several_types(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = ["TaskSubmitted", "TaskSubmitted", "SlotsAllocated"]
    assert sorted(dumped(log_file, capsys, "--type", "TaskSubmitted,SlotsAllocated")[0]) == sorted(
        types
    )
    assert (
        "unknown event type Foo"
        in dumped(log_file, capsys, "--type", "TaskSubmitted,Foo", code=2)[1]
    )


def test_the_log_that_is_read_is_named(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = dumped(log_file, capsys, "--limit", "0")[1]
    assert said == f"reading {log_file}: log {log_created().log_id}, cell main\n"


def test_a_type_that_does_not_exist_is_an_error_that_names_the_types(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "TaskSubmitted, " in dumped(log_file, capsys, "--type", "Foo", code=2)[1]
    near = dumped(log_file, capsys, "--type", "TaskSubmited", code=2)[1]
    assert "did you mean TaskSubmitted?" in near
    assert run(["log", "tail", "--log", str(log_file), "--type", "Foo"]) == 2


def test_records_can_be_listed_by_their_ids_and_take_no_other_format(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, _ = dumped(log_file, capsys, "-o", "name", "--type", "NodeJoined")
    assert ids == [record["id"] for record in records(log_file, capsys, "NodeJoined")]
    assert "is not one of" in dumped(log_file, capsys, "-o", "table", code=2)[1]


def records(log_file: Path, capsys: pytest.CaptureFixture[str], type_: str) -> list[dict[str, str]]:
    assert run(["log", "dump", "--log", str(log_file), "--type", type_]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_tombstones_are_counted_apart_from_what_cannot_be_decoded() -> None:
    log = await filled(MemoryLog(ManualClock()), story())
    await log.append(Partition("details"), [Record(JOB.encode(), None)])
    await log.append(Partition("requests"), [Record(b"main", None)])
    rows = {row["topic"]: row for row in await count_topics(log)}
    assert (rows["details"]["tombstones"], rows["details"]["undecodable"]) == (1, 0)
    assert (rows["requests"]["tombstones"], rows["requests"]["undecodable"]) == (0, 1)


def test_tail_gives_the_newest_of_each_topic(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "tail", "--log", str(log_file), "-n", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["topic"] for line in lines] == [
        "requests", "admissions", "node-events", "decisions",
    ]  # fmt: skip


def test_stat_is_a_table(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "stat", "--log", str(log_file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["log"] == str(log_file)


def test_a_file_that_is_no_log_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello" * 1000)
    assert run(["log", "stat", "--log", str(path)]) == 2
    assert "is not a Yardmaster log" in capsys.readouterr().err
    assert run(["log", "stat", "--log", str(tmp_path / "none.db")]) == 2
