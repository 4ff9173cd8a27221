"""The task SDK: stop requests, checkpoints and progress. It uses only the standard library.

```python
import yardmaster

step = yardmaster.last_checkpoint().step if yardmaster.last_checkpoint() else 0
while step < STEPS:
    step += 1
    train(step)
    if yardmaster.should_stop():
        save(path, step)
        yardmaster.report_checkpoint(path, step)
        raise SystemExit(0)  # the state is saved, and the task is requeued
yardmaster.done()
```

The functions call the node's agent over loopback. If the agent serves no API or does not answer,
they use the files named in the environment. Outside Yardmaster, `should_stop` is always false and
reports have no effect, so the same program runs anywhere.
"""

import json
import os
import signal
import socket
import threading
import urllib.parse
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

__all__ = [
    "Checkpoint",
    "CheckpointRefused",
    "done",
    "last_checkpoint",
    "progress",
    "report_checkpoint",
    "should_stop",
]

#: The longest wait for the agent's answer, in seconds, before the files are used.
TIMEOUT_S: Final = 10.0
#: The stop signals that a job can choose and whose default action ends the program.
#: SIGINT is not one of them, because Python turns it into KeyboardInterrupt.
STOP_SIGNALS: Final = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Checkpoint(NamedTuple):
    """The URI of a checkpoint, and the step at which it was saved."""

    uri: str
    step: int


class CheckpointRefused(ValueError):
    """The URI of a checkpoint is not allowed, or its step is not higher than the last one."""


class _TaskState:
    """The stop signal that this process received, and the reports that it has sent."""

    def __init__(self) -> None:
        self.signalled = False
        self.handles_signals = False
        self.checkpoint: Checkpoint | None = None
        self.done = False


_STATE: Final = _TaskState()


def should_stop() -> bool:
    """Whether the task must save its state, report the checkpoint and exit.

    Once true, it stays true. The call is cheap, so call it in every step.

    The first call in the main thread installs handlers for the stop signals that have their default
    action. Otherwise the stop signal would end the program before it has saved.

    ```python
    if yardmaster.should_stop():
        yardmaster.report_checkpoint(save(step), step)
        raise SystemExit(0)
    ```
    """
    stop_file, url = os.environ.get("YARD_STOP_FILE"), os.environ.get("YARD_AGENT_URL")
    if not stop_file and not url:
        return False
    _handle_signals()
    if _STATE.signalled or (stop_file and os.path.exists(stop_file)):
        return True
    if stop_file:
        return False
    status, content = _call_agent("GET", "/v1/stop", None)
    return status == 200 and content.get("stop") is not None


def report_checkpoint(uri: str | os.PathLike[str], step: int) -> None:
    """Report that the state of the task at `step` is saved at `uri`; the next attempt gets it.

    `uri` is a URI that every node can reach (s3, gs, az, abfs, hdfs, https, nfs, file), or a path,
    which becomes a file URI. The call returns when the agent has stored the report.

    The newest checkpoint is written to the log at most once in 10 s, at a stop, and before the
    task's exit.

    ```python
    yardmaster.report_checkpoint("s3://runs/train-7/step-100.pt", 100)
    ```

    Raises:
        CheckpointRefused: the URI is not allowed, or `step` is not higher than the last one.
        OSError: the agent does not answer, and its file cannot be written.
    """
    checkpoint = Checkpoint(_uri(uri), int(step))
    status, content = _call_agent("POST", "/v1/checkpoints", checkpoint._asdict())
    if status in (400, 409, 422):
        raise CheckpointRefused(content.get("detail", f"the agent answered {status}"))
    if status != 200:
        _refuse_lower_step(checkpoint)
        _write_report({**checkpoint._asdict(), **({"done": True} if _STATE.done else {})})
    _STATE.checkpoint = checkpoint


def last_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of any attempt of this task, or None.

    ```python
    last = yardmaster.last_checkpoint()
    step = 0 if last is None else load(last.uri)
    ```
    """
    if _STATE.checkpoint is not None:
        return _STATE.checkpoint
    uri, step = os.environ.get("YARD_CHECKPOINT_URI"), os.environ.get("YARD_CHECKPOINT_STEP")
    return Checkpoint(uri, int(step or 0)) if uri else None


def done() -> None:
    """Report that the work is finished: exit code 0 then means success, even after a stop."""
    _STATE.done = True
    status, _ = _call_agent("POST", "/v1/done", {})
    if status != 200:
        last = _STATE.checkpoint
        _write_report({**(last._asdict() if last is not None else {}), "done": True})


def progress(permille: int) -> None:
    """Report the progress of the task in thousandths, for example `progress(250)`.

    The call is cheap and never fails; a value may get lost. The newest value is written to the log
    at most once in 10 s, and the last one before the task's exit.
    """
    _call_agent("POST", "/v1/progress", {"permille": max(0, min(1000, int(permille)))})


def _handle_signals() -> None:
    if _STATE.handles_signals or threading.current_thread() is not threading.main_thread():
        return
    _STATE.handles_signals = True
    for name in STOP_SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _on_signal)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _STATE.signalled = True


def _uri(uri: str | os.PathLike[str]) -> str:
    text = os.fspath(uri)
    return text if "://" in text else Path(text).absolute().as_uri()


def _call_agent(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """The status and answer of the agent; status 0 if there is no agent or no answer."""
    url, token = os.environ.get("YARD_AGENT_URL"), os.environ.get("YARD_AGENT_TOKEN")
    if not url or not token:
        return 0, {}
    address, path_of_socket = urllib.parse.urlsplit(url), os.environ.get("YARD_AGENT_SOCKET")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    # Not urllib.request, because it would use a proxy from the environment.
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    try:
        if path_of_socket:
            connection.sock = _connected(path_of_socket)
        content = None if body is None else json.dumps(body)
        connection.request(method, address.path.rstrip("/") + path, content, headers)
        response = connection.getresponse()
        answer = json.loads(response.read(65_536) or b"{}")
    except (OSError, HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()
    return response.status, answer if isinstance(answer, dict) else {}


def _connected(path: str) -> socket.socket:
    """A connection to the agent's Unix socket, which a container has."""
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(TIMEOUT_S)
    try:
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected


def _refuse_lower_step(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that the agent would ignore when it reads the file.

    Raises:
        CheckpointRefused.
    """
    last = last_checkpoint() if os.environ.get("YARD_CHECKPOINT_FILE") else None
    if last is not None and checkpoint != last and checkpoint.step <= last.step:
        raise CheckpointRefused(
            f"step {checkpoint.step} is not higher than {last.step}, "
            "the step of the task's last checkpoint"
        )


def _write_report(report: dict[str, Any]) -> None:
    """Write the report atomically into the file that the agent reads, if there is one."""
    target = os.environ.get("YARD_CHECKPOINT_FILE")
    if not target:
        return
    draft = f"{target}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(draft, target)
