"""Quotas, ranks, minimum run times and departments within departments."""

from typing import Any

import pytest

from tests.support.gateway import GatewayCell

NEW = {"If-None-Match": "*"}
ANY = {"If-Match": "*"}
NLP = {"department": "research"}


async def verdict(cell: GatewayCell, path: str, body: dict[str, Any], headers: Any = ANY) -> Any:
    """The request for a change that was recorded, with the decision of quota."""
    accepted = await cell.call("PUT", path, status=202, json=body, headers=headers)
    return await cell.call("GET", f"/v1/requests/{accepted['request_ids'][0]}")


async def create_departments(cell: GatewayCell, **parents: str | None) -> None:
    for name, parent in parents.items():
        made = await verdict(cell, f"/v1/departments/{name}", {"parent": parent}, NEW)
        assert made["state"] == "accepted"


async def test_settings_of_the_policy_quota_are_stored_and_shown(cell: GatewayCell) -> None:
    times = {"preempt_min_runtime_s": 600, "reclaim_min_runtime_s": 0}
    quota = {"deserved_unlimited": True, "limit_cpu_milli": 500, "over_quota": False}
    for path, body in (
        ("/v1/projects/nlp", NLP | times | {"rank": 200, "quotas": {"h100": quota}}),
        ("/v1/departments/research", times | {"rank": 0, "quotas": {"h100": quota}}),
    ):
        assert (await verdict(cell, path, body))["state"] == "accepted"
        found = await cell.call("GET", path)
        shown = {name: found["config"][name] for name in body if name != "quotas"}
        assert shown == {name: value for name, value in body.items() if name != "quotas"}
        (use,) = found["pools"]
        assert use["deserved_milli"] == 0
        assert {name: use[name] for name in quota} == quota
        assert (use["deserved_memory_mib"], use["limit_memory_mib"]) == (None, None)


@pytest.mark.parametrize(
    ("path", "body", "places"),
    [
        ("/v1/departments/research", {"weight": 2}, ["/weight"]),
        ("/v1/departments/research", {"rank": 1001}, ["/rank"]),
        ("/v1/departments/research", {"parent": "A"}, ["/parent"]),
        ("/v1/projects/nlp", NLP | {"reclaim_min_runtime_s": -1}, ["/reclaim_min_runtime_s"]),
        (
            "/v1/projects/nlp/quotas/h100",
            {"deserved_cpu_milli": "unlimited"},
            ["/deserved_cpu_milli"],
        ),
    ],
)
async def test_an_error_names_the_field(
    cell: GatewayCell, path: str, body: dict[str, Any], places: list[str]
) -> None:
    problem = await cell.call("PUT", path, status=422, json=body, headers=ANY)
    assert [one["pointer"] for one in problem["errors"]] == places


@pytest.mark.parametrize("amount", [0, 4000])
async def test_a_quota_deserves_a_number_or_everything(cell: GatewayCell, amount: int) -> None:
    quota = {"deserved_unlimited": True, "deserved_milli": amount}
    for path, body, pointer in (
        ("/v1/projects/nlp/quotas/h100", quota, ""),
        ("/v1/projects/nlp", NLP | {"quotas": {"h100": quota}}, "/quotas/h100"),
        ("/v1/departments/research", {"quotas": {"h100": quota}}, "/quotas/h100"),
    ):
        problem = await cell.call("PUT", path, status=422, json=body, headers=ANY)
        (error,) = problem["errors"]
        assert error["pointer"] == f"{pointer}/deserved_unlimited"
        assert error["detail"] == "deserved_milli is set too; omit one of them"


async def test_departments_are_parts_of_departments(cell: GatewayCell) -> None:
    await create_departments(cell, company=None, labs="company", vision="labs")
    await cell.call(
        "PUT", "/v1/departments/research", status=202, json={"parent": "labs"}, headers=ANY
    )
    labs = await cell.call("GET", "/v1/departments/labs")
    assert (labs["config"]["parent"], labs["departments"]) == ("company", ["research", "vision"])
    problem = await cell.call("DELETE", "/v1/departments/labs", status=409, headers=ANY)
    assert problem["detail"] == "department labs is in use by 2 departments."
    for parent, code in (("research", "department_cycle"), ("ghost", "department_unknown")):
        refused = await verdict(cell, "/v1/departments/company", {"parent": parent})
        assert (refused["state"], refused["refusal"]["code"]) == ("refused", code)


async def test_what_projects_use_counts_in_all_departments_above(cell: GatewayCell) -> None:
    await create_departments(cell, company=None, labs="company", other="company")
    await cell.call(
        "PUT", "/v1/departments/research", status=202, json={"parent": "labs"}, headers=ANY
    )
    await cell.submit(resources={"gpus": 3})
    await cell.submit(token="vision", project="vision", resources={"gpus": 2})
    for name, projects in (("company", []), ("labs", []), ("research", ["nlp", "vision"])):
        found = await cell.call("GET", f"/v1/departments/{name}")
        assert found["projects"] == projects
        assert (found["used_milli"], found["pending_milli"]) == (3000, 2000)
    other = await cell.call("GET", "/v1/departments/other")
    assert (other["used_milli"], other["pending_milli"]) == (0, 0)


async def test_a_caller_sees_the_departments_above_its_projects(cell: GatewayCell) -> None:
    await create_departments(cell, company=None, other="company")
    await cell.call(
        "PUT", "/v1/departments/research", status=202, json={"parent": "company"}, headers=ANY
    )
    await cell.submit(resources={"gpus": 3})
    found = await cell.call("GET", "/v1/departments", token="vision")
    assert [each["name"] for each in found["items"]] == ["company", "research"]
    company = await cell.call("GET", "/v1/departments/company", token="vision")
    assert (company["departments"], company["used_milli"]) == (["research"], 0)
    await cell.call("GET", "/v1/departments/other", status=404, token="vision")
