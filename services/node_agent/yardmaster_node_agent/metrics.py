"""The agent's metrics: one for every limit, and what an operator alarms on."""

from yardmaster_runtime.telemetry.port import Telemetry


class AgentMetrics:
    """Made once an agent; all its incarnations share it."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter, gauge = telemetry.counter, telemetry.gauge
        self.assignments = counter(
            "assignments",
            "Records of the node's assignments, by type and outcome.",
            "type",
            "outcome",
        )
        self.assignments_lost = counter(
            "assignments_lost", "Replicas released because their assignment never came."
        )
        self.replicas = gauge("replicas", "Replicas that hold slots here.")
        self.never_started = counter("never_started", "Replicas released without a start.")
        self.started = counter("started", "Replicas started.")
        self.killed = counter("killed", "Replicas killed at the end of their grace, or revoked.")
        self.lost_exits = counter("lost_exits", "Replicas whose exit was not seen.")
        self.facts_waiting = gauge("facts_waiting", "Facts not yet in the log.")
        self.reports_coalesced = counter(
            "reports_coalesced",
            "Reports of tasks that a newer one replaced before they were sent.",
            "kind",
        )
        self.appends = counter("appends", "Batches appended, by topic.", "topic")
        self.append_unknown = counter("append_unknown", "Appends of unknown outcome, tried again.")
        self.log_retries = counter("log_retries", "Calls tried again: the log was unavailable.")
        self.heartbeats_missed = counter("heartbeats_missed", "Heartbeats that were not written.")
        self.output_bytes = counter("output_bytes", "Bytes of output shipped.")
        self.output_cut = counter("output_cut", "Replicas whose output went over its limit.")
        self.output_failed = counter("output_failed", "Batches of output tried again later.")
        self.requests = counter("api_requests", "Requests of tasks, by status.", "status")
        self.connections_refused = counter("api_connections_refused", "Over MAX_CONNECTIONS.")
        self.joins_refused = counter(
            "joins_refused", "Joins that the cell refused, by the code.", "code"
        )
        self.incarnations = counter("incarnations", "Ledgers begun.")
        self.fenced = counter("fenced", "Times that all was killed for want of acknowledgement.")
        self.renewals_failed = counter(
            "renewals_failed", "Heartbeats that could not be noted for the runners of fenced tasks."
        )
