"""Submitting, showing, changing and cancelling jobs."""

import asyncio
from typing import Any

import pytest

from tests.support import logs
from tests.support.gateway import GatewayCell, through_both
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.settings import CycleLimits
from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.decisions import SlotsAllocatedV1
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster_schemas.events.requests import CancelRequestedV1, TaskSubmittedV1

RUN = {"command": ["python", "t.py"]}


async def test_a_job_is_recorded_then_admitted_then_placed(cell: GatewayCell) -> None:
    body = {"project": "nlp", "name": "sft", "resources": {"gpus": 1}, "run": RUN}
    headers = {"Idempotency-Key": "k1"}
    answer = await cell.call(
        "POST", "/v1/jobs", token="nlp", status=202, json=body, headers=headers, run=False
    )
    assert answer["task_ids"] == [f"{answer['job_id']}.0"]
    assert answer["position"].startswith("main@r")
    await cell.follower.catch_up()
    path = f"/v1/tasks/{answer['task_ids'][0]}"
    assert (await cell.call("GET", path))["phase"] == "submitted"
    task = await cell.call("GET", path)
    assert task["phase"] == "starting"
    assert (task["name"], task["user"], task["nodes"]) == ("sft", "nina", ["n1"])
    await cell.starts(task["task_id"])
    assert (await cell.call("GET", path))["phase"] == "running"
    await cell.finishes(task["task_id"])
    task = await cell.call("GET", path)
    assert (task["phase"], task["end"]["exit_code"]) == ("succeeded", 0)


async def test_an_answer_has_its_position_and_key_in_headers_too(cell: GatewayCell) -> None:
    async with cell.client("nlp") as client:
        response = await client.post("/v1/jobs", json={"project": "nlp", "run": RUN})
        assert response.status_code == 202
        assert response.headers["Yard-Position"] == response.json()["position"]
        assert len(response.headers["Idempotency-Key"]) == 32, "generated and returned"
        assert len(response.headers["Trace-Id"]) == 32


async def test_the_same_key_and_body_return_the_same_answer_and_write_one_record(
    cell: GatewayCell,
) -> None:
    body = {"project": "nlp", "tasks": {"count": 3}, "run": RUN}
    headers = {"Idempotency-Key": "again"}
    answers = [
        await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=given, headers=headers)
        for given in (body, {**body, "priority": None}, body)
    ]
    assert answers[0] == answers[1] == answers[2]
    submitted = [e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)]
    assert len(submitted) == 1


async def test_the_same_key_with_a_different_body_is_refused(cell: GatewayCell) -> None:
    headers = {"Idempotency-Key": "clash"}
    body = {"project": "nlp", "run": RUN}
    await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=body, headers=headers)
    problem = await cell.call(
        "POST",
        "/v1/jobs",
        token="nlp",
        status=422,
        json={**body, "priority": 3},
        headers=headers,
    )
    assert problem["code"] == "idempotency_mismatch"


async def test_concurrent_submissions_with_one_key_create_one_job(cell: GatewayCell) -> None:
    body = {"project": "nlp", "run": RUN}
    headers = {"Idempotency-Key": "twins"}

    async def follow() -> None:
        for _ in range(50):
            await cell.follower.catch_up()
            await asyncio.sleep(0.001)

    async with cell.client("nlp") as client, asyncio.TaskGroup() as group:
        group.create_task(follow())
        calls = [
            group.create_task(client.post("/v1/jobs", json=body, headers=headers)) for _ in range(4)
        ]
    answers = [call.result().json() for call in calls]
    assert all(answer == answers[0] for answer in answers), answers
    submitted = [e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)]
    assert len(submitted) == 1
    detailed = [e for e in await cell.events("details") if isinstance(e, JobDetailedV1)]
    assert len(detailed) == 1


async def test_one_key_sent_to_two_gateways_is_one_job_that_keeps_its_command(
    cell: GatewayCell,
) -> None:
    body = {"project": "nlp", "run": RUN}
    first, second = await through_both(cell, body, body)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    submitted = [e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)]
    assert len(submitted) == 2, "both gateways must record it for this test"
    # What compaction leaves of each key: the newest record.
    stored = await cell.log.read(Partition("details"), 0, max_records=100)
    kept = {one.record.key: one for one in stored}
    (admitted,) = [e for e in await cell.events("admissions") if isinstance(e, TaskAdmittedV1)]
    left = [one.offset for one in kept.values() if one.record.value is not None]
    assert left == [admitted.details.offset], "only the details of the repetition are removed"


async def test_one_key_with_two_bodies_sent_to_two_gateways_is_refused_for_the_second(
    cell: GatewayCell,
) -> None:
    body = {"project": "nlp", "run": RUN}
    first, second = await through_both(cell, body, {**body, "priority": 3})
    answers = {answer.status_code: answer.json() for answer in (first, second)}
    assert answers.keys() == {202, 422}
    assert answers[422]["code"] == "idempotency_mismatch"
    job = await cell.call("GET", f"/v1/jobs/{answers[202]['job_id']}")
    assert (job["run"]["command"], job["phases"]) == (RUN["command"], {"starting": 1})


async def test_the_same_key_of_a_different_user_or_project_is_a_different_job(
    cell: GatewayCell,
) -> None:
    ids = set()
    for token, project in (("nlp", "nlp"), ("nlp2", "nlp"), ("vision", "vision")):
        answer = await cell.call(
            "POST",
            "/v1/jobs",
            token=token,
            status=202,
            json={"project": project, "run": RUN},
            headers={"Idempotency-Key": "k"},
        )
        ids.add(answer["job_id"])
    assert len(ids) == 3


async def test_ten_thousand_tasks_are_one_request(cell: GatewayCell) -> None:
    answer = await cell.call(
        "POST",
        "/v1/jobs",
        token="nlp",
        status=202,
        run=False,
        json={"project": "nlp", "tasks": {"count": 10_000}, "run": RUN},
    )
    assert len(answer["task_ids"]) == 10_000
    assert answer["task_ids"][-1].endswith(".9999")


@pytest.mark.parametrize(
    ("body", "pointer", "word"),
    [
        ({"project": "nlp"}, "/run", "required"),
        ({"run": RUN}, "/project", "required"),
        ({"project": "nlp", "run": RUN, "gpu": 1}, "/gpu", "not permitted"),
        ({"project": "nlp", "run": RUN, "topology": {"required": "rack"}}, "", "topology"),
        ({"project": "nlp", "run": RUN, "resources": {"gpus": 1.5}}, "/resources/gpus", "count"),
        (
            {"project": "nlp", "run": RUN, "resources": {"gpus": {"memory": "20Gi"}}},
            "/resources/gpus",
            "memory",
        ),
        ({"project": "nlp", "run": {"command": ["a"], "script": "b"}}, "/run", "either"),
        ({"project": "nlp", "run": RUN, "tasks": {"count": 10_001}}, "/tasks/count", "10000"),
        (
            {"project": "nlp", "run": RUN, "tasks": {"matrix": {"a": [1] * 101, "b": [1] * 100}}},
            "/tasks",
            "10100 tasks",
        ),
        ({"project": "nlp", "run": RUN, "time_limit": "12 h"}, "/time_limit", "12h"),
        ({"project": "nlp", "run": {**RUN, "env": {"LD_PRELOAD": "x"}}}, "/run", "reserved"),
        (
            {"project": "nlp", "run": RUN, "resources": {"memory": "10"}},
            "/resources/memory",
            "no unit; write 10Mi",
        ),
        (
            {"project": "nlp", "run": RUN, "replicas": {"min": 1, "max": 2}},
            "/replicas",
            "elastic gangs",
        ),
        ({"project": "nlp", "run": RUN, "priority": "7"}, "/priority", "integer"),
        ({"project": "nlp", "run": RUN, "role": "shell"}, "", "interactive"),
    ],
)
async def test_an_invalid_body_is_refused_with_the_field(
    cell: GatewayCell, body: dict[str, object], pointer: str, word: str
) -> None:
    problem = await cell.call("POST", "/v1/jobs", token="nlp", status=422, json=body)
    assert problem["code"] == "invalid_spec"
    places = [error["pointer"] for error in problem["errors"]]
    assert pointer in places, places
    found = problem["errors"][places.index(pointer)]["detail"]
    assert word in found, found


async def test_a_body_that_is_not_json_or_too_large_or_of_a_wrong_type_is_refused(
    cell: GatewayCell,
) -> None:
    kind = {"Content-Type": "application/json"}
    problem = await cell.call("POST", "/v1/jobs", status=400, content=b'{"project": ', headers=kind)
    assert problem["code"] == "malformed"
    large = b'{"project": "' + b"x" * (1024 * 1024) + b'"}'
    assert (await cell.call("POST", "/v1/jobs", status=413, content=large, headers=kind))[
        "code"
    ] == "too_large"
    text = {"Content-Type": "text/plain"}
    await cell.call("POST", "/v1/jobs", status=415, content=b"{}", headers=text)
    deep = b"[" * 100_000
    await cell.call("POST", "/v1/jobs", status=400, content=deep, headers=kind)


async def test_a_rejected_job_shows_the_reason(cell: GatewayCell) -> None:
    job = await cell.submit(pools=["nowhere"])
    task = await cell.call("GET", f"/v1/tasks/{job}.0")
    assert task["phase"] == "rejected"
    assert task["refusal"]["code"] in {"pool_unknown", "pool_not_allowed"}
    explained = await cell.call("GET", f"/v1/tasks/{job}.0/explain")
    assert explained["refusal"] == task["refusal"]


async def test_what_no_decision_reads_is_only_in_details(cell: GatewayCell) -> None:
    await cell.submit(name="secret-name", labels={"team": "x"}, run={"command": ["hush"]})
    for topic in ("requests", "admissions", "decisions"):
        for stored in await cell.log.read(Partition(topic), 0, max_records=1000):
            assert b"secret-name" not in (stored.record.value or b"")
            assert b"hush" not in (stored.record.value or b"")
    details = [e for e in await cell.events("details") if isinstance(e, JobDetailedV1)]
    assert details[0].name == "secret-name"


async def test_a_job_shows_the_submitted_spec_and_all_defaults(cell: GatewayCell) -> None:
    job = await cell.submit(
        tasks={"matrix": {"lr": [0.1, 0.01], "seed": [1, 2]}, "max_concurrent": 1},
        stop={"grace": "2m", "signal": "USR1"},
    )
    answer = await cell.call("GET", f"/v1/jobs/{job}")
    assert answer["tasks"] == 4
    assert answer["phases"] == {"starting": 1, "pending": 3}
    assert answer["asked"]["grace_s"] == 120
    assert answer["spec"]["preemptible"] is True
    assert answer["stop_signal"] == "USR1"
    last = await cell.call("GET", f"/v1/tasks/{job}.3")
    assert last["params"] == {"lr": 0.01, "seed": 2}
    assert last["wait"]["code"] == "at_max_concurrent"


async def test_a_change_needs_the_current_etag(cell: GatewayCell) -> None:
    job = await cell.submit()
    path = f"/v1/jobs/{job}"
    async with cell.client("nlp") as client:
        tag = (await client.get(path)).headers["ETag"]
    assert tag == '"1"'
    change = {"priority": 7, "max_slots": 2}
    missing = await cell.call("PATCH", path, token="nlp", status=428, json=change)
    assert missing["code"] == "precondition_required"
    old = {"If-Match": '"9"'}
    stale = await cell.call("PATCH", path, token="nlp", status=412, json=change, headers=old)
    assert stale["code"] == "version_mismatch"
    answer = await cell.call(
        "PATCH", path, token="nlp", status=202, json=change, headers={"If-Match": tag}
    )
    assert len(answer["request_ids"]) == 2
    changed = await cell.call("GET", path)
    assert (changed["priority"], changed["max_slots_milli"], changed["revision"]) == (7, 2000, 3)
    for request_id in answer["request_ids"]:
        request = await cell.call("GET", f"/v1/requests/{request_id}", token="nlp")
        assert request["state"] == "accepted"
    lifted = {"max_slots": None}
    await cell.call("PATCH", path, status=202, json=lifted, headers={"If-Match": "*"})
    assert (await cell.call("GET", path))["max_slots_milli"] is None


async def test_quota_refuses_the_second_of_two_concurrent_changes(cell: GatewayCell) -> None:
    job = await cell.submit()
    path = f"/v1/jobs/{job}"
    ids = []
    for priority in (7, 8):
        answer = await cell.call(
            "PATCH",
            path,
            token="nlp",
            status=202,
            json={"priority": priority},
            headers={"If-Match": '"1"'},
            run=False,
        )
        ids += answer["request_ids"]
    await cell.run_until_idle()
    states = [await cell.call("GET", f"/v1/requests/{one}", token="nlp") for one in ids]
    assert [one["state"] for one in states] == ["accepted", "refused"]
    assert states[1]["refusal"]["code"] == "version_mismatch"
    assert (await cell.call("GET", path))["priority"] == 7


@pytest.mark.parametrize("body", [{}, {"priority": None}, {"priority": 100}, {"weight": 0}])
async def test_an_empty_or_invalid_change_is_refused(
    cell: GatewayCell, body: dict[str, object]
) -> None:
    job = await cell.submit()
    headers = {"If-Match": "*"}
    await cell.call("PATCH", f"/v1/jobs/{job}", status=422, json=body, headers=headers)


async def test_a_cancelled_job_ends_and_can_no_longer_be_changed(cell: GatewayCell) -> None:
    job = await cell.submit(tasks={"count": 2}, resources={"gpus": 4})
    path = f"/v1/jobs/{job}"
    body = {"reason": "wrong data"}
    await cell.call("POST", f"{path}/cancel", token="nlp", status=202, json=body)
    noted = [e for e in await cell.events("details") if isinstance(e, RequestNotedV1)]
    assert [note.text for note in noted] == ["wrong data"]
    waiting = await cell.call("GET", f"/v1/tasks/{job}.1")
    assert waiting["phase"] == "cancelled"
    assert (await cell.call("GET", f"/v1/tasks/{job}.0"))["phase"] == "stopping"
    await cell.claim(logs.released(f"{job}.0", "n1", never_started=True))
    await cell.run_until_idle()
    assert (await cell.call("GET", path))["phases"] == {"cancelled": 2}
    problem = await cell.call("POST", f"{path}/cancel", token="nlp", status=409, json={})
    assert problem["code"] == "wrong_phase"
    await cell.call("PATCH", path, status=409, json={"priority": 1}, headers={"If-Match": "*"})


async def test_a_paused_job_is_held_until_it_is_resumed(cell: GatewayCell) -> None:
    first = await cell.submit(resources={"gpus": 4})
    job = await cell.submit()
    await cell.call("POST", f"/v1/jobs/{job}/pause", token="nlp", status=202, json={})
    task = await cell.call("GET", f"/v1/tasks/{job}.0")
    assert (task["paused"], task["wait"]["code"]) == (True, "paused")
    assert task["wait"]["wait_class"] == "held"
    await cell.call("POST", f"/v1/jobs/{first}/cancel", token="nlp", status=202, json={})
    path = f"/v1/jobs/{job}/resume"
    given = {"reason": "an operator is on call"}
    refused = await cell.call("POST", path, token="nlp", status=422, json=given, run=False)
    assert refused["errors"][0]["pointer"] == "/reason"
    await cell.call("POST", path, token="nlp", status=202, json={})
    task = await cell.call("GET", f"/v1/tasks/{job}.0")
    assert not task["paused"]


async def test_one_task_of_a_job_can_be_cancelled(cell: GatewayCell) -> None:
    job = await cell.submit(tasks={"count": 6})
    await cell.call("POST", f"/v1/tasks/{job}.5/cancel", token="nlp", status=202, json={})
    answer = await cell.call("GET", f"/v1/jobs/{job}")
    assert answer["phases"] == {"starting": 4, "pending": 1, "cancelled": 1}
    requests = [e for e in await cell.events("requests") if isinstance(e, CancelRequestedV1)]
    assert requests[0].index == 5


async def test_jobs_are_listed_by_label_phase_and_ref(cell: GatewayCell) -> None:
    red = await cell.submit(labels={"team": "red"})
    blue = await cell.submit(labels={"team": "blue"}, resources={"gpus": 4})

    async def ids(query: str) -> list[str]:
        return [job["job_id"] for job in (await cell.call("GET", f"/v1/jobs?{query}"))["items"]]

    assert await ids("label.team=red") == [red]
    assert await ids("label.team=red&label.team=blue&sort=submitted_at") == [red, blue]
    assert await ids("phase=pending,running") == [blue]
    assert await ids(f"ref={red[:6]}") == [red]
    assert await ids("user=unknown") == []


async def test_a_submission_interrupted_by_the_gateways_stop_has_an_unknown_outcome(
    cell: GatewayCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, recorded = cell.log.append, asyncio.Event()

    async def unanswered(partition: Any, batch: Any) -> int:
        offset = await append(partition, batch)
        if partition.topic == "requests":
            recorded.set()
            await asyncio.Event().wait()
        return offset

    body = {"project": "nlp", "run": {"command": ["true"]}}
    with monkeypatch.context() as patched:
        patched.setattr(cell.log, "append", unanswered)
        submitting = asyncio.create_task(
            cell.call("POST", "/v1/jobs", token="nlp", status=504, run=False, json=body)
        )
        await recorded.wait()
        submitting.cancel()
        problem = await submitting
    assert problem["code"] == "outcome_unknown"
    await cell.run_until_idle()
    assert len((await cell.call("GET", "/v1/jobs", token="nlp"))["items"]) == 1


async def submitted_unseen(cell: GatewayCell) -> str:
    """Submit a job that quota and the views do not read; the gateway has read the views."""
    await cell.call("GET", "/v1/pools")
    body = {"project": "nlp", "run": {"command": ["true"]}}
    answer = await cell.call("POST", "/v1/jobs", status=202, run=False, token="nlp", json=body)
    return str(answer["job_id"])


async def test_a_job_that_the_views_have_not_read_is_not_unknown(cell: GatewayCell) -> None:
    path = f"/v1/jobs/{await submitted_unseen(cell)}"
    behind = await cell.call("GET", path, status=503, run=False)
    assert behind["code"] == "view_behind"
    await cell.run_until_idle()
    await cell.call("GET", path)
    assert (await cell.call("GET", "/v1/jobs/000000000000", status=404))["code"] == "not_found"


async def test_a_recent_job_can_be_canceled_while_the_views_are_behind(cell: GatewayCell) -> None:
    job = await submitted_unseen(cell)
    path = f"/v1/jobs/{job}/cancel"
    for other in ("nlp2", "viewer"):
        problem = await cell.call("POST", path, status=403, run=False, token=other, json={})
        assert problem["code"] == "forbidden"
    # A caller that may not see the project does not learn that the job exists.
    await cell.call("POST", path, status=503, run=False, token="vision", json={})
    unknown = "/v1/jobs/000000000000/cancel"
    problem = await cell.call("POST", unknown, status=503, run=False, token="nlp", json={})
    assert problem["code"] == "view_behind"
    await cell.call("POST", path, status=202, run=False, token="nlp", json={})
    await cell.run_until_idle()
    assert (await cell.call("GET", f"/v1/jobs/{job}"))["phases"] == {"cancelled": 1}


async def test_the_limits_of_a_cell_are_shown_and_changed(cell: GatewayCell) -> None:
    shown = await cell.call("GET", "/v1/cell", token="nlp")
    assert (shown["name"], shown["revision"]) == ("main", 0)
    assert shown["config"] == {
        "project_tasks": 200_000,
        "user_tasks": 100_000,
        "tasks_of": {},
        "default_pools": [],
    }
    changed = {"user_tasks": 1, "tasks_of": {"nico": 2}}
    await cell.call("PUT", "/v1/cell", status=428, json=changed)
    tag = {"If-Match": '"0"'}
    await cell.call("PUT", "/v1/cell", status=403, json=changed, token="nlp", headers=tag)
    await cell.call("PUT", "/v1/cell", status=202, json=changed, headers=tag)
    shown = await cell.call("GET", "/v1/cell")
    assert (shown["revision"], shown["config"]["user_tasks"]) == (1, 1)
    await cell.call("PUT", "/v1/cell", status=412, json=changed, headers=tag)
    body = {"project": "nlp", "run": {"command": ["true"]}, "tasks": {"count": 2}}
    for token, phase in (("nlp", "rejected"), ("nlp2", "starting")):
        answer = await cell.call("POST", "/v1/jobs", status=202, token=token, json=body)
        task = await cell.call("GET", f"/v1/tasks/{answer['task_ids'][0]}")
        assert task["phase"] == phase, token


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ('{"project": "nlp", "project": "pay"}', "the key 'project' of the body occurs 2 times"),
        ('{"resources": {"gpus": 1, "gpus": 8}}', "the key 'gpus' of the body occurs 2 times"),
        ('{"resources": {"cpus": NaN}}', "the body is not valid JSON: NaN is no number"),
        ('{"resources": {"cpus": -Infinity}}', "-Infinity is no number"),
        ('{"a": ' * 100_000, "the body is not valid JSON"),
        ('{"priority": ' + "1" * 5_000 + "}", "the body is not valid JSON"),
    ],
)
async def test_a_body_with_a_repeated_key_or_a_number_that_json_lacks_is_refused(
    cell: GatewayCell, content: str, detail: str
) -> None:
    answer = await cell.call(
        "POST",
        "/v1/jobs",
        token="nlp",
        status=400,
        content=content,
        headers={"Content-Type": "application/json"},
    )
    assert answer["code"] == "malformed"
    assert detail in answer["detail"]


async def test_a_position_without_a_dot_between_its_parts_is_named(cell: GatewayCell) -> None:
    answer = await cell.call(
        "GET", "/v1/tasks?min_position=main@r1.n56589d0048", token="nlp", status=400
    )
    assert answer["code"] == "malformed"
    assert "min_position" in answer["detail"]
    assert "invalid literal" not in answer["detail"]


async def test_after_a_mass_cancel_the_next_job_waits_for_the_ends_and_no_longer(
    cell: GatewayCell,
) -> None:
    tasks, many = 10_000, {"count": 5_000}
    condition = {"If-Match": "*"}
    await cell.call("PUT", "/v1/cell", status=202, headers=condition, json={"user_tasks": tasks})
    full = [await cell.submit(tasks=many, priority=99) for _ in range(3)]
    refused = (await cell.call("GET", f"/v1/jobs/{full.pop()}"))["refusal"]
    assert (refused["code"], refused["numbers"]["unfinished"]) == ("user_full", tasks)
    for job in full:
        path, now = f"/v1/jobs/{job}/cancel", {"immediate": True}
        await cell.call("POST", path, token="nlp", status=202, run=False, json=now)
    body = {"project": "vision", "resources": {"gpus": 0}, "run": {"command": ["true"]}}
    answer = await cell.call("POST", "/v1/jobs", token="vision", status=202, run=False, json=body)
    quota, scheduler = cell.leaders
    await cell._step(quota)
    # One cycle has at most `max_decisions` ends, and one more places the next job.
    for _ in range(tasks // CycleLimits().max_decisions + 1):
        await cell._step(scheduler)
    started = [e.task_id for e in await cell.events("decisions") if isinstance(e, SlotsAllocatedV1)]
    assert started[-1] == answer["task_ids"][0]
    await cell.run_until_idle()
    again = await cell.submit(tasks=many, priority=99)
    assert (await cell.call("GET", f"/v1/jobs/{again}"))["phases"] == {"pending": many["count"]}
