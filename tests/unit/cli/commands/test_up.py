"""`yard up`: the ports of a cluster, whatever flags are given."""

import json
from pathlib import Path

import pytest

from yardmaster_cli.commands.up import _PORTS, _ports, _up_local
from yardmaster_cli.errors import CliError, Exit
from yardmaster_localcluster.background import BackgroundCluster
from yardmaster_localcluster.errors import PortsInUse
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Wanted
from yardmaster_localcluster.request import requested_ports

NONE_GIVEN = dict.fromkeys([f"{name}_port" for name in _PORTS])
USUAL = {"gateway": 7450, "health": 7500, "kafka": 9092, "controller": 9093, "redis": 6379}


def test_a_new_cluster_has_the_usual_ports_but_for_those_given() -> None:
    assert _ports(NONE_GIVEN, {}) == USUAL
    assert _ports({**NONE_GIVEN, "kafka_port": 9192}, {}) == {**USUAL, "kafka": 9192}


def test_a_cluster_keeps_the_ports_that_it_has_but_for_those_given() -> None:
    before = {name: port + 1000 for name, port in USUAL.items()}
    assert _ports(NONE_GIVEN, before) == before
    assert _ports({**NONE_GIVEN, "redis_port": 6380}, before) == {**before, "redis": 6380}


def test_ports_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"ports": {"kafka": None, "redis": 6380}}))
    assert requested_ports(DataLayout(tmp_path)) == {"redis": 6380}


@pytest.mark.parametrize(
    ("level", "command"),
    [("", " up --kafka-port 9192"), ("1", 'make up UP_ARGS="--kafka-port 9192"')],
)
def test_ports_in_use_are_answered_with_a_command_to_copy(
    level: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def up(*_: object) -> None:
        hint = "choose free ports"
        raise PortsInUse(ports="port 9092", host="127.0.0.1 is", free={"kafka": 9192}, hint=hint)

    monkeypatch.setenv("MAKELEVEL", level)
    monkeypatch.setattr(BackgroundCluster, "up", up)
    with pytest.raises(CliError) as caught:
        _up_local(BackgroundCluster(DataLayout(tmp_path)), Wanted(), USUAL)
    assert caught.value.exit_code == Exit.CONFLICT
    assert caught.value.message == "port 9092 of 127.0.0.1 is already in use"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("choose free ports: ")
    assert caught.value.hint.endswith(command)
