"""The SDK inside a task: stop, checkpoint, progress. The standard library alone.

```python
import yardmaster

step = yardmaster.last_checkpoint().step if yardmaster.last_checkpoint() else 0
while step < STEPS:
    step += 1
    train(step)
    if yardmaster.should_stop():
        save(path, step)
        yardmaster.report_checkpoint(path, step)
        raise SystemExit(0)  # "saved": the task is queued again
yardmaster.done()
```

It speaks to the node's agent over loopback, or through the files that the environment names where
the agent serves no API or does not answer. Outside Yardmaster nothing stops and nothing is
reported, so the same program runs anywhere.
"""

import json
import os
import signal
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

#: How long the agent may take to answer before the files are used.
TIMEOUT_S: Final = 10.0
#: Signals by which a job may have itself stopped and that would end a program which ignores them.
#: Not SIGINT: Python turns it into KeyboardInterrupt, which programs know.
STOP_SIGNALS: Final = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Checkpoint(NamedTuple):
    """Where a checkpoint lies, and the step it was saved at."""

    uri: str
    step: int


class CheckpointRefused(ValueError):
    """The agent does not take a checkpoint: its URI is not allowed, or its step does not rise."""


class _Told:
    """What this process was told and has reported."""

    def __init__(self) -> None:
        self.signalled = False
        self.listening = False
        self.checkpoint: Checkpoint | None = None
        self.done = False


_TOLD: Final = _Told()


def should_stop() -> bool:
    """Whether the task is to save, report and exit; it stays true. Cheap: call it each step.

    The first call in the main thread takes over the stop signals that the program left at their
    default, so that the one which comes with a stop does not end it before it has saved.
    """
    stop_file, url = os.environ.get("YARD_STOP_FILE"), os.environ.get("YARD_AGENT_URL")
    if not stop_file and not url:
        return False
    _listen()
    if _TOLD.signalled or (stop_file and os.path.exists(stop_file)):
        return True
    if stop_file:
        return False
    status, content = _ask("GET", "/v1/stop", None)
    return status == 200 and content.get("stop") is not None


def report_checkpoint(uri: str | os.PathLike[str], step: int) -> None:
    """Say that the task's state is saved at `uri` as of `step`; its next attempt is told.

    `uri` is a URI that every node reaches (s3, gs, az, abfs, hdfs, https, nfs, file), or a path,
    which becomes a file URI. Returns when the agent has it safe.

    The log gets the newest checkpoint at most once in 10 s, at a stop, and before the task's exit.

    Raises:
        CheckpointRefused: its URI is not allowed, or its step is not above the last one's.
        OSError: neither the agent nor its file can be reached.
    """
    checkpoint = Checkpoint(_uri(uri), int(step))
    status, content = _ask("POST", "/v1/checkpoints", checkpoint._asdict())
    if status in (400, 409, 422):
        raise CheckpointRefused(content.get("detail", f"the agent answered {status}"))
    if status != 200:
        _refuse_lower_step(checkpoint)
        _write_note({**checkpoint._asdict(), **({"done": True} if _TOLD.done else {})})
    _TOLD.checkpoint = checkpoint


def last_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this task, of whichever attempt; None when there is none."""
    if _TOLD.checkpoint is not None:
        return _TOLD.checkpoint
    uri, step = os.environ.get("YARD_CHECKPOINT_URI"), os.environ.get("YARD_CHECKPOINT_STEP")
    return Checkpoint(uri, int(step or 0)) if uri else None


def done() -> None:
    """Say that the work is finished: exit code 0 then means success, also after a stop."""
    _TOLD.done = True
    status, _ = _ask("POST", "/v1/done", {})
    if status != 200:
        last = _TOLD.checkpoint
        _write_note({**(last._asdict() if last is not None else {}), "done": True})


def progress(permille: int) -> None:
    """Report the task's progress in thousandths. Cheap: call it each step.

    Never fails, and a value may get lost. The log gets the newest value at most once in 10 s, and
    the last one before the task's exit.
    """
    _ask("POST", "/v1/progress", {"permille": max(0, min(1000, int(permille)))})


def _listen() -> None:
    if _TOLD.listening or threading.current_thread() is not threading.main_thread():
        return
    _TOLD.listening = True
    for name in STOP_SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _signalled)


def _signalled(_number: int, _frame: FrameType | None) -> None:
    _TOLD.signalled = True


def _uri(uri: str | os.PathLike[str]) -> str:
    text = os.fspath(uri)
    return text if "://" in text else Path(text).absolute().as_uri()


def _ask(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """The agent's status and answer; 0 when there is no agent, or none that answers."""
    url, token = os.environ.get("YARD_AGENT_URL"), os.environ.get("YARD_AGENT_TOKEN")
    if not url or not token:
        return 0, {}
    where = urllib.parse.urlsplit(url)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    # Not urllib.request: it would go through a proxy that the environment names.
    connection = HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, where.path.rstrip("/") + path, content, headers)
        response = connection.getresponse()
        answer = json.loads(response.read(65_536) or b"{}")
    except (OSError, HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()
    return response.status, answer if isinstance(answer, dict) else {}


def _refuse_lower_step(checkpoint: Checkpoint) -> None:
    """Refuse what the agent would ignore in the file, where it cannot answer.

    Raises:
        CheckpointRefused.
    """
    last = last_checkpoint() if os.environ.get("YARD_CHECKPOINT_FILE") else None
    if last is not None and checkpoint != last and checkpoint.step <= last.step:
        raise CheckpointRefused(
            f"step {checkpoint.step} does not rise above {last.step}, "
            "the step of the task's last checkpoint"
        )


def _write_note(note: dict[str, Any]) -> None:
    """Put a note where the agent looks, whole; nowhere outside Yardmaster."""
    target = os.environ.get("YARD_CHECKPOINT_FILE")
    if not target:
        return
    draft = f"{target}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.replace(draft, target)
