"""Traces with OpenTelemetry, sent as OTLP over HTTP; the one module that imports it.

Spans wait in a queue of limited length for a thread of their own, which sends them in batches: the
event loop never waits for a collector. What is over the queue's limit, or not taken by the
collector in time, is dropped and counted. The SDK's own batch processor does the same, but counts
nothing that a service could show.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from yardmaster_runtime.telemetry.tracing import NOTHING, About, Kind, TraceSettings
from yardmaster_schemas.secret import read_secret

#: How long the thread gets to send what is left when the process ends.
CLOSE_S: Final = 2.0


class Counts(Protocol):
    """Told what became of spans."""

    def exported(self, spans: int) -> None:
        """The collector took them."""

    def dropped(self, spans: int, why: str) -> None:
        """Nobody will see them: the queue was `full`, or the export `failed`."""


class Queue(SpanProcessor):
    """Spans on their way to the collector."""

    def __init__(self, exporter: SpanExporter, settings: TraceSettings, counts: Counts) -> None:
        self._exporter = exporter
        self._settings = settings
        self._counts = counts
        self._waiting: deque[ReadableSpan] = deque()
        self._some = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that has ended."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        if len(self._waiting) >= self._settings.queue:
            self._counts.dropped(1, "full")
            return
        self._waiting.append(span)
        if len(self._waiting) >= self._settings.batch:
            self._some.set()

    def shutdown(self) -> None:
        """Send what waits, for CLOSE_S at most."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._some.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()
        if self._waiting:
            self._counts.dropped(len(self._waiting), "failed")

    def _run(self) -> None:
        while True:
            self._some.wait(self._settings.interval_s)
            self._some.clear()
            while self._waiting:
                self._send()
            if self._closing.is_set():
                return

    def _send(self) -> None:
        taken = min(len(self._waiting), self._settings.batch)
        batch = [self._waiting.popleft() for _ in range(taken)]
        try:
            result = self._exporter.export(batch)
        except Exception:  # noqa: BLE001 whatever it is, the service goes on without these spans
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._counts.exported(taken)
        else:
            self._counts.dropped(taken, "failed")


class _Roots(Sampler):
    """What begins here: a ratio of the requests, and all that is linked to a trace that is kept."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: object = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Whether a span without a parent is kept."""
        if links:
            return SamplingResult(Decision.RECORD_AND_SAMPLE)
        return self._ratio.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        """As the SDK prints it."""
        return f"Roots({self._ratio.get_description()})"


class OtlpSpan:
    """A span of OpenTelemetry behind the port."""

    __slots__ = ("_span",)

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The W3C form of its context; None when the SDK itself is switched off."""
        found = self._span.get_span_context()
        if not found.is_valid:
            return None
        flags = f"{int(found.trace_flags) & 1:02x}"
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{flags}"

    @property
    def trace_id(self) -> str | None:
        """32 hex digits."""
        found = self._span.get_span_context()
        return f"{found.trace_id:032x}" if found.is_valid else None

    def rename(self, name: str) -> None:
        """Give it another name."""
        self._span.update_name(name)

    def set(self, about: About) -> None:
        """Say more of it."""
        self._span.set_attributes(about)

    def fail(self, code: str) -> None:
        """Say that it failed."""
        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """End it now."""
        if self._span.is_recording():
            self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(str(getattr(error, "code", type(error).__name__)))
        self.end()


class OtlpTracer:
    """Makes spans and sends them to a collector; one a process."""

    on = True

    def __init__(self, queue: SpanProcessor, settings: TraceSettings, resource: Resource) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(_Roots(settings.ratio), remote_parent_sampled=ALWAYS_ON),
            resource=resource,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(queue)
        self._tracer = self._provider.get_tracer("yardmaster")

    def now(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns()

    def span(
        self,
        name: str,
        *,
        parent: str | None = None,
        links: Sequence[str] = (),
        start: int | None = None,
        kind: Kind = "internal",
        about: About = NOTHING,
    ) -> OtlpSpan:
        """Start a span."""
        above = INVALID_SPAN if parent is None else NonRecordingSpan(_context(parent))
        return OtlpSpan(
            self._tracer.start_span(
                name,
                # A context of its own: nothing here depends on what happens to be current.
                context=set_span_in_context(above, Context()),
                kind=SpanKind[kind.upper()],
                links=[Link(_context(each)) for each in links],
                start_time=start or None,
                attributes=about,
            )
        )

    def close(self) -> None:
        """Send what waits, for CLOSE_S at most."""
        self._provider.shutdown()


def _context(traceparent: str) -> SpanContext:
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=int(span, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16) & 1),
    )


def open_tracer(settings: TraceSettings, service: str, instance: str, counts: Counts) -> OtlpTracer:
    """A tracer that sends to the settings' endpoint; it need not be there.

    Raises: SecretUnreadable.
    """
    endpoint = settings.endpoint or ""
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    secret = read_secret(
        "traces.authorization", settings.authorization, settings.authorization_file
    )
    # The exporter says each failure, with the collector's answer: it is counted instead.
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
    return OtlpTracer(Queue(exporter, settings, counts), settings, resource)
