"""The port of traces: off it is nothing; on its limits hold, and what they cost is counted."""

import ast
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import ValidationError

from tests.support.otlp import Collector
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.settings import LogSettings
from yardmaster_runtime.telemetry.otlp import OtlpTracer, Queue
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import (
    MAX_LINKS,
    NO_SPAN,
    NO_TRACER,
    TraceSettings,
    batch_span,
    child_span,
    is_sampled,
    trace_id_of,
)
from yardmaster_schemas.errors import YardmasterError

ROOT = Path(__file__).parents[3]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "Bearer not-to-be-seen"


class Held(SpanExporter):
    """An exporter that does not answer before it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = threading.Event()
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken.set()
        self.go.wait(10)
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


class Counts:
    def __init__(self) -> None:
        self.taken = 0
        self.lost: dict[str, int] = {}

    def exported(self, spans: int) -> None:
        self.taken += spans

    def dropped(self, spans: int, why: str) -> None:
        self.lost[why] = self.lost.get(why, 0) + spans


def tracer_to(exporter: SpanExporter, counts: Counts, **limits: float) -> OtlpTracer:
    settings = TraceSettings.model_validate({"interval_s": 0.01, **limits})
    return OtlpTracer(Queue(exporter, settings, counts), settings, Resource.create({}))


def telemetry() -> Telemetry:
    return Telemetry("gateway", now_ms=ManualClock().now_ms)


def test_off_every_span_is_the_same_nothing() -> None:
    tracer = telemetry().tracer
    assert tracer is NO_TRACER
    assert not tracer.on
    with tracer.span("a", parent=CONTEXT, about={"yard.task": "x"}) as span:
        span.set({"yard.more": 1})
        assert span is NO_SPAN
    assert (span.traceparent, span.trace_id, tracer.now()) == (None, None, 0)


@pytest.mark.parametrize(
    ("services", "unwanted"),
    [
        ("quota scheduler node_agent", ("opentelemetry", "yardmaster_runtime.telemetry.otlp")),
        # Redis' client imports API and SDK where they are installed, to count if it is asked to.
        ("gateway views", ("opentelemetry.exporter", "yardmaster_runtime.telemetry.otlp")),
    ],
)
def test_off_services_do_not_import_what_exports(services: str, unwanted: tuple[str, ...]) -> None:
    names = ", ".join(f"yardmaster_{name}.main" for name in services.split())
    look = f"import sys, {names}; print([n for n in sys.modules if n.startswith({unwanted})])"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_one_module_alone_imports_opentelemetry() -> None:
    found = set()
    for path in [*ROOT.glob("libs/*/yardmaster*/**/*.py"), *ROOT.glob("services/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith("opentelemetry") for name in names):
                found.add(path.name)
    assert found == {"otlp.py"}


def test_a_span_lies_below_its_parent_and_is_kept_as_the_parent_says() -> None:
    exporter = Held()
    exporter.go.set()
    tracer = tracer_to(exporter, Counts())
    with tracer.span("kept", parent=CONTEXT) as kept:
        assert kept.trace_id == TRACE
        assert is_sampled(kept.traceparent)
        assert kept.traceparent != CONTEXT
    with tracer.span("not kept", parent=CONTEXT.removesuffix("01") + "00") as left:
        assert left.trace_id == TRACE
        assert not is_sampled(left.traceparent)
    tracer.close()
    assert exporter.names == ["kept"]


def test_a_ratio_of_none_keeps_only_what_others_began() -> None:
    exporter = Held()
    exporter.go.set()
    tracer = tracer_to(exporter, Counts(), ratio=0)
    tracer.span("mine").end()
    tracer.span("theirs", parent=CONTEXT).end()
    tracer.span("of theirs", links=[CONTEXT]).end()
    tracer.close()
    assert sorted(exporter.names) == ["of theirs", "theirs"]


def test_spans_over_the_queues_limit_are_dropped_and_counted() -> None:
    exporter, counts = Held(), Counts()
    tracer = tracer_to(exporter, counts, queue=5, batch=1)
    tracer.span("first").end()
    assert exporter.taken.wait(10)
    for number in range(8):
        tracer.span(f"s{number}").end()
    assert counts.lost == {"full": 3}
    exporter.go.set()
    tracer.close()
    assert exporter.names == ["first", *(f"s{number}" for number in range(5))]
    assert counts.taken == 6


def test_the_span_of_a_batch_links_to_so_many_contexts_and_counts_the_rest() -> None:
    linked = [f"00-{number:032x}-{number:016x}-01" for number in range(1, MAX_LINKS + 4)]
    exporter = Held()
    exporter.go.set()
    tracer = tracer_to(exporter, Counts())
    span = batch_span(tracer, "cycle", linked, start=tracer.now())
    inner = span._span  # type: ignore[attr-defined]
    span.end()
    assert len(inner.links) == MAX_LINKS
    assert inner.attributes["yard.left_out"] == 3
    assert batch_span(tracer, "cycle", [], start=0) is NO_SPAN
    assert child_span(tracer, "child", None) is NO_SPAN
    tracer.close()


@pytest.mark.parametrize(
    "header",
    ["", "00", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01", CONTEXT.upper()],
)
def test_a_traceparent_that_is_none_has_no_trace(header: str) -> None:
    assert trace_id_of(header) is None
    assert trace_id_of(CONTEXT) == TRACE


def test_the_environment_sets_where_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LogSettings().traces.endpoint is None
    monkeypatch.setenv("YARD_TRACES__ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("YARD_TRACES__RATIO", "0.1")
    traces = LogSettings().traces
    assert (traces.endpoint, traces.ratio) == ("http://collector:4318", 0.1)


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://user:secret@collector:4318"])
def test_an_endpoint_is_a_url_without_a_secret(endpoint: str) -> None:
    with pytest.raises(ValidationError):
        TraceSettings(endpoint=endpoint)


def test_the_collectors_secret_comes_from_a_file_and_is_in_no_repr(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    with Collector() as collector:
        settings = TraceSettings(endpoint=collector.url, interval_s=0.01, authorization_file=file)
        mine = telemetry()
        mine.trace_to(settings, "g1")
        mine.tracer.span("a").end()
        collector.wait_for(lambda spans: bool(spans))
        mine.close()
    assert collector.headers[0]["authorization"] == SECRET
    given = TraceSettings.model_validate({"authorization": SECRET})
    assert SECRET not in f"{given!r} {given}"
    assert b"yard_gateway_spans_exported_total 1.0" in mine.exposition()


def test_a_secret_that_anybody_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o644)
    settings = TraceSettings(endpoint="http://collector:4318", authorization_file=file)
    with pytest.raises(YardmasterError, match="chmod"):
        telemetry().trace_to(settings, "g1")
