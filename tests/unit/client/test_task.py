"""The SDK inside a task: through the agent, through files, and outside Yardmaster."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import yardmaster
from yardmaster import task

NAMES = (
    "STOP_FILE",
    "CHECKPOINT_FILE",
    "CHECKPOINT_URI",
    "CHECKPOINT_STEP",
    "AGENT_URL",
    "AGENT_SOCKET",
    "AGENT_TOKEN",
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process outside Yardmaster that has reported nothing."""
    for name in NAMES:
        monkeypatch.delenv(f"YARD_{name}", raising=False)
    monkeypatch.setattr(task, "_STATE", task._TaskState())
    monkeypatch.setattr(task, "STOP_SIGNALS", ())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inside a task whose agent serves no API."""
    monkeypatch.setenv("YARD_STOP_FILE", str(tmp_path / "stop.json"))
    monkeypatch.setenv("YARD_CHECKPOINT_FILE", str(tmp_path / "checkpoint.json"))
    return tmp_path


class Agent(HTTPServer):
    """Answers as a test sets, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, Any, str | None]] = []
        self.status = 200
        self.content: Any = {}


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Agent)
        size = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(size)) if size else None
        self.server.requests.append((self.command, self.path, body, self.headers["Authorization"]))
        content = json.dumps(self.server.content).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer  # noqa: N815 the server's names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Inside a task whose agent serves the API and shares no files."""
    with Agent() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("YARD_AGENT_URL", f"http://127.0.0.1:{served.server_port}")
        monkeypatch.setenv("YARD_AGENT_TOKEN", "secret")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        yield served
        served.shutdown()
        thread.join()


class SocketServer(Agent):
    """The agent as a container with its own network reaches it."""

    address_family = socket.AF_UNIX

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__()

    def server_bind(self) -> None:
        self.socket.bind(str(self.path))
        self.server_name, self.server_port = "localhost", 0

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()[0], ("container", 0)


def test_in_a_container_the_agent_is_reached_through_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as folder, SocketServer(Path(folder, "s")) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("YARD_AGENT_URL", "http://localhost")
        monkeypatch.setenv("YARD_AGENT_SOCKET", str(served.path))
        monkeypatch.setenv("YARD_AGENT_TOKEN", "secret")
        yardmaster.report_checkpoint("s3://runs/a", 1)
        served.shutdown()
        thread.join()
    body = {"uri": "s3://runs/a", "step": 1}
    assert served.requests == [("POST", "/v1/checkpoints", body, "Bearer secret")]
    yardmaster.report_checkpoint("s3://runs/a", 2)  # the agent is away: the file remains


def test_outside_yardmaster_nothing_stops_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    assert not task.should_stop()
    assert task.last_checkpoint() is None
    task.report_checkpoint("s3://runs/a", 1)
    task.progress(500)
    task.done()
    assert task.last_checkpoint() == ("s3://runs/a", 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(tmp_path.iterdir()) == []


def test_a_stop_file_requests_a_stop_and_the_request_stays(files: Path) -> None:
    assert not task.should_stop()
    (files / "stop.json").write_text("{}")
    assert task.should_stop()


def test_without_an_agent_api_a_checkpoint_is_written_to_the_file(files: Path) -> None:
    task.report_checkpoint("s3://runs/a", 1)
    task.report_checkpoint("s3://runs/b", 2)
    assert json.loads((files / "checkpoint.json").read_text()) == {"uri": "s3://runs/b", "step": 2}
    task.done()
    written = json.loads((files / "checkpoint.json").read_text())
    assert written == {"uri": "s3://runs/b", "step": 2, "done": True}
    assert [path.name for path in files.iterdir()] == ["checkpoint.json"], (
        "no temporary file is left"
    )


def test_without_an_agent_api_a_step_that_is_not_higher_is_refused_too(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "s3://old")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "7")
    for step in (6, 7):
        with pytest.raises(task.CheckpointRefused, match=f"step {step} is not higher than 7"):
            task.report_checkpoint("s3://runs/a", step)
    assert not (files / "checkpoint.json").exists()
    task.report_checkpoint("s3://runs/b", 8)
    task.report_checkpoint("s3://runs/b", 8)
    with pytest.raises(task.CheckpointRefused, match="step 8 is not higher than 8"):
        task.report_checkpoint("s3://runs/c", 8)


def test_the_last_checkpoint_is_that_of_this_attempt_or_else_that_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "s3://old")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "7")
    assert task.last_checkpoint() == task.Checkpoint("s3://old", 7)
    task.report_checkpoint("s3://new", 8)
    assert task.last_checkpoint() == task.Checkpoint("s3://new", 8)


def test_empty_variables_mean_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "")
    assert task.last_checkpoint() is None


def test_a_path_becomes_a_uri(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    task.report_checkpoint("step 1.pt", 1)
    assert task.last_checkpoint() == (f"file://{files}/step%201.pt", 1)
    task.report_checkpoint(files / "b", 2)
    assert task.last_checkpoint() == (f"file://{files}/b", 2)


def test_reports_go_to_the_agent_with_the_attempts_token_and_without_a_proxy(agent: Agent) -> None:
    task.report_checkpoint("s3://runs/a", 3)
    task.progress(2000)
    task.done()
    assert agent.requests == [
        ("POST", "/v1/checkpoints", {"uri": "s3://runs/a", "step": 3}, "Bearer secret"),
        ("POST", "/v1/progress", {"permille": 1000}, "Bearer secret"),
        ("POST", "/v1/done", {}, "Bearer secret"),
    ]


def test_without_a_stop_file_the_agent_knows_about_the_stop(agent: Agent) -> None:
    agent.content = {"stop": None}
    assert not task.should_stop()
    agent.content = {"stop": {"code": "priority", "deadline_at": "2026-01-01T00:00:00.000Z"}}
    assert task.should_stop()


@pytest.mark.parametrize("status", [409, 422])
def test_a_refused_checkpoint_raises_an_error(agent: Agent, status: int) -> None:
    agent.status, agent.content = status, {"detail": "step 3 does not rise above 4"}
    with pytest.raises(task.CheckpointRefused, match="does not rise"):
        task.report_checkpoint("s3://runs/a", 3)
    assert task.last_checkpoint() is None


def test_if_the_agent_does_not_answer_the_checkpoint_is_written_to_the_file(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("YARD_AGENT_TOKEN", "secret")
    task.report_checkpoint("s3://runs/a", 3)
    assert json.loads((files / "checkpoint.json").read_text()) == {"uri": "s3://runs/a", "step": 3}
    task.progress(1)
    assert not task.should_stop()


def test_if_the_agent_fails_the_checkpoint_is_written_to_the_file(
    agent: Agent, files: Path
) -> None:
    agent.status = 401
    task.report_checkpoint("s3://runs/a", 3)
    assert (files / "checkpoint.json").exists()


def test_a_stop_signal_does_not_end_a_program_that_calls_should_stop(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from yardmaster import task
signal.signal(signal.SIGUSR1, lambda *_: print("own handler"))
assert not task.should_stop()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
print("stop" if task.should_stop() else "continue")
"""
    env = {**os.environ, "YARD_STOP_FILE": str(tmp_path / "stop.json")}
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout == "own handler\nstop\n"


def test_the_sdk_imports_only_the_standard_library() -> None:
    code = (
        "import sys, yardmaster\n"
        "print(sorted(m for m in sys.modules if m.startswith(('pydantic', 'httpx', 'yardmaster'))))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "['yardmaster', 'yardmaster.task']\n"


def test_the_package_exports_the_client_and_its_error() -> None:
    assert issubclass(yardmaster.ApiError, Exception)
    for name in yardmaster.__all__:
        assert getattr(yardmaster, name).__name__ == name
        assert name in dir(yardmaster)
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        yardmaster.Missing  # noqa: B018
