"""Nodes show which of their slots are reserved for which pending tasks."""

from typing import Any

import pytest

from tests.support.gateway import GatewayCell
from yardmaster_projections.rows import NodeRow

GANG: dict[str, Any] = {"resources": {"gpus": 2, "cpus": 3, "memory": "1Gi"}, "replicas": 2}


async def reserved(cell: GatewayCell, **top: Any) -> tuple[list[str], str]:
    """Fill n1 with four tasks that `top` preempts; return their jobs and that of `top`."""
    low = [await cell.submit(priority=90, stop={"grace": "10m"}) for _ in range(4)]
    for job in low:
        await cell.starts(f"{job}.0")
    return low, await cell.submit(
        token="vision", project="vision", **(GANG | {"priority": 10} | top)
    )


async def node(cell: GatewayCell, token: str = "operator", name: str = "n1") -> Any:
    return await cell.call("GET", f"/v1/nodes/{name}", token=token)


async def assert_nothing_reserved(cell: GatewayCell) -> None:
    shown = await node(cell)
    assert (shown["reserved"], shown["gpu_milli_reserved"]) == ([], 0)
    assert [slot["reserved_for"] for slot in shown["slots"]] == [[]] * len(shown["slots"])
    row = await cell.store.get(NodeRow, "n1")
    assert row is not None
    assert not row.reserved


async def test_a_node_shows_what_is_reserved_by_task_and_by_slot(cell: GatewayCell) -> None:
    low, top = await reserved(cell)
    shown = await node(cell)
    until_at = (await cell.call("GET", f"/v1/tasks/{top}.0"))["reserved"]["until_at"]
    assert until_at is not None
    assert shown["reserved"] == [
        {
            **{"task_id": f"{top}.0", "slots": [0, 1, 2, 3], "gpu_milli": 4000},
            **{"cpu_milli": 6000, "memory_mib": 2048, "until_at": until_at},
        }
    ]
    assert [slot["reserved_for"] for slot in shown["slots"]] == [[f"{top}.0"]] * 4
    assert (shown["gpu_milli_reserved"], shown["gpu_milli_used"]) == (4000, 4000)
    listed = (await cell.call("GET", "/v1/nodes"))["items"]
    assert listed[0]["reserved"] == shown["reserved"]
    await cell.finishes(f"{low[0]}.0")
    idle = await node(cell)
    assert (idle["gpu_milli_free"], idle["gpu_milli_reserved"]) == (1000, 4000)


async def test_a_start_ends_the_reservation_and_holds_the_slots(cell: GatewayCell) -> None:
    low, top = await reserved(cell)
    for job in low:
        await cell.finishes(f"{job}.0")
    assert (await cell.call("GET", f"/v1/tasks/{top}.0"))["phase"] == "starting"
    await assert_nothing_reserved(cell)
    assert (await node(cell))["gpu_milli_used"] == 4000


async def test_a_reservation_of_a_fraction_of_a_gpu_counts_its_fraction(cell: GatewayCell) -> None:
    _, top = await reserved(cell, resources={"gpus": 0.5}, replicas=1)
    shown = await node(cell)
    [one] = shown["reserved"]
    assert (len(one["slots"]), one["gpu_milli"]) == (1, 500)
    assert shown["gpu_milli_reserved"] == 500
    [index] = one["slots"]
    assert shown["slots"][index]["reserved_for"] == [f"{top}.0"]


async def test_a_reservation_without_gpus_has_cpus_and_memory_only(cell: GatewayCell) -> None:
    cpus = (await node(cell))["cpu_milli"] // 1000
    low = await cell.submit(priority=90, resources={"gpus": 0, "cpus": cpus}, stop={"grace": "10m"})
    await cell.starts(f"{low}.0")
    top = await cell.submit(priority=10, resources={"gpus": 0, "cpus": 2})
    shown = await node(cell)
    [one] = shown["reserved"]
    assert (one["task_id"], one["slots"], one["gpu_milli"]) == (f"{top}.0", [], 0)
    assert one["cpu_milli"] == 2000
    assert shown["gpu_milli_reserved"] == 0


@pytest.mark.parametrize("change", ["cancel", "pause", "priority", "cordon", "slot", "revoke"])
async def test_a_dropped_reservation_is_no_longer_shown(cell: GatewayCell, change: str) -> None:
    _, top = await reserved(cell)
    match = {"If-Match": "*"}
    body: dict[str, Any]
    if change in ("cancel", "pause"):
        await cell.call("POST", f"/v1/jobs/{top}/{change}", status=202, json={})
    elif change == "priority":
        path = f"/v1/jobs/{top}"
        await cell.call("PATCH", path, status=202, json={"priority": 95}, headers=match)
    elif change == "cordon":
        body = {"state": "cordoned"}
        await cell.call("PATCH", "/v1/nodes/n1", status=202, json=body, headers=match)
    elif change == "slot":
        body = {"disabled": [0]}
        await cell.call("PUT", "/v1/nodes/n1/slots", status=202, json=body, headers=match)
    else:
        path = "/v1/nodes/n1/enrollment"
        body = {"pool": "default", "gpus": 4}
        await cell.call("PUT", path, status=202, json=body, headers={"If-None-Match": "*"})
        await cell.call("DELETE", path, status=202, headers=match)
    assert "ReservationDropped" in [event.TYPE for event in await cell.events("decisions")]
    task = await cell.call("GET", f"/v1/tasks/{top}.0")
    if change == "priority":
        # Slots that are being released need no victim, so it may reserve them again.
        assert task["reserved"] is not None
        assert [one["task_id"] for one in (await node(cell))["reserved"]] == [task["task_id"]]
        return
    assert task["reserved"] is None
    await assert_nothing_reserved(cell)


async def test_a_caller_sees_the_amount_but_no_task_of_another_project(cell: GatewayCell) -> None:
    await reserved(cell)
    shown = await node(cell, token="nlp")
    assert (shown["reserved"], shown["gpu_milli_reserved"]) == ([], 4000)
    assert [slot["reserved_for"] for slot in shown["slots"]] == [[]] * 4


async def test_explain_names_the_task_that_took_over_reserved_slots(cell: GatewayCell) -> None:
    _, mid = await reserved(cell, priority=60)
    top = await cell.submit(token="vision", project="vision", priority=10, **GANG)
    why = await cell.call("GET", f"/v1/tasks/{mid}.0/explain")
    drop = why["last_drop"]
    assert (drop["code"], drop["for_task"]) == ("passed", f"{top}.0")
    assert (drop["numbers"]["priority"], drop["numbers"]["for_priority"]) == (60, 10)
    assert why["reserved"] is None
    await cell.call("POST", f"/v1/jobs/{top}/cancel", token="vision", status=202, json={})
    again = await cell.call("GET", f"/v1/tasks/{mid}.0/explain")
    assert (again["reserved"] is not None, again["last_drop"]) == (True, None)
