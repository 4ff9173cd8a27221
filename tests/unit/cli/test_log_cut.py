"""`yard log cut`: a log that lost records becomes a consistent shorter one."""

import asyncio
import json
import lzma
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.yard_cli import CommandResult
from yardmaster_cli.log import cut
from yardmaster_cli.log.source import file_source
from yardmaster_cli.main import run
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.machine import CycleCommittedV1, LogCutV1

KEPT = Path(__file__).parents[2] / "data" / "logs" / "rules-1" / "priority.db.xz"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cut, "QUIET_S", 0.1)
    path = tmp_path / "log.db"
    path.write_bytes(lzma.decompress(KEPT.read_bytes()))
    return path


Yard = Callable[..., CommandResult]


@pytest.fixture
def yard(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Yard:
    """Runs commands on the log in this process."""
    monkeypatch.chdir(path.parent)

    def run_here(*words: str) -> CommandResult:
        capsys.readouterr()
        code = run([*words, "--log", str(path)])
        said = capsys.readouterr()
        return CommandResult(code, said.out, said.err)

    return run_here


def lose(path: Path, topic: str, records: int) -> int:
    """Remove the last records of a topic; return its new end."""
    with closing(sqlite3.connect(path)) as db, db:
        number, end = db.execute(
            "SELECT id, next FROM partitions WHERE topic = ?", (topic,)
        ).fetchone()
        kept: int = end - records
        db.execute("DELETE FROM records WHERE partition = ? AND offset >= ?", (number, kept))
        db.execute("UPDATE partitions SET next = ? WHERE id = ?", (kept, number))
    return kept


def lose_first(path: Path, topic: str, records: int) -> None:
    """Remove the first records of a topic, as a wrong retention does."""
    with closing(sqlite3.connect(path)) as db, db:
        (number,) = db.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchone()
        db.execute("DELETE FROM records WHERE partition = ? AND offset < ?", (number, records))
        db.execute("UPDATE partitions SET first = ? WHERE id = ?", (records, number))


def on_log(path: Path, work: Callable[[EventLog], object]) -> object:
    async def run() -> object:
        log = await SqliteLog.open(path, SystemClock(), create=False)
        try:
            return await work(log)  # type: ignore[misc]
        finally:
            await log.close()

    return asyncio.run(run())


def last_cycle(path: Path) -> int:
    async def find(log: EventLog) -> int:
        at = Partition("decisions")
        end = await log.end(at)
        found = decode((await log.read(at, end - 1))[0].record).data
        assert isinstance(found, CycleCommittedV1)
        return found.cycle

    found = on_log(path, find)
    assert isinstance(found, int)
    return found


def submitted_jobs(path: Path) -> list[str]:
    async def find(log: EventLog) -> list[str]:
        found = [decode(stored.record) for stored in await log.read(Partition("requests"), 0)]
        return [one.subject for one in found if one.type == "TaskSubmitted"]

    found = on_log(path, find)
    assert isinstance(found, list)
    return found


async def only_cut(log: EventLog) -> object:
    (stored,) = await log.read(Partition("cuts"), 0)
    return decode(stored.record).data


@pytest.mark.parametrize("topic", ["requests", "admissions", "node-events", "decisions"])
def test_a_log_that_lost_records_is_consistent_again_after_a_cut(
    yard: Yard, path: Path, topic: str
) -> None:
    whole = last_cycle(path)
    lose(path, topic, 40)
    assert yard("replay", "verify").code != 0 or topic == "decisions"
    said = yard("log", "cut", "--to", "last", "--yes", "--copy", str(path) + ".copy")
    assert said.code == 0, said.err
    again = yard("replay", "verify")
    assert again.code == 0, again.out + again.err
    assert last_cycle(path) < whole


def test_the_cut_is_recorded_with_the_range_that_it_removed(yard: Yard, path: Path) -> None:
    end = lose(path, "node-events", 40)
    assert yard("log", "cut", "--to", "last", "--yes", "--copy", f"{path}.copy").code == 0
    event = on_log(path, only_cut)
    assert isinstance(event, LogCutV1)
    assert event.generation == 1
    kept = {one.topic: one for one in event.kept}
    assert kept["node-events"].end <= kept["node-events"].was == end
    assert kept["decisions"].end < kept["decisions"].was
    assert kept["requests"].end == kept["requests"].was, "acknowledged requests are kept"


def test_a_cut_at_a_cycle_keeps_exactly_that_cycle_and_a_copy_of_the_log(
    yard: Yard, path: Path
) -> None:
    wanted, copy = last_cycle(path) // 2, path.with_name("copy.db")
    before = path.stat().st_size
    said = yard("log", "cut", "--to", f"cycle:{wanted}", "--yes", "--copy", str(copy))
    assert said.code == 0, said.err
    assert last_cycle(path) == wanted
    assert yard("replay", "verify").code == 0
    assert copy.stat().st_size > before // 2
    assert last_cycle(copy) > wanted


def test_the_copy_is_in_the_folder_of_the_log_and_has_its_id_in_the_name(
    yard: Yard, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = yard("log", "cut", "--to", "cycle:5", "--yes")
    assert said.code == 0, said.err
    log_id = re.search(r"log (\w{32})", said.err)
    assert log_id is not None
    copy = path.with_name(f"main.before-cut-1.{log_id[1][:8]}.db")
    assert f"{copy} has the log before the cut" in said.err
    assert last_cycle(copy) > 5
    assert not list(elsewhere.iterdir())


def test_jobs_whose_requests_or_commands_are_lost_are_named(yard: Yard, path: Path) -> None:
    whole = yard("log", "cut", "--to", "last", "--dry-run")
    assert "lost" not in whole.out
    jobs = submitted_jobs(path)
    lose(path, "details", 2)
    lose(path, "requests", 3)
    found = json.loads(yard("log", "cut", "--to", "last", "--dry-run", "-o", "json").out)
    kept = submitted_jobs(path)
    assert found["lost_requests"] == [job for job in jobs if job not in kept]
    assert found["lost_requests"]
    said = yard("log", "cut", "--to", "last", "--yes")
    assert said.code == 0, said.err
    lost = ", ".join(found["lost_requests"])
    assert f"the log has lost the requests of these jobs: {lost}\n" in said.out


def test_jobs_whose_commands_are_lost_are_named_as_verify_names_them(
    yard: Yard, path: Path
) -> None:
    lose(path, "details", 2)
    found = json.loads(yard("log", "cut", "--to", "last", "--dry-run", "-o", "json").out)
    assert found["lost_requests"] == []
    assert found["lost_details"]
    verified = json.loads(yard("replay", "verify", "-o", "json").out)
    about = [one["found"] for one in verified["findings"] if one["topic"] == "details"]
    assert len(about) == len(found["lost_details"])
    assert all(
        f" about {job} " in text for job, text in zip(found["lost_details"], about, strict=True)
    )


def test_a_cycle_after_the_damage_is_refused_with_the_last_consistent_one(
    yard: Yard, path: Path
) -> None:
    whole = last_cycle(path)
    lose(path, "node-events", 40)
    said = yard("log", "cut", "--to", f"cycle:{whole}", "--yes")
    assert said.code == 1
    assert "log_truncated" in said.err
    assert "the last consistent cycle is" in said.err


def test_nothing_changes_without_a_confirmation(yard: Yard, path: Path) -> None:
    lose(path, "node-events", 40)
    before = last_cycle(path)
    planned = yard("log", "cut", "--to", "last", "--dry-run")
    assert planned.code == 0
    assert "decisions: " in planned.out
    assert " removed" in planned.out
    refused = yard("log", "cut", "--to", "last")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert last_cycle(path) == before


def test_a_log_that_a_service_writes_to_is_not_cut(
    yard: Yard, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = cut._ends
    calls: list[int] = []

    async def growing(log: EventLog, numbers: Sequence[int]) -> dict[Partition, int]:
        calls.append(1)
        return {at: end + len(calls) for at, end in (await ends(log, numbers)).items()}

    monkeypatch.setattr(cut, "_ends", growing)
    before = last_cycle(path)
    said = yard("log", "cut", "--to", "cycle:1", "--yes")
    assert said.code == 103
    assert "services still write" in said.err
    assert last_cycle(path) == before


def test_a_cut_of_a_log_without_its_first_records_warns_that_views_cannot_be_rebuilt(
    yard: Yard, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = asyncio.run(cut.planned(file_source(path), None))

    async def planned(*_: object) -> object:
        return plan

    monkeypatch.setattr(cut, "planned", planned)
    kept: list[object] = []
    monkeypatch.setattr(cut, "drop_views", kept.append)
    whole = yard("log", "cut", "--to", "last", "--dry-run")
    assert "warning" not in whole.err
    lose_first(path, "node-events", 3)
    said = yard("log", "cut", "--to", "last", "--dry-run")
    assert "warning: records 0 to 2 of node-events/0 have expired" in said.err
    assert "no rebuild is possible" in said.err
    assert "yard explain --at does not work" in said.err
    said = yard("log", "cut", "--to", "last", "--yes", "-o", "json")
    assert said.code == 0, said.err
    expired = {"topic": "node-events", "partition": 0, "first": 3}
    assert json.loads(said.out)["expired"] == [expired]
    assert kept == [], "views that have read nothing that is removed continue"


def test_an_explanation_from_a_log_without_its_first_records_is_refused_with_what_works(
    yard: Yard, path: Path
) -> None:
    lose_first(path, "node-events", 3)
    task = f"{submitted_jobs(path)[0]}.0"
    said = yard("explain", task, "--at", "cycle:20")
    assert said.code == 1
    assert said.err.splitlines()[-2:] == [
        "error: records 0 to 2 of node-events/0 have expired, and an explanation from the log "
        "needs every record of the log",
        f"hint: yard explain {task} asks the server about the present; yard replay at T shows the "
        "cluster at a time from the oldest snapshot on",
    ]


def test_a_prefix_of_an_id_needs_a_server_and_a_whole_id_does_not(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = yard("explain", "0", "--at", "cycle:20")
    assert said.code == 106
    assert "a whole id, such as 4kq7w2mz9c1f.0, needs no server" in said.err
