"""`yard up`: the ports of a cluster, whatever flags are given; an upgrade that is not finished."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from yardmaster_cli.commands.up import _PORTS, _Clusters, _form, _pending_upgrade, _ports, _up_local
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.session import Session
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


@pytest.mark.parametrize(
    ("docker", "form", "said"),
    [
        (None, "local", "starting processes in the background: docker is not installed\n"),
        ("exit 1", "local", "starting processes in the background: Docker does not answer\n"),
        ("exit 0", "compose", "starting containers, as Docker answers; --local chooses"),
    ],
)
def test_a_form_that_was_not_chosen_is_printed_with_the_reason(
    docker: str | None,
    form: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if docker is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    session = Session({"data": str(tmp_path / "data")}, ("text",))
    clusters = _Clusters(session)
    assert _form(None, clusters, session.out) == form
    assert capsys.readouterr().err.startswith(said)
    assert _form("local", clusters, session.out) == "local"
    assert capsys.readouterr().err == ""


@contextmanager
def gateway(folder: Path, status: int, answer: dict[str, object]) -> Iterator[None]:
    """A gateway of a started cluster, which answers only `/v1/rules`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status if self.path == "/v1/rules" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        dev = {"port": server.server_port, "token": "t", "pid": os.getpid()}
        (folder / "dev.json").write_text(json.dumps(dev))
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield
        finally:
            server.shutdown()
            serving.join()


def test_rules_older_than_those_of_the_version_are_reported(tmp_path: Path) -> None:
    with gateway(tmp_path, 200, {"rules": 6, "newest": 7}):
        pending = _pending_upgrade(DataLayout(tmp_path))
    assert pending is not None
    assert pending.startswith("rules 6 are in force, this version has 7")


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"rules": 7, "newest": 7}),
        (200, {"rules": 0, "newest": 7}),
        (404, {"code": "not_found", "detail": "an older gateway", "status": 404}),
    ],
)
def test_a_finished_upgrade_and_an_unknown_answer_are_not_reported(
    status: int, answer: dict[str, object], tmp_path: Path
) -> None:
    with gateway(tmp_path, status, answer):
        assert _pending_upgrade(DataLayout(tmp_path)) is None
    assert _pending_upgrade(DataLayout(tmp_path / "stopped")) is None
