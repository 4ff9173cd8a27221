"""Reads: positions, waiting, lists, unknown paths and parameters."""

import asyncio

import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogTruncated, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_gateway.errors import TokenFileRefused
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_runtime.clock import ManualClock, SystemClock


async def test_every_read_has_its_position(cell: GatewayCell) -> None:
    async with cell.client() as client:
        for path in ("/v1/tasks", "/v1/nodes/n1", "/v1/projects/nlp"):
            response = await client.get(path)
            assert response.headers["Yard-Position"] == str(await cell.store.position())
    page = await cell.call("GET", "/v1/pools")
    assert page["position"] == str(await cell.store.position())


async def test_a_read_waits_for_the_position_of_its_caller(cell: GatewayCell) -> None:
    answer = await cell.call(
        "POST",
        "/v1/jobs",
        status=202,
        run=False,
        json={"project": "nlp", "run": {"command": ["true"]}},
    )
    path = f"/v1/tasks/{answer['task_ids'][0]}"
    headers = {"Yard-Min-Position": answer["position"]}
    behind = await cell.call("GET", path, status=503, run=False, headers=headers)
    assert behind["code"] == "view_behind"
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(
            cell.call("GET", f"{path}?min_position={answer['position']}", run=False)
        )
        await asyncio.sleep(0)
        group.create_task(cell.follower.catch_up())
    assert reading.result()["phase"] == "submitted"


@pytest.mark.parametrize("position", ["main@r999999", "main@d999", "other@r1"])
async def test_a_position_beyond_the_log_is_refused_as_gone(
    cell: GatewayCell, position: str
) -> None:
    for path in (f"/v1/tasks?min_position={position}", f"/v1/events?after={position}"):
        problem = await cell.call("GET", path, status=410)
        assert problem["code"] == "position_unknown"


@pytest.mark.parametrize(
    "query",
    [
        "min_position=nonsense",
        "limit=0",
        "limit=1001",
        "limit=x",
        "phase=runing",
        "sort=name",
        "since=yesterday",
        "since=2026-02-30T00:00:00Z",
        "phaze=running",
        "label.UPPER=x",
        "&".join(f"label.a{i}=x" for i in range(17)),
    ],
)
async def test_an_invalid_parameter_is_refused(cell: GatewayCell, query: str) -> None:
    problem = await cell.call("GET", f"/v1/tasks?{query}", status=400)
    assert problem["code"] == "malformed"


async def test_a_label_filter_is_refused_for_objects_without_labels(cell: GatewayCell) -> None:
    await cell.call("GET", "/v1/pools?label.team=x", status=400)


async def test_an_invalid_cursor_is_refused(cell: GatewayCell) -> None:
    for path in ("/v1/tasks", "/v1/jobs", "/v1/nodes", "/v1/pools", "/v1/projects"):
        problem = await cell.call("GET", f"{path}?cursor=abc", status=400)
        assert problem["code"] == "bad_cursor"
    await cell.call("GET", "/v1/departments?cursor=abc", status=400)


async def test_pages_follow_their_cursors_to_the_end(cell: GatewayCell) -> None:
    job = await cell.submit(tasks={"count": 7})
    seen: list[str] = []
    cursor = ""
    while True:
        page = await cell.call("GET", f"/v1/tasks?limit=3&job_id={job}&sort=submitted_at{cursor}")
        seen += [task["task_id"] for task in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"{job}.{index}" for index in range(7)]


async def test_tasks_of_a_job_in_one_phase_are_one_group(cell: GatewayCell) -> None:
    array = await cell.submit(
        name="sweep", tasks={"count": 7, "max_concurrent": 2}, resources={"gpus": 1}
    )
    single = await cell.submit(name="alone", kind="interactive")
    await cell.starts(f"{array}.0")
    found = await cell.call("GET", "/v1/task-groups")
    groups = [
        (one["first"]["task_id"], one["first"]["phase"], one["last_index"], one["count"])
        for one in found["items"]
    ]
    assert groups == [
        (f"{single}.0", "starting", 0, 1),
        (f"{array}.2", "pending", 6, 5),
        (f"{array}.1", "starting", 1, 1),
        (f"{array}.0", "running", 0, 1),
    ]
    assert found["phases"] == {"pending": 5, "starting": 2, "running": 1}
    for query, wanted in (
        ("phase=pending", [5]),
        ("name=sweep&phase=running,starting", [1, 1]),
        ("kind=interactive", [1]),
        (f"job_id={array}&phase=pending", [5]),
        ("name=nothing", []),
        ("project=other", []),
    ):
        found = await cell.call("GET", f"/v1/task-groups?{query}")
        assert [one["count"] for one in found["items"]] == wanted, query
    listed = await cell.call("GET", "/v1/tasks?name=alone")
    assert [task["task_id"] for task in listed["items"]] == [f"{single}.0"]


async def test_failed_tasks_of_a_job_that_ended_differently_are_different_groups(
    cell: GatewayCell,
) -> None:
    job = await cell.submit(name="codes", tasks={"count": 4}, resources={"gpus": 1})
    for index, code in enumerate((1, 2, 1, 0)):
        await cell.starts(f"{job}.{index}")
        await cell.finishes(f"{job}.{index}", exit_code=code)
    found = await cell.call("GET", f"/v1/task-groups?job_id={job}")
    groups = [
        (one["first"]["phase"], one["first"]["index"], one["last_index"], one["count"])
        for one in found["items"]
    ]
    assert sorted(groups) == [
        ("failed", 0, 2, 2),
        ("failed", 1, 1, 1),
        ("succeeded", 3, 3, 1),
    ]
    codes = {
        one["first"]["index"]: one["first"]["end"]["exit_code"]
        for one in found["items"]
        if one["first"]["phase"] == "failed"
    }
    assert codes == {0: 1, 1: 2}
    assert found["phases"] == {"failed": 3, "succeeded": 1}


async def test_groups_come_in_pages_of_jobs(cell: GatewayCell) -> None:
    jobs = [await cell.submit(tasks={"count": 2}) for _ in range(3)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = await cell.call("GET", f"/v1/task-groups?limit=2{cursor}")
        seen += [one["first"]["job_id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert list(dict.fromkeys(seen)) == jobs[::-1]
    await cell.call("GET", "/v1/task-groups?cursor=abc", status=400)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/tasks/", 404),
        ("GET", "/v1/tasks/nope", 404),
        ("GET", "/v1/jobs/%00", 404),
        ("GET", "/v1/nodes/n2", 404),
        ("GET", "/v1/pools/nope", 404),
        ("GET", "/v1/departments/nope", 404),
        ("GET", "/v1/cycles/main/999", 404),
        ("GET", "/v1/cycles/main/x", 404),
        ("GET", "/v1/cycles/other/1", 404),
        ("GET", "/v1/requests/main.999", 404),
        ("GET", "/v1/requests/junk", 404),
        ("GET", "/docs/nope", 404),
        ("POST", "/livez", 405),
        ("TRACE", "/v1/tasks", 405),
        ("PUT", "/v1/tasks", 405),
    ],
)
async def test_a_missing_path_is_answered_with_a_problem_document(
    cell: GatewayCell, method: str, path: str, status: int
) -> None:
    problem = await cell.call(method, path, status=status)
    assert problem["code"] in {"not_found", "method_not_allowed"}
    assert len(problem["trace_id"]) == 32


async def test_a_read_waits_until_the_task_is_admitted_or_the_time_is_over() -> None:
    async with gateway_cell(max_wait_s=5.0, view_wait_s=5.0) as cell:
        answer = await cell.call(
            "POST",
            "/v1/jobs",
            status=202,
            run=False,
            json={"project": "nlp", "run": {"command": ["true"]}},
        )
        await cell.follower.catch_up()
        path = f"/v1/tasks/{answer['task_ids'][0]}"
        late = await cell.call("GET", f"{path}?wait_for=admitted&timeout_s=0", run=False)
        assert late["phase"] == "submitted"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(
                cell.call("GET", f"{path}?wait_for=admitted&timeout_s=30", run=False)
            )
            await cell.until_reads_wait()
            assert not waiting.done()
            group.create_task(cell.run_until_idle())
        assert waiting.result()["phase"] in {"pending", "starting"}
        running = await cell.call("GET", f"{path}?wait_for=starting&timeout_s=5", run=False)
        assert running["phase"] == "starting"


async def test_a_read_waits_until_quota_has_decided_on_the_request() -> None:
    async with gateway_cell(max_wait_s=5.0) as cell:
        answer = await cell.call(
            "PUT",
            "/v1/pools/new",
            status=202,
            run=False,
            json={"policy": {"name": "priority"}},
            headers={"If-None-Match": "*"},
        )
        await cell.follower.catch_up()
        path = f"/v1/requests/{answer['request_ids'][0]}"
        assert (await cell.call("GET", path, run=False))["state"] == "recorded"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(cell.call("GET", f"{path}?wait_s=5", run=False))
            await cell.until_reads_wait()
            group.create_task(cell.run_until_idle())
        assert waiting.result()["state"] == "accepted"


async def test_the_version_contains_the_id_of_the_log(cell: GatewayCell) -> None:
    answer = await cell.call("GET", "/v1/version")
    assert (answer["log_id"], answer["cell"], answer["api"]) == (
        "0123456789abcdef" * 2,
        "main",
        "v1",
    )


async def test_a_gateway_is_ready_when_the_log_and_the_views_are() -> None:
    fresh = GatewayCell()
    problem = await fresh.call("GET", "/readyz", token=None, status=503, run=False)
    assert problem["code"] == "not_ready"
    await fresh.start()
    assert (await fresh.call("GET", "/readyz", token=None))["status"] == "ready"
    assert (await fresh.call("GET", "/livez", token=None))["status"] == "ok"


async def test_requests_for_readiness_share_one_check() -> None:
    clock = ManualClock()
    cell = GatewayCell(clock=clock, ready_age_s=1)
    assert {await _readiness(cell) for _ in range(20)} == {"not_ready"}
    await cell.start()
    assert await _readiness(cell) == "not_ready", "the last check is repeated for a second"
    clock.advance(1.0)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_readiness(cell)) for _ in range(20)]
    assert {one.result() for one in asked} == {"ready"}


async def _readiness(cell: GatewayCell) -> str:
    async with cell.client(None) as client:
        answer = (await client.get("/readyz")).json()
    return str(answer.get("status") if answer.get("status") == "ready" else answer["code"])


async def test_metrics_count_answers(cell: GatewayCell) -> None:
    await cell.call("GET", "/v1/tasks")
    await cell.call("GET", "/nowhere", status=404)
    text = (await cell.call("GET", "/metrics", token=None)).text
    assert 'yard_gateway_http_requests_total{method="GET",status="200"} 1.0' in text
    assert 'yard_gateway_http_requests_total{method="GET",status="404"} 1.0' in text


class Failing(MemoryLog):
    """A log whose appends to `requests` fail with an error that the test sets."""

    error: Exception | None = None

    async def append(self, partition, batch):
        if partition.topic == "requests" and self.error is not None:
            raise self.error
        return await super().append(partition, batch)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (LogUnavailable(found="no leader"), 503, "log_unavailable"),
        (LogTruncated(found="requests/0 ends at 3"), 503, "log_unavailable"),
        (AppendOutcomeUnknown(topic="requests", found="timeout"), 504, "outcome_unknown"),
    ],
)
async def test_a_failing_log_is_reported_and_the_same_key_works_afterwards(
    error: Exception, status: int, code: str
) -> None:
    log = Failing(SystemClock())
    async with gateway_cell(log=log) as cell:
        body = {"project": "nlp", "run": {"command": ["true"]}}
        headers = {"Idempotency-Key": "k"}
        log.error = error
        problem = await cell.call(
            "POST", "/v1/jobs", status=status, run=False, json=body, headers=headers
        )
        assert problem["code"] == code
        log.error = None
        answer = await cell.call("POST", "/v1/jobs", status=202, json=body, headers=headers)
        task = await cell.call("GET", f"/v1/tasks/{answer['task_ids'][0]}")
        assert task["phase"] == "starting"


async def test_a_refused_token_file_is_an_internal_error_of_the_gateway() -> None:
    class Refused:
        async def identify(self, token: str) -> Caller | None:
            raise TokenFileRefused(path="tokens.json", found="others may read it")

    async with gateway_cell(identity=Refused()) as cell:
        problem = await cell.call("GET", "/v1/whoami", status=500)
    assert problem["code"] == "internal"
    assert "tokens.json" not in problem["detail"], "the cause is for the operator's log"


async def test_the_trace_of_the_caller_is_recorded_in_the_log(cell: GatewayCell) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"project": "nlp", "run": {"command": ["true"]}}
    async with cell.client() as client:
        response = await client.post("/v1/jobs", json=body, headers=headers)
    assert response.headers["Trace-Id"] == trace
    from yardmaster_eventlog.codec import decode
    from yardmaster_eventlog.port import Partition

    stored = (await cell.log.read(Partition("requests"), 0, max_records=100))[-1]
    envelope = decode(stored.record)
    assert envelope.traceparent is not None
    assert envelope.traceparent.split("-")[1] == trace
    assert envelope.auth is not None
    assert envelope.auth.credential_id == "olga-token"


async def test_the_numbers_of_a_wait_have_a_resource_a_unit_and_a_cycle(
    cell: GatewayCell,
) -> None:
    job = await cell.submit(resources={"gpus": 2, "cpus": 1000})
    explained = await cell.call("GET", f"/v1/tasks/{job}.0/explain")
    (wait,) = [one for one in explained["pools"] if one["pool"] == "default"]
    assert (wait["code"], wait["about"]) == ("exceeds_every_node", "cpus")
    assert wait["numbers"] == {"asked_cpu_milli": 1_000_000, "largest_cpu_milli": 64_000}
    before = wait["cycle"]
    await cell.submit()
    task = await cell.call("GET", f"/v1/tasks/{job}.0")
    again = await cell.call("GET", f"/v1/tasks/{job}.0/explain")
    assert task["wait"]["cycle"] == before < again["cycle"], (
        "the reason keeps the cycle in which it was recorded"
    )
