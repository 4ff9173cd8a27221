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

#: Values of the setting `task_user` that name no user. `auto`: another user where that is possible;
#: `same`: the agent's own user.
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
    """Return the user that tasks run as, and an empty text; or None and a reason.

    None: tasks run as the agent's own user. The reason says why.

    Args:
        setting: `auto`, `same`, or the name or number of a user.
        data_dir: the tasks' working directories are below it.

    Raises:
        TaskUserUnusable: the setting names a user, and tasks cannot run as this user.
    """
    if setting == SAME:
        return None, "the setting task_user is same"
    user = TaskUser(DEFAULT_ID, DEFAULT_ID) if setting == AUTO else _named(setting)
    # With `auto`, the user must be able to run the agent's own Python: the jobs of a cluster that
    # root started on this machine use it.
    paths = [data_dir.parent, *([Path(sys.executable).resolve()] if setting == AUTO else [])]
    reason = _why_not(user, paths)
    if reason is None:
        return user, ""
    if setting != AUTO:
        raise TaskUserUnusable(user=setting, found=reason)
    return None, reason


def open_way(user: TaskUser | None, folder: Path) -> None:
    """Create a folder if it does not exist; with a user, make it passable for this user.

    A new folder is private to the agent. With a user, also an existing folder gets mode 0711 if
    others cannot pass through it.

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
    """Return why tasks cannot run as the user; None if they can."""
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
    """Whether this process is root with the capabilities to run processes of other users.

    In a container, root may lack some of these capabilities.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next((x for x in status.splitlines() if x.startswith("CapEff:")), "CapEff: 0")
    held = int(effective.split()[1], 16)
    return os.geteuid() == 0 and all(held >> number & 1 for number in _NEEDED)


def blocked_part(user: TaskUser, path: Path) -> Path | None:
    """Return the first folder of a path, or the path itself, that the user may not use; or None."""
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
