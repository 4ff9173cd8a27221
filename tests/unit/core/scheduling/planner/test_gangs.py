"""Gangs: all replicas or none, over several nodes, from the allocation to the last release."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, only, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.resources import Resources


def two_nodes(**spec: Any) -> Cell:
    """Return two nodes of two GPUs with a running gang, `gang`, of two replicas that fill them."""
    cell = Cell()
    cell.node("n1", gpus=2, address="10.0.0.1")
    cell.node("n2", gpus=2, address="10.0.0.2")
    cell.submit("gang", replicas=2, gpus=2, **spec)
    running(cell, "gang")
    return cell


def test_a_gang_is_placed_over_several_nodes_in_one_decision() -> None:
    cell = Cell()
    cell.node("n1", gpus=2, address="10.0.0.1")
    cell.node("n2", gpus=2, address="10.0.0.2")
    cell.submit("gang", replicas=2, gpus=2)
    event = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert [(p.replica, p.node, p.slots) for p in event.placements] == [
        (0, "n1", (0, 1)),
        (1, "n2", (0, 1)),
    ]
    assert [p.address for p in event.placements] == ["10.0.0.1", "10.0.0.2"]


def test_a_gang_holds_no_slot_while_one_replica_does_not_fit() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("held", priority=1)
    cell.submit("gang", replicas=2, gpus=2)
    assert started(cell.cycle()) == ["held"]
    assert waits(cell, "gang").code == "insufficient_free"
    assert cell.state.pools["main"].free.free_milli == 3000


def test_replicas_share_a_node_where_they_fit() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=4)
    cell.submit("gang", replicas=2, gpus=2)
    cell.cycle()
    assert cell.slots_of("gang") == [("n2", (0, 1)), ("n2", (2, 3))]


def test_a_gang_starts_when_its_last_replica_fits() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=3, gpus=2)
    assert started(cell.cycle()) == []
    cell.node("n2", gpus=2)
    assert started(cell.cycle()) == []
    cell.node("n3", gpus=2)
    assert started(cell.cycle()) == ["gang"]


def test_a_gang_runs_once_all_its_replicas_have_started() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.starts("gang", replica=1)
    cell.cycle()
    assert cell.phase("gang") == "starting"
    cell.starts("gang", replica=0)
    cell.cycle()
    assert cell.phase("gang") == "running"


def test_a_gang_has_succeeded_when_every_replica_exited_with_0() -> None:
    cell = two_nodes()
    cell.ends("gang", replica=0)
    assert cell.cycle() == [], "the others may take their time"
    cell.ends("gang", replica=1)
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "succeeded"


def test_a_replica_that_is_done_before_the_others_have_started_stops_no_replica() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.starts("gang", replica=0)
    cell.ends("gang", replica=0)
    assert cell.cycle() == []
    cell.starts("gang", replica=1)
    cell.ends("gang", replica=1)
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "succeeded"


def test_one_failed_replica_stops_its_gang_which_ends_with_the_first_nonzero_code() -> None:
    cell = two_nodes(grace_s=120)
    cell.exits("gang", replica=1, exit_code=5)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.stop.code, stop.stop.numbers) == ("gang_incomplete", {"replicas": 2, "open": 2})
    assert stop.nodes == ("n1", "n2")
    assert stop.grace_s == 10, "they wait for one that will not answer"
    cell.releases("gang", replica=1)
    cell.ends("gang", replica=0, exit_code=9)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.exit_code) == ("failed", "exit", 5)
    assert_sound(cell.state)


def test_a_gang_that_failed_and_saved_itself_meanwhile_has_failed() -> None:
    cell = two_nodes()
    cell.ends("gang", replica=1, signal=11)
    cell.cycle()
    cell.ends("gang", replica=0, exit_code=0)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.signal) == ("failed", "signal", 11)


def test_a_failed_gang_is_restarted_while_max_restarts_lasts() -> None:
    cell = two_nodes(max_restarts=1)
    cell.ends("gang", replica=0, exit_code=1)
    cell.cycle()
    cell.ends("gang", replica=1, signal=15)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts) == ("exit", 1)
    assert started(cell.cycle(after_s=1)) == ["gang"]


def test_a_gang_of_which_one_replica_never_started_is_stopped_and_retried_later() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.starts("gang", replica=0)
    cell.never_starts("gang", replica=1)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.stop.code, stop.stop.numbers) == ("gang_incomplete", {"replicas": 2, "open": 1})
    cell.ends("gang", replica=0)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts) == ("never_started", 0)
    assert requeued.not_before_ms == cell.now_ms + 2000
    assert started(cell.cycle(after_s=2)) == ["gang"]


def test_a_single_task_that_never_started_is_retried_with_growing_back_off() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    waited_s = []
    for _ in range(3):
        cell.cycle()
        cell.never_starts("job")
        requeued = only(cell.cycle(), dec.TaskRequeuedV1)
        assert requeued.code == "never_started"
        waited_s.append((requeued.not_before_ms - cell.now_ms) // 1000)
        assert cell.cycle() == []
        assert started(cell.cycle(after_s=waited_s[-1])) == ["job"]
    assert waited_s == [2, 4, 8]


def test_a_gang_that_does_not_start_in_time_is_revoked_whole() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.starts("gang", replica=0)
    cell.cycle()
    revoked = only(cell.cycle(after_s=10), dec.AllocationRevokedV1)
    assert revoked.nodes == ("n1", "n2")
    assert revoked.stop.numbers == {"active": 1, "needed": 2, "limit_s": 10}
    assert revoked.late == ("n2",)
    cell.never_starts("gang", replica=1)
    assert started(cell.cycle()) == []
    cell.ends("gang", replica=0, signal=9)
    assert kinds(cell.cycle()) == ["TaskRequeued"]
    assert started(cell.cycle(after_s=2)) == ["gang"]


def test_a_gang_is_preempted_whole_and_restarts_whole() -> None:
    cell = two_nodes()
    cell.submit("top", priority=1)
    stop = only(cell.cycle(), dec.PreemptionRequestedV1)
    assert stop.nodes == ("n1", "n2")
    cell.ends("gang", replica=0)
    assert started(cell.cycle()) == ["top"], "what it waited for is free"
    cell.ends("gang", replica=1)
    assert kinds(cell.cycle()) == ["TaskRequeued", "TaskUnschedulable"]
    cell.starts("top")
    cell.ends("top")
    again = only(cell.run_until_idle(), dec.SlotsAllocatedV1)
    assert (again.attempt, len(again.placements)) == (2, 2)


def test_slots_that_a_replica_released_already_do_not_count_when_its_gang_is_preempted() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2, priority=60)
    running(cell, "gang")
    cell.ends("gang", replica=0)
    cell.submit("held", priority=1)
    running(cell, "held")
    cell.submit("pair", priority=5, gpus=2)
    assert all_of(cell.cycle(), dec.PreemptionRequestedV1) == [], "one GPU more would not do"
    assert_sound(cell.state)


# Ports


def test_a_gang_gets_a_port_that_is_held_with_its_slots_and_used_again() -> None:
    cell = Cell()
    cell.node("n1", gpus=6, port_first=25_000, port_last=25_010)
    cell.submit("one", replicas=2)
    cell.submit("two", replicas=2)
    ports = [e.master_port for e in all_of(cell.cycle(), dec.SlotsAllocatedV1)]
    assert ports == [25_000, 25_001]
    cell.starts("one")
    cell.ends("one", replica=1)
    cell.submit("three", replicas=2)
    assert only(cell.cycle(), dec.SlotsAllocatedV1).master_port == 25_002
    cell.ends("one", replica=0)
    cell.submit("four", replicas=2)
    assert only(cell.cycle(), dec.SlotsAllocatedV1).master_port == 25_000
    assert_sound(cell.state)


def test_the_port_is_one_of_the_first_replicas_node() -> None:
    cell = Cell()
    cell.node("n1", gpus=1, port_first=100, port_last=199)
    cell.node("n2", gpus=1, port_first=200, port_last=299)
    cell.submit("one", replicas=2)
    event = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert (event.placements[0].node, event.master_port) == ("n1", 100)


def test_a_single_task_needs_no_port() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    assert only(cell.cycle(), dec.SlotsAllocatedV1).master_port is None


def test_a_range_of_ports_that_is_used_up_blocks_no_gang() -> None:
    cell = Cell()
    cell.node("n1", gpus=6, port_first=25_000, port_last=25_000)
    cell.submit("one", replicas=2)
    cell.submit("two", replicas=2)
    assert [e.master_port for e in all_of(cell.cycle(), dec.SlotsAllocatedV1)] == [25_000, 25_000]


def test_a_gang_whose_one_replica_never_started_does_not_fail_by_the_stop_of_the_others() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("gang", replicas=2, gpus=2)
    cell.cycle()
    cell.starts("gang", replica=0)
    cell.never_starts("gang", replica=1)
    assert kinds(cell.cycle()) == ["StopRequested"]
    cell.ends("gang", replica=0, signal=15)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "never_started"
    assert_sound(cell.state)


@pytest.mark.parametrize("disabled", [(0,), (0, 1), (0, 1, 2)])
def test_a_gang_of_fractions_waits_on_a_node_whose_disabled_slots_are_still_held(
    disabled: tuple[int, ...],
) -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    fractions = Resources(gpus=2, gpu_milli=500)
    cell.submit("held", tasks=3, resources=fractions)
    cell.cycle()
    cell.disable("n1", *disabled)
    cell.submit("gang", replicas=2, resources=fractions, priority=10)
    cell.cycle()
    assert cell.phase("gang") == "pending"
    assert_sound(cell.state)
