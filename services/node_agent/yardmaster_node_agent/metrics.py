"""The agent's metrics: one for every limit, and those that operators set alarms on."""

from yardmaster_runtime.telemetry.port import Telemetry


class AgentMetrics:
    """One per agent process; all incarnations share it."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter, gauge = telemetry.counter, telemetry.gauge
        self.assignments = counter(
            "assignments",
            "Records of the node's assignments, by type and outcome.",
            "type",
            "outcome",
        )
        self.assignments_lost = counter(
            "assignments_lost", "Replicas released because their assignment was lost."
        )
        self.replicas = gauge("replicas", "Replicas that hold slots on this node.")
        self.never_started = counter("never_started", "Replicas released without a start.")
        self.starts_waiting = gauge("starts_waiting", "Replicas that wait for their turn to start.")
        self.started = counter("started", "Replicas started.")
        self.killed = counter("killed", "Replicas killed at the end of their grace, or revoked.")
        self.runs_containers = gauge("runs_containers", "1 while the node takes images, else 0.")
        self.lost_exits = counter("lost_exits", "Replicas whose exit is not known.")
        self.facts_waiting = gauge("facts_waiting", "Facts not yet in the log.")
        self.reports_coalesced = counter(
            "reports_coalesced",
            "Reports of tasks that a newer report replaced before they were sent.",
            "kind",
        )
        self.appends = counter("appends", "Batches appended, by topic.", "topic")
        self.append_unknown = counter("append_unknown", "Appends of unknown outcome, retried.")
        self.log_retries = counter("log_retries", "Calls retried because the log was unavailable.")
        self.heartbeats_missed = counter("heartbeats_missed", "Heartbeats that were not written.")
        self.code_packages = counter(
            "code_packages",
            "Code packages unpacked for replicas, by where they were found: cache, store or git.",
            "source",
        )
        self.code_cache_bytes = gauge("code_cache_bytes", "Bytes of the cached code packages.")
        self.code_evicted = counter(
            "code_evicted", "Code packages removed from the cache because of its limit."
        )
        self.artifacts = ArtifactMetrics(telemetry)
        self.output_bytes = counter("output_bytes", "Bytes of output shipped.")
        self.output_cut = counter("output_cut", "Replicas whose output went over its limit.")
        self.output_failed = counter("output_failed", "Batches of output to retry later.")
        self.requests = counter("api_requests", "Requests of tasks, by status.", "status")
        self.connections_refused = counter(
            "api_connections_refused", "Connections refused because MAX_CONNECTIONS were open."
        )
        self.joins_refused = counter(
            "joins_refused", "Joins that the cell refused, by code.", "code"
        )
        self.placed_elsewhere = counter(
            "placed_elsewhere", "Replicas killed because the log places their attempt elsewhere."
        )
        self.incarnations = counter("incarnations", "Incarnations started, each with a new ledger.")
        self.fenced = counter(
            "fenced", "Incarnations ended because no heartbeat was acknowledged in time."
        )
        self.renewals_failed = counter(
            "renewals_failed",
            "Acknowledged heartbeats that could not be stored for the runners of fenced tasks.",
        )


class ArtifactMetrics:
    """The metrics of kept artifacts."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter = telemetry.counter
        self.waiting = telemetry.gauge(
            "artifacts_waiting", "Ended replicas whose artifacts are not kept yet."
        )
        self.files = counter("artifact_files", "Files kept as artifacts.")
        self.size = counter("artifact_bytes", "Bytes kept as artifacts.")
        self.left_out = counter(
            "artifacts_left_out", "Paths that a job wants to keep and that were left out."
        )
        self.failed = counter(
            "artifacts_failed", "Replicas whose artifacts could not be kept, by cause.", "cause"
        )
