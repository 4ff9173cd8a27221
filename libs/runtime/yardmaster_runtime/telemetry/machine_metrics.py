"""Metrics of a machine's runtime: one for each limit, and those that alarms use."""

from yardmaster_runtime.telemetry.port import Telemetry


class RuntimeMetrics:
    """Made once per service; leader, standby and restore share it through all terms."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        counter, gauge = telemetry.counter, telemetry.gauge
        self.cycles = counter("cycles", "Cycles committed.")
        self.cycles_cut = counter("cycles_cut", "Cycles cut at max_decisions.")
        self.cycle_seconds = telemetry.histogram(
            "cycle_seconds", "From the first input to the commit read back."
        )
        self.append_seconds = telemetry.histogram("append_seconds", "Duration of a cycle's append.")
        self.inputs = counter("inputs", "Records taken, by topic.", "topic")
        self.inputs_cut = counter("inputs_cut", "Cycles that took max_inputs.", "topic")
        self.input_lag = gauge("input_lag", "Records read but not taken, by topic.", "topic")
        self.decisions = counter("decisions", "Decisions committed.")
        self.batches = counter("batches", "Batches appended; a cycle has several when it is large.")
        self.batches_too_large = counter("batches_too_large", "Batches that the log refused.")
        self.refused = counter("records_refused", "Claims refused, by topic.", "topic", "code")
        self.quarantine_left_out = counter(
            "quarantine_left_out", "Refused records not copied into quarantine."
        )
        self.observations_waiting = gauge("observations_waiting", "Observations not yet recorded.")
        self.observations_dropped = counter(
            "observations_dropped", "Observations over max_observations."
        )
        self.dropped = gauge("records_dropped", "Records of fenced leaders in the own topic.")
        self.term = gauge("term", "The newest term in the own topic.")
        self.rules = gauge("rules", "The rules in force: those of the newest cycle.")
        self.rules_newest = gauge("rules_newest", "The newest rules that this program knows.")
        self.leading = gauge("leading", "1 while this process leads.")
        self.stopped = gauge("stopped", "1 after the state machine has stopped.")
        self.terms_lost = counter("terms_lost", "Terms that another incarnation started first.")
        self.fenced = counter("fenced", "Takeovers by another leader.")
        self.decisions_refused = counter(
            "decisions_refused", "Allocations too large to write; their tasks ended."
        )
        self.outcomes_unknown = counter("outcomes_unknown", "Appends whose outcome is not known.")
        self.retries = counter("log_retries", "Calls retried while the log was unavailable.")
        self.standby_lag = gauge("standby_lag", "Records of the own topic not yet folded.")
        self.restore_seconds = telemetry.histogram(
            "restore_seconds", "Duration of a restore: snapshot and tail."
        )
        self.clock_behind_ms = gauge(
            "clock_behind_ms",
            "Milliseconds that the log's clock is behind the time of the newest cycle.",
        )
        self.snapshots = counter("snapshots", "Snapshots stored.")
        self.snapshots_failed = counter("snapshots_failed", "Snapshots that could not be stored.")
        self.snapshots_unavailable = counter(
            "snapshot_store_unavailable",
            "Restores that read the log because the store failed or did not answer.",
        )
        self.snapshots_skipped = counter("snapshots_unusable", "Snapshots skipped as unusable.")
        self.snapshot_seconds = telemetry.histogram(
            "snapshot_seconds", "Duration of a dump of the state."
        )
