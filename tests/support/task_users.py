"""Users for tasks of tests that run as root, while other tests run on the same machine."""

import os
from itertools import count
from typing import Final

from yardmaster_node_agent.executors.task_user import TaskUsers

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
