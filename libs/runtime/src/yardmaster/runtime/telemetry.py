"""Metrics and structured logs as one port, handed to each service; no globals in it."""

import json
import sys
from collections.abc import Callable
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

#: Seconds; from a durable append to a slow takeover.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """One service's metrics and log lines.

    Metrics are named `yard_<service>_<name>`. A log line is one JSON object on `stream`, without
    user text or secrets; `event` is a stable code to alarm on.
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
            **fields,
        }
        print(json.dumps(line, default=str), file=self._stream, flush=True)
