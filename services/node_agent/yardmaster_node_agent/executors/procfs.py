"""Which process is which, from /proc: identities, and all that belongs to a replica."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from yardmaster_node_agent.agent_state import ProcessIdentity

_PROC: Final = Path("/proc")
#: States of a process that runs no more: zombie, dead.
_ENDED: Final = (b"Z", b"X", b"x")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc shows it."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    ended: bool


def boot_id() -> str:
    """This boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def look(pid: int) -> Seen | None:
    """The process of a pid now; None when there is none."""
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
    """The very process of an identity, one not yet reaped too; None when it is no more."""
    seen = look(identity.pid)
    if seen is None or seen.started != identity.started or identity.boot_id != boot_id():
        return None
    return seen


def alive(identity: ProcessIdentity) -> bool:
    """The process runs (or is stopped), and is no other of its pid."""
    seen = find(identity)
    return seen is not None and not seen.ended


def processes() -> dict[int, Seen]:
    """All processes of the machine, by pid."""
    return {
        pid: seen
        for entry in os.listdir(_PROC)
        if entry.isdecimal() and (seen := look(pid := int(entry))) is not None
    }


def runners(program: str, root: str) -> list[Seen]:
    """The living processes that run `program` (a Python file) for a directory under `root`.

    Arguments outlast a lost directory and a command that cleared its environment.
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
    """All that belongs to a replica and has not ended; not the runner itself.

    While the runner lives these are its descendants, orphans included, because they come to it.
    Without it: the main process's group and session while that is there, and whoever still carries
    `mark`, a setting of this replica alone, in its environment.
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
        if not seen.ended and (kin or carries(seen.pid, mark)):
            found[seen.pid] = seen
    return list(found.values())


def carries(pid: int, mark: bytes) -> bool:
    """The process started with `mark` (a name, '=' and the start of a value) in its environment."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return environ.startswith(mark) or b"\0" + mark in environ


def kill(seen: Seen) -> bool:
    """SIGKILL that process and no other; whether it was there to be killed."""
    try:
        descriptor = os.pidfd_open(seen.pid)
    except OSError:
        return False
    try:
        # The descriptor pins whoever has the pid now: only then is it certain who that is.
        now = look(seen.pid)
        if now is None or now.started != seen.started or now.ended:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
