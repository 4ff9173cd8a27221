"""Enrollment: which nodes may join, which get no new tasks, and the effect of a revocation."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import kinds, only, running, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import next_incarnation

SECOND = next_incarnation("0" * 12)


def closed(*nodes: str, **bounds: Any) -> Cell:
    """A cell whose enrolled nodes have joined."""
    cell = Cell(node_timeout_s=60)
    for name in nodes:
        cell.enroll(name, gpus=2, **bounds)
        cell.node(name, gpus=2)
    cell.cycle()
    assert not cell.refused
    return cell


def refusals(cell: Cell) -> list[RefusalCode]:
    return [code for _, code in cell.refused]


def test_a_cell_without_enrollments_accepts_any_node() -> None:
    cell = Cell()
    cell.node("n1", gpus=64, pool="any")
    cell.cycle()
    assert not cell.refused


def test_a_node_that_is_not_enrolled_does_not_join_a_closed_cell() -> None:
    cell = closed("n1")
    cell.node("n2")
    cell.cycle()
    assert refusals(cell) == [RefusalCode.NOT_ENROLLED]
    assert "n2" not in cell.state.nodes


def test_an_enrollment_of_the_same_cycle_counts() -> None:
    cell = Cell()
    cell.enroll("n1")
    cell.node("n2")
    cell.cycle()
    assert refusals(cell) == [RefusalCode.NOT_ENROLLED]


@pytest.mark.parametrize(
    "offer",
    [
        {"gpus": 3},
        {"pool": "side"},
        {"node_type": "other"},
        {"address": "10.0.0.2"},
        {"labels": {"rack": "r2"}},
        {"labels": {"zone": "a"}},
    ],
    ids=str,
)
def test_a_node_joins_only_within_its_enrollment(offer: dict[str, Any]) -> None:
    cell = closed("n1")
    cell.enroll("n2", gpus=2, node_type="any", address="127.0.0.1", labels={"rack": "r1"})
    cell.node("n2", **{"gpus": 2, **offer})
    cell.cycle()
    assert refusals(cell) == [RefusalCode.BEYOND_ENROLLMENT]
    assert "side" not in cell.state.pools
    cell.node("n2", gpus=1, labels={"rack": "r1"})
    cell.cycle()
    assert not cell.refused


def test_a_node_that_joined_before_keeps_its_tasks_and_gets_no_new_ones() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("old")
    running(cell, "old")
    cell.enroll("n2")
    cell.submit("new")
    cell.cycle()
    assert cell.phase("old") == "running"
    assert waits(cell, "new").numbers == {"nodes": 1, "cordoned": 1, "lost": 0}
    cell.ends("old")
    assert kinds(cell.cycle()) == ["TaskEnded"]
    cell.enroll("n1", gpus=2)
    assert kinds(cell.cycle()) == ["SlotsAllocated"]
    assert_sound(cell.state)


def test_a_node_enrolled_for_less_than_it_has_is_barred_until_it_joins_with_less() -> None:
    cell = closed("n1")
    cell.enroll("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    assert cell.wait_code("job") == "nodes_unavailable"
    cell.node("n1", gpus=1, incarnation=SECOND)
    assert "SlotsAllocated" in kinds(cell.run_until_idle())


def test_an_uncordoned_node_stays_barred() -> None:
    cell = closed("n1")
    cell.enroll("n1", gpus=1)
    cell.cordon("n1")
    cell.cycle()
    cell.uncordon("n1")
    cell.submit("job")
    cell.cycle()
    assert cell.wait_code("job") == "nodes_unavailable"


def test_a_restart_keeps_enrollments_revocations_and_bars() -> None:
    cell = closed("n1", "n2")
    cell.submit("job", preemptible=False)
    running(cell, "job")
    ((name, _),) = cell.slots_of("job")
    cell.revoke(name)
    cell.enroll("n2" if name == "n1" else "n1", gpus=1)
    cell.cycle()
    digest = cell.state.digest()
    cell.restart()
    assert cell.state.digest() == digest
    assert_sound(cell.state)
    assert cell.run_until_idle() == []
    lost = only(cell.cycle(after_s=60), dec.NodeLostV1)
    assert (lost.node, lost.cause) == (name, "revoked")


def test_a_revoked_node_without_tasks_is_lost_at_once() -> None:
    cell = closed("n1")
    cell.revoke("n1")
    lost = only(cell.cycle(), dec.NodeLostV1)
    assert (lost.node, lost.cause, lost.closed) == ("n1", "revoked", ())
    assert cell.run_until_idle() == []


def test_a_node_revoked_while_down_is_refused_when_it_joins() -> None:
    cell = closed("n1", "n2")
    cell.leaves("n1")
    cell.cycle()
    cell.revoke("n1")
    assert cell.run_until_idle() == []
    cell.node("n1", incarnation=SECOND)
    cell.cycle()
    assert refusals(cell) == [RefusalCode.NOT_ENROLLED]


def test_a_revocation_drops_a_pending_join() -> None:
    cell = closed("n1")
    cell.submit("job")
    running(cell, "job")
    cell.node("n1", gpus=2, incarnation=SECOND)
    cell.revoke("n1")
    cell.cycle()
    assert kinds(cell.run_until_idle()) == []
    assert only(cell.cycle(after_s=60), dec.NodeLostV1).cause == "revoked"
    cell.run_until_idle()
    assert cell.state.nodes["n1"].incarnation == "0" * 12


def test_a_revoked_node_keeps_its_tasks_until_the_pools_current_timeout() -> None:
    cell = Cell(node_timeout_s=60)
    cell.enroll("n1", gpus=1)
    cell.node("n1", gpus=1)
    cell.submit("job", preemptible=False)
    running(cell, "job")
    run = cell.task("job").run
    assert run is not None
    cell.revoke("n1")
    cell.cycle()
    cell.pool("main", node_timeout_s=120)
    cell.cycle()
    assert kinds(cell.cycle(after_s=60)) == ["StopOverdue"]
    assert kinds(cell.cycle(after_s=59.9)) == []
    assert "NodeLost" in kinds(cell.cycle(after_s=0.1))


@pytest.mark.parametrize("timeout_s", [20, 120], ids=["shorter", "longer"])
@pytest.mark.parametrize("restarts", [False, True], ids=["folded", "restored"])
def test_a_snapshot_changes_nothing_about_when_a_revoked_node_is_lost(
    timeout_s: int, restarts: bool
) -> None:
    cell = closed("n1")
    cell.submit("job")
    running(cell, "job")
    cell.revoke("n1")
    cell.cycle()
    cell.pool("main", node_timeout_s=timeout_s)
    cell.cycle(after_s=1)
    if restarts:
        cell.restart()
    lost_ms = cell.state.nodes["n1"].revoked_ms + timeout_s * 1000
    if timeout_s > 60:
        assert kinds(cell.cycle(after_s=60)) == ["StopOverdue"]
    assert cell.machine.due_ms(cell.state) == lost_ms
    assert kinds(cell.cycle(after_s=(lost_ms - cell.now_ms) // 1000 - 1)) == []
    assert only(cell.cycle(after_s=1), dec.NodeLostV1).cause == "revoked"
    assert_sound(cell.state)


def test_a_shortened_timeout_that_has_passed_loses_a_revoked_node_at_once() -> None:
    cell = closed("n1")
    cell.submit("job")
    running(cell, "job")
    cell.revoke("n1")
    cell.cycle()
    assert kinds(cell.cycle(after_s=30)) == []
    cell.pool("main", node_timeout_s=20)
    assert only(cell.cycle(), dec.NodeLostV1).cause == "revoked"


@pytest.mark.parametrize("restarts", [False, True], ids=["folded", "restored"])
def test_a_revoked_node_keeps_its_timeout_when_its_fenced_tasks_are_gone(
    restarts: bool,
) -> None:
    cell = fenced()
    cell.pool("main", node_timeout_s=60)
    cell.submit("plain")
    running(cell, "plain")
    cell.revoke("n1")
    cell.cycle()
    cell.cycle(after_s=30)
    if restarts:
        cell.restart()
    cell.ends("job")
    cell.cycle()
    assert kinds(cell.cycle(after_s=29)) == []
    assert only(cell.cycle(after_s=1), dec.NodeLostV1).cause == "revoked"


def fenced() -> Cell:
    """A node of a pool with `fence: kill` that runs a job."""
    cell = closed("n1")
    cell.pool("main", node_timeout_s=60, fence=req.Fence.KILL)
    cell.submit("job")
    running(cell, "job")
    run = cell.task("job").run
    assert run is not None
    assert run.fence_s == 54
    return cell


def test_a_revoked_node_is_not_lost_by_time_while_its_tasks_have_a_fence() -> None:
    cell = fenced()
    cell.revoke("n1")
    assert kinds(cell.cycle()) == ["StopRequested"]
    assert kinds(cell.cycle(after_s=3600)) == ["StopOverdue"]
    assert cell.machine.due_ms(cell.state) is None
    cell.restart()
    assert kinds(cell.cycle(after_s=3600)) == []
    cell.ends("job")
    assert only(cell.cycle(), dec.NodeLostV1).cause == "revoked"
    assert_sound(cell.state)


def test_a_revoked_node_whose_fence_expired_is_lost_by_its_silence() -> None:
    cell = fenced()
    cell.revoke("n1")
    cell.cycle()
    heard_ms = cell.now_ms
    lost = only(cell.cycle(after_s=61, silent={"n1": heard_ms}), dec.NodeLostV1)
    assert lost.cause == "silent"


@pytest.mark.parametrize("how", ["lost", "left"])
def test_a_node_revoked_while_down_is_the_same_after_a_restart(how: str) -> None:
    cell = closed("n1", "n2")
    if how == "left":
        cell.leaves("n1")
        cell.cycle()
    else:
        heard_ms = cell.now_ms
        cell.cycle(after_s=60, silent={"n1": heard_ms})
    assert cell.state.nodes["n1"].state.name == how.upper()
    cell.revoke("n1")
    cell.cycle()
    assert_sound(cell.state)
    digest = cell.state.digest()
    cell.restart()
    assert cell.state.digest() == digest
    assert cell.run_until_idle() == []


def test_a_past_silence_does_not_lose_a_node_that_is_revoked_later() -> None:
    cell = closed("n1")
    cell.submit("job")
    running(cell, "job")
    cell.cycle(silent={"n1": cell.now_ms - 30_000})
    cell.revoke("n1")
    assert kinds(cell.cycle(after_s=600)) == ["StopRequested"]


def test_the_last_revocation_does_not_open_the_cell_again() -> None:
    cell = closed("n1")
    cell.revoke("n1")
    cell.run_until_idle()
    cell.node("n2")
    cell.cycle()
    assert refusals(cell) == [RefusalCode.NOT_ENROLLED]


# Erasure -------------------------------------------------------------------------------------


def test_a_pending_task_whose_details_are_erased_ends() -> None:
    cell = Cell()
    cell.submit("job", tasks=2, max_concurrent=1)
    cell.cycle()
    cell.erase("job")
    ended = [e for e in cell.cycle() if isinstance(e, dec.TaskEndedV1)]
    assert [(e.outcome, e.code, e.attempt) for e in ended] == [("failed", "details_erased", 0)] * 2
    cell.node("n1")
    assert cell.run_until_idle() == []
    assert_sound(cell.state)


def test_an_attempt_that_finds_its_details_erased_is_the_last() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    cell.cycle()
    cell.erase("job")
    assert cell.cycle() == []
    cell.never_starts("job")
    decided = cell.cycle()
    assert kinds(decided) == ["TaskRequeued", "TaskEnded"]
    assert only(decided, dec.TaskEndedV1).code == "details_erased"


def test_a_task_that_succeeds_after_the_erasure_has_succeeded() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    running(cell, "job")
    cell.erase("job")
    cell.ends("job")
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "succeeded"


def test_erasure_of_an_unknown_or_ended_job_changes_nothing() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    running(cell, "job")
    cell.ends("job")
    cell.cycle()
    cell.erase("job")
    cell.erase("absent")
    assert cell.run_until_idle() == []
