"""Metrics (prometheus_client), log lines (structlog) and traces of one service; no globals."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

import structlog
from opentelemetry.trace import Tracer
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from yardmaster_runtime.telemetry.level import LogLevel
from yardmaster_runtime.telemetry.tracing import OFF, TraceSettings

#: Seconds; from a durable append to a slow takeover.
BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)

# prometheus_client has this switch for the whole process only. Without the call, each counter and
# histogram has one more series with its creation time, which no alarm and no query uses.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Telemetry:
    """One service's metrics, log lines and traces.

    Metrics are named `yard_<service>_<name>`. A log line is one JSON object on `stream` (standard
    error), without text of users or secrets; `event` is a stable code for alarms. `tracer` is OFF
    until `trace_to`. Lines below `level` are not written.
    """

    def __init__(
        self,
        service: str,
        *,
        now_ms: Callable[[], int],
        stream: TextIO | None = None,
        registry: CollectorRegistry | None = None,
        level: LogLevel = "info",
    ) -> None:
        self.service = service
        self.now_ms = now_ms
        self.registry = registry or CollectorRegistry()
        self.tracer: Tracer = OFF
        self._stream = stream or sys.stderr
        self._level: LogLevel = level
        self._cell: str | None = None
        self._close_traces: Callable[[], None] = lambda: None
        self._labeled = _Labeled()
        self.registry.register(self._labeled)
        self._logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(self._stream),
            processors=[self._line, structlog.processors.JSONRenderer(default=str)],
            wrapper_class=structlog.make_filtering_bound_logger(level),
        ).bind()
        self.info = self._logger.info
        self.warn = self._logger.warning
        self.error = self._logger.error

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """A count that only rises; make it once, when the service starts."""
        return Counter(f"yard_{self.service}_{name}", about, labels, registry=self.registry)

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """A value that rises and falls."""
        return Gauge(f"yard_{self.service}_{name}", about, labels, registry=self.registry)

    def histogram(
        self, name: str, about: str, *labels: str, buckets: Sequence[float] = BUCKETS
    ) -> Histogram:
        """A distribution of seconds."""
        return Histogram(
            f"yard_{self.service}_{name}", about, labels, registry=self.registry, buckets=buckets
        )

    def gauge_table(self, name: str, about: str, *labels: str) -> "GaugeTable":
        """A gauge whose series are replaced together, which costs less than one by one."""
        table = GaugeTable(f"yard_{self.service}_{name}", about, labels)
        self.registry.register(table)
        return table

    def before_exposition(self, update: Callable[[], None]) -> None:
        """Call `update` at each exposition, before the metrics that are made after this call."""
        self.registry.register(_Before(update))

    def for_cell(self, cell: str) -> "Telemetry":
        """The telemetry of one of the process's cells, named in each of its samples and lines.

        Call it after `trace_to`; a second call for a cell resets the cell's metrics.
        """
        telemetry = self._with(self._labeled.start("cell", cell))
        telemetry._cell = cell
        return telemetry

    def for_node(self, node: str) -> "Telemetry":
        """The telemetry of one of several node agents in a process, named in each of its samples.

        A second call for a node resets the node's metrics.
        """
        return self._with(self._labeled.start("node", node))

    def part(self) -> "Telemetry":
        """Telemetry whose metrics are not exposed except within `exposed`."""
        telemetry = self._with(CollectorRegistry())
        telemetry._cell = self._cell
        return telemetry

    @contextmanager
    def exposed(self, part: "Telemetry") -> Iterator[None]:
        """A context in which the metrics of `part` are exposed with those of this telemetry."""
        self.registry.register(part.registry)
        try:
            yield
        finally:
            self.registry.unregister(part.registry)

    def _with(self, registry: CollectorRegistry) -> "Telemetry":
        telemetry = Telemetry(
            self.service,
            now_ms=self.now_ms,
            stream=self._stream,
            registry=registry,
            level=self._level,
        )
        telemetry.tracer = self.tracer
        return telemetry

    def trace_to(self, settings: TraceSettings, instance: str) -> None:
        """Send spans to the settings' endpoint, if there is one; call it once, at the start.

        Raises: SecretUnreadable.
        """
        if settings.endpoint is None:
            return
        from yardmaster_runtime.telemetry.otlp import open_provider

        exported = self.counter("spans_exported", "Spans that the collector took.")
        dropped = self.counter(
            "spans_dropped",
            "Spans that were dropped: the queue was full, or the export failed.",
            "why",
        )
        provider = open_provider(settings, self.service, instance, exported, dropped)
        self.tracer, self._close_traces = provider.get_tracer("yardmaster"), provider.shutdown

    def close(self) -> None:
        """Send the waiting spans, for a limited time."""
        self._close_traces()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _line(
        self, logger: object, level: str, fields: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        return {
            "at_ms": self.now_ms(),
            "level": level,
            "service": self.service,
            "event": fields.pop("event"),
            **({} if self._cell is None else {"cell": self._cell}),
            **fields,
        }


class GaugeTable(Collector):
    """A gauge whose series are replaced together by an assignment to `rows`.

    `rows` has the value of each series by the values of its labels, in the order of the labels.
    """

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self._name, self._about, self._labels = name, about, labels
        self.rows: Mapping[tuple[str, ...], float] = {}

    def collect(self) -> Iterable[Metric]:
        """All series as one family."""
        metric = Metric(self._name, self._about, "gauge")
        metric.samples = [
            Sample(self._name, dict(zip(self._labels, values, strict=True)), value)
            for values, value in self.rows.items()
        ]
        return (metric,)


class _Before(Collector):
    """Calls a function when the metrics are collected; has no metrics itself."""

    def __init__(self, update: Callable[[], None]) -> None:
        self._update = update

    def collect(self) -> Iterable[Metric]:
        self._update()
        return ()


class _Labeled(Collector):
    """The metrics of several cells or nodes; each metric is one family with a label for the cell
    or the node.
    """

    def __init__(self) -> None:
        self._registries: dict[tuple[str, str], CollectorRegistry] = {}

    def start(self, label: str, value: str) -> CollectorRegistry:
        self._registries[label, value] = registry = CollectorRegistry()
        return registry

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for (label, value), registry in self._registries.items():
            for family in registry.collect():
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                merged.samples += [
                    sample._replace(labels={label: value, **sample.labels})
                    for sample in family.samples
                ]
        return families.values()
