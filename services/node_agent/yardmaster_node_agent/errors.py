"""The errors of the agent.

```
AgentError   StartFailed  (ExecutorFailed  RunRefused)  LedgerCorrupt  LedgerInUse  LedgerUnwritable
             AssignmentUnreadable  NotEnrolled  NodeTaken  DataWritable
             TaskUsersUnusable  MpsUnusable  NotRenewed  SecretMissing
             GitFailed  (CommitMissing  CommitRefused  CommitUnusable)
```
"""

from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.reasons import StartFailure


class AgentError(YardmasterError):
    """The node agent failed: {found}."""

    code = "agent"


class StartFailed(AgentError):
    """The agent cannot start {replica}: {found}."""

    code = "start_failed"

    @property
    def failure(self) -> StartFailure:
        """The cause that the agent reports to the scheduler."""
        failure = self.fields.get("failure")
        return failure if isinstance(failure, StartFailure) else StartFailure.OTHER


class ExecutorFailed(StartFailed):
    """Not started: {found}."""

    code = "executor_failed"


class RunRefused(StartFailed):
    """The agent does not start {replica}: {found}."""

    code = "run_refused"


class LedgerCorrupt(AgentError):
    """The ledger {path} is damaged: {found}.

    To let the node join as a new incarnation, move the ledger away; running tasks are then killed.
    """

    code = "ledger_corrupt"


class LedgerInUse(AgentError):
    """Another agent holds the ledger {path}. Stop it, or give this one its own data directory."""

    code = "ledger_in_use"


class LedgerUnwritable(AgentError):
    """The ledger {path} cannot be written: {found}. No task starts without it; running tasks
    continue.
    """

    code = "ledger_unwritable"


class AssignmentUnreadable(AgentError):
    """{topic} offset {offset} cannot be read: {found}. Upgrade this agent; running tasks
    continue.
    """

    code = "assignment_unreadable"


class NotEnrolled(AgentError):
    """Node {node} has no topic ({topic}) after {waited_s} s. Enroll it with `yard nodes
    enroll {node}`, then start the agent again.
    """

    code = "not_enrolled"


class NodeTaken(AgentError):
    """Another agent runs as node {node}; this one runs no tasks.

    Give each host its own YARD_AGENT_NODE. To let this host have the name, stop the other agent; if
    this one ends again, move its ledger away.
    """

    code = "node_taken"


class DataWritable(AgentError):
    """Other users may have changed {path}: {found}. The agent would run what it says.

    If you trust its content, run: chown and chmod 600. To let the node join as a new incarnation,
    move it away; running tasks are then killed.
    """

    code = "data_writable"


class TaskUsersUnusable(AgentError):
    """Tasks cannot run as the users {users}: {found}. Correct that, or set YARD_AGENT_TASK_USERS to
    other users, or to `same` for the agent's own.
    """

    code = "task_users_unusable"


class CgroupsUnusable(AgentError):
    """Tasks cannot be limited by groups in the cgroup {group}: {found}. Correct that, or set
    YARD_AGENT_CGROUPS to `auto`, so that tasks are limited where that is possible.
    """

    code = "cgroups_unusable"


class MpsUnusable(AgentError):
    """Fractions of GPUs cannot be enforced through MPS: {found}. Correct that, or remove
    YARD_AGENT_MPS, so that the node joins and reports that it does not enforce fractions.
    """

    code = "mps_unusable"


class NotRenewed(AgentError):
    """The renewal of the node's lease cannot be written to {path}: {found}. The runners kill the
    tasks of pools with `fence: kill` when the lease expires. Free space on the disk of the agent's
    data directory.
    """

    code = "not_renewed"


class SecretMissing(AgentError):
    """A job gets no secret here: {found}."""

    code = "secret_missing"


class GitFailed(AgentError):
    """The commit cannot be fetched here: {found}."""

    code = "git_failed"
    #: The cause that the agent reports to the scheduler.
    failure = StartFailure.OTHER


class CommitMissing(GitFailed):
    """The server has no such commit: {found}. Correct run.git."""

    code = "commit_missing"
    failure = StartFailure.COMMIT_MISSING


class CommitRefused(GitFailed):
    """The server does not give the commit to this node: {found}."""

    code = "commit_refused"
    failure = StartFailure.COMMIT_REFUSED


class CommitUnusable(GitFailed):
    """The commit cannot be used: {found}."""

    code = "commit_unusable"
    failure = StartFailure.COMMIT_UNUSABLE
