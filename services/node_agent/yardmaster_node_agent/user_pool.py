"""The users of a node's tasks, and which of them are in use."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from yardmaster_node_agent.agent_state import AgentState, Replica, TaskUser
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.task_user import TaskUsers, why_not_named
from yardmaster_schemas.resources import is_fraction
from yardmaster_schemas.run_as import RunAs


class UserPool:
    """Gives each attempt a user that no other attempt has, or the one that its job names.

    The replicas of an attempt on this node share it. The ledger has the user of each replica, so a
    later agent process finds the same users in use. A user stays in use until the files of all its
    replicas are removed.
    """

    def __init__(
        self, users: TaskUsers | None, state: AgentState, data_dir: Path, *, by_mps: bool
    ) -> None:
        """Without `users`, replicas have none: they run as the agent's own user.

        `by_mps`: MPS limits replicas with a fraction of a GPU; it serves one user at a time, so
        these replicas share one. The files of replicas are below `data_dir`.
        """
        self._users = users
        self._data_dir = data_dir
        self._by_mps = by_mps
        #: The number of replicas of each user.
        self._replicas: Counter[int] = Counter()
        self._newest = 0
        for replica in state.replicas.values():
            if replica.user is not None and not replica.directory_removed:
                self._take(replica.user, 1)

    def give(self, attempt: Sequence[Replica]) -> str | None:
        """Give the replicas of a new attempt their user; return the reason if they cannot have one.

        A user that the job names is not in the pool: the node neither counts nor ends it.
        """
        run_as = attempt[0].assignment.run_as
        in_common = self._by_mps and any(is_fraction(x.assignment.gpu_milli) for x in attempt)
        if run_as is not None and (reason := self._why_not(run_as, in_common=in_common)):
            return f"this node cannot run it as {run_as} (run_as): {reason}"
        if self._users is None:
            return None
        user: TaskUser | None
        if run_as is not None:
            user = self._users.named(run_as)
        elif in_common:
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

        If there are any, kill them; ask again later. A user of one replica alone ended with it. Of
        a user that a job named, the executor ended what is the replica's, and all else stays.
        """
        if user is None or user.named or not user.shared or self._replicas[user.uid] > 1:
            return True
        left = procfs.of_users(range(user.uid, user.uid + 1))
        for seen in left:
            procfs.kill(seen)
        return not left

    def release(self, user: TaskUser | None) -> None:
        """Count one replica less for a user; without replicas, another attempt may have it."""
        if user is not None and not user.named:
            self._replicas[user.uid] -= 1
            if self._replicas[user.uid] <= 0:
                del self._replicas[user.uid]

    def _why_not(self, run_as: RunAs, *, in_common: bool) -> str | None:
        """Return why replicas cannot run as a user that their job names; None if they can."""
        if self._users is None:
            return "its tasks run as the agent's own user (yard nodes -o wide: ISOLATION none)"
        if in_common:
            return "MPS serves one user at a time, so tasks with fractions of GPUs share one"
        return why_not_named(run_as, self._users, self._data_dir)

    def _take(self, user: TaskUser, replicas: int) -> None:
        if user.named:
            return
        self._replicas[user.uid] += replicas
        self._newest = user.uid
