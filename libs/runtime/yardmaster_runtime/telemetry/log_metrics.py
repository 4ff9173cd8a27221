"""Metrics of the event log that a service opened."""

from typing import Final

from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import ASSIGNMENTS_PREFIX

#: A clock that differs from a broker's by more than this is reported.
CLOCK_ALARM_S: Final = 60.0


class EventLogMetrics:
    """Implements `yardmaster_eventlog.metrics.LogMetrics`; made once per service."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        #: Topics whose broker's clock differs from this host's, as reported last.
        self._differing: set[str] = set()
        counter = telemetry.counter
        waiting = telemetry.gauge("log_appends_waiting", "Batches not acknowledged yet.")
        self.waiting = waiting.inc
        self._appends = counter("log_appends", "Batches acknowledged.", "topic")
        self._appended = counter("log_records_appended", "Records acknowledged.", "topic")
        self._seconds = telemetry.histogram(
            "log_append_seconds", "From the append call to its acknowledgement.", "topic"
        )
        self._refused = counter(
            "log_appends_refused", "Batches not written, by the error's code.", "topic", "code"
        )
        self._unknown = counter("log_appends_unknown", "Batches of unknown outcome.", "topic")
        self._ahead = telemetry.gauge(
            "clock_ahead_seconds",
            "Seconds that this host's clock is ahead of the clock of the topic's broker.",
            "topic",
        )
        self._read = counter("log_records_read", "Records read.", "topic")
        self.connected = counter("log_connects", "Kafka producers and consumers connected.").inc
        self.retried = counter("log_calls_retried", "Calls repeated: Kafka was unavailable.").inc
        self.abandoned = counter(
            "log_producers_abandoned", "Kafka producers discarded, outcomes unknown."
        ).inc

    def appended(self, topic: str, records: int, seconds: float) -> None:
        topic = family(topic)
        self._appends.labels(topic).inc()
        self._appended.labels(topic).inc(records)
        self._seconds.labels(topic).observe(seconds)

    def refused(self, topic: str, code: str) -> None:
        self._refused.labels(family(topic), code).inc()

    def unknown(self, topic: str) -> None:
        self._unknown.labels(family(topic)).inc()

    def read(self, topic: str, records: int) -> None:
        self._read.labels(family(topic)).inc(records)

    def clock_ahead(self, topic: str, seconds: float) -> None:
        """Record the difference; report a large one once, until it is small again."""
        topic = family(topic)
        self._ahead.labels(topic).set(seconds)
        if abs(seconds) <= CLOCK_ALARM_S:
            self._differing.discard(topic)
        elif topic not in self._differing:
            self._differing.add(topic)
            self._telemetry.warn("clock_differs", topic=topic, ahead_s=round(seconds, 3))


def family(topic: str) -> str:
    """The topic as a label: the topics of all nodes' assignments share one, to bound the series."""
    return "assignments" if topic.startswith(ASSIGNMENTS_PREFIX) else topic
