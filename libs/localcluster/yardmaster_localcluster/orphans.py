"""Find the orphaned processes of a cluster in /proc, and end them.

The processes of a cluster have `YARDMASTER_UP=<data directory>` in their environment, with two
exceptions. Redis overwrites its environment; it is recognized by its program and folder. Tasks get
their environment from the agent; a task is recognized by `YARD_STOP_FILE`, a path in the directory
of the attempt, or by its runner, which has that directory as an argument.
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "YARDMASTER_UP"
_PROC: Final = Path("/proc")
_ENDED: Final = (b"Z", b"X", b"x")
LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LivingProcess:
    """A process as the kernel reports it; the start time distinguishes it from a reused pid."""

    pid: int
    parent: int
    session: int
    started: int


def of_cluster(data: Path) -> list[LivingProcess]:
    """The running processes of the cluster, without this process."""
    mark = f"{MARK}={data}\0".encode()
    return [
        each
        for each in _living()
        if each.pid != os.getpid() and (_carries(each.pid, mark) or _is_redis(each.pid, data))
    ]


def of_tasks(agents: Path) -> list[LivingProcess]:
    """Runners and tasks of the agents whose data is in the folder `agents` or below it."""
    living = list(_living())
    folder = str(agents).encode()
    found = {
        each.pid: each
        for each in living
        if _is_runner(each.pid, folder) or _carries(each.pid, b"YARD_STOP_FILE=" + folder + b"/")
    }
    children: dict[int, list[LivingProcess]] = {}
    for each in living:
        children.setdefault(each.parent, []).append(each)
    ahead = list(found)
    while ahead:
        for child in children.get(ahead.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                ahead.append(child.pid)
    sessions = {pid for pid, each in found.items() if each.session == pid}
    found |= {each.pid: each for each in living if each.session in sessions}
    found.pop(os.getpid(), None)
    return list(found.values())


def end_tasks(agents: Path, limit_s: float = 10.0) -> int:
    """Kill all tasks of the agents in a folder, as in a power failure; return their number.

    Runners are suspended first, so that they do not record exits of killed tasks.
    """
    ended: set[tuple[int, int]] = set()
    deadline = time.monotonic() + limit_s
    while living := of_tasks(agents):
        for runner in living:
            if _is_runner(runner.pid, str(agents).encode()):
                send(runner, signal.SIGSTOP)
        others = [each for each in living if not _is_runner(each.pid, str(agents).encode())]
        for each in others or living:
            send(each, signal.SIGKILL)
        ended |= {(each.pid, each.started) for each in living}
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    return len(ended)


def end(found: Iterable[LivingProcess], grace_s: float) -> None:
    """Ask processes to stop, and kill the remaining ones after `grace_s` seconds.

    A process that survives SIGKILL for `grace_s` seconds hangs in the kernel and is left.
    """
    waiting = [each for each in found if send(each, signal.SIGTERM)]
    deadline = time.monotonic() + grace_s
    killed = False
    while waiting := [each for each in waiting if lives(each)]:
        if time.monotonic() > deadline:
            if killed:
                return
            killed = True
            for each in waiting:
                send(each, signal.SIGKILL)
            deadline = time.monotonic() + grace_s
        time.sleep(LOOK_S)


def lives(process: LivingProcess) -> bool:
    """Whether this process still runs."""
    now = _look(process.pid)
    return now is not None and now.started == process.started


def send(process: LivingProcess, number: int) -> bool:
    """Send a signal to this process and no other; returns whether it was running."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor refers to the current process of the pid: check it after opening.
        if not lives(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _living() -> Iterable[LivingProcess]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (seen := _look(int(entry))) is not None:
            yield seen


def _look(pid: int) -> LivingProcess | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in _ENDED:
        return None
    return LivingProcess(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def _carries(pid: int, mark: bytes) -> bool:
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return environ.startswith(mark) or b"\0" + mark in environ


def _is_redis(pid: int, data: Path) -> bool:
    """Whether a process is the Redis of a cluster: Redis overwrites its environment."""
    try:
        program = os.readlink(_PROC / str(pid) / "exe")
        return Path(program).name == "redis-server" and os.readlink(
            _PROC / str(pid) / "cwd"
        ) == str((data / "redis").resolve())
    except OSError:
        return False


def _is_runner(pid: int, folder: bytes) -> bool:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/runner.py") for word in words) and any(
        word.startswith(folder + b"/") for word in words
    )
