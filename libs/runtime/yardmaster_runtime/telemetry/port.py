"""Metrics, structured logs and traces as one port, handed to each service; no globals in it."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.registry import Collector

from yardmaster_runtime.telemetry.tracing import NO_TRACER, Tracer, TraceSettings

#: Seconds; from a durable append to a slow takeover.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """One service's metrics, log lines and traces.

    Metrics are named `yard_<service>_<name>`. A log line is one JSON object on `stream`, without
    user text or secrets; `event` is a stable code to alarm on, `trace_id` the trace it belongs to.
    `tracer` makes spans; it is off until `trace_to`.
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
        self.registry = registry or CollectorRegistry()
        self._now_ms = now_ms
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._cell: str | None = None
        self._cells = _Cells()
        self.registry.register(self._cells)
        self.tracer: Tracer = NO_TRACER

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """A count that only rises; make it once, at the service's start."""
        return Counter(f"yard_{self.service}_{name}", about, labels, registry=self.registry)

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """A value that rises and falls."""
        return Gauge(f"yard_{self.service}_{name}", about, labels, registry=self.registry)

    def histogram(self, name: str, about: str, *labels: str) -> Histogram:
        """A distribution of seconds."""
        return Histogram(
            f"yard_{self.service}_{name}", about, labels, registry=self.registry, buckets=BUCKETS
        )

    def of_cell(self, cell: str) -> "Telemetry":
        """The same for one of the process's cells: each sample and each line says which.

        What counts for a cell so needs no label of its own, and several cells do not collide. To be
        called after `trace_to`; a second call for a cell starts its counts anew.
        """
        telemetry = Telemetry(
            self.service,
            now_ms=self._now_ms,
            stream=self._stream,
            registry=self._cells.start(cell),
            quiet=self._quiet,
        )
        telemetry.tracer, telemetry._cell = self.tracer, cell
        return telemetry

    def trace_to(self, settings: TraceSettings, instance: str) -> None:
        """Send spans where the settings say, if they say so; to be called once, at the start.

        Raises: SecretUnreadable.
        """
        if settings.endpoint is None:
            return
        from yardmaster_runtime.telemetry.otlp import open_tracer

        self.tracer = open_tracer(settings, self.service, instance, _SpanCounts(self))

    def close(self) -> None:
        """Send the spans that wait, for a limited time."""
        self.tracer.close()

    def exposition(self) -> bytes:
        """All metrics of the registry in Prometheus' text format."""
        return generate_latest(self.registry)

    def info(self, event: str, **fields: object) -> None:
        """Say what happened."""
        if not self._quiet:
            self._line("info", event, fields)

    def warn(self, event: str, **fields: object) -> None:
        """Say that something needs a look: refused records, fencing, retries."""
        self._line("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Say that a part of the service stopped."""
        self._line("error", event, fields)

    def _line(self, level: str, event: str, fields: dict[str, object]) -> None:
        line = {
            "at_ms": self._now_ms(),
            "level": level,
            "service": self.service,
            "event": event,
            **({} if self._cell is None else {"cell": self._cell}),
            **fields,
        }
        print(json.dumps(line, default=str), file=self._stream, flush=True)


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
                about = (family.name, family.documentation, family.type)
                merged = families.setdefault(family.name, Metric(*about))
                merged.samples += [
                    sample._replace(labels={"cell": cell, **sample.labels})
                    for sample in family.samples
                ]
        return families.values()


class _SpanCounts:
    """What became of spans, as metrics."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._exported = telemetry.counter("spans_exported", "Spans that the collector took.")
        self._dropped = telemetry.counter(
            "spans_dropped",
            "Spans that were dropped: the queue was full, or the export failed.",
            "why",
        )

    def exported(self, spans: int) -> None:
        self._exported.inc(spans)

    def dropped(self, spans: int, why: str) -> None:
        self._dropped.labels(why).inc(spans)
