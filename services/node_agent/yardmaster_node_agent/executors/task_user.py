"""The users that tasks run as: each attempt of a task has one that owns nothing else.

So a task can neither read nor change the files of the agent or of another task, nor look into
their processes or signal them.
"""

import errno
import fcntl
import grp
import hashlib
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from yardmaster_node_agent.agent_state import TaskUser
from yardmaster_node_agent.errors import TaskUsersUnusable
from yardmaster_schemas.run_as import RunAs

#: Values of the setting `task_users` that name no users. `auto`: a user for each attempt where that
#: is possible; `same`: the agent's own user for all.
AUTO: Final = "auto"
SAME: Final = "same"
RANGE: Final = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,9})")
#: Where the users of `auto` begin: above the numbers that systemd, `/etc/subuid` and SSSD use by
#: default, and below 2^31, which not every program can represent.
FIRST_ID: Final = 2_100_000_000
#: Each node has a block of numbers by its name, so that two nodes seldom have the same users.
BLOCK_IDS: Final = 8192
BLOCKS: Final = 5000
#: The users of `auto`, if the settings do not require more.
USUAL_IDS: Final = 2048
#: The largest number of a user for a container engine.
MAX_ID: Final = 2**31 - 1
#: Agents of one machine lock the numbers of their users in this file.
LOCK_FILE: Final = Path("/run/yardmaster-task-users.lock")
#: Capabilities that an agent needs: CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID.
_NEEDED: Final = (0, 1, 5, 6, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUsers:
    """The users of one node, by number; each has a group of its own with the same number.

    `group` is a further group of all of them. The first user is for attempts that must share one.
    """

    first: int
    last: int
    group: int | None = None

    @property
    def ids(self) -> range:
        """The numbers of all users."""
        return range(self.first, self.last + 1)

    @property
    def common(self) -> TaskUser:
        """The user of all attempts that must share one."""
        return self._user(self.first, shared=True)

    def own(self, taken: Collection[int], newest: int, *, shared: bool) -> TaskUser | None:
        """Return the next free user after `newest`, in a circle; None if all are taken.

        `shared`: several replicas of the attempt are on this node.
        """
        others = range(self.first + 1, self.last + 1)
        start = newest - self.first if newest in others else 0
        for step in range(len(others)):
            uid = others[(start + step) % len(others)]
            if uid not in taken:
                return self._user(uid, shared=shared)
        return None

    def named(self, run_as: RunAs) -> TaskUser:
        """The user that a job names."""
        user = self._user(run_as.uid, shared=True)
        return replace(user, gid=run_as.gid, named=True)

    def _user(self, uid: int, *, shared: bool) -> TaskUser:
        groups = () if self.group is None else (self.group,)
        return TaskUser(uid=uid, gid=uid, groups=groups, shared=shared)


def choose_users(
    setting: str, data_dir: Path, *, node: str, at_once: int, group: int | None = None
) -> tuple[TaskUsers | None, str]:
    """Return the users of a node's tasks, and an empty text; or None and a reason.

    None: tasks run as the agent's own user. The reason says why.

    Args:
        setting: `auto`, `same`, or the first and the last number, with a hyphen between them.
        data_dir: the tasks' working directories are below it.
        at_once: the most attempts that have a user at the same time.
        group: a further group of all users.

    Raises:
        TaskUsersUnusable: the setting names users, and tasks cannot run as these.
    """
    if setting == SAME:
        return None, "the setting task_users is same"
    # One more: the user that attempts share.
    needed = at_once + 1
    if setting == AUTO:
        number = int.from_bytes(hashlib.sha256(node.encode()).digest()[:8], "big") % BLOCKS
        first = FIRST_ID + number * BLOCK_IDS
        last = first + min(BLOCK_IDS, max(USUAL_IDS, needed)) - 1
    else:
        found = RANGE.fullmatch(setting)
        assert found is not None, "the settings have checked it"
        first, last = int(found[1]), int(found[2])
    users = TaskUsers(first=first, last=last, group=group)
    # With `auto`, a user must be able to run the agent's own Python: the jobs of a cluster that
    # root started on this machine use it.
    paths = [data_dir.parent, *([Path(sys.executable).resolve()] if setting == AUTO else [])]
    reason = _why_not(users, needed, paths)
    if reason is None:
        return users, ""
    if setting != AUTO:
        raise TaskUsersUnusable(users=setting, found=reason)
    return None, reason


def why_not_named(run_as: RunAs, users: TaskUsers, folder: Path) -> str | None:
    """Return why replicas cannot run as a user that their job names; None if they can.

    Args:
        folder: their files are below it.
    """
    if run_as.uid in users.ids or run_as.gid in users.ids:
        return "the node gives that number to other tasks (YARD_AGENT_TASK_USERS)"
    for number, numbers in ((run_as.uid, "uid_map"), (run_as.gid, "gid_map")):
        if not _mapped(range(number, number + 1), Path("/proc/self") / numbers):
            return f"the agent's container has no number {number}"
    blocked = blocked_part(users.named(run_as), folder.absolute())
    if blocked is not None:
        return f"it cannot reach {folder}: {blocked} is closed to it (chmod o+x opens it)"
    return None


def claim(users: TaskUsers) -> None:
    """Lock the users for this process on this machine, until it ends.

    Raises:
        TaskUsersUnusable: another agent of the machine has some of them.
    """
    text = f"{users.first}-{users.last}"
    try:
        # It stays open: the kernel removes the lock when this process closes it, or ends.
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(LOCK_FILE, how, 0o600)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, len(users.ids), users.first)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            found = "another agent of this machine has some of them, so their tasks would mix"
            raise TaskUsersUnusable(users=text, found=found) from None
        if error.errno == errno.EROFS:
            return  # a container, whose file system and processes no other agent shares
        raise TaskUsersUnusable(users=text, found=f"{LOCK_FILE}: {error.strerror}") from None


def open_way(folder: Path, *, others: bool) -> None:
    """Create a folder if it does not exist; with `others`, other users may pass through it.

    A new folder is private to the agent. With `others`, also an existing folder gets mode 0711 if
    others cannot pass through it.

    Raises: OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if others and not folder.stat().st_mode & stat.S_IXOTH:
        folder.chmod(0o711)


def _why_not(users: TaskUsers, needed: int, paths: Sequence[Path]) -> str | None:
    """Return why tasks cannot run as the users; None if they can."""
    if not _may_switch():
        return "the agent is not root, or lacks capabilities to run processes of other users"
    if users.last > MAX_ID:
        return f"numbers of users end at {MAX_ID}"
    if len(users.ids) < needed:
        return (
            f"these are {max(0, len(users.ids))} users, and the node may need {needed}: one for "
            "each replica (max_replicas), one for each kept directory (kept_directories), and one "
            "for tasks with fractions of GPUs"
        )
    for numbers, kind in (("uid_map", "user"), ("gid_map", "group")):
        if not _mapped(users.ids, Path("/proc/self") / numbers):
            return f"the agent's container has no {kind} with some of these numbers"
    for path in paths:
        blocked = blocked_part(users.common, path.absolute())
        if blocked is not None:
            return f"they cannot reach {path}: {blocked} is closed to them (chmod o+x opens it)"
    return _account_among(users.ids)


def _mapped(ids: range, path: Path) -> bool:
    """Whether the user namespace of this process has all these numbers."""
    for line in path.read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= ids[0] and ids[-1] < inside + count:
            return True
    return False


def _account_among(ids: range) -> str | None:
    """Return why the machine's own accounts forbid these numbers; None if they do not.

    The agent kills all that runs as its users. A directory service may list none of its accounts,
    so each number is asked for, except those of `auto`, which no such service gives by default.
    """
    users = {each.pw_uid for each in pwd.getpwall()}
    groups = {each.gr_gid for each in grp.getgrall()}
    for number in ids:
        known = number in users or number in groups
        if known or (number < FIRST_ID and _knows(pwd.getpwuid, number)):
            return f"{number} is a user or group of this machine itself, whose programs would end"
    return None


def _knows(find: Callable[[int], object], number: int) -> bool:
    try:
        find(number)
    except KeyError:
        return False
    return True


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
        in_group = found.st_gid in (user.gid, *user.groups)
        shift = 6 if found.st_uid == user.uid else 3 if in_group else 0
        if not found.st_mode >> shift & 1:
            return part
    return None
