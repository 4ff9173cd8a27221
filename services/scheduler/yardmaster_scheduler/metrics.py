"""Metrics of the relay and of the silence watch; the runtime counts cycles."""

from yardmaster_runtime.telemetry.port import Telemetry


class ShellMetrics:
    """The metrics of relay and silence watch; all terms of a service share one object."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        counter, gauge = telemetry.counter, telemetry.gauge
        self.relayed = counter("relayed", "Decisions copied to nodes' topics.")
        self.relay_lag = gauge("relay_lag", "Records of decisions that are not relayed yet.")
        self.relay_retries = counter("relay_retries", "Retried appends to nodes' topics.")
        self.relay_behind = gauge(
            "relay_behind", "Nodes whose topic refuses appends; they miss copies."
        )
        self.copies_lost = counter("relay_copies_lost", "Times that a node's topic lost copies.")
        self.copied_again = counter(
            "relay_copied_again", "Decisions copied again to nodes' topics that lost them."
        )
        self.topics = gauge("assignment_topics", "Nodes whose topic is known to exist.")
        self.heartbeats = counter("heartbeats", "Heartbeats received.")
        self.heartbeats_ignored = counter(
            "heartbeats_ignored", "Heartbeats with a wrong source or of an unknown node."
        )
        self.deaf = counter(
            "deaf_seconds", "Seconds without reading heartbeats, not counted as silence."
        )
        self.heartbeats_lost = counter(
            "heartbeats_lost",
            "Times that heartbeats were lost unread; every node then gets its full timeout again.",
        )
        self.silences = counter("silences", "Silent nodes observed.")
