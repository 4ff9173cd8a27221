"""What stands between the agent and a task's command, so that its exit code survives the agent.

Started by the process executor as `python -I -S runner.py DIRECTORY`, in a session of its own, with
the command, environment and working directory as JSON on stdin (an anonymous file: secrets touch no
disk). It imports the standard library alone, kills nothing, and starts the command at most once:

1. It links its identity as `start` into the attempt's directory. Only one link can succeed: a
   second runner, or an agent that came back and gave the attempt up, wins or loses here and nowhere
   else.
2. The command's process waits in a session of its own until its identity is durable in `process`.
3. Its exit goes durably into `exit`. Orphans of the command come to the runner, which ends when
   none is left, and says so with `gone`.

After each step it rings `bell`, a FIFO on which the agent listens while it lives.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

PR_SET_CHILD_SUBREAPER: Final = 36
#: Exit codes of the runner itself; the task's are in `exit`.
ALREADY_STARTED: Final = 75
BAD_SPEC: Final = 64
#: The shell's: what was asked for cannot be run, is not there.
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
#: How often, a second apart, the exit status is tried to be written to a full disk.
EXIT_WRITE_TRIES: Final = 60


def identity(pid: int) -> dict[str, Any]:
    """Boot, pid and start time in clock ticks of a process that exists."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return {"boot_id": boot_id, "pid": pid, "started": int(fields[19])}


def write_durably(directory: str, name: str, content: object, place: Callable[..., None]) -> None:
    """Put JSON under a name in one step: `os.link` fails when it is taken, `os.rename` replaces.

    Raises:
        FileExistsError: with `os.link`.
        OSError.
    """
    draft = os.path.join(directory, f".{name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(content).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        place(draft, os.path.join(directory, name))
    finally:
        if place is os.link:
            os.unlink(draft)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ring(directory: str) -> None:
    """Let the agent look again, when one listens."""
    try:
        descriptor = os.open(os.path.join(directory, "bell"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(descriptor, b".")
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """A handler, not SIG_IGN: an exec resets handlers, but would hand SIG_IGN down to the task."""


def _become_command(directory: str, spec: dict[str, Any], go: int) -> NoReturn:
    """In the child: wait for the word, then turn into the command."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.setsid()
    if os.read(go, 1) != b"g":
        os._exit(CANNOT_RUN)
    stdin = os.open(os.devnull, os.O_RDONLY)
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    stdout = os.open(os.path.join(directory, "stdout"), appending, 0o600)
    stderr = os.open(os.path.join(directory, "stderr"), appending, 0o600)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    command = spec["command"]
    what = spec["cwd"]
    try:
        os.chdir(what)
        what = command[0]
        os.execvpe(what, command, spec["env"])
    except OSError as error:
        os.write(2, f"yardmaster: cannot run {what}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)
    except ValueError as error:
        os.write(2, f"yardmaster: cannot run {what!r}: {error}\n".encode())
        os._exit(CANNOT_RUN)
    os._exit(CANNOT_RUN)


def _write_exit(directory: str, status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    content = {"signal": -code} if code < 0 else {"exit_code": code}
    for _ in range(EXIT_WRITE_TRIES):
        try:
            write_durably(directory, "exit", content, os.rename)
        except FileNotFoundError:
            break  # the directory was removed: nobody waits for this exit
        except OSError:
            time.sleep(1)
        else:
            break
    ring(directory)


def main(directory: str) -> int:
    """Run the command of the spec on stdin, once; return when nothing of it is left."""
    for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, _ignore)
    try:
        spec = json.load(sys.stdin)
    except ValueError as error:
        print(f"no spec: {error}", file=sys.stderr)
        return BAD_SPEC
    # Nothing of the spec stays readable through this process's descriptors.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        write_durably(directory, "start", {"runner": identity(os.getpid())}, os.link)
    except FileExistsError:
        return ALREADY_STARTED
    go, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say)
        _become_command(directory, spec, go)
    os.close(go)
    del spec
    write_durably(directory, "process", identity(child), os.rename)
    os.write(say, b"g")
    os.close(say)
    ring(directory)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            _write_exit(directory, status)
    with open(os.path.join(directory, "gone"), "w", encoding="ascii"):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
