"""`yard up`: the ports of a cluster, whatever flags are given."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.up import free_span
from yardmaster_cli.commands.up import _PORTS, _ports
from yardmaster_cli.errors import CliError
from yardmaster_cli.up import background
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Counts, Wanted

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
    assert background.ports(DataLayout(tmp_path)) == {"redis": 6380}


def test_all_ports_that_are_taken_are_named_with_free_ones() -> None:
    first = free_span(20)
    where = {"gateway": first, "kafka": first + 2, "controller": first + 3, "redis": first + 4}
    where["health"] = first + 10
    want = Wanted(counts=Counts(gateway=2, quota=1, scheduler=1, views=1, agent=1))
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        socket.create_server(("127.0.0.1", first + 4)),
        pytest.raises(CliError) as caught,
    ):
        background._check_ports(want, where)
    assert caught.value.message == f"ports {first + 1}, {first + 4} of 127.0.0.1 are taken"
    assert caught.value.hint is not None
    words = caught.value.hint.split(": ")[1].split()
    flags = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert flags.keys() == {f"--{name}-port" for name in where}
    moved = {flag.removeprefix("--").removesuffix("-port"): port for flag, port in flags.items()}
    assert len({moved[name] - where[name] for name in where}) == 1
    background._check_ports(want, moved)


def test_a_running_clusters_own_ports_are_not_in_its_way() -> None:
    first = free_span(20)
    where = {"gateway": first, "kafka": first + 2, "controller": first + 3, "redis": first + 4}
    where["health"] = first + 10
    less = Wanted(counts=Counts(gateway=1, quota=1, scheduler=1, views=1, agent=1))
    more = Wanted(counts=Counts(gateway=2, quota=1, scheduler=1, views=1, agent=1))
    held = background._listeners(less, where)
    with socket.create_server(("127.0.0.1", first)):
        background._check_ports(more, where, held)
        with (
            socket.create_server(("127.0.0.1", first + 1)),
            pytest.raises(CliError, match=f"port {first + 1} of 127.0.0.1 is taken"),
        ):
            background._check_ports(more, where, held)
