"""Metrics (prometheus_client), log lines (structlog) and traces of one service; no globals."""

import sys
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TextIO

import structlog
from opentelemetry.trace import Tracer
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.registry import Collector

from yardmaster_runtime.telemetry.tracing import OFF, TraceSettings

#: Seconds; from a durable append to a slow takeover.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """One service's metrics, log lines and traces.

    Metrics are named `yard_<service>_<name>`. A log line is one JSON object on `stream` (standard
    error), without text of users or secrets; `event` is a stable code for alarms. `tracer` is OFF
    until `trace_to`. With `quiet`, lines of the level info are left out.
    """

    def __init__(
        self,
        service: str,
        *,
        now_ms: Callable[[], int],
        stream: TextIO | None = None,
        registry: CollectorRegistry | None = None,
        quiet: bool = False,
    ) -> None:
        self.service = service
        self.now_ms = now_ms
        self.registry = registry or CollectorRegistry()
        self.tracer: Tracer = OFF
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._cell: str | None = None
        self._close_traces: Callable[[], None] = lambda: None
        self._cells = _Cells()
        self.registry.register(self._cells)
        self._logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.PrintLogger(self._stream),
            processors=[self._line, structlog.processors.JSONRenderer(default=str)],
            wrapper_class=structlog.make_filtering_bound_logger("warning" if quiet else "info"),
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

    def histogram(self, name: str, about: str, *labels: str) -> Histogram:
        """A distribution of seconds."""
        return Histogram(
            f"yard_{self.service}_{name}", about, labels, registry=self.registry, buckets=BUCKETS
        )

    def for_cell(self, cell: str) -> "Telemetry":
        """The telemetry of one of the process's cells, named in each of its samples and lines.

        Call it after `trace_to`; a second call for a cell resets the cell's metrics.
        """
        registry = self._cells.start(cell)
        telemetry = Telemetry(
            self.service,
            now_ms=self.now_ms,
            stream=self._stream,
            registry=registry,
            quiet=self._quiet,
        )
        telemetry.tracer, telemetry._cell = self.tracer, cell
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


class _Cells(Collector):
    """The metrics of several cells as one family each, with the label `cell`."""

    def __init__(self) -> None:
        self._registries: dict[str, CollectorRegistry] = {}

    def start(self, cell: str) -> CollectorRegistry:
        self._registries[cell] = registry = CollectorRegistry()
        return registry

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for cell, registry in self._registries.items():
            for family in registry.collect():
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                merged.samples += [
                    sample._replace(labels={"cell": cell, **sample.labels})
                    for sample in family.samples
                ]
        return families.values()
