"""Preemption with a resume, restarts while tasks run, and the log that proves both."""

import json
import re
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.yard_cli import EXAMPLES, Dev, running_dev, until
from yardmaster_schemas.log_format import LOG_FORMAT

pytestmark = pytest.mark.xdist_group("cli")

#: Steps of 0.05 s: the task must still run when the higher-priority job has been submitted.
STEPS = 240


def train(dev: Dev, steps: int, *flags: str) -> str:
    return dev.submit(
        *("--gpus", "1", "--grace", "20s", *flags, "--", sys.executable),
        *(str(EXAMPLES / "train.py"), "--steps", str(steps), "--every", "5", "--pause", "0.05"),
        *("--out", str(dev.folder / "checkpoints")),
    )


def has_checkpoint(dev: Dev, task_id: str) -> bool:
    return dev.task(task_id)["checkpoint"] is not None


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A log with a preemption and a resume; the low-priority and the high-priority job."""
    folder = tmp_path_factory.mktemp("preempted")
    with running_dev(folder, nodes=1, slots=1) as dev:
        low = train(dev, STEPS, "--name", "low", "--priority", "60")
        until(lambda: has_checkpoint(dev, f"{low}.0"), "a checkpoint", dev.words)
        high = dev.submit("--gpus", "1", "--priority", "5", "--", "sleep", "1")
        dev.yard("wait", high, "--timeout", "45s")
        dev.yard("wait", low, "--timeout", "60s")
        shown = dev.yard("show", low).out
        assert re.search(rf"^1 +requeued node-1 .* priority for {high}\.0$", shown, re.MULTILINE)
        explained = dev.yard("explain", low).out
        assert f"for {high}.0" in explained
        wrote = dev.yard("logs", low).out
        resumed = re.search(r"^resumed from step (\d+) \(attempt 2\)$", wrote, re.MULTILINE)
        assert resumed, wrote
        assert int(resumed[1]) > 0
        assert f"finished after {STEPS} steps" in wrote
        first = dev.yard("logs", low, "--attempt", "1").out
        assert "stopped at step" in first
        assert "resumed" not in first
    return dev.log, low, high


def yard(tmp_path: Path) -> Dev:
    """Commands that need no server."""
    return Dev(tmp_path)


def test_a_preempted_task_resumes_from_its_checkpoint(preempted: tuple[Path, str, str]) -> None:
    assert preempted  # the fixture holds the assertions: the other tests read its log


def test_verify_reports_the_cycles_that_it_reproduced(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    log, _, _ = preempted
    said = yard(tmp_path).yard("replay", "verify", "--log", str(log))
    assert re.search(r"^quota: \d+ cycles of 1 term,", said.out, re.MULTILINE)
    assert re.search(r"^scheduler: \d+ cycles of 1 term,", said.out, re.MULTILINE)
    assert said.lines[-1].startswith("ok: every recorded decision was reproduced")
    found = yard(tmp_path).yard("replay", "verify", "--log", str(log), "-o", "json").json
    assert found["ok"] is True
    assert found["findings"] == []


def test_replay_at_shows_the_cluster_at_a_moment(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    log, low, high = preempted
    dump = yard(tmp_path).yard("log", "dump", "--log", str(log)).lines
    events = [json.loads(line) for line in dump]
    request = next(e for e in events if e["type"] == "PreemptionRequested")
    after = events[events.index(request) :]
    commit = next(e for e in after if e["type"] == "CycleCommitted")
    at = ("replay", "at", "--log", str(log))
    state = yard(tmp_path).yard(*at, commit["position"], "-o", "json").json
    phases = {task["task_id"]: task["phase"] for task in state["tasks"]}
    assert phases == {f"{low}.0": "stopping", f"{high}.0": "pending"}
    assert state["nodes"][0]["tasks"] == [f"{low}.0"]
    same = yard(tmp_path).yard(*at, f"cycle:{commit['data']['cycle']}", "-o", "json").json
    assert same["state_digest"] == state["state_digest"] == commit["data"]["state_digest"]
    then = ("explain", f"{low}.0", "--log", str(log), "--at", commit["position"])
    why = yard(tmp_path).yard(*then).out
    assert why.startswith(f"{low}.0: stopping (cycle {commit['data']['cycle']}, ")
    assert f"Stop        priority, rule better_priority, for {high}.0" in why
    yard(tmp_path).yard("explain", f"{low}.0", "--log", str(log), "--at", "cycle:1", code=101)
    text = yard(tmp_path).yard(*at, "--all").out
    # A task is in the state until the cycle after its end.
    assert "tasks: 1 succeeded" in text
    assert "ended so far: 2 succeeded" in text
    ended = yard(tmp_path).yard("explain", f"{high}.0", "--log", str(log)).out
    assert re.search(r"^End +succeeded, exit 0, in cycle \d+ \(", ended, re.MULTILINE)
    said = yard(tmp_path).yard("explain", "000000000000.0", "--log", str(log), code=101)
    assert "no task 000000000000.0" in said.err


def test_the_dump_is_in_the_order_of_decisions(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    log, low, _ = preempted
    said = yard(tmp_path).yard("log", "dump", "--log", str(log), "--task", f"{low}.0")
    types = [json.loads(line)["type"] for line in said.lines]
    assert types[:2] == ["TaskSubmitted", "TaskAdmitted"]
    for earlier, later in [
        ("SlotsAllocated", "TaskStarted"),
        ("TaskStarted", "CheckpointDone"),
        ("PreemptionRequested", "SlotsReleased"),
        ("SlotsReleased", "TaskRequeued"),
        ("TaskExited", "TaskEnded"),
    ]:
        assert types.index(earlier) < types.index(later), types
    assert types.count("SlotsAllocated") == 2
    stat = yard(tmp_path).yard("log", "stat", "--log", str(log), "-o", "json").json
    rows = {row["topic"]: row for row in stat["items"]}
    assert rows["decisions"]["undecodable"] == 0
    assert rows["details"]["records"] >= 2


def rewrite(log: Path, topic: str, old: bytes, new: bytes) -> None:
    """Replace `old` in the first record whose value contains it, by a direct edit of the file."""
    assert len(old) == len(new)
    with sqlite3.connect(log) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        changed = 0
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            if "value" not in columns:
                continue
            found = database.execute(
                f"SELECT value FROM {table} WHERE instr(value, ?) > 0 LIMIT 1",
                (old,),
            ).fetchone()
            if found is not None:
                value = bytes(found[0]).replace(old, new, 1)
                database.execute(f"UPDATE {table} SET value = ? WHERE value = ?", (value, found[0]))
                changed += 1
        assert changed == 1, f"{changed} records of {topic} hold {old!r}"
    database.close()


def test_a_changed_record_is_named_and_the_exit_code_is_1(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    log, _, _ = preempted
    copy = tmp_path / "copy.db"
    with sqlite3.connect(log) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    rewrite(copy, "decisions", b'"type":"PreemptionRequested"', b'"type":"PreemptionRequestex"')
    said = yard(tmp_path).yard("replay", "verify", "--log", str(copy), code=1)
    assert re.match(r"DIFFERS: decisions partition 0 offset \d+: ", said.lines[0]), said.out
    assert said.lines[-1].startswith("NOT ok")


def test_a_log_of_another_cluster_than_the_server_is_refused_and_the_right_one_is_found(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    stopped, low, _ = preempted
    with running_dev(tmp_path) as dev:
        server = json.loads((dev.data / "dev.json").read_text())
        url = f"http://127.0.0.1:{server['port']}"
        env = {**dev.env, "YARD_TOKEN": server["token"]}
        dev.env |= {"YARD_TOKEN": server["token"], "YARD_DATA": str(stopped.parent)}
        dev.yard("login", "olga", url)
        mine = dev.yard("version", "-o", "json").json["server"]["log_id"]
        other = re.search(r"log (\w{32})", dev.yard("log", "stat", "--log", str(stopped)).err)
        assert other
        for words in (
            ("replay", "verify"),
            ("replay", "at"),
            ("log", "dump"),
            ("log", "stat"),
            ("log", "tail"),
            ("log", "cut", "--to", "last", "--dry-run"),
            ("explain", f"{low}.0", "--at", "2h"),
        ):
            said = dev.yard(*words, code=103)
            assert said.out == ""
            assert (
                f"error: {stopped} is log {other[1]}, but {url} (context olga) serves log {mine}\n"
                in said.err
            )
            assert "hint: yard contexts use dev " in said.err
            assert "--log FILE|URL" in said.err
        # The command line may still name any log; and the files of this server are known here.
        assert dev.yard("log", "dump", "--log", str(stopped), "--limit", "1").out
        dev.env = env
        assert f"reading {dev.log}: log {mine}, cell main\n" in dev.yard("log", "stat").err
        said = dev.yard("snapshots")
        assert f"reading {dev.data / 'snapshots'}, cell main\n" in said.err
        found = dev.yard("config", "-o", "json").json["items"]
        data = next(row for row in found if row["setting"] == "data")
        assert data["value"] == str(dev.data)
        assert data["source"] == "environment YARD_DATA"
        dev.yard("contexts", "use", "dev")


def test_a_default_log_is_not_read_while_the_server_of_the_context_is_silent(
    preempted: tuple[Path, str, str], tmp_path: Path
) -> None:
    stopped, _, _ = preempted
    dev = yard(tmp_path)
    home = tmp_path / "share" / "yardmaster" / "dev"
    home.mkdir(parents=True)
    (home / "log.db").write_bytes(stopped.read_bytes())
    del dev.env["YARD_DATA"]
    dev.env["XDG_DATA_HOME"] = str(tmp_path / "share")
    dev.yard("login", "olga", "http://127.0.0.1:9", "--no-check")
    said = dev.yard("log", "stat", code=106)
    assert f"nothing says that {home / 'log.db'} is the log of http://127.0.0.1:9" in said.err
    assert "the snapshots of http://127.0.0.1:9 are not known here" in (
        dev.yard("snapshots", code=2).err
    )
    dev.env["YARD_DATA"] = str(home)
    said = dev.yard("log", "stat")
    assert "not compared with the log of http://127.0.0.1:9 (context olga): " in said.err


def test_a_task_keeps_running_over_a_restart_of_yard_dev(tmp_path: Path) -> None:
    with running_dev(tmp_path, nodes=1, slots=1) as dev:
        running = train(dev, 120, "--name", "running")
        waiting = train(dev, 10, "--name", "waiting")
        until(lambda: has_checkpoint(dev, f"{running}.0"), "a checkpoint", dev.words)
        assert dev.stop(signal.SIGINT) == 0
        assert not (dev.data / "dev.json").exists()
        dev.yard("ls", code=106)
        dev.start()
        assert dev.task(f"{running}.0")["attempt"] == 1
        dev.yard("wait", running, waiting, "--timeout", "80s")
        # The task ran without a server for a while: one attempt, no resume.
        wrote = dev.yard("logs", running).out
        assert "resumed" not in wrote
        assert "finished after 120 steps" in wrote
        assert len(dev.yard("show", running, "-o", "json").json["attempts"]) == 1
        said = dev.yard("replay", "verify", "--log", str(dev.log))
        assert "of 2 terms" in said.out


def test_a_second_process_and_views_in_redis_are_refused_and_sigterm_is_a_clean_stop(
    tmp_path: Path,
) -> None:
    with running_dev(tmp_path) as dev:
        assert dev.process is not None
        said = dev.yard("dev", code=103)
        assert f"another yard dev or yard up (pid {dev.process.pid}) runs on" in said.err
        said = dev.yard("replay", "verify", "--views", code=2)
        assert "the views of this log are in the memory of yard dev, not in Redis" in said.err
        assert dev.stop(signal.SIGTERM) == 0


def test_a_file_that_is_no_log_stops_the_start_with_a_named_error(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    dev.data.mkdir(mode=0o700)
    dev.log.write_bytes(b"this is no database, whatever else it may be " * 100)
    said = dev.yard("dev", "--port", "0", code=2)
    assert "is not a Yardmaster log" in said.err


def test_a_data_directory_of_another_format_is_refused_by_name_and_kept(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    with running_dev(tmp_path):
        pass
    with closing(sqlite3.connect(dev.log)) as file:
        file.execute(f"PRAGMA user_version = {LOG_FORMAT - 1}")
    before = dev.log.read_bytes()
    for words in (["dev", "--port", "0"], ["log", "dump", "--log", str(dev.log)], ["replay", "at"]):
        said = dev.yard(*words, code=2)
        assert f"{dev.log} is a log of format {LOG_FORMAT - 1}, and this version" in said.err
        assert f"yard dev --data OTHER starts an empty log; {dev.data} stays" in said.err
    assert dev.log.read_bytes() == before
