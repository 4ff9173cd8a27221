"""The user that tasks run as, so that they cannot read or change the files of the agent."""

import os
import pwd
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from yardmaster_node_agent.errors import TaskUserUnusable

#: The settings `task_user` that name no user: another user where possible, and the agent's own.
AUTO: Final = "auto"
SAME: Final = "same"
#: The user of tasks by default. No account needs this number; it owns nothing but the tasks' files.
DEFAULT_ID: Final = 10_002
#: Capabilities that an agent needs: CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID.
_NEEDED: Final = (0, 1, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class TaskUser:
    """A user and its group."""

    uid: int
    gid: int


def choose_user(setting: str, data_dir: Path) -> tuple[TaskUser | None, str]:
    """The user for tasks; None: the agent's own user, and the reason.

    Args:
        setting: `auto`, `same`, or the name or number of a user.
        data_dir: the tasks' working directories are below it.

    Raises:
        TaskUserUnusable: the setting names a user, and tasks cannot run as this user.
    """
    if setting == SAME:
        return None, "the setting task_user is same"
    user = TaskUser(DEFAULT_ID, DEFAULT_ID) if setting == AUTO else _named(setting)
    # The jobs of a cluster that root started on this machine use the agent's own Python.
    paths = [data_dir.parent, *([Path(sys.executable).resolve()] if setting == AUTO else [])]
    reason = _why_not(user, paths)
    if reason is None:
        return user, ""
    if setting != AUTO:
        raise TaskUserUnusable(user=setting, found=reason)
    return None, reason


def open_way(user: TaskUser | None, folder: Path) -> None:
    """Create a folder that the user may pass through; without a user, a private one.

    Raises: OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if user is not None and not folder.stat().st_mode & stat.S_IXOTH:
        folder.chmod(0o711)


def _named(setting: str) -> TaskUser:
    try:
        found = pwd.getpwuid(int(setting)) if setting.isdecimal() else pwd.getpwnam(setting)
    except KeyError:
        if setting.isdecimal():
            return TaskUser(int(setting), int(setting))
        raise TaskUserUnusable(user=setting, found="there is no such user") from None
    return TaskUser(found.pw_uid, found.pw_gid)


def _why_not(user: TaskUser, paths: Sequence[Path]) -> str | None:
    """Why tasks cannot run as the user; None if they can."""
    if user.uid == 0:
        return "tasks never run as root"
    if user.uid == os.geteuid():
        return "it is the agent's own user"
    if not _may_switch():
        return "the agent is not root, or lacks capabilities to run processes of other users"
    for path in paths:
        blocked = blocked_part(user, path.absolute())
        if blocked is not None:
            return f"it cannot reach {path}: {blocked} is closed to it (chmod o+x opens it)"
    return None


def _may_switch() -> bool:
    """Whether this process has the capabilities that it needs, as root has outside containers."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next((x for x in status.splitlines() if x.startswith("CapEff:")), "CapEff: 0")
    held = int(effective.split()[1], 16)
    return os.geteuid() == 0 and all(held >> number & 1 for number in _NEEDED)


def blocked_part(user: TaskUser, path: Path) -> Path | None:
    """The first folder on the way to a path, or the path itself, that the user may not use."""
    for part in (*reversed(path.parents), path):
        try:
            found = part.stat()
        except FileNotFoundError:
            return None  # the agent creates it, open to the user
        except OSError:
            return part
        shift = 6 if found.st_uid == user.uid else 3 if found.st_gid == user.gid else 0
        if not found.st_mode >> shift & 1:
            return part
    return None
