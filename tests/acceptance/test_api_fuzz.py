"""Malformed and odd requests over the whole OpenAPI document, singly and in sequence.

None may end in a server error or in an answer that the document does not describe. Between requests
the real quota and scheduler judge, so that sequences meet jobs in every phase.
"""

from collections import Counter
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
from starlette.types import Receive, Scope, Send

from tests.support.gateway import TestCell


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """503 is an answer of the interface: the views are behind, the log is away. 500 is none."""
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
BOUNDED: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}


class Settled:
    """The gateway, with the rest of the cell stepped before each request."""

    def __init__(self) -> None:
        self.cell: TestCell | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.cell is None:
            self.cell = await TestCell(
                rate_burst=10**9, stream_s=0.01, view_wait_s=0.01, max_wait_s=0.01
            ).start()
            job = await self.cell.submit()
            await self.cell.starts(f"{job}.0")
        # Before each: whether the views are behind must not depend on how busy the machine is.
        await self.cell.settle()
        await self.cell.app(scope, receive, send)


app = Settled()
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.auth()
class Operator:
    """Everybody in these tests is the operator."""

    def get(self, case: schemathesis.Case, context: schemathesis.AuthContext) -> str:
        return "operator"

    def set(self, case: schemathesis.Case, data: str, context: schemathesis.AuthContext) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


@schema.parametrize()
@settings(max_examples=25, **BOUNDED)
def test_no_request_gets_an_undocumented_answer(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def steered(case: schemathesis.Case) -> None:
    """Lead a generated request past the first checks, so that sequences reach what lies behind.

    Positions of no log, conditions and names that nobody has would end most requests.
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
