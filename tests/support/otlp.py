"""A collector of traces for tests: receives OTLP over HTTP and stores the spans."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 20.0


@dataclass(frozen=True)
class Seen:
    """One received span."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    #: Trace ids that it links to.
    links: tuple[str, ...]
    start_ns: int
    end_ns: int
    failed: bool
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def concerns(self, trace_id: str) -> bool:
        return self.trace_id == trace_id or trace_id in self.links


class Collector:
    """Listens on a free port of the loopback interface; `status` is its answer."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append({key.lower(): self.headers[key] for key in self.headers})
                if collector.status == 200 and self.path == "/v1/traces":
                    collector.spans += _seen(body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def wait_for(self, wanted: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Wait until `wanted` accepts the spans; return them."""
        deadline = time.monotonic() + WAIT_S
        while not wanted(self.spans):
            assert time.monotonic() < deadline, [(s.service, s.name) for s in self.spans]
            time.sleep(0.02)
        return list(self.spans)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _seen(body: bytes) -> list[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for resource in request.resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            found += [
                Seen(
                    service=about["service.name"],
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    links=tuple(link.trace_id.hex() for link in span.links),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    failed=span.status.code == 2,
                    attributes=_attributes(span.attributes),
                )
                for span in scope.spans
            ]
    return found


def _attributes(given: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in given
    }
