"""The errors of event logs.

```
LogError   BatchTooLarge  UnknownTopic  LogClosed  ReadPastEnd  OffsetGone  LogTruncated
           LogInUse  NotOurLog  OtherLogFormat  LogCorrupt  LogUnavailable
           AppendOutcomeUnknown
           LogNotTrusted  LogAccessRefused  TlsUnusable
           DetailsUnreadable  SnapshotCorrupt  SnapshotsUnavailable
```
"""

from yardmaster_schemas.errors import YardmasterError


class LogError(YardmasterError):
    """The event log refused or failed: {found}."""

    code = "log"


class BatchTooLarge(LogError):
    """A batch of {size} bytes exceeds the limit of {limit} bytes of topic {topic}. Nothing was
    written. Decide in smaller cycles.
    """

    code = "batch_too_large"


class UnknownTopic(LogError):
    """The log has no topic {topic} with partition {partition}. Create it, or check the name."""

    code = "unknown_topic"


class LogClosed(LogError):
    """The log was closed; open it again."""

    code = "log_closed"


class ReadPastEnd(LogError):
    """Offset {offset} of {topic} was requested, but the topic ends at {end}: the reader has read
    a longer log than this one.
    """

    code = "read_past_end"


class OffsetGone(LogError):
    """Offset {offset} of {topic} is no longer stored; the topic starts at {start}."""

    code = "offset_gone"


class LogTruncated(LogError):
    """The log lost its end: {found}. Nothing was written since. Stop all services; then restore the
    log from a backup, or shorten it with `yard log cut`.
    """

    code = "log_truncated"


class LogInUse(LogError):
    """A service writes to the log: {found}. Stop all services of all cells, also the agents, and
    cut the log again, with a new copy.
    """

    code = "log_in_use"


class NotOurLog(LogError):
    """{path} is not a Yardmaster log: {found}. Give the path of a log, or a path that is free."""

    code = "not_our_log"


class OtherLogFormat(LogError):
    """{path} is a log of {found}, and this version of Yardmaster reads and writes only format
    {known}. Nothing was changed. Start with an empty log, or use the version that wrote this one.
    """

    code = "other_log_format"


class LogCorrupt(LogError):
    """The log file {path} is damaged: {found}. Restore it from a backup."""

    code = "log_corrupt"


class LogUnavailable(LogError):
    """The log cannot be reached: {found}. Nothing was written. Try again."""

    code = "log_unavailable"


class LogNotTrusted(LogError):
    """Kafka's broker {broker} is not trusted: {found}. Give the file of the authority that signed
    its certificate (YARD_KAFKA__SSL_CAFILE) and an address that the certificate names.
    """

    code = "log_not_trusted"


class LogAccessRefused(LogError):
    """Kafka's broker {broker} refuses user {user} with {mechanism}: {found}. Check
    YARD_KAFKA__SASL_USERNAME, _SASL_MECHANISM and the password or its file.
    """

    code = "log_access_refused"


class TlsUnusable(LogError):
    """TLS to Kafka cannot be set up with {path}: {found}. Give PEM files that this service can
    read; only this service may read the key.
    """

    code = "tls_unusable"


class AppendOutcomeUnknown(LogError):
    """Whether a batch was written to {topic} is unknown ({found}). Re-read the topic's tail before
    deciding again.
    """

    code = "append_outcome_unknown"


class DetailsUnreadable(LogError):
    """The details at offset {offset} of details/{partition} cannot be used: {found}."""

    code = "details_unreadable"


class SnapshotCorrupt(LogError):
    """Snapshot {name} cannot be used: {found}. The snapshot before it is used instead; the log
    has everything.
    """

    code = "snapshot_corrupt"


class SnapshotsUnavailable(LogError):
    """The snapshots at {url} cannot be reached: {found}. The log has everything, but restoring
    takes longer.
    """

    code = "snapshots_unavailable"
