"""What a log is seen to do, as metrics of the service that opened it."""

from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import ASSIGNMENTS_PREFIX


class EventLogMetrics:
    """Made once a service, for the one log that it opens; see `yardmaster_eventlog.metrics`."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter = telemetry.counter
        self._waiting = telemetry.gauge("log_appends_waiting", "Batches not acknowledged yet.")
        self._appends = counter("log_appends", "Batches acknowledged.", "topic")
        self._appended = counter("log_records_appended", "Records acknowledged.", "topic")
        self._seconds = telemetry.histogram(
            "log_append_seconds", "From asking for an append to its acknowledgement.", "topic"
        )
        self._refused = counter(
            "log_appends_refused", "Batches not written, by the error's code.", "topic", "code"
        )
        self._unknown = counter("log_appends_unknown", "Batches of unknown outcome.", "topic")
        self._read = counter("log_records_read", "Records read.", "topic")
        self._connects = counter(
            "log_connects", "Producers and consumers connected, anew or again (Kafka)."
        )
        self._retries = counter(
            "log_calls_retried", "Calls made again while the brokers did not answer (Kafka)."
        )
        self._abandoned = counter(
            "log_producers_abandoned", "Producers thrown away, outcomes unknown (Kafka)."
        )

    def waiting(self, change: int) -> None:
        """So many more batches wait."""
        self._waiting.inc(change)

    def appended(self, topic: str, records: int, seconds: float) -> None:
        """A batch was acknowledged."""
        topic = family(topic)
        self._appends.labels(topic).inc()
        self._appended.labels(topic).inc(records)
        self._seconds.labels(topic).observe(seconds)

    def refused(self, topic: str, code: str) -> None:
        """A batch was not written."""
        self._refused.labels(family(topic), code).inc()

    def unknown(self, topic: str) -> None:
        """Whether a batch was written is not known."""
        self._unknown.labels(family(topic)).inc()

    def read(self, topic: str, records: int) -> None:
        """Records were given to a reader."""
        self._read.labels(family(topic)).inc(records)

    def connected(self) -> None:
        """A producer or a consumer was connected."""
        self._connects.inc()

    def retried(self) -> None:
        """A call was made again."""
        self._retries.inc()

    def abandoned(self) -> None:
        """A producer was thrown away."""
        self._abandoned.inc()


def family(topic: str) -> str:
    """The topic as a label: all nodes' assignments are one, since a label is kept for ever."""
    return "assignments" if topic.startswith(ASSIGNMENTS_PREFIX) else topic
