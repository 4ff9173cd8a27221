"""`yard up --local` on what runs already: what it refuses, and when it stops waiting."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from yardmaster_cli.errors import BadUsage, CliError
from yardmaster_cli.output.formats import Output
from yardmaster_cli.up import background
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Counts, Wanted

PORTS = {"gateway": 7450, "health": 7500, "kafka": 9092, "controller": 9093, "redis": 6379}


class Running:
    """The folder of a cluster whose supervisor is this very process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = DataLayout(folder)
        self.asked: list[int] = []
        monkeypatch.setattr(background, "lock_owner", lambda _: os.getpid())
        monkeypatch.setattr(os, "kill", lambda _, number: self.asked.append(number))
        self.says(Wanted())
        up = {"wanted": Wanted().json(), "ports": PORTS}
        (folder / "up.json").write_text(json.dumps(up))

    def says(self, wanted: Wanted, **states: str) -> None:
        rows: list[dict[str, Any]] = [
            {"name": name, "state": state, "restarts": 20} for name, state in states.items()
        ]
        state = {"pid": os.getpid(), "set_up": True, "wanted": wanted.json(), "processes": rows}
        (self.data.path / "state.json").write_text(json.dumps(state))


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    return Running(tmp_path, monkeypatch)


def test_a_cluster_that_runs_keeps_its_cells(running: Running) -> None:
    before = (running.data.path / "up.json").read_text()
    with pytest.raises(BadUsage, match="keeps its cells: main"):
        background.up(Output(), running.data, Wanted(cells=("main", "east")), PORTS)
    assert running.asked == []
    assert (running.data.path / "up.json").read_text() == before


def test_a_process_that_was_given_up_is_not_waited_for(running: Running) -> None:
    running.says(Wanted(), quota="given_up")
    with pytest.raises(CliError, match=r"ended again and again.*: quota"):
        background.up(Output(), running.data, Wanted(), PORTS)


def test_one_that_was_given_up_and_is_no_longer_wanted_is_no_failure(running: Running) -> None:
    less = Wanted(counts=Counts(quota=1))
    state = {"processes": [{"name": "quota-2", "state": "given_up"}], "wanted": Wanted().json()}
    assert background._given_up(state, less) == []
    assert background._given_up(state, Wanted()) == ["quota-2"]
