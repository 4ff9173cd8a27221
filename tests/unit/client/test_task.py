"""The SDK inside a task: through the agent, through files, and outside Yardmaster."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from yardmaster import task

NAMES = (
    "STOP_FILE",
    "CHECKPOINT_FILE",
    "CHECKPOINT_URI",
    "CHECKPOINT_STEP",
    "AGENT_URL",
    "AGENT_TOKEN",
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside Yardmaster, having told nothing."""
    for name in NAMES:
        monkeypatch.delenv(f"YARD_{name}", raising=False)
    monkeypatch.setattr(task, "_TOLD", task._Told())
    monkeypatch.setattr(task, "STOP_SIGNALS", ())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inside a task whose agent serves no API."""
    monkeypatch.setenv("YARD_STOP_FILE", str(tmp_path / "stop.json"))
    monkeypatch.setenv("YARD_CHECKPOINT_FILE", str(tmp_path / "checkpoint.json"))
    return tmp_path


class Agent(HTTPServer):
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.status = 200
        self.content: Any = {}


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Agent)
        size = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(size)) if size else None
        self.server.asked.append((self.command, self.path, body, self.headers["Authorization"]))
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


def test_a_stop_file_stops_and_stays(files: Path) -> None:
    assert not task.should_stop()
    (files / "stop.json").write_text("{}")
    assert task.should_stop()


def test_without_an_api_a_checkpoint_goes_into_the_file(files: Path) -> None:
    task.report_checkpoint("s3://runs/a", 1)
    task.report_checkpoint("s3://runs/b", 2)
    assert json.loads((files / "checkpoint.json").read_text()) == {"uri": "s3://runs/b", "step": 2}
    task.done()
    written = json.loads((files / "checkpoint.json").read_text())
    assert written == {"uri": "s3://runs/b", "step": 2, "done": True}
    assert [path.name for path in files.iterdir()] == ["checkpoint.json"], "no drafts are left"


def test_without_an_api_a_step_that_does_not_rise_is_refused_too(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "s3://old")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "7")
    for step in (6, 7):
        with pytest.raises(task.CheckpointRefused, match=f"step {step} does not rise above 7"):
            task.report_checkpoint("s3://runs/a", step)
    assert not (files / "checkpoint.json").exists()
    task.report_checkpoint("s3://runs/b", 8)
    task.report_checkpoint("s3://runs/b", 8)
    with pytest.raises(task.CheckpointRefused, match="step 8 does not rise above 8"):
        task.report_checkpoint("s3://runs/c", 8)


def test_the_last_checkpoint_is_the_own_or_else_the_one_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "s3://old")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "7")
    assert task.last_checkpoint() == task.Checkpoint("s3://old", 7)
    task.report_checkpoint("s3://new", 8)
    assert task.last_checkpoint() == task.Checkpoint("s3://new", 8)


def test_empty_names_mean_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_URI", "")
    monkeypatch.setenv("YARD_CHECKPOINT_STEP", "")
    assert task.last_checkpoint() is None


def test_a_path_becomes_a_uri(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    task.report_checkpoint("step 1.pt", 1)
    assert task.last_checkpoint() == (f"file://{files}/step%201.pt", 1)
    task.report_checkpoint(files / "b", 2)
    assert task.last_checkpoint() == (f"file://{files}/b", 2)


def test_the_agent_is_told_with_the_attempts_token_and_not_through_a_proxy(agent: Agent) -> None:
    task.report_checkpoint("s3://runs/a", 3)
    task.progress(2000)
    task.done()
    assert agent.asked == [
        ("POST", "/v1/checkpoints", {"uri": "s3://runs/a", "step": 3}, "Bearer secret"),
        ("POST", "/v1/progress", {"permille": 1000}, "Bearer secret"),
        ("POST", "/v1/done", {}, "Bearer secret"),
    ]


def test_without_a_stop_file_the_agent_is_asked(agent: Agent) -> None:
    agent.content = {"stop": None}
    assert not task.should_stop()
    agent.content = {"stop": {"code": "priority", "deadline_at": "2026-01-01T00:00:00.000Z"}}
    assert task.should_stop()


@pytest.mark.parametrize("status", [409, 422])
def test_a_refused_checkpoint_is_the_programs_error(agent: Agent, status: int) -> None:
    agent.status, agent.content = status, {"detail": "step 3 does not rise above 4"}
    with pytest.raises(task.CheckpointRefused, match="does not rise"):
        task.report_checkpoint("s3://runs/a", 3)
    assert task.last_checkpoint() is None


def test_an_agent_that_does_not_answer_finds_the_checkpoint_in_the_file(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("YARD_AGENT_TOKEN", "secret")
    task.report_checkpoint("s3://runs/a", 3)
    assert json.loads((files / "checkpoint.json").read_text()) == {"uri": "s3://runs/a", "step": 3}
    task.progress(1)
    assert not task.should_stop()


def test_an_agent_in_trouble_finds_the_checkpoint_in_the_file(agent: Agent, files: Path) -> None:
    agent.status = 401
    task.report_checkpoint("s3://runs/a", 3)
    assert (files / "checkpoint.json").exists()


def test_the_signal_of_a_stop_does_not_end_a_program_that_asks(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from yardmaster import task
signal.signal(signal.SIGUSR1, lambda *_: print("own handler"))
assert not task.should_stop()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
print("stop" if task.should_stop() else "go on")
"""
    env = {**os.environ, "YARD_STOP_FILE": str(tmp_path / "stop.json")}
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout == "own handler\nstop\n"


def test_the_sdk_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, yardmaster\n"
        "print(sorted(m for m in sys.modules if m.startswith(('pydantic', 'httpx', 'yardmaster'))))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "['yardmaster', 'yardmaster.task']\n"
