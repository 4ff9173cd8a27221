"""`yard up --local`: its ports, changes of a running cluster, and when it stops waiting."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import free_span
from yardmaster_localcluster import background
from yardmaster_localcluster.background import (
    MAX_ENDS,
    BackgroundCluster,
    check_ports,
    failing_processes,
)
from yardmaster_localcluster.compose import ComposeCluster
from yardmaster_localcluster.errors import (
    ClusterFixed,
    NotHealthy,
    OtherDataFormat,
    PortsInUse,
    StartFailed,
)
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Counts, Wanted
from yardmaster_schemas.log_format import LOG_FORMAT

PORTS = {"gateway": 7450, "health": 7500, "kafka": 9092, "controller": 9093, "redis": 6379}


class Running:
    """The folder of a cluster whose supervisor is this very process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = DataLayout(folder)
        self.signals: list[int] = []
        monkeypatch.setattr(background, "lock_owner", lambda _: os.getpid())
        monkeypatch.setattr(os, "kill", lambda _, number: self.signals.append(number))
        self.reports(Wanted())
        up = {"wanted": Wanted().json(), "ports": PORTS}
        (folder / "up.json").write_text(json.dumps(up))

    def reports(self, wanted: Wanted, **states: str) -> None:
        rows: list[dict[str, Any]] = [
            {"name": name, "state": state, "restarts": 20, "ends_in_a_row": MAX_ENDS}
            for name, state in states.items()
        ]
        state = {"pid": os.getpid(), "set_up": True, "wanted": wanted.json(), "processes": rows}
        (self.data.path / "state.json").write_text(json.dumps(state))


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    return Running(tmp_path, monkeypatch)


def test_a_running_cluster_keeps_its_cells(running: Running) -> None:
    before = (running.data.path / "up.json").read_text()
    with pytest.raises(ClusterFixed, match="keeps its cells: main"):
        BackgroundCluster(running.data).up(Wanted(cells=("main", "east")), PORTS)
    assert running.signals == []
    assert (running.data.path / "up.json").read_text() == before


@pytest.mark.parametrize("mark", [None, str(LOG_FORMAT - 1)])
def test_data_of_another_format_is_refused_by_name_and_kept(
    tmp_path: Path, mark: str | None
) -> None:
    data = DataLayout(tmp_path / "data")
    data.make(("main",), ["n1"])
    (data.kafka / "kept").write_text("kept")
    data.check_format()
    (data.path / "format").unlink()
    if mark is not None:
        (data.path / "format").write_text(f"{mark}\n")
    before = {path: path.read_bytes() for path in data.path.rglob("*") if path.is_file()}
    background, compose = BackgroundCluster(data), ComposeCluster(data, "none")
    for start in (background.up, compose.up):
        with pytest.raises(OtherDataFormat, match=f"{data.path} contains a cluster") as refused:
            start(Wanted(), PORTS)
        assert f"yard down --purge --data {data.path} deletes it" in str(refused.value.hint)
    assert {path: path.read_bytes() for path in data.path.rglob("*") if path.is_file()} == before


def test_a_process_that_does_not_stay_up_ends_the_wait(running: Running) -> None:
    running.reports(Wanted(), quota="waiting")
    with pytest.raises(StartFailed, match=r"ended 20 times in a row: quota"):
        BackgroundCluster(running.data).up(Wanted(), PORTS)


def test_a_wait_says_at_intervals_which_processes_are_not_ready_and_why(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "UP_LIMIT_S", 0.5)
    running.reports(Wanted(), agent="waiting")
    state = json.loads((running.data.path / "state.json").read_text())
    state["processes"][0]["ends_in_a_row"] = 0
    (running.data.path / "state.json").write_text(json.dumps(state))
    said: list[str] = []
    with pytest.raises(NotHealthy):
        BackgroundCluster(running.data, said.append, report_s=0.1).up(Wanted(), PORTS)
    assert said[1:][0] == "not ready after 0 s: agent: waiting"
    assert len(said) > 2


def test_a_failing_process_that_is_not_wanted_any_more_is_no_failure(running: Running) -> None:
    less = Wanted(counts=Counts(quota=1))
    row = {"name": "quota-2", "ends_in_a_row": MAX_ENDS}
    state = {"processes": [row], "wanted": Wanted().json()}
    assert failing_processes(state, less) == []
    assert failing_processes(state, Wanted()) == ["quota-2"]


def test_all_ports_in_use_are_named_with_free_ones() -> None:
    first = free_span(20)
    where = {"gateway": first, "kafka": first + 2, "controller": first + 3, "redis": first + 4}
    where["health"] = first + 10
    want = Wanted(counts=Counts(gateway=2, quota=1, scheduler=1, views=1, agent=1))
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        socket.create_server(("127.0.0.1", first + 4)),
        pytest.raises(PortsInUse) as caught,
    ):
        check_ports(want, where)
    used = f"ports {first + 1}, {first + 4} of 127.0.0.1 are already in use"
    assert str(caught.value) == used
    moved = caught.value.free
    assert moved.keys() == where.keys()
    assert len({moved[name] - where[name] for name in where}) == 1
    check_ports(want, moved)


def test_a_running_cluster_may_keep_its_own_ports() -> None:
    first = free_span(20)
    where = {"gateway": first, "kafka": first + 2, "controller": first + 3, "redis": first + 4}
    where["health"] = first + 10
    less = Wanted(counts=Counts(gateway=1, quota=1, scheduler=1, views=1, agent=1))
    more = Wanted(counts=Counts(gateway=2, quota=1, scheduler=1, views=1, agent=1))
    held = background.listeners(less, where)
    with socket.create_server(("127.0.0.1", first)):
        check_ports(more, where, held)
        with (
            socket.create_server(("127.0.0.1", first + 1)),
            pytest.raises(PortsInUse, match=f"port {first + 1} of 127.0.0.1 is already in use"),
        ):
            check_ports(more, where, held)
