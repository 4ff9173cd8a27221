"""Traces on the OpenTelemetry API, from the HTTP request through the log to the started process.

A trace's context is a W3C `traceparent` in the envelope of records. A request's record and its
details carry the context of the HTTP request; a decision carries the context of its cause, where
the cause was an input of the same cycle (`cycle_records.py`). Work on many records (a cycle, the
relay, the views) is a span of its own, with links to the contexts of its records; work that follows
from one record is a child of that record's context.

Contexts are passed explicitly: nothing here uses OpenTelemetry's current context or its global
provider, so two services in one process do not mix. By default a service's tracer is `OFF`: every
span is `INVALID_SPAN`, and neither the SDK nor an exporter is imported (`otlp.py` imports both).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from yardmaster_core.commit import CountedCycle
from yardmaster_schemas.envelope import Envelope

#: Contexts that one span links to, and spans of single decisions that one cycle makes; the
#: attribute `yard.left_out` counts the rest.
MAX_LINKS: Final = 32
OFF: Final[Tracer] = NoOpTracer()

#: Attributes of a span: ids, codes and counts, never text of users.
Attributes = Mapping[str, str | int]

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TraceSettings(BaseModel):
    """Where spans are sent, set by `YARD_TRACES__ENDPOINT`; without it, nothing is traced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: A collector for OTLP over HTTP: `http://collector:4318/v1/traces`. Without a path,
    #: `/v1/traces` is added. Without it, nothing is traced.
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = None
    #: The share of traces begun here that is kept. A trace begun elsewhere follows its
    #: `traceparent`.
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    #: Spans that wait to be sent; further ones are dropped and counted.
    queue: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096
    #: Spans per request to the collector.
    batch: Annotated[int, Field(ge=1, le=10_000)] = 512
    #: The longest time that a span waits for a full batch.
    interval_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    #: The time for one request and its retries; after it, its spans are dropped and counted.
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    #: PEM file of the certificate authorities to trust. Default: those of the system.
    ssl_cafile: Path | None = None
    #: The header `Authorization` of each request.
    authorization: SecretStr | None = None
    #: File that contains the header `Authorization`.
    authorization_file: Path | None = None


def start_span(
    tracer: Tracer,
    name: str,
    *,
    parent: str | None = None,
    links: Sequence[str] = (),
    start_ms: int | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
) -> Span:
    """A span below the context `parent`, or of a new trace; `links` are contexts too.

    End it with `ending` or `end`; a second `end` has no effect.
    """
    if tracer is OFF:
        return INVALID_SPAN
    above = INVALID_SPAN if parent is None else NonRecordingSpan(_context(parent))
    return tracer.start_span(
        name,
        set_span_in_context(above, Context()),
        kind,
        attributes,
        [Link(_context(each)) for each in links],
        None if start_ms is None else start_ms * 1_000_000,
        # An exception's text may hold text of users; `fail` records its code instead.
        record_exception=False,
        set_status_on_exception=False,
    )


def child_span(
    tracer: Tracer,
    name: str,
    parent: str | None,
    *,
    start_ms: int | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
) -> Span:
    """A span below the context `parent`; without a parent there is no trace and no span."""
    if parent is None:
        return INVALID_SPAN
    return start_span(
        tracer, name, parent=parent, start_ms=start_ms, kind=kind, attributes=attributes
    )


def batch_span(
    tracer: Tracer, name: str, linked: Sequence[str], *, start_ms: int, attributes: Attributes
) -> Span:
    """A span of work on many records, linked to at most MAX_LINKS of their contexts.

    Without a context there is no span.
    """
    if not linked:
        return INVALID_SPAN
    if len(linked) > MAX_LINKS:
        attributes = {**attributes, "yard.left_out": len(linked) - MAX_LINKS}
    links = linked[:MAX_LINKS]
    kind = SpanKind.CONSUMER
    return start_span(
        tracer, name, links=links, start_ms=start_ms, kind=kind, attributes=attributes
    )


@contextmanager
def ending(span: Span) -> Iterator[Span]:
    """End the span with the block; it has failed when an error leaves the block."""
    try:
        yield span
    except BaseException as error:
        fail(span, str(getattr(error, "code", type(error).__name__)))
        raise
    finally:
        if span.is_recording():
            span.end()


def fail(span: Span, code: str) -> None:
    """Mark the span as failed with an error's code."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR))


def traceparent_of(span: Span) -> str | None:
    """The span's context; None when it has none."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id (32 hex digits) of a `traceparent`; None when it is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return None if match is None else match[1]


def is_sampled(traceparent: str | None) -> bool:
    """Whether the trace is kept, which the last bit of its flags says."""
    return traceparent is not None and traceparent[-1] in "13579bdf"


def contexts(envelopes: Iterable[Envelope[Any]]) -> list[str]:
    """The contexts of kept traces, each once."""
    found = (envelope.traceparent for envelope in envelopes)
    return list(dict.fromkeys(each for each in found if each is not None and is_sampled(each)))


def trace_cycle(
    tracer: Tracer, start_ms: int, accepted: Sequence[Envelope[Any]], counted: CountedCycle
) -> None:
    """Make the spans of a committed cycle: its own, and one for each decision with a context.

    A decision's span belongs to the trace of its cause and lasts as long as the cycle, because
    nothing is decided before the cycle is committed.
    """
    if tracer is OFF or not (linked := contexts(accepted)):
        return
    commit = counted.commit
    attributes: Attributes = {
        "yard.cell": commit.cell,
        "yard.cycle": commit.cycle,
        "yard.decisions": commit.decisions,
        "yard.term": commit.term,
    }
    name = f"{commit.machine} cycle"
    with ending(batch_span(tracer, name, linked, start_ms=start_ms, attributes=attributes)):
        traced = [one for _, one in counted.decisions if is_sampled(one.traceparent)]
        for envelope in traced[:MAX_LINKS]:
            about = {"yard.subject": envelope.subject}
            # The event of a refusal has its reason in `code`.
            if isinstance(code := getattr(envelope.data, "code", None), str):
                about["yard.code"] = str(code)
            start_span(
                tracer,
                f"{commit.machine} {envelope.type}",
                parent=envelope.traceparent,
                start_ms=start_ms,
                kind=SpanKind.CONSUMER,
                attributes=about,
            ).end()


def _context(traceparent: str) -> SpanContext:
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16) & 1))
