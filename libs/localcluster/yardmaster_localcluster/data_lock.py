"""Who has a data folder to itself, and where callers find it: `lock` and `dev.json`."""

import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

from yardmaster_localcluster.errors import DataDirInUse, DataDirUnusable

#: How long a process that was killed may still hold its lock, in seconds, and how often to look.
LET_GO_S: Final = 5.0
LOOK_S: Final = 0.01
#: What others may not do with a data folder. Passing through is harmless, and containers need it.
OTHERS: Final = 0o066
#: A folder with one of these is a cluster's.
OURS: Final = frozenset({"lock", "up.json"})


def take_lock(path: Path) -> int:
    """Make the folder if it is not there, and hold its lock until this process ends.

    Returns: the lock's descriptor; closing it lets go.
    Raises:
        DataDirInUse: another cluster runs on it.
        DataDirUnusable: it cannot be made, or is open to other users.
    """
    try:
        make_private(path)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirUnusable(
            found=f"{path}: {error.strerror}", hint="choose another: --data DIR"
        ) from None
    owner = _lock(lock)
    if owner is not None:
        os.close(lock)
        raise DataDirInUse(
            pid=owner,
            path=path,
            hint="use it as it is, stop it first, or choose another folder: --data DIR",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def make_private(path: Path) -> None:
    """Make a data folder, or close it to other users: it holds commands and environments.

    Raises:
        DataDirUnusable: others may enter it, and it holds files that are not a cluster's.
        OSError: it cannot be made, or its mode cannot be changed.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS:
        return
    names = os.listdir(path)
    if names and OURS.isdisjoint(names):
        raise DataDirUnusable(
            found=f"{path} is open to other users (mode {mode:o}) and holds other files",
            hint=f"choose an empty folder with --data DIR, or run: chmod 700 {path}",
        )
    path.chmod(0o700)


def lock_owner(path: Path) -> int | None:
    """The pid of who holds a folder's lock; None when nobody does."""
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        return int(owner) if owner.isdecimal() else None
    finally:
        os.close(lock)
    return None


def alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _lock(lock: int) -> str | None:
    """Take the lock; the pid of who holds it when that lives.

    A child that was being made for a task when its parent was killed holds the parent's lock until
    it executes its program: a start in that moment waits for it.
    """
    deadline = time.monotonic() + LET_GO_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
            if not owner.isdecimal() or alive(int(owner)) or time.monotonic() > deadline:
                return owner or "?"
            time.sleep(LOOK_S)
        else:
            return None


def announce(path: Path, port: int, token: str, **more: Any) -> None:
    """Say where callers find what runs here: the gateway's port, what to send, whose pid."""
    found = {"port": port, "token": token, "pid": os.getpid(), **more}
    write_private(path / "dev.json", json.dumps(found) + "\n")


def withdraw(path: Path) -> None:
    """Say that nothing runs here any more; who crashes leaves it, and its pid is then gone."""
    (path / "dev.json").unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
