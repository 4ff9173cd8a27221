"""Traces as a port: one trace from the HTTP request through the log to the start of a process.

The context of a trace is a W3C `traceparent` and lies in the envelope of records. A request's
record and its details carry that of the HTTP request; a decision carries that of its cause, where
the cause was taken in the same cycle (`batch.py`). What takes many records at once (a cycle, the
relay, the views) is a span of its own with links to the contexts of what it took; what follows one
record is a child of that record's context.

Off, which is the default, a tracer makes nothing: its one span is `NO_SPAN`, and no OpenTelemetry
is imported. `otlp.py` has the one that exports.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Annotated, Any, Final, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from yardmaster_core.commit import CountedCycle
from yardmaster_schemas.envelope import Envelope

#: Contexts that one span links to, and spans of single decisions that one cycle makes; what is
#: over is counted in the attribute `yard.left_out`.
MAX_LINKS: Final = 32

#: What a span is to its parent: `server` answers it, `consumer` took a record that it wrote.
Kind = Literal["internal", "server", "producer", "consumer"]

#: Attributes of a span: ids, codes and counts.
About = Mapping[str, str | int]
NOTHING: Final[About] = MappingProxyType({})

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TraceSettings(BaseModel):
    """Where spans go: `YARD_TRACES__ENDPOINT` and so on; without an endpoint none are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: OTLP over HTTP: `http://collector:4318/v1/traces`; without a path, `/v1/traces` is added.
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = None
    #: The share of traces begun here that is kept; of a trace begun elsewhere its `traceparent`
    #: says.
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    #: Spans that wait to be sent; more are dropped, and counted.
    queue: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096
    #: Spans sent at once.
    batch: Annotated[int, Field(ge=1, le=10_000)] = 512
    #: How long a span waits for others at most.
    interval_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    #: For one request, its repeats included; what was not taken by then is dropped, and counted.
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    #: PEM file of the authorities to trust; without it those of the system.
    ssl_cafile: Path | None = None
    #: The header `Authorization` of each request.
    authorization: SecretStr | None = None
    authorization_file: Path | None = None


class Span(Protocol):
    """A piece of work that is under way; it ends with its `with`, or at `end`."""

    @property
    def traceparent(self) -> str | None:
        """The context in which what follows from it lies; None when nothing is traced."""

    @property
    def trace_id(self) -> str | None:
        """32 hex digits, as in log lines and problem documents; None when nothing is traced."""

    def rename(self, name: str) -> None:
        """Give it the name that is known only now."""

    def set(self, about: About) -> None:
        """Say more of it: ids, codes and counts, never text of users."""

    def fail(self, code: str) -> None:
        """Say that it failed, and with which error's code."""

    def end(self) -> None:
        """End it now; the second time nothing happens."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it; it failed when an error leaves the block."""


class Tracer(Protocol):
    """Makes spans; `span` starts one at once."""

    @property
    def on(self) -> bool:
        """Whether there is anybody to see them: what is costly to gather need not be if not."""

    def now(self) -> int:
        """This moment, as `start` of a later `span`; 0 when off."""

    def span(
        self,
        name: str,
        *,
        parent: str | None = None,
        links: Sequence[str] = (),
        start: int | None = None,
        kind: Kind = "internal",
        about: About = NOTHING,
    ) -> Span:
        """A span below the context `parent`, or of a new trace; `links` are contexts as well."""

    def close(self) -> None:
        """Send what waits, for a limited time."""


class NoSpan:
    """The span of what is not traced."""

    __slots__ = ()

    traceparent: None = None
    trace_id: None = None

    def rename(self, name: str) -> None:
        """Nothing."""

    def set(self, about: About) -> None:
        """Nothing."""

    def fail(self, code: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing."""


NO_SPAN: Final = NoSpan()


class NoTracer:
    """Traces nothing."""

    __slots__ = ()

    on: bool = False

    def now(self) -> int:
        """Nobody asks."""
        return 0

    def span(self, name: str, **given: object) -> NoSpan:
        """The one that is nothing."""
        return NO_SPAN

    def close(self) -> None:
        """Nothing waits."""


NO_TRACER: Final = NoTracer()


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id of a `traceparent`; None of one that is none."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return None if match is None else match[1]


def is_sampled(traceparent: str | None) -> bool:
    """Whether its trace is kept: the last bit of its flags."""
    return traceparent is not None and traceparent[-1] in "13579bdf"


def contexts(envelopes: Iterable[Envelope[Any]]) -> list[str]:
    """The contexts of the traces that are kept, each once."""
    found = (envelope.traceparent for envelope in envelopes)
    return list(dict.fromkeys(each for each in found if each is not None and is_sampled(each)))


def child_span(
    tracer: Tracer,
    name: str,
    parent: str | None,
    *,
    start: int | None = None,
    kind: Kind = "internal",
    about: About = NOTHING,
) -> Span:
    """A span below the context `parent`; without one nobody follows it, and there is none."""
    if parent is None:
        return NO_SPAN
    return tracer.span(name, parent=parent, start=start, kind=kind, about=about)


def batch_span(
    tracer: Tracer, name: str, linked: Sequence[str], *, start: int, about: About = NOTHING
) -> Span:
    """The span of work on many records, linked to at most MAX_LINKS of their contexts.

    No span when none of them is traced: cycles that nobody follows are not worth one.
    """
    if not linked:
        return NO_SPAN
    span = tracer.span(name, links=linked[:MAX_LINKS], start=start, kind="consumer", about=about)
    if len(linked) > MAX_LINKS:
        span.set({"yard.left_out": len(linked) - MAX_LINKS})
    return span


def trace_cycle(
    tracer: Tracer, began: int, accepted: Sequence[Envelope[Any]], counted: CountedCycle
) -> None:
    """The spans of a cycle that is read back: its own, and one for each decision with a context.

    A decision's span lies in the trace of its cause and is as long as the cycle, since before its
    end nothing was decided.
    """
    if not tracer.on:
        return
    linked = contexts(accepted)
    if not linked:
        return
    commit = counted.commit
    about: About = {
        "yard.cell": commit.cell,
        "yard.cycle": commit.cycle,
        "yard.decisions": commit.decisions,
        "yard.term": commit.term,
    }
    with batch_span(tracer, f"{commit.machine} cycle", linked, start=began, about=about):
        traced = [one for _, one in counted.decisions if is_sampled(one.traceparent)]
        for envelope in traced[:MAX_LINKS]:
            said = {"yard.subject": envelope.subject}
            # Why it was refused, where it was.
            code = getattr(envelope.data, "code", None)
            if isinstance(code, str):
                said["yard.code"] = str(code)
            tracer.span(
                f"{commit.machine} {envelope.type}",
                parent=envelope.traceparent,
                start=began,
                kind="consumer",
                about=said,
            ).end()
