"""The files `lock` and `dev.json` of a data directory: its lock, and its cluster's address."""

import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

from yardmaster.local_cluster import alive
from yardmaster_localcluster.errors import DataDirInUse, DataDirUnusable

#: The longest time that a killed process may still hold its lock, in seconds.
RELEASE_S: Final = 5.0
LOOK_S: Final = 0.01
#: Mode bits that a data directory must not have. Other users may pass through the directory (the
#: execute bits are allowed), because containers need this.
OTHERS: Final = 0o066
#: Files that identify the data directory of a cluster.
CLUSTER_FILES: Final = frozenset({"lock", "up.json"})


def take_lock(path: Path) -> int:
    """Create the folder if necessary, and hold its lock until this process ends.

    Returns: the descriptor of the lock; closing it releases the lock.
    Raises:
        DataDirInUse: another cluster runs on the folder.
        DataDirUnusable: the folder cannot be created, or is open to other users.
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
            hint="use that cluster, stop it, or choose another directory with --data DIR",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def make_private(path: Path) -> None:
    """Create a data directory, or remove other users' access to an existing one.

    The directory contains commands and environments of tasks, which other users must not read.

    Raises:
        DataDirUnusable: the directory is open to other users and contains files of other programs.
        OSError: the directory cannot be created, or its mode cannot be changed.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS:
        return
    names = os.listdir(path)
    if names and CLUSTER_FILES.isdisjoint(names):
        raise DataDirUnusable(
            found=f"{path} is open to other users (mode {mode:o}) and contains other files",
            hint=f"choose an empty folder with --data DIR, or run: chmod 700 {path}",
        )
    path.chmod(0o700)


def lock_owner(path: Path) -> int | None:
    """The pid of the process that holds a folder's lock; None when no process holds it."""
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


def _lock(lock: int) -> str | None:
    """Take the lock, or return the pid of the running process that holds it.

    If a process is killed while it forks a child for a task, the child holds the lock until it
    executes its program. This function waits up to `RELEASE_S` seconds for that.
    """
    deadline = time.monotonic() + RELEASE_S
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
    """Publish the address of a cluster: the gateway's port, the token of callers, and the pid."""
    found = {"port": port, "token": token, "pid": os.getpid(), **more}
    write_private(path / "dev.json", json.dumps(found) + "\n")


def withdraw(path: Path) -> None:
    """Remove the published address; after a crash its pid shows that it is out of date."""
    (path / "dev.json").unlink(missing_ok=True)


def replace_token(path: Path, token: str) -> None:
    """Store a new token of callers in the data directory of a running cluster."""
    announced = json.loads((path / "dev.json").read_text())
    write_private(path / "token", token + "\n")
    write_private(path / "dev.json", json.dumps({**announced, "token": token}) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner can read it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
