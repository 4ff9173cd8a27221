"""Exports spans as OTLP over HTTP with OpenTelemetry's SDK; imported only when tracing is on.

Spans wait in the SDK's queue for its thread, which sends them in batches: the event loop never
waits for a collector. The SDK drops spans in silence; here each dropped span is counted.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    Decision,
    ParentBased,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes
from prometheus_client import Counter

from yardmaster_runtime.telemetry.tracing import TraceSettings
from yardmaster_schemas.secret import read_secret

#: Time to send the waiting spans when the process ends.
CLOSE_S: Final = 2.0


class CountingExporter(SpanExporter):
    """Counts the spans that `exporter` sent, and those that it failed to send."""

    def __init__(self, exporter: SpanExporter, exported: Counter, dropped: Counter) -> None:
        self._exporter = exporter
        self._exported = exported
        self._dropped = dropped
        #: Spans taken from the queue.
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; whatever fails, the service continues without these spans."""
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 counted as dropped below
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._exported.inc(len(spans))
        else:
            self._dropped.labels("failed").inc(len(spans))
        return result

    def shutdown(self) -> None:
        """Stop sending."""
        self._exporter.shutdown()


class CountingProcessor(BatchSpanProcessor):
    """The SDK's queue, with a count of the spans that it could not take."""

    def __init__(
        self, exporter: SpanExporter, settings: TraceSettings, exported: Counter, dropped: Counter
    ) -> None:
        self._counting = CountingExporter(exporter, exported, dropped)
        self._dropped = dropped
        self._queued = 0
        self._limit = settings.queue
        super().__init__(
            self._counting,
            max_queue_size=settings.queue,
            schedule_delay_millis=settings.interval_s * 1000,
            max_export_batch_size=min(settings.batch, settings.queue),
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Enqueue a kept span, or drop it."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._queued - self._counting.taken >= self._limit:
            self._dropped.labels("full").inc()
            return
        self._queued += 1
        super().on_end(span)

    def shutdown(self) -> None:
        """Send the waiting spans for at most CLOSE_S; the SDK would take up to 30 s."""
        closing = threading.Thread(target=super().shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        self._dropped.labels("failed").inc(self._queued - self._counting.taken)
        self._queued = self._counting.taken


class RootSampler(TraceIdRatioBased):
    """Keeps a ratio of the new traces, and each span that links to a kept trace."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide for a span without a parent."""
        if links:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return super().should_sample(parent_context, trace_id, name, kind, attributes, links)


def make_provider(
    processor: CountingProcessor, settings: TraceSettings, resource: Resource
) -> TracerProvider:
    """A tracer provider for one service, separate from the process's global provider."""
    provider = TracerProvider(
        sampler=ParentBased(RootSampler(settings.ratio)), resource=resource, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return provider


def open_provider(
    settings: TraceSettings, service: str, instance: str, exported: Counter, dropped: Counter
) -> TracerProvider:
    """A provider that sends to the settings' endpoint, which may be down.

    Raises: SecretUnreadable.
    """
    endpoint = settings.endpoint or ""
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    secret = read_secret(
        "traces.authorization", settings.authorization, settings.authorization_file
    )
    # The exporter logs each failure with the collector's response; failures are counted instead.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(
        endpoint=endpoint,
        certificate_file=None if settings.ssl_cafile is None else str(settings.ssl_cafile),
        headers={} if secret is None else {"Authorization": secret},
        timeout=settings.timeout_s,
    )
    resource = Resource.create(
        {
            "service.namespace": "yardmaster",
            "service.name": f"yardmaster-{service.replace('_', '-')}",
            "service.instance.id": instance,
        }
    )
    return make_provider(
        CountingProcessor(exporter, settings, exported, dropped), settings, resource
    )
