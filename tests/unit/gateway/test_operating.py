"""Pools, projects, departments and nodes: creation, conditional changes, deletion."""

import re
from typing import Any

import pytest

from tests.support import logs
from tests.support.gateway import GatewayCell
from yardmaster_gateway.app import document
from yardmaster_scheduler.work_metrics import statuses
from yardmaster_schemas.api import NodeState
from yardmaster_schemas.events.node_events import NodeDrainedV1
from yardmaster_schemas.events.requests import NodeSlotsChangeRequestedV1

POOL = {"policy": {"name": "priority", "options": {"preemption": False}}, "default_priority": 50}


async def tag(cell: GatewayCell, path: str) -> str:
    async with cell.client() as client:
        return str((await client.get(path)).headers["ETag"])


async def state(cell: GatewayCell, answer: dict[str, Any]) -> Any:
    request = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    return request["refusal"]["code"] if request["refusal"] else request["state"]


CONFIGURED = [
    ("/v1/pools/new", POOL),
    ("/v1/projects/new", {"department": "research", "limit_milli": 8000}),
    ("/v1/departments/new", {"quotas": {"h100": {"limit_milli": 4000}}}),
]


@pytest.mark.parametrize(("path", "body"), CONFIGURED)
async def test_an_object_is_created_changed_and_deleted_with_conditions(
    cell: GatewayCell, path: str, body: dict[str, Any]
) -> None:
    new = {"If-None-Match": "*"}
    await cell.call("PUT", path, status=428, json=body)
    await cell.call("PUT", path, status=412, json=body, headers={"If-Match": "*"})
    answer = await cell.call("PUT", path, status=202, json=body, headers=new)
    assert await state(cell, answer) == "accepted"
    await cell.call("PUT", path, status=412, json=body, headers=new)
    first = await tag(cell, path)
    answer = await cell.call("PUT", path, status=202, json=body, headers={"If-Match": first})
    assert await state(cell, answer) == "accepted"
    problem = await cell.call("PUT", path, status=412, json=body, headers={"If-Match": first})
    assert problem["code"] == "version_mismatch"
    second = await tag(cell, path)
    assert second != first
    await cell.call("DELETE", path, status=428)
    await cell.call("DELETE", path, status=412, headers={"If-Match": first})
    either = {"If-Match": f'{first}, "other",{second}'}
    answer = await cell.call("DELETE", path, status=202, headers=either)
    assert await state(cell, answer) == "accepted"
    await cell.call("GET", path, status=404)
    await cell.call("DELETE", path, status=404, headers={"If-Match": "*"})


@pytest.mark.parametrize("header", ["3", '"a', "W/", '"a" "b"', "", 'W/"1"'])
async def test_a_malformed_condition_is_refused(cell: GatewayCell, header: str) -> None:
    await cell.call("PUT", "/v1/pools/h100", status=400, json=POOL, headers={"If-Match": header})


async def test_an_invalid_name_is_not_found(cell: GatewayCell) -> None:
    for name in ("UPPER", "a b", "-x", "x" * 64):
        for path in (f"/v1/pools/{name}", f"/v1/projects/{name}", f"/v1/departments/{name}"):
            body = POOL if "pools" in path else {"department": "research"}
            body = {} if "departments" in path else body
            headers = {"If-None-Match": "*"}
            await cell.call("PUT", path, status=404, json=body, headers=headers)


async def test_an_object_in_use_is_not_deleted(cell: GatewayCell) -> None:
    await cell.submit()
    for path in ("/v1/pools/default", "/v1/projects/nlp", "/v1/departments/research"):
        problem = await cell.call("DELETE", path, status=409, headers={"If-Match": "*"})
        assert problem["code"] == "in_use"


@pytest.mark.parametrize("policy", [{"name": "astrology"}, {"name": "priority", "version": 999}])
async def test_an_unknown_policy_is_refused_with_the_known_ones(
    cell: GatewayCell, policy: dict[str, Any]
) -> None:
    problem = await cell.call(
        *("PUT", "/v1/pools/new"),
        status=422,
        json={"policy": policy},
        headers={"If-None-Match": "*"},
    )
    (found,) = problem["errors"]
    assert (found["pointer"], found["code"]) == ("/policy/name", "policy_unknown")
    assert f"no policy {policy['name']} version" in found["detail"]
    assert "priority (version 1), fair_share (version 1)" in found["detail"]
    assert "sjf" not in found["detail"], "sjf is for simulations only"


@pytest.mark.parametrize(("path", "body"), CONFIGURED)
async def test_creating_an_existing_object_is_refused(
    cell: GatewayCell, path: str, body: dict[str, Any]
) -> None:
    new = {"If-None-Match": "*"}
    await cell.call("PUT", path, status=202, json=body, headers=new)
    problem = await cell.call("PUT", path, status=412, json=body, headers=new)
    assert problem["code"] == "already_exists"
    kind = path.split("/")[2].removesuffix("s")
    assert problem["detail"] == f"{kind} new already exists."


async def test_a_405_names_every_method_of_the_path(cell: GatewayCell) -> None:
    paths = document()["paths"]
    for path, operations in paths.items():
        response = await cell.call(
            "OPTIONS", re.sub(r"\{[^}]*\}", "x", path), status=405, run=False
        )
        assert "does not support OPTIONS" in response["detail"]
        async with cell.client() as client:
            headers = (await client.options(re.sub(r"\{[^}]*\}", "x", path))).headers
        assert headers["Allow"] == ", ".join(sorted(name.upper() for name in operations)), path


def test_every_reference_of_the_document_resolves() -> None:
    whole = document()

    def check(part: Any) -> int:
        if isinstance(part, list):
            return sum(map(check, part))
        if not isinstance(part, dict):
            return 0
        count = sum(map(check, part.values()))
        if isinstance(ref := part.get("$ref"), str):
            there: Any = whole
            for step in ref.removeprefix("#/").split("/"):
                assert step in there, ref
                there = there[step]
            count += 1
        return count

    assert check(whole) > 100


async def test_a_quota_is_part_of_its_project(cell: GatewayCell) -> None:
    path = "/v1/projects/nlp"
    headers = {"If-Match": await tag(cell, path)}
    quota = {
        "deserved_milli": 4000,
        "limit_milli": 8000,
        "over_quota_weight": 3,
        "deserved_unlimited": False,
        "deserved_cpu_milli": 64_000,
        "deserved_memory_mib": None,
        "limit_cpu_milli": None,
        "limit_memory_mib": 1024,
        "over_quota": False,
    }
    answer = await cell.call("PUT", f"{path}/quotas/h100", status=202, json=quota, headers=headers)
    assert await state(cell, answer) == "accepted"
    answer = await cell.call("GET", path)
    assert answer["config"]["quotas"] == {"h100": quota}
    assert answer["pools"] == [{"pool": "h100", "used_milli": 0, "pending_milli": 0, **quota}]
    await cell.call("PUT", f"{path}/quotas/h100", status=412, json=quota, headers=headers)
    any_ = {"If-Match": "*"}
    await cell.call("DELETE", f"{path}/quotas/a100", status=404, headers=any_)
    await cell.call("DELETE", f"{path}/quotas/h100", status=202, headers=any_)
    assert (await cell.call("GET", path))["config"]["quotas"] == {}


async def test_the_counters_of_pools_projects_and_departments_follow_the_tasks(
    cell: GatewayCell,
) -> None:
    await cell.submit(resources={"gpus": 3})
    await cell.submit(token="vision", project="vision", resources={"gpus": 2})
    pool = await cell.call("GET", "/v1/pools/default")
    assert (pool["nodes"], pool["gpu_milli"], pool["gpu_milli_used"]) == (1, 4000, 3000)
    assert pool["pending"] == 1
    nlp = await cell.call("GET", "/v1/projects/nlp")
    assert (nlp["used_milli"], nlp["pending_milli"], nlp["running"]) == (3000, 0, 1)
    vision = await cell.call("GET", "/v1/projects/vision")
    assert (vision["used_milli"], vision["pending_milli"], vision["pending"]) == (0, 2000, 1)
    research = await cell.call("GET", "/v1/departments/research")
    assert research["projects"] == ["nlp", "vision"]
    assert (research["used_milli"], research["pending_milli"]) == (3000, 2000)
    seen = await cell.call("GET", "/v1/departments/research", token="nlp")
    assert seen["projects"] == ["nlp"], "a caller sees only its own projects of a department"


async def test_a_node_is_cordoned_with_a_reason_drained_and_uncordoned(cell: GatewayCell) -> None:
    path = "/v1/nodes/n1"
    before = await tag(cell, path)
    await cell.call("PATCH", path, status=428, json={"state": "cordoned"})
    await cell.call(
        "PATCH",
        path,
        status=202,
        json={"state": "cordoned", "reason": "fan"},
        headers={"If-Match": before},
    )
    answer = await cell.call("GET", path)
    assert (answer["state"], answer["reason"]) == ("cordoned", "fan")
    after = await tag(cell, path)
    assert after != before
    stale = {"If-Match": before}
    await cell.call("PATCH", path, status=412, json={"state": "ready"}, headers=stale)
    drain = {"state": "draining", "deadline_at": "2100-01-01T00:00:00Z"}
    await cell.call("PATCH", path, status=202, json=drain, headers={"If-Match": after})
    answer = await cell.call("GET", path)
    assert (answer["state"], answer["deadline_at"]) == ("drained", "2100-01-01T00:00:00.000Z")
    await cell.call("PATCH", path, status=202, json={"state": "ready"}, headers={"If-Match": "*"})
    answer = await cell.call("GET", path)
    assert (answer["state"], answer["reason"], answer["deadline_at"]) == ("ready", None, None)


async def test_a_node_drains_until_its_last_task_is_gone_and_is_drained_until_it_is_uncordoned(
    cell: GatewayCell,
) -> None:
    async def listed(state: str) -> list[str]:
        return [
            one["name"] for one in (await cell.call("GET", f"/v1/nodes?state={state}"))["items"]
        ]

    async def change(**body: str) -> None:
        match = {"If-Match": "*"}
        await cell.call("PATCH", "/v1/nodes/n1", status=202, json=body, headers=match)

    task = f"{await cell.submit(preemptible=False)}.0"
    await cell.starts(task)
    await change(state="draining", deadline_at="2100-01-01T00:00:00Z")
    assert (await listed("draining"), await listed("drained")) == (["n1"], [])
    await cell.finishes(task)
    assert (await listed("draining"), await listed("drained")) == ([], ["n1"])
    await change(state="ready")
    assert (await listed("drained"), await listed("ready")) == ([], ["n1"])


async def test_the_scheduler_counts_nodes_under_the_states_that_the_api_shows(
    cell: GatewayCell,
) -> None:
    seen: set[str] = set()

    async def compare() -> None:
        shown = [
            (node["pool"], node["state"]) for node in (await cell.call("GET", "/v1/nodes"))["items"]
        ]
        assert sorted(statuses(cell.leaders[1].fold.state)) == sorted(shown)
        seen.update(state for _, state in shown)

    async def change(name: str, **body: str) -> None:
        match = {"If-Match": "*"}
        await cell.call("PATCH", f"/v1/nodes/{name}", status=202, json=body, headers=match)
        await compare()

    for number in range(2, 8):
        await cell.joins(f"n{number}")
    await cell.run_until_idle()
    await compare()
    task = f"{await cell.submit(preemptible=False)}.0"
    [host] = (await cell.call("GET", f"/v1/tasks/{task}"))["nodes"]
    await cell.starts(task, host)
    await change(host, state="draining", deadline_at="2100-01-01T00:00:00Z")
    await cell.finishes(task, host)
    await compare()
    await change(host, state="ready")
    await change("n2", state="cordoned")
    await change("n3", state="draining", deadline_at="2100-01-01T00:00:00Z")
    for name in ("n1", "n2", "n3", "n4", "later"):
        body = {"pool": "default", "gpus": 4}
        path, new = f"/v1/nodes/{name}/enrollment", {"If-None-Match": "*"}
        await cell.call("PUT", path, status=202, json=body, headers=new)
        await compare()
    match = {"If-Match": "*"}
    await cell.call("DELETE", "/v1/nodes/n4/enrollment", status=202, headers=match)
    await compare()
    await cell.claim(NodeDrainedV1(node="n5", incarnation=logs.incarnation()))
    await cell.run_until_idle()
    await compare()
    assert seen == {str(state) for state in NodeState} - {"lost"}


@pytest.mark.parametrize(
    "body",
    [
        {"state": "draining"},
        {"state": "cordoned", "deadline_at": "2100-01-01T00:00:00Z"},
        {"state": "draining", "deadline_at": "soon"},
        {"state": "draining", "deadline_at": "2100-01-01"},
        {"state": "draining", "deadline_at": "1960-01-01T00:00:00Z"},
        {"state": "lost"},
    ],
)
async def test_an_invalid_change_of_a_node_is_refused(
    cell: GatewayCell, body: dict[str, Any]
) -> None:
    await cell.call("PATCH", "/v1/nodes/n1", status=422, json=body, headers={"If-Match": "*"})


async def test_slots_of_a_node_are_disabled_with_a_reason_and_enabled_again(
    cell: GatewayCell,
) -> None:
    path, node = "/v1/nodes/n1/slots", "/v1/nodes/n1"
    before = await tag(cell, node)
    body = {"disabled": [3, 0, 3], "stop": True, "reason": "ecc"}
    await cell.call("PUT", path, status=428, json=body)
    await cell.call("PUT", path, status=202, json=body, headers={"If-Match": before})
    answer = await cell.call("GET", node)
    assert (answer["disabled_slots"], answer["disabled_reason"]) == ([0, 3], "ecc")
    assert (answer["state"], answer["gpu_milli_free"]) == ("ready", 2000)
    assert [slot["disabled"] for slot in answer["slots"]] == [True, False, False, True]
    assert await tag(cell, node) != before
    await cell.call("PUT", path, status=412, json=body, headers={"If-Match": before})
    requests = [
        e for e in await cell.events("requests") if isinstance(e, NodeSlotsChangeRequestedV1)
    ]
    assert [(e.node, e.disabled, e.stop) for e in requests] == [("n1", (0, 3), True)]
    await cell.call(
        "PUT", path, status=202, json={"disabled": []}, headers={"If-Match": await tag(cell, node)}
    )
    answer = await cell.call("GET", node)
    assert (answer["disabled_slots"], answer["disabled_reason"]) == ([], None)
    assert (await tag(cell, node), answer["gpu_milli_free"]) == (before, 4000)


@pytest.mark.parametrize(
    "body", [{}, {"disabled": [4]}, {"disabled": [-1]}, {"disabled": "0"}, {"disabled": [1024]}]
)
async def test_slots_that_a_node_does_not_have_are_refused(
    cell: GatewayCell, body: dict[str, Any]
) -> None:
    match = {"If-Match": "*"}
    await cell.call("PUT", "/v1/nodes/n1/slots", status=422, json=body, headers=match)
    await cell.call("PUT", "/v1/nodes/n9/slots", status=404, json={"disabled": []}, headers=match)


async def test_nodes_are_listed_by_pool_and_state(cell: GatewayCell) -> None:
    await cell.joins("n2", pool="h100")
    await cell.run_until_idle()

    async def names(query: str = "") -> list[str]:
        return [node["name"] for node in (await cell.call("GET", f"/v1/nodes{query}"))["items"]]

    assert await names() == ["n1", "n2"]
    assert await names("?pool=h100") == ["n2"]
    assert await names("?state=ready,lost&pool=default") == ["n1"]
    assert await names("?state=lost") == []
    page = await cell.call("GET", "/v1/nodes?limit=1")
    rest = await cell.call("GET", f"/v1/nodes?cursor={page['next_cursor']}")
    assert [node["name"] for node in rest["items"]] == ["n2"]
