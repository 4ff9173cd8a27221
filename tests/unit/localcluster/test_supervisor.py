"""The supervisor restarts processes that end: after a pause, with a message, at most so often."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yardmaster.local_cluster import unsteady_processes
from yardmaster_localcluster import supervisor as supervising
from yardmaster_localcluster.errors import ServiceFailed
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Wanted
from yardmaster_localcluster.supervisor import GIVE_UP_S, LIVED_S, LONGEST_PAUSE_S, Supervisor


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
        fleet = SimpleNamespace(
            members={"scheduler-1": self.member},
            wanted=Wanted(),
            lacks_users=lambda _: False,
            adopt=lambda _: ([], []),
            stop_services=lambda _: None,
        )
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
        monkeypatch.setattr(self.supervisor, "_announce", lambda: None)
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


def fails(watched: Watched, seconds: float) -> None:
    """The process ends, again and again, as soon as it was started."""
    until_s = watched.now_s + seconds
    watched.dies()
    while watched.now_s < until_s:
        watched.later(600.0)
        watched.dies()


def test_a_process_that_fails_for_some_hours_recovers_without_an_operator(
    watched: Watched,
) -> None:
    fails(watched, GIVE_UP_S - 60)
    state = watched.state()
    assert state["state"] == "waiting"
    assert state["ends_in_a_row"] > 60
    (said,) = unsteady_processes(watched.supervisor._data.path)
    assert said.startswith(f"scheduler-1 is restarted after {state['ends_in_a_row']} ends in a row")
    watched.later(LONGEST_PAUSE_S)
    assert watched.state()["state"] == "running"
    assert unsteady_processes(watched.supervisor._data.path) == []


def test_a_process_that_fails_for_many_hours_is_given_up_until_the_next_yard_up(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(watched, GIVE_UP_S + 60)
    begun = watched.member.begun
    assert watched.state()["state"] == "given_up"
    assert '"event": "given_up"' in capsys.readouterr().out
    (said,) = unsteady_processes(watched.supervisor._data.path)
    assert "was given up (yard up starts it again)" in said
    assert watched.later(3600.0) == begun
    watched.supervisor._on_change()
    watched.supervisor._look()
    assert watched.member.begun == begun + 1
    assert watched.state()["state"] == "running"


def test_a_process_that_ran_for_a_while_starts_again_with_the_shortest_back_off(
    watched: Watched,
) -> None:
    for _ in range(60):
        watched.dies()
        watched.later(0.6)
        watched.later(LIVED_S + 1.0)
    assert watched.member.begun == 61


def test_one_that_ends_before_the_cluster_is_set_up_ends_the_start(watched: Watched) -> None:
    watched.supervisor._set_up = False
    with pytest.raises(ServiceFailed, match="its last words"):
        watched.dies()
