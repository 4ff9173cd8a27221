"""Enrollment over HTTP: which nodes may join, how they are shown, and a hostile agent."""

from dataclasses import replace
from typing import Any

from tests.support import logs
from tests.support.gateway import GatewayCell
from tests.unit.gateway.test_operating import state, tag
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_schemas.events.decisions import NodeLostV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.reasons import RefusalCode

PATH = "/v1/nodes/n2/enrollment"
NEW = {"If-None-Match": "*"}
BOUNDS = {"pool": "default", "gpus": 4}


def joined(node: str, **offer: Any) -> NodeJoinedV1:
    return replace(logs.joined(node), **offer)


async def enroll(cell: GatewayCell, node: str, **bounds: Any) -> None:
    path = f"/v1/nodes/{node}/enrollment"
    answer = await cell.call("PUT", path, status=202, json={**BOUNDS, **bounds}, headers=NEW)
    assert await state(cell, answer) == "accepted"


async def revoke(cell: GatewayCell, node: str) -> None:
    path = f"/v1/nodes/{node}/enrollment"
    answer = await cell.call("DELETE", path, status=202, headers={"If-Match": "*"})
    assert await state(cell, answer) == "accepted"


async def state_of(cell: GatewayCell, node: str) -> Any:
    return (await cell.call("GET", f"/v1/nodes/{node}"))["state"]


async def refusals(cell: GatewayCell) -> list[tuple[RefusalCode, int]]:
    """The refusals of node-events: their code and number of records."""
    return [
        (one.code, one.last - one.first + 1)
        for event in await cell.events("decisions")
        if isinstance(event, CycleCommittedV1)
        for one in event.refused
    ]


def scheduling(cell: GatewayCell) -> ClusterState:
    found = cell.leaders[1].fold.state
    assert isinstance(found, ClusterState)
    return found


async def test_a_node_is_enrolled_changed_and_revoked_on_conditions(cell: GatewayCell) -> None:
    await cell.call("GET", PATH, status=404)
    await cell.call("PUT", PATH, status=428, json=BOUNDS)
    await enroll(cell, "n2", labels={"rack": "r1"}, keys=["ab" * 32])
    await cell.call("PUT", PATH, status=412, json=BOUNDS, headers=NEW)
    found = await cell.call("GET", PATH)
    assert (found["node"], found["revision"]) == ("n2", 1)
    assert found["enrollment"]["labels"] == {"rack": "r1"}
    first = await tag(cell, PATH)
    changed = {**BOUNDS, "gpus": 2}
    answer = await cell.call("PUT", PATH, status=202, json=changed, headers={"If-Match": first})
    assert await state(cell, answer) == "accepted"
    await cell.call("DELETE", PATH, status=412, headers={"If-Match": first})
    await revoke(cell, "n2")
    await cell.call("GET", PATH, status=404)
    await cell.call("DELETE", PATH, status=404, headers={"If-Match": "*"})
    await enroll(cell, "n2")
    assert (await cell.call("GET", PATH))["revision"] == 3


async def test_an_invalid_enrollment_is_refused(cell: GatewayCell) -> None:
    answer = await cell.call(
        "PUT", PATH, status=202, json={"pool": "ghost", "gpus": 1}, headers=NEW
    )
    assert await state(cell, answer) == "pool_unknown"
    for body in ({"pool": "default"}, {**BOUNDS, "gpus": -1}, {**BOUNDS, "keys": ["x"]}):
        await cell.call("PUT", PATH, status=422, json=body, headers=NEW)
    await cell.call("PUT", "/v1/nodes/UPPER/enrollment", status=404, json=BOUNDS, headers=NEW)


async def test_an_enrolled_node_is_listed_before_and_after_it_joins(cell: GatewayCell) -> None:
    await enroll(cell, "n2", node_type="h100")
    node = await cell.call("GET", "/v1/nodes/n2")
    assert (node["state"], node["pool"], node["gpus"]) == ("enrolled", "default", 0)
    assert (node["joined_at"], node["enrollment"]["gpus"]) == (None, 4)
    listed = await cell.call("GET", "/v1/nodes?state=enrolled")
    assert [one["name"] for one in listed["items"]] == ["n2"]
    await cell.claim(joined("n2", node_type="h100"))
    await cell.run_until_idle()
    assert await state_of(cell, "n2") == "ready"


async def test_nodes_that_joined_before_the_first_enrollment_get_no_new_tasks(
    cell: GatewayCell,
) -> None:
    await enroll(cell, "n2")
    assert await state_of(cell, "n1") == "barred"
    job = await cell.submit()
    assert (await cell.call("GET", f"/v1/tasks/{job}.0"))["phase"] == "pending"
    await enroll(cell, "n1")
    assert await state_of(cell, "n1") == "ready"
    assert (await cell.call("GET", f"/v1/tasks/{job}.0"))["phase"] == "starting"


async def test_a_join_beyond_its_enrollment_is_refused_with_the_reason(cell: GatewayCell) -> None:
    await enroll(cell, "n1")
    await enroll(cell, "n2", labels={"rack": "r1"}, address="10.0.0.2", node_type="h100")
    offer = {"pool": "default", "node_type": "h100", "address": "10.0.0.2"}
    for beyond in (
        {"gpus": 5},
        {"pool": "h100"},
        {"node_type": "any"},
        {"address": "10.0.0.3"},
        {"labels": {"rack": "r2"}},
        {"labels": {"rack": "r1", "zone": "a"}},
    ):
        await cell.claim(joined("n2", **{**offer, **beyond}))
    await cell.run_until_idle()
    assert await refusals(cell) == [(RefusalCode.BEYOND_ENROLLMENT, 6)]
    assert await state_of(cell, "n2") == "enrolled"
    await cell.claim(joined("n2", **offer, gpus=3, labels={"rack": "r1"}))
    await cell.run_until_idle()
    assert await state_of(cell, "n2") == "ready"


async def test_a_hostile_agent_that_sends_many_new_pools_and_nodes_changes_no_state(
    cell: GatewayCell,
) -> None:
    await enroll(cell, "n1")
    await enroll(cell, "n2")
    before = scheduling(cell)
    pools, nodes, digest = set(before.pools), set(before.nodes), len(before.sources)
    for number in range(300):
        await cell.claim(joined("n2", pool=f"pool-{number}"))
        await cell.claim(joined(f"ghost-{number}", pool=f"pool-{number}"))
    await cell.run_until_idle()
    after = scheduling(cell)
    assert (set(after.pools), set(after.nodes), len(after.sources)) == (pools, nodes, digest)
    counts = dict.fromkeys(RefusalCode, 0)
    for code, count in await refusals(cell):
        counts[code] += count
    assert counts[RefusalCode.NOT_ENROLLED] == counts[RefusalCode.BEYOND_ENROLLMENT] == 300
    listed = await cell.call("GET", "/v1/nodes?limit=1000")
    assert [one["name"] for one in listed["items"]] == ["n1", "n2"]


async def test_a_revoked_node_loses_its_tasks_and_cannot_join(cell: GatewayCell) -> None:
    await enroll(cell, "n1")
    job = await cell.submit()
    await cell.starts(f"{job}.0")
    await revoke(cell, "n1")
    assert await state_of(cell, "n1") == "revoked"
    task = await cell.call("GET", f"/v1/tasks/{job}.0")
    assert (task["phase"], task["stop"]["code"]) == ("stopping", "node_drained")
    await cell.claim(logs.exited(f"{job}.0", "n1", exit_code=137))
    await cell.claim(logs.released(f"{job}.0", "n1"))
    await cell.run_until_idle()
    lost = [e for e in await cell.events("decisions") if isinstance(e, NodeLostV1)]
    assert [(e.node, e.cause) for e in lost] == [("n1", "revoked")]
    assert (await cell.call("GET", f"/v1/tasks/{job}.0"))["phase"] == "pending"
    await cell.claim(joined("n1", incarnation="f" * 12))
    await cell.run_until_idle()
    assert await refusals(cell) == [(RefusalCode.NOT_ENROLLED, 1)]
    # Only enrolled nodes may join, even after the last enrollment was revoked.
    await cell.joins("n3")
    await cell.run_until_idle()
    await cell.call("GET", "/v1/nodes/n3", status=404)
    await enroll(cell, "n1")
    await cell.claim(joined("n1", incarnation="f" * 12))
    await cell.run_until_idle()
    assert await state_of(cell, "n1") == "ready"
