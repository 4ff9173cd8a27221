"""`GET /v1/shares`: the newest division of a pool, for those who may see its projects."""

from typing import Any

from tests.support.gateway import GatewayCell

PATH = "/v1/shares?pool=default"


async def divided(cell: GatewayCell) -> None:
    """Divide the pool by quotas, of which nlp and vision in research deserve two GPUs each."""
    for project in ("nlp", "vision"):
        await cell.call(
            "PUT",
            f"/v1/projects/{project}/quotas/default",
            status=202,
            json={"deserved_milli": 2000},
            headers={"If-Match": "*"},
        )
    # The last change: the next division is recorded a minute later.
    await policy(cell, "quota")


async def policy(cell: GatewayCell, name: str) -> None:
    await cell.call(
        "PUT",
        "/v1/pools/default",
        status=202,
        json={"policy": {"name": name}},
        headers={"If-Match": "*"},
    )


def rows(found: Any) -> dict[str, tuple[int, ...]]:
    """Deserved, share, held and requested GPUs of each queue."""
    fields = ("deserved", "fair_share", "held", "requested")
    return {
        each["name"]: tuple(each[field]["gpu_milli"] // 1000 for field in fields)
        for each in found["items"]
    }


async def test_a_pool_without_quotas_is_not_divided(cell: GatewayCell) -> None:
    await cell.submit()
    found = await cell.call("GET", PATH)
    assert (found["divided_at"], found["cycle"], found["items"]) == (None, None, [])
    for path in ("/v1/shares?pool=none", "/v1/shares?pool=UPPER"):
        problem = await cell.call("GET", path, status=404)
        assert problem["code"] == "not_found"
    await cell.call("GET", "/v1/shares", status=400)


async def test_each_queue_shows_what_it_deserves_gets_holds_and_requests(cell: GatewayCell) -> None:
    await cell.submit(resources={"gpus": 3})
    await cell.submit(resources={"gpus": 4})
    await divided(cell)
    found = await cell.call("GET", PATH)
    assert rows(found)["nlp"][0] == 2
    assert rows(found)["nlp"][2:] == (3, 4)
    assert [(each["name"], each["level"], each["parent"]) for each in found["items"]] == [
        ("research", "department", None),
        ("nlp", "project", "research"),
        ("vision", "project", "research"),
    ]
    assert found["pool"] == "default"
    cycle = await cell.call("GET", f"/v1/cycles/main/{found['cycle']}")
    assert found["divided_at"] == cycle["now_at"]


async def test_a_caller_sees_its_own_projects_and_the_departments_above(cell: GatewayCell) -> None:
    await cell.submit()
    await divided(cell)
    seen = {
        token: list(rows(await cell.call("GET", PATH, token=token)))
        for token in ("operator", "research", "nlp", "vision", "no_roles")
    }
    assert seen["operator"] == ["research", "nlp", "vision"]
    assert seen["research"] == ["research", "nlp", "vision"]
    assert seen["nlp"] == ["research", "nlp"]
    assert seen["vision"] == ["research", "vision"]
    assert seen["no_roles"] == []


async def test_another_policy_ends_the_division(cell: GatewayCell) -> None:
    await divided(cell)
    assert rows(await cell.call("GET", PATH))
    await policy(cell, "priority")
    assert (await cell.call("GET", PATH))["divided_at"] is None
