"""The supervisor restarts processes that end: after a pause, with a message, at most so often."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yardmaster_localcluster import supervisor as supervising
from yardmaster_localcluster.errors import ServiceFailed
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Wanted
from yardmaster_localcluster.supervisor import LIVED_S, LONGEST_PAUSE_S, MAX_RESTARTS, Supervisor


class Mortal:
    """A process that ends whenever a test says so."""

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self.process = SimpleNamespace(pid=os.getpid(), returncode=None)
        self.begun = 1

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def begin(self) -> None:
        self.process = SimpleNamespace(pid=os.getpid(), returncode=None)
        self.begun += 1

    def tail(self) -> str:
        return "its last words"


class Watched:
    """A supervisor with one process, and a clock that a test turns."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.member = Mortal(folder / "scheduler-1.log")
        fleet = SimpleNamespace(members={"scheduler-1": self.member}, wanted=Wanted())
        monkeypatch.setattr(supervising, "Fleet", lambda *_, **__: fleet)
        monkeypatch.setattr(
            supervising,
            "time",
            SimpleNamespace(
                monotonic=lambda: self.now_s, strftime=time.strftime, gmtime=time.gmtime
            ),
        )
        (folder / "up.json").write_text(json.dumps({"wanted": Wanted().json()}))
        ports = dict.fromkeys(("gateway", "health", "kafka", "controller", "redis"), 1)
        self.supervisor = Supervisor(DataLayout(folder), ports)
        self.supervisor._set_up = True
        self.supervisor._began("scheduler-1")

    def dies(self) -> None:
        self.member.process.returncode = -9
        self.supervisor._look()

    def later(self, seconds: float) -> int:
        """Time passes; how often the process was begun by then."""
        self.now_s += seconds
        self.supervisor._look()
        return self.member.begun

    def state(self) -> dict[str, Any]:
        (row,) = json.loads((self.supervisor._data.path / "state.json").read_text())["processes"]
        return dict(row)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_what_ends_is_started_again_after_a_pause_that_doubles(watched: Watched) -> None:
    watched.dies()
    assert watched.state()["state"] == "waiting"
    assert watched.later(0.4) == 1
    assert watched.later(0.2) == 2
    watched.dies()
    assert watched.later(0.9) == 2
    assert watched.later(0.2) == 3
    assert watched.state() | {"log": ""} == watched.state() | {"log": "", "restarts": 2}


def test_it_is_said_loudly(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    watched.dies()
    watched.later(1.0)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["ended", "restarted"]
    assert said[0]["process"] == "scheduler-1"
    assert said[0]["code"] == -9


def test_after_so_many_ends_in_a_row_it_is_given_up(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(MAX_RESTARTS):
        watched.dies()
        watched.later(LONGEST_PAUSE_S)
    watched.dies()
    assert watched.state()["state"] == "given_up"
    assert watched.later(3600.0) == MAX_RESTARTS + 1
    assert '"event": "given_up"' in capsys.readouterr().out


def test_a_process_that_ran_for_a_while_starts_again_with_the_shortest_back_off(
    watched: Watched,
) -> None:
    for _ in range(3 * MAX_RESTARTS):
        watched.dies()
        watched.later(0.6)
        watched.later(LIVED_S + 1.0)
    assert watched.member.begun == 1 + 3 * MAX_RESTARTS


def test_one_that_ends_before_the_cluster_is_set_up_ends_the_start(watched: Watched) -> None:
    watched.supervisor._set_up = False
    with pytest.raises(ServiceFailed, match="its last words"):
        watched.dies()
