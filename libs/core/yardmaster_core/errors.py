"""The errors of the core: log and state disagree, or a name is unknown.

```
CoreError   ImpossibleEvent  UnknownPolicy  UnknownPlacement  BadPolicyOptions  SnapshotUnreadable
            ForeignRecord  ChainBroken
```
"""

from yardmaster_schemas.errors import YardmasterError


class CoreError(YardmasterError):
    """The core failed: {found}."""

    code = "core"


class ImpossibleEvent(CoreError):
    """{event} contradicts the state: {found}. The log and the state folded from it disagree; run
    `yard replay verify`.
    """

    code = "impossible_event"


class UnknownPolicy(CoreError):
    """There is no policy {name} version {version}. Known: {known}."""

    code = "unknown_policy"


class UnknownPlacement(CoreError):
    """There is no placement strategy {name}. Known: {known}."""

    code = "unknown_placement"


class BadPolicyOptions(CoreError):
    """Policy {name} does not accept these options: {found}."""

    code = "bad_policy_options"


class SnapshotUnreadable(CoreError):
    """The snapshot is not a state of this version: {found}. It is skipped and the log is read
    instead.
    """

    code = "snapshot_unreadable"


class ForeignRecord(CoreError):
    """The record at {topic} offset {offset} is not from the topic's state machine: {found}. The
    reader stops here.
    """

    code = "foreign_record"


class ChainBroken(CoreError):
    """{topic} offset {offset}: {found}. A record of the log was changed, removed or added; the
    reader stops here.
    """

    code = "chain_broken"
