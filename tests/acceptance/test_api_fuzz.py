"""Malformed and unusual requests over the whole OpenAPI document, singly and in sequence.

No request may get a server error or an answer that the document does not describe. Between requests
the real quota and scheduler run their cycles, so that sequences meet jobs in every phase.
"""

import asyncio
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.gateway import GatewayCell
from tests.support.views import telemetry
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.http.connections import ConnectionLimits
from yardmaster_gateway.http.server import Server
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.http import listen
from yardmaster_schemas.topics import REQUESTS


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """Accept 503, a documented answer (views behind, log unavailable); refuse any other 5xx."""
    if response.status_code == 503:
        return None
    return not_a_server_error(context, response, case)


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: Checks of the `schemathesis` command that need only the document. Checks of whether data is
#: accepted are left out: a schema cannot state the rules of some bodies, and a position may belong
#: to another log.
ALL_CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
    *("allow_header_conformance", "missing_required_header", "ignored_auth"),
)
LEAST_CASES = 4_000
BOUNDED: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}


class SteppedApp:
    """The gateway, with the rest of the cell stepped before each request."""

    def __init__(self) -> None:
        self.cell: GatewayCell | None = None
        self._recorded = 0
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            await self._run_cell()
        assert self.cell is not None
        await self.cell.app(scope, receive, send)

    async def _run_cell(self) -> None:
        if self.cell is None:
            self.cell = await GatewayCell(
                packages="memory://fuzz",
                artifacts="memory://fuzz-artifacts",
                rate_burst=10**9,
                stream_s=0.01,
                view_wait_s=0.01,
                max_wait_s=0.01,
            ).start()
            job = await self.cell.submit()
            await self.cell.starts(f"{job}.0")
        # Before each request: the load of the machine must not decide whether the views are behind.
        recorded = await self.cell.log.end(Partition(REQUESTS.name))
        if recorded != self._recorded:
            await self.cell.run_until_idle()
            self._recorded = recorded


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The address of an app that a thread serves over HTTP."""
    loop = asyncio.new_event_loop()
    with listen("127.0.0.1", 0) as bound:
        host, port = bound.getsockname()[:2]
        server = Server(app, ConnectionLimits(GatewaySettings(), telemetry("gateway")))
        serving = loop.create_task(server.serve(sockets=[bound]))

        def run() -> None:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(serving)
            loop.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://{host}:{port}"
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()


def test_no_request_of_any_phase_gets_an_error_or_an_undocumented_answer(tmp_path: Path) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *("--header", "Authorization: Bearer operator", "--wait-for-schema", "60"),
        *("--checks", ",".join(ALL_CHECKS), "--phases", "examples,coverage,fuzzing,stateful"),
        *("--seed", "4242", "--max-examples", "15", "--continue-on-failure", "--no-color"),
    ]
    with served(SteppedApp()) as address:
        done = subprocess.run(
            [*command, f"{address}/openapi.json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}{done.stderr[-2000:]}"
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None, done.stdout
    assert int(generated[1]) >= LEAST_CASES


schema = schemathesis.openapi.from_asgi("/openapi.json", SteppedApp())


@schema.auth()
class Operator:
    """Authenticate every request as the operator."""

    def get(self, case: schemathesis.Case, context: schemathesis.AuthContext) -> str:
        return "operator"

    def set(self, case: schemathesis.Case, data: str, context: schemathesis.AuthContext) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


def steered(case: schemathesis.Case) -> None:
    """Change a generated request so that it passes the first checks and reaches later code.

    Unknown positions, conditions and names would end most requests early.
    """
    for name in ("min_position", "after", "cursor"):
        case.query.pop(name, None)
    for name in list(case.headers):
        if name.lower() in {"yard-min-position", "last-event-id", "if-match", "if-none-match"}:
            del case.headers[name]
    if case.method in {"PATCH", "PUT", "DELETE"}:
        case.headers["If-Match"] = "*"
    known = {"nodes": "n1", "pools": "h100", "projects": "nlp", "departments": "research"}
    kind = case.path.split("/")[2] if case.path.startswith("/v1/") else ""
    if "name" in case.path_parameters:
        case.path_parameters["name"] = known.get(kind, "x")
    if case.path == "/v1/jobs" and case.method == "POST" and isinstance(case.body, dict):
        kept = ("kind", "name", "labels", "priority", "weight", "replicas", "unschedulable")
        case.body = {key: case.body[key] for key in kept if key in case.body} | {
            "project": "nlp",
            "resources": {"gpus": 1},
            "run": {"command": ["true"]},
        }


def test_no_sequence_of_requests_gets_an_undocumented_answer() -> None:
    machine = schema.as_state_machine()
    statuses: Counter[int] = Counter()

    class Sequences(machine):  # type: ignore[misc, valid-type]
        def before_call(self, case: schemathesis.Case) -> None:
            steered(case)

        def validate_response(self, response: Any, case: Any, **kwargs: Any) -> None:
            statuses[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

    Sequences.run(settings=settings(max_examples=40, stateful_step_count=10, **BOUNDED))
    assert {200, 202} <= statuses.keys(), f"the sequences reached little: {statuses}"
