"""The change of the views of nodes by each event, with a follower on a log that the test writes."""

from typing import Any

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell, viewed
from tests.unit.projections.projected import (
    TASK,
    admit,
    cell,
    counters,
    node,
    running,
    task,
)
from yardmaster_projections.presenter import Presenter
from yardmaster_schemas.api import NodeState
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.events import node_events as n
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.reasons import (
    DropCode,
    EndCode,
)


async def test_disabled_slots_stay_with_a_node_whatever_joins_under_its_name() -> None:
    log = cell()
    what: dict[str, Any] = {"node": "n1", "disabled": (0, 3), "stop": True}
    log.judged(r.NodeSlotsChangeRequestedV1(**what), a.NodeSlotsChangedV1(**what))
    log.claim(logs.joined("n1", life=2))
    log.scheduler.cycle()
    store = await viewed(log)
    row = await node(store)
    assert (row.disabled, row.disabled_reason, row.state) == ((0, 3), None, NodeState.READY)


async def test_a_lost_node_frees_its_slots_and_comes_back_empty() -> None:
    log = cell()
    running(log)
    log.scheduler.cycle(
        d.NodeLostV1(
            node="n1",
            incarnation=logs.incarnation(),
            cause=d.LossCause.SILENT,
            last_heard_at_ms=log.now_ms,
            closed=(n.ReplicaRef(task_id=TASK, attempt=1, replica=0),),
        ),
        d.TaskRequeuedV1(task_id=TASK, attempt=1, code=EndCode.NODE_LOST, restarts=0),
    )
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert (await node(store)).state is NodeState.LOST
    assert (await node(store)).held == {}
    assert (await Presenter(store, 0).node(await node(store))).gpu_milli_free == 0
    assert (await counters(store, "pool/default")).nodes == 0
    log.claim(logs.joined("n1", life=2))
    log.scheduler.cycle()
    await followed.catch_up()
    assert (await node(store)).state is NodeState.READY
    assert (await counters(store, "pool/default")).gpu_milli == 4000


async def test_a_node_that_rejoins_while_its_old_life_holds_slots_waits_for_its_loss() -> None:
    log = cell()
    running(log)
    log.claim(logs.joined("n1", gpus=2, life=2))
    log.scheduler.cycle(
        d.NodeLostV1(
            node="n1",
            incarnation=logs.incarnation(),
            cause=d.LossCause.REPLACED,
            last_heard_at_ms=log.now_ms,
            closed=(n.ReplicaRef(task_id=TASK, attempt=1, replica=0),),
        )
    )
    store = await viewed(log)
    row = await node(store)
    assert row.state is NodeState.READY
    assert row.joined is not None
    assert (row.joined.incarnation, row.joined.gpus) == (logs.incarnation(2), 2)
    assert (await counters(store, "pool/default")).gpu_milli == 2000


async def test_an_agent_that_starts_again_changes_nothing_of_its_node() -> None:
    log = cell()
    running(log)
    before = await node(await viewed(log))
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    assert await node(await viewed(log)) == before


async def test_a_drained_node_is_gone_until_it_joins_again() -> None:
    log = cell()
    log.claim(n.NodeDrainedV1(node="n1", incarnation=logs.incarnation()))
    log.scheduler.cycle()
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert (await node(store)).state is NodeState.GONE
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    await followed.catch_up()
    assert (await node(store)).state is NodeState.READY


async def test_a_node_is_cordoned_drained_and_taken_back() -> None:
    log = cell()
    followed = ViewsCell(log)
    log.judged(r.NodeCordonRequestedV1(node="n1"), a.NodeCordonedV1(node="n1"))
    store = await followed.catch_up()
    assert (await node(store)).state is NodeState.CORDONED
    log.judged(
        r.NodeDrainRequestedV1(node="n1", deadline_at_ms=5),
        a.NodeDrainingV1(node="n1", deadline_at_ms=5),
    )
    await followed.catch_up()
    assert (await node(store)).state is NodeState.DRAINED
    assert (await node(store)).deadline_at_ms == 5
    log.judged(r.NodeUncordonRequestedV1(node="n1"), a.NodeUncordonedV1(node="n1"))
    await followed.catch_up()
    assert (await node(store)).state is NodeState.READY


def enroll(log: LogBuilder, name: str, revision: int = 1, gpus: int = 8) -> None:
    enrollment = r.Enrollment(pool="default", gpus=gpus)
    log.judged(
        r.NodeEnrolRequestedV1(node=name, enrollment=enrollment),
        a.NodeEnrolledV1(node=name, enrollment=enrollment, revision=revision),
    )


def revoke(log: LogBuilder, name: str) -> None:
    log.judged(r.NodeRevokeRequestedV1(node=name), a.NodeRevokedV1(node=name))


async def test_a_reservation_is_on_each_of_its_nodes_until_it_is_dropped_or_starts() -> None:
    log = cell()
    followed = ViewsCell(log, cached=2)
    log.claim(logs.joined("n2"))
    admit(log)
    placements = (logs.placed("n1", 0, 1), logs.placed("n2", 3, replica=1))
    kept = d.SlotsReservedV1(task_id=TASK, attempt=1, pool="default", placements=placements)
    log.scheduler.cycle(kept)
    store = await followed.catch_up()
    assert (await node(store)).reserved == {(TASK, 0): placements[0]}
    assert (await node(store, "n2")).reserved == {(TASK, 1): placements[1]}
    dropped = d.ReservationDroppedV1(
        task_id=TASK, attempt=1, pool="default", code=DropCode.NODE_LOST, about="n2"
    )
    lost = d.NodeLostV1(
        node="n2", incarnation=logs.incarnation(), cause=d.LossCause.SILENT, last_heard_at_ms=0
    )
    log.scheduler.cycle(lost, dropped)
    await followed.catch_up()
    assert [(await node(store, name)).reserved for name in ("n1", "n2")] == [{}, {}]
    again = d.SlotsReservedV1(task_id=TASK, attempt=1, pool="default", placements=placements[:1])
    log.scheduler.cycle(again, again)
    await followed.catch_up()
    assert (await node(store)).reserved == {(TASK, 0): placements[0]}
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n2", 1)), again)
    await followed.catch_up()
    assert (await node(store)).reserved == {}, "a repeat after the start reserves nothing"
    assert (await task(store)).reserved is None


async def test_the_first_enrollment_bars_those_who_are_here_and_not_enrolled() -> None:
    log = cell()
    followed = ViewsCell(log)
    enroll(log, "n2")
    store = await followed.catch_up()
    assert [(await node(store, n)).state for n in ("n1", "n2")] == [
        NodeState.BARRED,
        NodeState.ENROLLED,
    ]
    enroll(log, "n1", gpus=1)
    await followed.catch_up()
    assert (await node(store)).state is NodeState.BARRED, "it has more than it may"
    enroll(log, "n1", revision=2)
    log.claim(logs.joined("n2"))
    log.scheduler.cycle()
    await followed.catch_up()
    assert [(await node(store, n)).state for n in ("n1", "n2")] == [NodeState.READY] * 2
    row = await node(store)
    assert (row.enrollment_revision, row.enrollment) == (2, r.Enrollment(pool="default", gpus=8))


async def test_a_join_that_the_scheduler_took_before_it_knew_of_the_enrollments_is_barred() -> None:
    log = cell()
    enroll(log, "n1")
    log.claim(logs.joined("n2"))
    log.scheduler.cycle()
    assert (await node(await viewed(log), "n2")).state is NodeState.BARRED


async def test_a_revoked_node_has_that_state_until_it_is_enrolled_and_joins_again() -> None:
    log = cell()
    followed = ViewsCell(log)
    enroll(log, "n1")
    revoke(log, "n1")
    store = await followed.catch_up()
    assert (await node(store)).state is NodeState.REVOKED
    log.scheduler.cycle(
        d.NodeLostV1(
            node="n1",
            incarnation=logs.incarnation(),
            cause=d.LossCause.REVOKED,
            last_heard_at_ms=1,
        )
    )
    await followed.catch_up()
    assert (await node(store)).state is NodeState.REVOKED
    enroll(log, "n1", revision=2)
    await followed.catch_up()
    assert (await node(store)).state is NodeState.LOST
    log.claim(logs.joined("n1", life=2))
    log.scheduler.cycle()
    await followed.catch_up()
    assert (await node(store)).state is NodeState.READY


async def test_a_cordon_outlives_the_node_it_was_put_on() -> None:
    log = cell()
    log.judged(r.NodeCordonRequestedV1(node="n2"), a.NodeCordonedV1(node="n2"))
    log.claim(logs.joined("n2"))
    log.scheduler.cycle()
    assert (await node(await viewed(log), "n2")).state is NodeState.CORDONED
