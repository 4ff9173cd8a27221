"""When `yard up` and `yard doctor` say that tasks run as the user of their agents."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from yardmaster.local_cluster import DevServer
from yardmaster_cli.isolation import not_isolated, why_not_isolated

NODES = {"items": [{"name": "n1", "isolation": "none"}, {"name": "n2", "isolation": "user"}]}

USERS: list[str] = []


class Nodes(BaseHTTPRequestHandler):
    """A gateway that shows one node of each kind."""

    def do_GET(self) -> None:
        users = {"items": [{"name": name} for name in USERS]}
        body = json.dumps(NODES if self.path == "/v1/nodes" else users).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Nodes) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{gateway.server_port}"
        gateway.shutdown()


@pytest.mark.parametrize(
    ("uid", "names", "said"),
    [
        (0, ("local",), "tasks on n1 run as root: a job of any user can read "),
        (1, ("local", "ana"), "of the agents: a job of any user can read "),
        (1, ("local",), None),
    ],
)
def test_what_is_not_isolated_is_said_where_it_matters(
    tmp_path: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    names: tuple[str, ...],
    said: str | None,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(f"{__name__}.USERS", [*names])
    cluster = DevServer(server, "token", pid=7, what="yard up")
    found = not_isolated(tmp_path, cluster)
    assert (found is None) == (said is None)
    if said is not None:
        assert said in (found or "")
        assert str(tmp_path / "credentials") in (found or "")
        assert why_not_isolated(tmp_path)


def test_nodes_of_yard_dev_run_as_its_user_by_design(tmp_path: Path, server: str) -> None:
    assert not_isolated(tmp_path, DevServer(server, "token", pid=7)) is None
