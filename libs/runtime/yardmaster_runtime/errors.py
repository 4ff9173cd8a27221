"""Errors of running a state machine on a log.

```
MachineError   Fenced  ReplayDiverged  UnknownRules  UnwritableDecision  CycleTooLarge
               DecisionRefused  DecisionNotEnabled  BeforeFirstCycle  UnknownTask
               LogBeginsLater
WorkerKilled
```
"""

from yardmaster_schemas.errors import YardmasterError


class MachineError(YardmasterError):
    """A state machine cannot continue: {found}."""

    code = "machine"


class Fenced(MachineError):
    """Term {term} of {machine} is over: {topic} offset {offset} belongs to term {other}.

    Another leader took over. This one steps down; its uncommitted records do not count.
    """

    code = "fenced"


class ReplayDiverged(MachineError):
    """{topic} partition {partition} offset {offset} (cycle {cycle}): {found}.

    The log does not lead to the state that its commit names; run `yard replay verify`.
    """

    code = "replay_diverged"


class UnknownRules(MachineError):
    """{topic} offset {offset}: rules {rules} decided cycle {cycle}; this program has rules {known}.

    Upgrade the program to the version that wrote the log, or to a later one.
    """

    code = "unknown_rules"


class UnwritableDecision(MachineError):
    """{machine} decided a {type} that its schema refuses: {found}. The cycle was not written."""

    code = "unwritable_decision"


class CycleTooLarge(MachineError):
    """A record of a cycle has {size} bytes, {topic} accepts {limit}. The cycle does not count."""

    code = "cycle_too_large"


class DecisionRefused(MachineError):
    """The {type} about {subject} cannot be written: {found}. Its cycle was not written; the next
    cycle records the decision `observed` instead.
    """

    code = "decision_refused"


class DecisionNotEnabled(MachineError):
    """{machine} decided a {type}, which rules {introduced} introduce, but rules {rules} are in
    force. The cycle was not written. This is a defect of the program: report it.
    """

    code = "decision_not_enabled"


class LogBeginsLater(MachineError):
    """The log no longer begins with its first record: {expired}. {needs}"""

    code = "log_begins_later"


class BeforeFirstCycle(MachineError):
    """The log starts with cycle {cycle} at {at}, after the requested time. Use cycle:{cycle}
    or a later time.
    """

    code = "before_first_cycle"


class UnknownTask(MachineError):
    """There is no task {task_id} at {where}. It was not submitted by then."""

    code = "unknown_task"


class WorkerKilled(YardmasterError):
    """A worker process was killed, for example because the machine ran out of memory. Repeat the
    command with fewer workers (`--workers 1`).
    """

    code = "worker_killed"
