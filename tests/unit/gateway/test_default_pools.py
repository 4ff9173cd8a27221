"""Default pools, node types of kinds, and the order of pools, through the API."""

from typing import Any

import pytest

from tests.support.gateway import GatewayCell

ANY = {"If-Match": "*"}
POOL: dict[str, Any] = {"policy": {"name": "priority"}}
PROJECT: dict[str, Any] = {"department": "research"}


async def put(cell: GatewayCell, path: str, body: dict[str, Any]) -> Any:
    """Return None if quota accepts the configuration, else its refusal."""
    answer = await cell.call("PUT", path, status=202, json=body, headers=ANY)
    request = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    return request["refusal"]


async def admitted(cell: GatewayCell, **job: Any) -> dict[str, Any]:
    found: dict[str, Any] = await cell.call("GET", f"/v1/jobs/{await cell.submit(**job)}")
    return found


async def test_a_job_gets_the_default_pools_of_its_project_else_of_the_cell(
    cell: GatewayCell,
) -> None:
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
    cell: GatewayCell, path: str, config: dict[str, Any], code: str, about: str
) -> None:
    refusal = await put(cell, path, config)
    assert (refusal["code"], refusal["about"]) == (code, about)


async def test_a_default_pool_of_the_cell_is_not_deleted(cell: GatewayCell) -> None:
    assert await put(cell, "/v1/cell", {"default_pools": ["h100"]}) is None
    answer = await cell.call("DELETE", "/v1/pools/h100", status=202, headers=ANY)
    request = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    assert (request["refusal"]["code"], request["refusal"]["about"]) == ("in_use", "h100")


async def test_jobs_of_a_kind_use_the_node_types_of_that_kind(cell: GatewayCell) -> None:
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
    cell: GatewayCell, path: str, config: dict[str, Any], pointer: str
) -> None:
    problem = await cell.call("PUT", path, status=422, json=config, headers=ANY)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
