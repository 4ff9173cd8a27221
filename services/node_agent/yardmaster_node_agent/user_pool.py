"""The users of a node's tasks, and which of them are in use."""

from collections import Counter
from collections.abc import Sequence

from yardmaster_node_agent.agent_state import AgentState, Replica, TaskUser
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.task_user import TaskUsers
from yardmaster_schemas.resources import is_fraction


class UserPool:
    """Gives each attempt a user that no other attempt has; its replicas on this node share it.

    The ledger has the user of each replica, so a later agent process finds the same users in use. A
    user stays in use until the files of all its replicas are removed.
    """

    def __init__(self, users: TaskUsers | None, state: AgentState, *, by_mps: bool) -> None:
        """Without `users`, replicas have none: they run as the agent's own user.

        `by_mps`: MPS limits replicas with a fraction of a GPU; it serves one user at a time, so
        these replicas share one.
        """
        self._users = users
        self._by_mps = by_mps
        #: The number of replicas of each user.
        self._replicas: Counter[int] = Counter()
        self._newest = 0
        for replica in state.replicas.values():
            if replica.user is not None and not replica.directory_removed:
                self._take(replica.user, 1)

    def give(self, attempt: Sequence[Replica]) -> str | None:
        """Give the replicas of a new attempt their user; return the reason if all are in use."""
        if self._users is None:
            return None
        user: TaskUser | None
        if self._by_mps and any(is_fraction(each.assignment.gpu_milli) for each in attempt):
            user = self._users.common
        else:
            user = self._users.own(self._replicas, self._newest, shared=len(attempt) > 1)
        if user is None:
            count = len(self._users.ids) - 1
            return f"each of the node's {count} users has a replica whose files are not removed"
        for replica in attempt:
            replica.user = user
        self._take(user, len(attempt))
        return None

    def ended(self, user: TaskUser | None) -> bool:
        """Return whether the processes of a user have ended, before its last replica is released.

        If there are any, kill them; ask again later. A user of one replica alone ended with it.
        """
        if user is None or not user.shared or self._replicas[user.uid] > 1:
            return True
        left = procfs.of_users(range(user.uid, user.uid + 1))
        for seen in left:
            procfs.kill(seen)
        return not left

    def release(self, user: TaskUser | None) -> None:
        """Count one replica less for a user; without replicas, another attempt may have it."""
        if user is not None:
            self._replicas[user.uid] -= 1
            if self._replicas[user.uid] <= 0:
                del self._replicas[user.uid]

    def _take(self, user: TaskUser, replicas: int) -> None:
        self._replicas[user.uid] += replicas
        self._newest = user.uid
