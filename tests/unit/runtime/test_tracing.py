"""Traces: nothing when off; when on, limits hold and dropped spans are counted."""

import ast
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import INVALID_SPAN, get_tracer_provider
from prometheus_client import Counter
from pydantic import ValidationError

from tests.support.otlp import Collector
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.settings import LogSettings
from yardmaster_runtime.telemetry.otlp import CountingProcessor, make_provider
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import (
    MAX_LINKS,
    OFF,
    TraceSettings,
    batch_span,
    child_span,
    ending,
    is_sampled,
    start_span,
    trace_id_of,
    traceparent_of,
)
from yardmaster_schemas.errors import YardmasterError

ROOT = Path(__file__).parents[3]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = f"00-{TRACE}-00f067aa0ba902b7-01"
EXPORTING = ("opentelemetry.sdk", "opentelemetry.exporter")
SECRET = "Bearer not-to-be-seen"


class Held(SpanExporter):
    """An exporter that does not return until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = threading.Event()
        self.names: list[str] = []
        self.attributes: dict[str, dict[str, Any]] = {}
        self.events: list[Any] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken.set()
        self.go.wait(10)
        for span in spans:
            self.names.append(span.name)
            self.attributes[span.name] = dict(span.attributes or {})
            self.events += span.events
        return SpanExportResult.SUCCESS


class Traced:
    """A tracer that exports to `exporter`, and the metrics of its spans."""

    def __init__(self, exporter: SpanExporter, **limits: float) -> None:
        settings = TraceSettings.model_validate({"interval_s": 0.01, **limits})
        self.exported = Counter("exported", "Spans", registry=None)
        self.dropped = Counter("dropped", "Spans", ["why"], registry=None)
        processor = CountingProcessor(exporter, settings, self.exported, self.dropped)
        provider = make_provider(processor, settings, Resource.create({}))
        self.tracer = provider.get_tracer("test")
        self.close = provider.shutdown


def value(counter: Counter) -> float:
    (family,) = counter.collect()
    return family.samples[0].value


def telemetry() -> Telemetry:
    return Telemetry("gateway", now_ms=ManualClock().now_ms)


def test_without_tracing_every_span_is_the_invalid_span() -> None:
    tracer = telemetry().tracer
    assert tracer is OFF
    with ending(start_span(tracer, "a", parent=CONTEXT, attributes={"yard.task": "x"})) as span:
        span.set_attributes({"yard.more": 1})
        assert span is INVALID_SPAN
    assert traceparent_of(span) is None


@pytest.mark.parametrize(
    ("services", "unwanted"),
    [
        (
            "quota scheduler node_agent",
            (*EXPORTING, "yardmaster_runtime.telemetry.otlp"),
        ),
        # Redis' client imports the SDK where it is installed, for its own metrics.
        ("gateway views", ("opentelemetry.exporter", "yardmaster_runtime.telemetry.otlp")),
    ],
)
def test_without_tracing_services_import_no_exporter(
    services: str, unwanted: tuple[str, ...]
) -> None:
    names = ", ".join(f"yardmaster_{name}.main" for name in services.split())
    look = f"import sys, {names}; print([n for n in sys.modules if n.startswith({unwanted})])"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_only_one_module_imports_the_sdk_and_the_exporters() -> None:
    found = set()
    for path in [*ROOT.glob("libs/*/yardmaster*/**/*.py"), *ROOT.glob("services/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(EXPORTING) for name in names):
                found.add(path.name)
    assert found == {"otlp.py"}


def test_a_span_is_below_its_parent_and_is_sampled_as_the_parent_is() -> None:
    exporter = Held()
    exporter.go.set()
    traced = Traced(exporter)
    with ending(start_span(traced.tracer, "kept", parent=CONTEXT)) as span:
        kept = traceparent_of(span)
    assert trace_id_of(kept) == TRACE
    assert is_sampled(kept)
    assert kept != CONTEXT
    unsampled = CONTEXT.removesuffix("01") + "00"
    with ending(start_span(traced.tracer, "not kept", parent=unsampled)) as span:
        left = traceparent_of(span)
    assert trace_id_of(left) == TRACE
    assert not is_sampled(left)
    traced.close()
    assert exporter.names == ["kept"]


def test_a_ratio_of_zero_keeps_only_traces_that_began_elsewhere() -> None:
    exporter = Held()
    exporter.go.set()
    traced = Traced(exporter, ratio=0)
    start_span(traced.tracer, "own").end()
    start_span(traced.tracer, "child", parent=CONTEXT).end()
    start_span(traced.tracer, "linked", links=[CONTEXT], attributes={"yard.cell": "main"}).end()
    traced.close()
    assert sorted(exporter.names) == ["child", "linked"]
    assert exporter.attributes["linked"] == {"yard.cell": "main"}


def test_a_span_that_an_error_ends_has_its_code_but_not_its_text() -> None:
    exporter = Held()
    exporter.go.set()
    traced = Traced(exporter)
    with pytest.raises(ValueError, match="text"):  # noqa: SIM117
        with ending(start_span(traced.tracer, "failed")):
            raise ValueError("text of a user")
    traced.close()
    assert exporter.attributes["failed"] == {"error.type": "ValueError"}
    assert exporter.events == []


def test_spans_over_the_queues_limit_are_dropped_and_counted() -> None:
    exporter = Held()
    traced = Traced(exporter, queue=5, batch=1)
    start_span(traced.tracer, "first").end()
    assert exporter.taken.wait(10)
    for number in range(8):
        start_span(traced.tracer, f"s{number}").end()
    assert value(traced.dropped.labels("full")) == 3
    exporter.go.set()
    traced.close()
    assert exporter.names == ["first", *(f"s{number}" for number in range(5))]
    assert value(traced.exported) == 6
    assert value(traced.dropped.labels("failed")) == 0


def test_a_batch_span_has_a_limited_number_of_links_and_counts_the_rest() -> None:
    linked = [f"00-{number:032x}-{number:016x}-01" for number in range(1, MAX_LINKS + 4)]
    exporter = Held()
    exporter.go.set()
    traced = Traced(exporter)
    span: Any = batch_span(traced.tracer, "cycle", linked, start_ms=1, attributes={})
    span.end()
    assert len(span.links) == MAX_LINKS
    assert span.attributes["yard.left_out"] == 3
    assert batch_span(traced.tracer, "cycle", [], start_ms=1, attributes={}) is INVALID_SPAN
    assert child_span(traced.tracer, "child", None) is INVALID_SPAN
    traced.close()


@pytest.mark.parametrize(
    "header",
    ["", "00", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01", CONTEXT.upper()],
)
def test_an_invalid_traceparent_has_no_trace_id(header: str) -> None:
    assert trace_id_of(header) is None
    assert trace_id_of(CONTEXT) == TRACE


def test_the_environment_sets_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
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
        start_span(mine.tracer, "a").end()
        collector.wait_for(lambda spans: bool(spans))
        mine.close()
    assert collector.headers[0]["authorization"] == SECRET
    given = TraceSettings.model_validate({"authorization": SECRET})
    assert SECRET not in f"{given!r} {given}"
    assert b"yard_gateway_spans_exported_total 1.0" in mine.exposition()


def test_a_secret_file_that_other_users_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o644)
    settings = TraceSettings(endpoint="http://collector:4318", authorization_file=file)
    with pytest.raises(YardmasterError, match="chmod"):
        telemetry().trace_to(settings, "g1")


def test_two_services_in_one_process_share_no_provider() -> None:
    with Collector() as one, Collector() as two:
        services = []
        for name, collector in (("quota", one), ("scheduler", two)):
            service = Telemetry(name, now_ms=ManualClock().now_ms)
            service.trace_to(TraceSettings(endpoint=collector.url, interval_s=0.01), f"{name}-1")
            start_span(service.tracer, f"{name} cycle").end()
            services.append(service)
        assert start_span(telemetry().tracer, "untraced") is INVALID_SPAN
        for service in services:
            service.close()
        assert [(span.service, span.name) for span in one.spans] == [
            ("yardmaster-quota", "quota cycle")
        ]
        assert [(span.service, span.name) for span in two.spans] == [
            ("yardmaster-scheduler", "scheduler cycle")
        ]
    assert not isinstance(get_tracer_provider(), TracerProvider)
    assert not structlog.is_configured()
