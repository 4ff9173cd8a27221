"""Default pools, node types of kinds, and the order of pools, through the API."""

from typing import Any

import pytest

from tests.support.gateway import TestCell, test_cell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.rules import RULES
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_schemas.events.requests import QUOTA_SETTINGS

ANY = {"If-Match": "*"}
POOL: dict[str, Any] = {"policy": {"name": "priority"}}
PROJECT: dict[str, Any] = {"department": "research"}
#: What a program of older rules cannot read.
NEW: list[tuple[str, dict[str, Any]]] = [
    ("/v1/cell", {"default_pools": ["h100"]}),
    ("/v1/projects/nlp", PROJECT | {"default_pools": ["h100"]}),
    ("/v1/projects/nlp", PROJECT | {"kind_node_types": {"interactive": ["pcie"]}}),
    ("/v1/pools/h100", POOL | {"pool_order": "strict"}),
    ("/v1/pools/h100", POOL | {"gpu_placement": "spread"}),
]


async def put(cell: TestCell, path: str, body: dict[str, Any]) -> Any:
    """Return None if quota accepts the configuration, else its refusal."""
    answer = await cell.call("PUT", path, status=202, json=body, headers=ANY)
    request = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    return request["refusal"]


async def admitted(cell: TestCell, **job: Any) -> dict[str, Any]:
    found: dict[str, Any] = await cell.call("GET", f"/v1/jobs/{await cell.submit(**job)}")
    return found


async def test_a_job_gets_the_default_pools_of_its_project_else_of_the_cell(cell: TestCell) -> None:
    assert await put(cell, "/v1/cell", {"default_pools": ["h100"]}) is None
    assert (await cell.call("GET", "/v1/cell"))["config"]["default_pools"] == ["h100"]
    assert (await admitted(cell))["spec"]["pools"] == ["h100"]
    config = PROJECT | {"pools": ["h100", "default"], "default_pools": ["default"]}
    assert await put(cell, "/v1/projects/nlp", config) is None
    assert (await cell.call("GET", "/v1/projects/nlp"))["config"]["default_pools"] == ["default"]
    assert (await admitted(cell))["spec"]["pools"] == ["default"]


@pytest.mark.parametrize(
    ("path", "config", "code", "about"),
    [
        ("/v1/cell", {"default_pools": ["moon"]}, "pool_unknown", "moon"),
        ("/v1/projects/nlp", PROJECT | {"default_pools": ["moon"]}, "pool_unknown", "moon"),
        (
            "/v1/projects/nlp",
            PROJECT | {"pools": ["h100"], "default_pools": ["default"]},
            *("pool_not_allowed", "default"),
        ),
    ],
)
async def test_a_default_pool_must_exist_and_be_allowed(
    cell: TestCell, path: str, config: dict[str, Any], code: str, about: str
) -> None:
    refusal = await put(cell, path, config)
    assert (refusal["code"], refusal["about"]) == (code, about)


async def test_a_default_pool_of_the_cell_is_not_deleted(cell: TestCell) -> None:
    assert await put(cell, "/v1/cell", {"default_pools": ["h100"]}) is None
    answer = await cell.call("DELETE", "/v1/pools/h100", status=202, headers=ANY)
    request = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    assert (request["refusal"]["code"], request["refusal"]["about"]) == ("in_use", "h100")


async def test_jobs_of_a_kind_use_the_node_types_of_that_kind(cell: TestCell) -> None:
    config = PROJECT | {"kind_node_types": {"interactive": ["pcie"], "inference": []}}
    assert await put(cell, "/v1/projects/nlp", config) is None
    shown = (await cell.call("GET", "/v1/projects/nlp"))["config"]["kind_node_types"]
    assert shown == config["kind_node_types"]
    assert (await admitted(cell, kind="interactive"))["spec"]["node_types"] == ["pcie"]
    assert (await admitted(cell, kind="training"))["spec"]["node_types"] == []
    refused = await admitted(cell, kind="interactive", node_types=["sxm"])
    assert refused["refusal"]["code"] == "node_type_not_allowed"


@pytest.mark.parametrize(
    ("path", "config", "pointer"),
    [
        ("/v1/cell", {"default_pools": ["A"]}, "/default_pools/0"),
        (
            "/v1/projects/nlp",
            PROJECT | {"kind_node_types": {"hobby": ["sxm"]}},
            "/kind_node_types/hobby/[key]",
        ),
        ("/v1/pools/h100", POOL | {"pool_order": "any"}, "/pool_order"),
        ("/v1/pools/h100", POOL | {"gpu_placement": "any"}, "/gpu_placement"),
    ],
)
async def test_an_invalid_value_is_refused_with_its_place(
    cell: TestCell, path: str, config: dict[str, Any], pointer: str
) -> None:
    problem = await cell.call("PUT", path, status=422, json=config, headers=ANY)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


async def test_below_their_rules_the_new_fields_are_refused_until_the_upgrade_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = QUOTA_SETTINGS - 1
    monkeypatch.setattr(QuotaMachine, "rules", older)
    monkeypatch.setattr(SchedulerMachine, "rules", older)
    async with test_cell() as cell:
        await cell.run_until_idle()
        monkeypatch.undo()
        for path, config in NEW:
            problem = await cell.call("PUT", path, status=422, json=config, headers=ANY)
            (found,) = problem["errors"]
            assert (found["code"], found["pointer"][1:] in config) == ("needs_newer_rules", True)
        job = {"project": "nlp", "run": {"command": ["a"]}, "resources": {"gpu_memory": "20Gi"}}
        problem = await cell.call("POST", "/v1/jobs", status=422, json=job)
        (found,) = problem["errors"]
        assert (found["code"], found["pointer"]) == ("needs_newer_rules", "/resources/gpu_memory")
        assert (await admitted(cell))["spec"]["pools"] == ["default", "h100"]
        await cell.call("PUT", "/v1/rules", status=202, json={"rules": RULES}, headers=ANY)
        for path, config in NEW:
            assert await put(cell, path, config) is None, path
        assert (await admitted(cell))["spec"]["pools"] == ["h100"]
        found = (await admitted(cell, resources=job["resources"]))["spec"]["resources"]
        assert (found["gpus"], found["gpu_memory_mib"]) == (1, 20_480)
