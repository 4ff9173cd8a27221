"""Authentication, visibility, and the actions that each role allows."""

import json
from io import StringIO

import pytest

from tests.support.gateway import GatewayCell
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.identity.authorization import Action, Binding, is_allowed
from yardmaster_gateway.identity.refused_tokens import LINE_S, MAX_ADDRESSES, RefusedTokens
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.users import RoleName, Scope


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic b3BlcmF0b3I6", "operator", "Bearer " + "x" * 5000]
)
async def test_a_header_without_a_bearer_token_is_refused(cell: GatewayCell, header: str) -> None:
    headers = {"Authorization": header}
    async with cell.client(None) as client:
        response = await client.get("/v1/whoami", headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_guessed_tokens_are_counted_and_logged_with_their_address_once_a_minute() -> None:
    lines = StringIO()
    clock = ManualClock()
    refused = RefusedTokens(clock, Telemetry("gateway", now_ms=clock.now_ms, stream=lines))
    for second in range(120):
        refused.add("10.0.0.7")
        refused.add(f"10.0.1.{second}")
        clock.advance(1.0)
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [line["event"] for line in said] == ["tokens_refused", "tokens_refused"]
    assert [(line["requests"], line["addresses"]) for line in said] == [(1, 1), (120, 61)]
    assert (said[1]["address"], said[1]["of_address"]) == ("10.0.0.7", 60)


async def test_the_memory_for_addresses_of_guesses_is_bounded() -> None:
    lines = StringIO()
    clock = ManualClock()
    refused = RefusedTokens(clock, Telemetry("gateway", now_ms=clock.now_ms, stream=lines))
    for number in range(2 * MAX_ADDRESSES + 1):
        refused.add(str(number))
    clock.advance(LINE_S)
    refused.add("0")
    said = json.loads(lines.getvalue().splitlines()[-1])
    assert (said["requests"], said["addresses"]) == (2 * MAX_ADDRESSES + 1, MAX_ADDRESSES)


async def test_only_requests_with_a_refused_token_count_as_guesses(cell: GatewayCell) -> None:
    for token, status in (("operator", 200), (None, 401), ("guess-1", 401), ("guess-2", 401)):
        await cell.call("GET", "/v1/whoami", token=token, status=status)
    metrics = cell.ports.telemetry.exposition()
    assert b"yard_gateway_tokens_refused_total 2.0" in metrics
    assert b'yard_gateway_http_requests_total{method="GET",status="401"} 3.0' in metrics


async def test_whoami_shows_the_user_and_its_roles(cell: GatewayCell) -> None:
    answer = await cell.call("GET", "/v1/whoami", token="nlp")
    assert answer == {
        "user": "nina",
        "method": "token",
        "issuer": "test",
        "credential_id": "nina-token",
        "roles": [{"role": "user", "scope": "project", "name": "nlp"}],
    }


async def test_an_invisible_object_is_not_found(cell: GatewayCell) -> None:
    job = await cell.submit(token="nlp")
    paths = [
        f"/v1/jobs/{job}",
        *(f"/v1/tasks/{job}.0{tail}" for tail in ("", "/attempts", "/events", "/explain", "/logs")),
        "/v1/projects/nlp",
    ]
    for path in paths:
        for token in ("nlp", "nlp2", "admin", "viewer", "research", "operator"):
            await cell.call("GET", path, token=token)
        for token in ("vision", "no_roles"):
            problem = await cell.call("GET", path, token=token, status=404)
            assert problem["code"] == "not_found"
    for action in ("cancel", "pause", "resume"):
        for path in (f"/v1/jobs/{job}", f"/v1/tasks/{job}.0"):
            await cell.call("POST", f"{path}/{action}", token="vision", status=404, json={})


async def test_lists_contain_only_what_the_caller_may_see(cell: GatewayCell) -> None:
    ours = await cell.submit(token="nlp")
    theirs = await cell.submit(token="vision", project="vision")

    async def jobs(token: str, query: str = "") -> list[str]:
        page = await cell.call("GET", f"/v1/jobs?sort=submitted_at{query}", token=token)
        return [job["job_id"] for job in page["items"]]

    assert await jobs("operator") == [ours, theirs]
    assert await jobs("research") == [ours, theirs]
    assert await jobs("nlp") == [ours]
    assert await jobs("nlp", "&project=vision") == []
    assert await jobs("no_roles") == []
    projects = await cell.call("GET", "/v1/projects", token="vision")
    assert [one["name"] for one in projects["items"]] == ["vision"]
    node = await cell.call("GET", "/v1/nodes/n1", token="vision")
    assert node["tasks"] == [f"{theirs}.0"]
    assert node["gpu_milli_used"] == 2000


async def test_a_project_admin_may_change_another_users_job(
    cell: GatewayCell,
) -> None:
    job = await cell.submit(token="nlp")
    path = f"/v1/jobs/{job}/cancel"
    for token in ("nlp2", "viewer", "research"):
        problem = await cell.call("POST", path, token=token, status=403, json={})
        assert problem["code"] == "forbidden"
    await cell.call("POST", path, token="admin", status=202, json={})


@pytest.mark.parametrize("token", ["viewer", "research", "no_roles", "vision"])
async def test_submitting_needs_a_role_in_the_project(cell: GatewayCell, token: str) -> None:
    body = {"project": "nlp", "run": {"command": ["true"]}}
    await cell.call("POST", "/v1/jobs", token=token, status=403, json=body)


async def test_only_callers_that_see_the_whole_cell_read_the_log(cell: GatewayCell) -> None:
    for path in ("/v1/events", "/v1/cycles/main/1"):
        await cell.call("GET", path, token="viewer")
        for token in ("nlp", "admin", "research", "no_roles"):
            await cell.call("GET", path, token=token, status=403)


async def test_a_request_is_visible_to_its_author(cell: GatewayCell) -> None:
    job = await cell.submit(token="nlp")
    answer = await cell.call("POST", f"/v1/jobs/{job}/pause", token="nlp", status=202, json={})
    path = f"/v1/requests/{answer['request_ids'][0]}"
    for token in ("nlp", "operator", "viewer"):
        assert (await cell.call("GET", path, token=token))["state"] == "accepted"
    for token in ("nlp2", "vision"):
        await cell.call("GET", path, token=token, status=404)


async def test_a_rate_limited_caller_gets_the_time_of_its_next_request() -> None:
    from tests.support.gateway import gateway_cell
    from yardmaster_runtime.clock import ManualClock

    clock = ManualClock()
    async with gateway_cell(clock=clock, rate_burst=3, rate_per_s=0.5) as cell:
        for _ in range(3):
            await cell.call("GET", "/v1/whoami", token="nlp", run=False)
        async with cell.client("nlp") as client:
            response = await client.get("/v1/whoami")
        assert response.status_code == 429
        assert response.headers["Retry-After"] == "2"
        await cell.call("GET", "/v1/whoami", token="vision", run=False)
        clock.advance(2)
        await cell.call("GET", "/v1/whoami", token="nlp", run=False)
        await cell.call("GET", "/v1/whoami", token="nlp", status=429, run=False)


async def test_the_rate_of_the_least_recently_active_caller_is_dropped(cell: GatewayCell) -> None:
    gateway: Gateway = cell.app.state.gateway
    limit = gateway.limit
    limit._callers = 2
    for name in ("a", "b", "c"):
        limit.take(name)
    assert list(limit._buckets) == ["b", "c"]


GRANTS = {
    RoleName.VIEWER: {Action.READ},
    RoleName.USER: {Action.READ, Action.SUBMIT, Action.CHANGE_OWN},
    RoleName.PROJECT_ADMIN: set(Action) - {Action.OPERATE, Action.READ_LOG},
    RoleName.OPERATOR: set(Action),
}


@pytest.mark.parametrize("role", RoleName)
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("action", Action)
def test_a_role_grants_its_actions_within_its_scope(
    role: RoleName, scope: Scope, action: Action
) -> None:
    names = {Scope.CELL: "main", Scope.DEPARTMENT: "research", Scope.PROJECT: "nlp"}
    binding = (Binding(role, scope, names[scope]),)
    granted = action in GRANTS[role]
    if action is Action.READ_LOG:
        granted = scope is Scope.CELL
    assert is_allowed(binding, action, project="nlp", department="research") == granted
    elsewhere = granted and scope is Scope.CELL
    assert is_allowed(binding, action, project="ads", department="product") == elsewhere
    assert is_allowed(binding, action) == elsewhere
    assert not is_allowed((), action, project="nlp", department="research")
