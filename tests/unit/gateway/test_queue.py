"""`GET /v1/pools/{name}/queue`: the pending tasks of a pool in the order of its policy."""

from typing import Any

import pytest

from tests.support.gateway import GatewayCell


async def queue(cell: GatewayCell, query: str = "", *, token: str = "operator") -> list[Any]:
    """All items, page by page."""
    found: list[Any] = []
    cursor = ""
    while True:
        path = f"/v1/pools/default/queue?limit=2{query}{cursor}"
        page = await cell.call("GET", path, token=token)
        assert len(page["items"]) <= 2
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def places(items: list[Any]) -> list[tuple[int, str, int]]:
    return [(each["position"], each["first"]["task_id"], each["count"]) for each in items]


async def full(cell: GatewayCell) -> str:
    """Take all four GPUs of the only node."""
    return await cell.submit(priority=1, resources={"gpus": 4}, kind="interactive")


async def test_equal_tasks_are_one_item_with_the_place_of_the_first(cell: GatewayCell) -> None:
    await full(cell)
    later = await cell.submit(priority=50)
    array = await cell.submit(priority=20, tasks={"count": 5})
    vision = await cell.submit(token="vision", project="vision", priority=30)
    items = await queue(cell)
    assert places(items) == [(1, f"{array}.0", 5), (6, f"{vision}.0", 1), (7, f"{later}.0", 1)]
    first = items[0]
    assert first["last_index"] == 4
    assert first["first"]["wait"]["code"] == "insufficient_free"
    assert first["first"]["wait"]["numbers"]
    # Others' tasks count, also where they are not listed.
    assert places(await queue(cell, token="vision")) == [(6, f"{vision}.0", 1)]
    assert places(await queue(cell, "&project=vision")) == [(6, f"{vision}.0", 1)]
    each = await queue(cell, "&grouped=false")
    assert [one["position"] for one in each] == list(range(1, 8))
    assert [one["first"]["index"] for one in each][:5] == list(range(5))


async def test_a_task_that_is_held_keeps_its_place(cell: GatewayCell) -> None:
    await full(cell)
    array = await cell.submit(priority=20, tasks={"count": 3})
    last = await cell.submit(priority=30)
    await cell.call("POST", f"/v1/tasks/{array}.1/pause", status=202, json={})
    found = await queue(cell)
    assert places(found) == [
        (1, f"{array}.0", 1),
        (2, f"{array}.1", 1),
        (3, f"{array}.2", 1),
        (4, f"{last}.0", 1),
    ]
    assert found[1]["first"]["wait"]["code"] == "paused"


async def test_the_queue_follows_a_changed_priority_and_forgets_started_tasks(
    cell: GatewayCell,
) -> None:
    holder = await full(cell)
    one = await cell.submit(priority=20)
    two = await cell.submit(priority=30)
    await cell.call(
        "PATCH",
        f"/v1/jobs/{two}",
        status=202,
        json={"priority": 10},
        headers={"If-Match": "*"},
    )
    assert places(await queue(cell)) == [(1, f"{two}.0", 1), (2, f"{one}.0", 1)]
    await cell.starts(f"{holder}.0")
    await cell.finishes(f"{holder}.0")
    assert await queue(cell) == []


@pytest.mark.parametrize("among", ["job", "project"])
async def test_claimants_come_in_the_order_that_the_scheduler_recorded(
    cell: GatewayCell, among: str
) -> None:
    config = {"policy": {"name": "fair_share", "options": {"among": among}}}
    await cell.call("PUT", "/v1/pools/default", status=202, json=config, headers={"If-Match": "*"})
    # It may be preempted, but not yet.
    await cell.submit(resources={"gpus": 4}, min_runtime="1h")
    large = await cell.submit(token="vision", project="vision", resources={"gpus": 4})
    small = await cell.submit(resources={"gpus": 2})
    least = await cell.submit(resources={"gpus": 1})
    cpu = await cell.submit(token="vision", project="vision", resources={"gpus": 0, "cpus": 9000})
    wanted = {
        # The holder's project demands 4 + 2 + 1 GPUs, the other one 4.
        "project": [large, small, least],
        "job": [least, small, large],
    }[among]
    items = await queue(cell)
    assert places(items) == [
        (place, f"{job}.0", 1) for place, job in enumerate([cpu, *wanted], start=1)
    ]


@pytest.mark.parametrize("order", ["document", "kai"])
async def test_under_quota_the_most_deprived_project_comes_first_then_priority(
    cell: GatewayCell, order: str
) -> None:
    config = {"policy": {"name": "quota", "options": {"order": order}}}
    await cell.call("PUT", "/v1/pools/default", status=202, json=config, headers={"If-Match": "*"})
    await cell.submit(resources={"gpus": 3}, min_runtime="1h")
    await cell.submit(token="vision", project="vision", min_runtime="1h")
    low = await cell.submit(priority=50, resources={"gpus": 4})
    first = await cell.submit(priority=20, tasks={"count": 2}, resources={"gpus": 4})
    second = await cell.submit(priority=20, resources={"gpus": 4})
    non_preemptible = await cell.submit(priority=60, kind="interactive", resources={"gpus": 4})
    other = await cell.submit(
        token="vision", project="vision", priority=99, resources={"gpus": 4}, tasks={"count": 3}
    )
    ordered = [other, *((non_preemptible,) if order == "document" else ()), first, second, low]
    if order == "kai":
        ordered.append(non_preemptible)
    counts = {first: 2, other: 3}
    wanted, place = [], 1
    for job in ordered:
        wanted.append((place, f"{job}.0", counts.get(job, 1)))
        place += counts.get(job, 1)
    assert places(await queue(cell)) == wanted
    each = await queue(cell, "&grouped=false")
    assert [one["position"] for one in each] == list(range(1, place))
    assert places(await queue(cell, "&project=vision")) == wanted[:1]
    assert places(await queue(cell, token="vision")) == wanted[:1]


@pytest.mark.parametrize("owners", ["user", "project"])
async def test_under_starved_first_the_owner_that_holds_least_comes_first_then_priority(
    cell: GatewayCell, owners: str
) -> None:
    config = {"policy": {"name": "starved_first", "options": {"owners": owners}}}
    await cell.call("PUT", "/v1/pools/default", status=202, json=config, headers={"If-Match": "*"})
    await cell.submit(resources={"gpus": 3}, min_runtime="1h")
    await cell.submit(token="vision", project="vision", min_runtime="1h")
    low = await cell.submit(priority=50, resources={"gpus": 4})
    first = await cell.submit(priority=20, tasks={"count": 2}, resources={"gpus": 4})
    other = await cell.submit(token="vision", project="vision", priority=99, resources={"gpus": 4})
    wanted = [(1, f"{other}.0", 1), (2, f"{first}.0", 2), (4, f"{low}.0", 1)]
    assert places(await queue(cell)) == wanted
    each = await queue(cell, "&grouped=false")
    assert [one["position"] for one in each] == [1, 2, 3, 4]
    assert places(await queue(cell, "&project=nlp")) == wanted[1:]


async def test_unknown_pools_and_cursors_are_refused(cell: GatewayCell) -> None:
    await cell.call("GET", "/v1/pools/nope/queue", status=404)
    await cell.call("GET", "/v1/pools/default/queue?cursor=abc", status=400)
    await cell.call("GET", "/v1/pools/default/queue?limit=0", status=400)
    assert (await cell.call("GET", "/v1/pools/h100/queue"))["items"] == []
