"""Yardmaster's processes, forked from one interpreter that has already imported all modules.

A run of all tests starts hundreds of them, and most would spend more time on imports than on work.
Each is a separate process in its own session, with its own environment, folder and files, and ends
like any other process. Tests of both forms of `yard up`, and of the demo, cover the way in which
users start them.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.plan import MODULES

_COMMANDS: Final = (
    *("configured", "dev", "explain", "logs", "ls", "nodes", "replay", "set", "setup"),
    *("submit", "tasks"),
)
_MODULES: Final = (
    *("yardmaster_cli.main", "yardmaster_cli.dev.embedded"),
    *(f"yardmaster_cli.commands.{name}" for name in _COMMANDS),
    *MODULES.values(),
    *("yardmaster_eventlog.kafka.log", "yardmaster_eventlog.kafka.membership"),
)
#: Reads one request per line: a process to start (the answer is its pid), or the pid whose exit
#: code is requested (null: it runs). A child does what `python -m MODULE WORDS` does after imports.
_PARENT: Final = """
import gc, importlib, json, mmap, os, struct, sys, time, traceback
def shift_clock(path):
    # The host's clock of this process, wrong by the seconds in the file, which may change.
    with open(path, "rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    seconds = lambda: struct.unpack_from("<q", ahead)[0]
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds()
    time.time_ns = lambda: real_ns() + seconds() * 1_000_000_000
for name in sys.argv[1:]:
    importlib.import_module(name)
from yardmaster_eventlog import codec
from yardmaster_schemas.events import EVENTS
for kind in EVENTS:
    codec.adapter(*kind)
# A child neither collects what the parent imported nor tears it down when it ends: both would copy
# every page of it, twenty times what a short command costs otherwise.
gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        pid, status = os.waitpid(asked, os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        if "TEST_CLOCK" in os.environ:
            shift_clock(os.environ["TEST_CLOCK"])
        files = [os.open(asked["stdin"], os.O_RDONLY)]
        files += [os.open(asked[name], os.O_WRONLY | os.O_APPEND) for name in ("stdout", "stderr")]
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin = open(0, closefd=False)
        sys.argv = [asked["module"], *asked["words"]]
        try:
            code = importlib.import_module(asked["module"]).main()
        except SystemExit as left:
            code = left.code
        except BaseException:
            traceback.print_exc()
            code = 1
        if isinstance(code, str):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
    print(child, flush=True)
"""
_lock: Final = threading.Lock()
#: The process that forks; none before the first fork, and after `stop`.
_parents: Final[list["subprocess.Popen[str]"]] = []


class Forked:
    """A process that `fork` started, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = _ask(self.pid)
            if self.returncode is not None:
                os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        Raises: subprocess.TimeoutExpired.
        """
        if self.poll() is None:
            select.select([self._pidfd], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork(
    module: str,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: Path,
    stderr: Path | None = None,
    stdin: Path = Path(os.devnull),
) -> Forked:
    """Start `python -m MODULE WORDS`; its output is appended to the files."""
    asked = {"module": module, "words": list(words), "env": dict(env), "cwd": str(cwd)}
    files = {"stdin": stdin, "stdout": stdout, "stderr": stderr or stdout}
    for path in (stdout, stderr or stdout):
        path.touch(0o600)
    pid = _ask(asked | {name: str(path.absolute()) for name, path in files.items()})
    assert pid is not None
    return Forked(pid)


def stop() -> None:
    """End the parent process; forked processes keep running."""
    while _parents:
        _parents.pop().communicate(timeout=30)


def _ask(what: Any) -> int | None:
    with _lock:
        if not _parents:
            parent = subprocess.Popen(
                [sys.executable, "-c", _PARENT, *_MODULES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            _parents.append(parent)
        (parent,) = _parents
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps(what) + "\n")
        parent.stdin.flush()
        answer: int | None = json.loads(parent.stdout.readline())
        return answer
