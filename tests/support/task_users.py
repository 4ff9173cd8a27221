"""Users for tasks of tests that run as root, while other tests run on the same machine."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from yardmaster_node_agent.executors.task_user import TaskUsers
from yardmaster_schemas.run_as import RunAs

_NUMBERS: Final = count()
#: Users of one test; an agent of a test has no more replicas than this.
SIZE: Final = 64


def users_of_test() -> TaskUsers:
    """Return users that no other test of this machine has at the same time."""
    # A process keeps the users that its agents have claimed.
    first = 1_000_000_000 + os.getpid() % 200_000 * 4096 + next(_NUMBERS) % 64 * SIZE
    return TaskUsers(first=first, last=first + SIZE - 1)


def settings_of(users: TaskUsers) -> dict[str, object]:
    """Return the settings of an agent whose tasks have these users."""
    return {
        "task_users": f"{users.first}-{users.last}",
        "max_replicas": SIZE // 2,
        "kept_directories": SIZE // 4,
    }


@contextmanager
def foreign_program(user: RunAs) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the user that belongs to no task; it must still run at the end."""
    with subprocess.Popen(["sleep", "600"], user=user.uid, group=user.gid) as foreign:
        try:
            yield foreign
            assert foreign.poll() is None, "a program that belongs to no task was ended"
        finally:
            foreign.kill()
