"""The metrics of the scheduler's shell; those of its cycles are the runtime's."""

from yardmaster_runtime.telemetry.port import Telemetry


class ShellMetrics:
    """Made once a service; the shells of all its terms share it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        counter, gauge = telemetry.counter, telemetry.gauge
        self.relayed = counter("relayed", "Decisions copied to nodes' topics.")
        self.relay_lag = gauge("relay_lag", "Records of decisions not relayed yet.")
        self.relay_retries = counter("relay_retries", "Appends to nodes' topics tried again.")
        self.relay_behind = gauge(
            "relay_behind", "Nodes whose topic takes nothing; they miss copies."
        )
        self.topics = gauge("assignment_topics", "Nodes whose topic is known to be there.")
        self.heartbeats = counter("heartbeats", "Heartbeats heard.")
        self.heartbeats_ignored = counter(
            "heartbeats_ignored", "Heartbeats that are no node's own, or of an unknown node."
        )
        self.deaf = counter("deaf_seconds", "Seconds without hearing that count as no silence.")
        self.silences = counter("silences", "Times that a node was found silent.")
