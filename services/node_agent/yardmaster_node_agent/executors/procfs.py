"""Processes from /proc: their identities, and which belong to a replica."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MACHINE_ID: Final = Path("/etc/machine-id")
_PRODUCT: Final = Path("/sys/class/dmi/id/product_uuid")
#: States of a process that has ended: zombie, dead.
_ENDED: Final = (b"Z", b"X", b"x")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Identity that no other process ever has: boot, pid, start in clock ticks since the boot."""

    boot_id: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc shows it."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    ended: bool


def machine_id() -> str:
    """Return a text that identifies the machine across restarts; empty if nothing can be read.

    It consists of `/etc/machine-id`, which copies of an image share, and of the serial number from
    the vendor or hypervisor, which only root can read.
    """
    found = []
    for path in (_MACHINE_ID, _PRODUCT):
        with suppress(OSError):
            found.append(path.read_text(encoding="ascii", errors="replace").strip())
    return " ".join(found)


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def look(pid: int) -> Seen | None:
    """Return the current process of a pid; None if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return Seen(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        ended=fields[0] in _ENDED,
    )


def find(identity: ProcessIdentity) -> Seen | None:
    """Return the process of an identity, also a zombie; None if it no longer exists."""
    seen = look(identity.pid)
    if seen is None or seen.started != identity.started or identity.boot_id != boot_id():
        return None
    return seen


def alive(identity: ProcessIdentity) -> bool:
    """Whether the process of an identity is alive; a stopped process is alive."""
    seen = find(identity)
    return seen is not None and not seen.ended


def processes() -> dict[int, Seen]:
    """Return all processes of the machine by pid."""
    return {
        pid: seen
        for entry in os.listdir(_PROC)
        if entry.isdecimal() and (seen := look(pid := int(entry))) is not None
    }


def runners(program: str, root: str) -> list[Seen]:
    """Return the living processes that run `program` (a Python file) with a directory under `root`.

    They are found by their arguments, so a runner is found even if its directory is gone.
    """
    wanted = Path(program).name
    found: list[Seen] = []
    for seen in processes().values():
        arguments = _arguments(seen.pid)
        if seen.ended or len(arguments) < 3:
            continue
        file, directory = arguments[-2:]
        if Path(file).name == wanted and directory.startswith(root + os.sep):
            found.append(seen)
    return found


def _arguments(pid: int) -> list[str]:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]


def members(
    runner: ProcessIdentity | None, main: ProcessIdentity | None, mark: bytes
) -> list[Seen]:
    """Return all living processes of a replica, without the runner itself.

    While the runner lives, these are the runner's descendants. Orphans are among them, because they
    become children of the runner. After the runner's end, these are the processes in the group or
    session of the main process, as long as the main process exists, and the processes with `mark`
    in their environment, a variable that only this replica has.
    """
    table = processes()
    found: dict[int, Seen] = {}
    if runner is not None and alive(runner):
        children: dict[int, list[Seen]] = {}
        for seen in table.values():
            children.setdefault(seen.parent, []).append(seen)
        ahead = [runner.pid]
        while ahead:
            for child in children.get(ahead.pop(), ()):
                if child.pid not in found:
                    found[child.pid] = child
                    ahead.append(child.pid)
        return [seen for seen in found.values() if not seen.ended]
    known = main is not None and find(main) is not None
    for seen in table.values():
        kin = known and main is not None and main.pid in (seen.group, seen.session)
        if not seen.ended and (kin or has_variable(seen.pid, mark)):
            found[seen.pid] = seen
    return list(found.values())


def of_users(users: range) -> list[Seen]:
    """Return all living processes whose user is one of `users`.

    The owner of the folder in /proc does not tell: a program can make it root.
    """
    found: list[Seen] = []
    for seen in processes().values():
        try:
            lines = (_PROC / str(seen.pid) / "status").read_text().splitlines()
        except OSError:
            continue
        ids = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
        if not seen.ended and any(int(each) in users for each in ids):
            found.append(seen)
    return found


def has_variable(pid: int, mark: bytes) -> bool:
    """Whether a process started with `mark` (name, '=', prefix of the value) in its environment."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return environ.startswith(mark) or b"\0" + mark in environ


def kill(seen: Seen) -> bool:
    """SIGKILL a process, but no other process that reuses its pid; return whether it was alive."""
    try:
        descriptor = os.pidfd_open(seen.pid)
    except OSError:
        return False
    try:
        # The descriptor refers to the pid's current process, so check its identity only now.
        now = look(seen.pid)
        if now is None or now.started != seen.started or now.ended:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
