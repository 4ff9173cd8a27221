"""What running a machine on a log may raise.

```
MachineError   Fenced  ReplayDiverged  UnknownRules  UnwritableDecision  CycleTooLarge
               DecisionRefused  UnknownTask
```
"""

from yardmaster_schemas.errors import YardmasterError


class MachineError(YardmasterError):
    """A state machine cannot go on: {found}."""

    code = "machine"


class Fenced(MachineError):
    """Term {term} of {machine} is over: {topic} offset {offset} belongs to term {other}.

    Another leader took over; this one steps down, and nothing it had not committed counts.
    """

    code = "fenced"


class ReplayDiverged(MachineError):
    """{topic} partition {partition} offset {offset} (cycle {cycle}): {found}.

    The log does not lead where its commits say; run `yard replay verify`.
    """

    code = "replay_diverged"


class UnknownRules(MachineError):
    """{topic} offset {offset}: rules {rules} decided cycle {cycle}; this program has rules {known}.

    Upgrade it to the version that wrote the log, or to a later one.
    """

    code = "unknown_rules"


class UnwritableDecision(MachineError):
    """{machine} decided a {type} that its schema refuses: {found}. The cycle was not written."""

    code = "unwritable_decision"


class CycleTooLarge(MachineError):
    """One record of a cycle takes {size} bytes, but {topic} takes {limit}. Nothing of it counts."""

    code = "cycle_too_large"


class DecisionRefused(MachineError):
    """The {type} about {subject} cannot be written: {found}. Nothing of its cycle was written; the
    next one records that instead, as the decision `observed`.
    """

    code = "decision_refused"


class UnknownTask(MachineError):
    """There is no task {task_id} at {where}. It may not have been admitted yet, or was rejected."""

    code = "unknown_task"
