"""Reservations: slots kept for a task until it starts on them, or until a drop says why."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.scheduling.reading import (
    all_of,
    kinds,
    only,
    running,
    started,
    stopped,
    waits,
)
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import DropCode, WaitCode
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import next_incarnation


def reserved() -> Cell:
    """Return a cell in which `low` releases its two GPUs of n1 for `top`, of project q."""
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.entitle("q")
    cell.submit("low", gpus=2, priority=90, grace_s=600)
    running(cell, "low")
    cell.submit("top", gpus=2, priority=10, project="q")
    assert kinds(cell.cycle()) == ["PreemptionRequested", "SlotsReserved"]
    return cell


def test_a_reservation_names_its_slots_its_victims_and_when_they_must_be_free() -> None:
    cell = reserved()
    event = all_of(cell.history, dec.SlotsReservedV1)[0]
    assert (event.task_id, event.attempt, event.victims) == (cell.task("top").id, 1, 1)
    assert [(p.node, p.slots) for p in event.placements] == [("n1", (0, 1))]
    assert event.until_at_ms == cell.now_ms + 600_000


def test_the_task_starts_on_exactly_its_slots_once_they_are_free() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("one", gpus=2, priority=90)
    cell.submit("two", gpus=2, priority=90)
    running(cell, "one")
    running(cell, "two")
    cell.submit("top", gpus=4, priority=10)
    cell.cycle()
    cell.ends("one")
    cell.submit("fast", gpus=2, priority=10)
    assert started(cell.cycle()) == [], "the free half is reserved"
    cell.ends("two")
    decided = cell.cycle()
    assert started(decided) == ["top"]
    assert cell.slots_of("top") == [("n1", (0, 1, 2, 3))]
    assert_sound(cell.state)


def test_a_reservation_is_kept_over_restarts_and_costs_no_decision() -> None:
    cell = reserved()
    for _ in range(3):
        cell.restart()
        assert_sound(cell.state)
        assert cell.cycle(after_s=10) == []
    cell.ends("low")
    assert started(cell.cycle()) == ["top"]


def test_a_task_that_fits_elsewhere_starts_there_and_its_slots_go_to_others() -> None:
    cell = reserved()
    cell.node("n2", gpus=2)
    decided = cell.cycle()
    assert kinds(decided) == ["ReservationDropped", "SlotsAllocated"]
    assert all_of(decided, dec.ReservationDroppedV1)[0].code is DropCode.STARTED_ELSEWHERE
    assert cell.slots_of("top") == [("n2", (0, 1))]
    cell.submit("mid", priority=50)
    cell.ends("low")
    assert "mid" in started(cell.cycle())
    assert_sound(cell.state)


CHANGES: dict[str, Callable[[Cell], None]] = {
    "cancelled": lambda cell: cell.cancel("top"),
    "paused": lambda cell: cell.pause("top"),
    "ended": lambda cell: cell.erase("top"),
    "priority_changed": lambda cell: cell.set_priority("top", 20),
    "limit_changed": lambda cell: cell.set_max_slots("top", 1),
    "limit_changed project": lambda cell: cell.entitle("q", limit_milli=1000),
    "pool_not_allowed": lambda cell: cell.entitle("q", pools=("side",)),
    "node_unavailable": lambda cell: cell.cordon("n1"),
    "node_unavailable drain": lambda cell: cell.drain("n1", within_s=900),
    "node_unavailable barred": lambda cell: cell.enroll("n9"),
    "slot_disabled": lambda cell: cell.disable("n1", 1),
    "pool_changed": lambda cell: cell.pool("main", backfill=False),
    "pool_changed policy": lambda cell: cell.pool("main", policy="fifo"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_drops_a_reservation_and_says_why(change: str) -> None:
    cell = reserved()
    CHANGES[change](cell)
    dropped = all_of(cell.cycle(), dec.ReservationDroppedV1)
    assert [event.code for event in dropped] == [change.split()[0]]
    assert_sound(cell.state)
    cell.restart()
    assert_sound(cell.state)


def test_the_loss_of_a_node_drops_the_reservations_on_it() -> None:
    cell = reserved()
    heard_ms = cell.now_ms
    decided = cell.cycle(after_s=100, silent={"n1": heard_ms})
    assert all_of(decided, dec.ReservationDroppedV1)[0].code is DropCode.NODE_LOST
    assert_sound(cell.state)


def test_a_revoked_node_drops_the_reservations_on_it() -> None:
    cell = Cell()
    cell.enroll("n1", gpus=2)
    cell.node("n1", gpus=2)
    cell.submit("low", gpus=2, priority=90)
    running(cell, "low")
    cell.submit("top", gpus=2, priority=10)
    cell.cycle()
    cell.revoke("n1")
    dropped = all_of(cell.cycle(), dec.ReservationDroppedV1)
    assert [event.code for event in dropped] == ["node_unavailable"]
    assert_sound(cell.state)


def test_a_node_that_returns_with_a_new_incarnation_has_no_reserved_slots() -> None:
    cell = reserved()
    cell.node("n1", gpus=2, incarnation=next_incarnation("0" * 12))
    decided = [*cell.cycle(), *cell.cycle()]
    codes = [event.code for event in all_of(decided, dec.ReservationDroppedV1)]
    assert codes == ["node_lost"]
    assert "top" in started([*decided, *cell.run_until_idle()])
    assert_sound(cell.state)


def test_an_older_equal_that_needs_no_victim_is_served_before_a_younger_one_starts() -> None:
    """Before, `new` was started and preempted in the next cycle, with no input in between."""
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("a", gpus=3, preemptible=False)
    cell.submit("b", gpus=1, preemptible=False, grace_s=600)
    running(cell, "a")
    running(cell, "b")
    cell.submit("old", gpus=4)
    cell.submit("new", gpus=2)
    cell.cycle()
    cell.cancel("b")
    cell.cycle()
    cell.ends("a")
    decided = [*cell.cycle(), *cell.cycle()]
    assert (started(decided), stopped(decided)) == ([], [])
    assert cell.wait_code("old") == "waiting_for_victims"


def test_an_outstanding_preemption_holds_up_no_lower_priority_on_other_slots() -> None:
    """Before, the pool stayed closed to `mid`, even after `hi` had ended."""
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=4)
    cell.submit("other", gpus=4, priority=5, preemptible=False)
    cell.submit("low", tasks=4, priority=60, gpus=1, grace_s=3600)
    cell.cycle()
    cell.starts("other")
    for index in range(4):
        cell.starts("low", index)
    cell.cycle()
    cell.submit("hi", priority=10, gpus=4)
    cell.cycle()
    cell.submit("mid", priority=40, gpus=1)
    cell.cycle()
    cell.ends("other")
    assert started(cell.cycle()) == ["hi"]
    cell.starts("hi")
    cell.cycle()
    cell.ends("hi")
    cell.cycle()
    assert cell.phase("mid") == "starting"


def test_idle_capacity_of_a_later_pool_comes_before_victims_in_an_earlier_one() -> None:
    """Before, `hi` waited 600 s for `low` while s1 was idle."""
    cell = Cell()
    cell.pool("side")
    cell.node("m1", gpus=1)
    cell.node("s1", gpus=1, pool="side")
    cell.submit("low", priority=60, gpus=1, grace_s=600)
    running(cell, "low")
    cell.submit("hi", priority=10, gpus=1, pools=("main", "side"))
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["hi"], [])
    assert cell.slots_of("hi") == [("s1", (0,))]


def test_a_cycle_without_input_decides_nothing_while_tasks_hold_reservations() -> None:
    cell = reserved()
    assert cell.cycle() == []
    assert not cell.state.pools["main"].awake


def test_a_fractional_reservation_waits_for_its_part_only() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    half = Resources(gpus=1, gpu_milli=500)
    cell.submit("low", priority=90, resources=half)
    cell.submit("tail", priority=80, resources=half)
    running(cell, "low")
    running(cell, "tail")
    cell.submit("top", priority=10, resources=half)
    assert stopped(cell.cycle()) == ["low"]
    cell.ends("low")
    assert started(cell.cycle()) == ["top"]
    assert_sound(cell.state)


def test_what_victims_release_beyond_a_reservation_is_offered_at_once() -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    cell.submit("low", gpus=3, priority=60)
    running(cell, "low")
    cell.submit("mid", tasks=3, priority=60)
    cell.cycle()
    cell.submit("top", priority=10)
    reserved = [e.task_id for e in all_of(cell.cycle(), dec.SlotsReservedV1)]
    offered = [cell.task("mid", 0).id, cell.task("mid", 1).id]
    assert reserved == [cell.task("top").id, *offered]
    assert cell.cycle() == []
    assert_sound(cell.state)


def passed_on_reserved_slots(policy: str = "priority") -> Cell:
    """Return a cell in which `low` has just started on its reserved slots, past `top`, which
    arrived in the cycle in which these slots became free, and may preempt it.
    """
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("old", gpus=2, priority=90, preemptible=False, grace_s=600)
    running(cell, "old")
    cell.cancel("old")
    cell.submit("low", gpus=2, priority=50)
    assert "SlotsReserved" in kinds([*cell.cycle(), *cell.cycle()])
    cell.submit("top", gpus=2, priority=10, preemptible=False)
    cell.ends("old")
    assert started(cell.cycle()) == ["low"]
    return cell


def test_a_task_on_its_reserved_slots_is_not_preempted_before_it_runs() -> None:
    cell = passed_on_reserved_slots()
    cell.submit("more", gpus=2, priority=5)
    for _ in range(2):
        assert stopped(cell.cycle(after_s=1)) == []
    cell.restart()
    assert stopped(cell.cycle()) == []
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["priority", "fitgpp", "lrtp", "rand"])
def test_a_task_that_was_passed_by_one_with_reserved_slots_is_considered_when_that_runs(
    policy: str,
) -> None:
    cell = passed_on_reserved_slots(policy)
    cell.restart()
    cell.starts("low")
    decided = cell.cycle()
    assert stopped(decided) == ["low"]
    assert [e.task_id for e in all_of(decided, dec.SlotsReservedV1)] == [cell.task("top").id]
    cell.ends("low")
    assert started(cell.cycle()) == ["top"]
    assert_sound(cell.state)


@pytest.mark.parametrize("spec", [{"preemptible": False}, {"min_runtime_s": 60}])
def test_a_task_that_fits_at_last_takes_over_slots_that_become_free_in_the_same_cycle(
    spec: dict[str, Any],
) -> None:
    cell = Cell()
    cell.node("n1", gpus=1, cpu_milli=4000)
    cpus = Resources(gpus=0, gpu_milli=0, cpu_milli=3000)
    cell.submit("cpus", resources=cpus, preemptible=False)
    cell.submit("low", priority=90)
    running(cell, "cpus")
    running(cell, "low")
    cell.submit("mid", priority=20, **spec)
    assert stopped(cell.cycle()) == ["low"]
    cell.submit("top", priority=10, resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=3000))
    assert started(cell.cycle()) == []
    # Before this cycle `top` lacked CPUs on the slot that is reserved for `mid`.
    cell.ends("cpus")
    cell.ends("low")
    decided = cell.cycle()
    assert started(decided) == ["top"]
    assert only(decided, dec.ReservationDroppedV1).code is DropCode.PASSED
    assert_sound(cell.state)


def test_a_task_takes_over_reserved_slots_when_another_owner_took_the_idle_ones() -> None:
    cell = Cell()
    cell.pool("main", policy="starved_first")
    cell.node("n1", gpus=4)
    cell.submit("all", tasks=4, gpus=1, grace_s=600, user="bob")
    for index in range(4):
        running(cell, "all", index)
    cell.submit("mid", gpus=2, priority=60, user="ann", preemptible=False)
    assert stopped(cell.cycle()) == ["all.3", "all.2"]
    # Idle now are two slots, which `high` fits on; and two become free that are reserved for `mid`.
    for index in range(4):
        cell.ends("all", index, done=True)
    cell.submit("other", gpus=2, user="cy")
    cell.submit("high", gpus=2, priority=1, user="ann")
    decided = cell.cycle()
    assert started(decided) == ["other", "high"], "cy holds less than ann"
    drop = only(decided, dec.ReservationDroppedV1)
    assert (drop.code, drop.for_task) == (DropCode.PASSED, cell.task("high").id)
    assert_sound(cell.state)


def test_a_task_that_requests_no_cpus_starts_while_reserved_cpus_are_still_held() -> None:
    cell = Cell()
    cell.pool("main", policy="quota")
    cell.entitle("p", quotas={"main": Quota(deserved_milli=0)})
    cell.entitle("q", quotas={"main": Quota(deserved_milli=4000)})
    cell.node("n1", gpus=4, cpu_milli=8000)
    held = Resources(gpus=1, gpu_milli=1000, cpu_milli=6000)
    cell.submit("low", resources=held, project="p", grace_s=600)
    running(cell, "low")
    cell.submit("top", resources=held, project="q")
    assert stopped(cell.cycle()) == ["low"]
    cell.submit("cpus", resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=1), project="q")
    cell.submit("none", resources=Resources(gpus=1, gpu_milli=1000), project="q")
    assert started(cell.cycle()) == ["none"]
    assert_sound(cell.state)


def victims_release_for(cell: Cell, name: str, **spec: Any) -> None:
    """Fill n1 with `low`, which releases its slots for the job `name` in 600 s."""
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=4, priority=60, grace_s=600)
    running(cell, "low")
    cell.submit(name, gpus=4, priority=40, **spec)
    assert kinds(cell.cycle()) == ["PreemptionRequested", "SlotsReserved"]


def test_a_task_that_may_preempt_no_other_takes_over_slots_of_its_owner() -> None:
    cell = Cell()
    cell.pool("main", policy="starved_first")
    cell.node("n1", gpus=4)
    cell.submit("all", tasks=4, gpus=1, grace_s=600, user="bob")
    for index in range(4):
        running(cell, "all", index)
    cell.submit("low", gpus=2, priority=60, user="ann")
    assert stopped(cell.cycle()) == ["all.3", "all.2"], "ann gets her equal part"
    cell.submit("high", gpus=2, priority=1, user="ann")
    drop = only(cell.cycle(), dec.ReservationDroppedV1)
    assert (drop.task_id, drop.for_task) == (cell.task("low").id, cell.task("high").id)
    assert cell.task("high").reserved is not None
    assert_sound(cell.state)


@pytest.mark.parametrize(
    "spec", [{"preemptible": False}, {"min_runtime_s": 21_600}, {}], ids=["kept", "minimum", "any"]
)
def test_a_reservation_gives_way_to_a_higher_priority(spec: dict[str, Any]) -> None:
    cell = Cell()
    victims_release_for(cell, "mid", **spec)
    cell.submit("high", gpus=4, priority=1)
    decided = cell.cycle(after_s=1)
    assert kinds(decided)[:2] == ["ReservationDropped", "SlotsReserved"]
    drop = only(decided, dec.ReservationDroppedV1)
    assert (drop.code, drop.for_task) == (DropCode.PASSED, cell.task("high").id)
    assert (drop.numbers["priority"], drop.numbers["for_priority"]) == (40, 1)
    assert stopped(decided) == [], "no task is preempted for slots that are being released"
    cell.ends("low")
    assert started(cell.cycle()) == ["high"]
    assert waits(cell, "mid").code is WaitCode.INSUFFICIENT_FREE
    assert_sound(cell.state)


def test_equals_do_not_take_reserved_slots_from_each_other() -> None:
    cell = Cell()
    victims_release_for(cell, "mid")
    cell.submit("equal", gpus=4, priority=40)
    cell.submit("below", gpus=4, priority=50)
    assert all_of(cell.cycle(after_s=1), dec.ReservationDroppedV1) == []
    cell.ends("low")
    assert started(cell.cycle()) == ["mid"]


def test_a_task_that_lost_its_slots_gets_them_back_once_the_other_one_is_gone() -> None:
    cell = Cell()
    victims_release_for(cell, "mid")
    cell.submit("high", gpus=4, priority=1)
    cell.cycle(after_s=1)
    cell.cancel("high")
    decided = cell.cycle()
    assert [e.task_id for e in all_of(decided, dec.SlotsReservedV1)] == [cell.task("mid").id]
    cell.ends("low")
    assert started(cell.cycle()) == ["mid"]


def test_reserved_slots_and_victims_together_make_room_and_no_more_of_them_than_needed() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("one", gpus=1, priority=70, grace_s=600)
    cell.submit("two", gpus=1, priority=60, grace_s=600)
    running(cell, "one")
    running(cell, "two")
    cell.submit("mid", gpus=1, priority=40, preemptible=False)
    assert stopped(cell.cycle()) == ["one"]
    cell.submit("high", gpus=2, priority=1)
    decided = cell.cycle(after_s=1)
    assert all_of(decided, dec.ReservationDroppedV1)[0].for_task == cell.task("high").id
    assert stopped(decided) == ["two"]
    assert only(decided, dec.SlotsReservedV1).victims == 1
    cell.ends("one")
    cell.ends("two")
    assert started(cell.cycle()) == ["high"]
    assert_sound(cell.state)


def test_a_task_starts_at_once_on_the_idle_part_of_a_gang_that_gives_way() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=2, priority=60, tasks=2, grace_s=600)
    running(cell, "low")
    running(cell, "low", index=1)
    cell.submit("gang", gpus=4, priority=40)
    assert stopped(cell.cycle()) == ["low.1", "low"]
    cell.ends("low")
    cell.submit("high", gpus=2, priority=1)
    decided = cell.cycle(after_s=1)
    assert kinds(decided)[1:3] == ["ReservationDropped", "SlotsAllocated"]
    assert started(decided) == ["high"]


def test_equal_tasks_start_together_on_the_reserved_slots_that_the_first_takes_over() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=4, priority=60, grace_s=600)
    running(cell, "low")
    cell.submit("gang", gpus=4, priority=40, preemptible=False)
    assert stopped(cell.cycle()) == ["low"]
    cell.submit("high", tasks=4, priority=10)
    cell.submit("mid", tasks=4, priority=20)
    cell.ends("low")
    assert started(cell.cycle()) == ["high", "high.1", "high.2", "high.3"]
    assert_sound(cell.state)


def test_under_quota_a_reservation_gives_way_within_its_project_only() -> None:
    for project, gives_way in (("q", True), ("p", False)):
        cell = Cell(policy="quota")
        cell.node("n1", gpus=2)
        cell.entitle("q", quotas={"main": Quota(deserved_milli=2000)})
        cell.entitle("p", quotas={"main": Quota(deserved_milli=2000)})
        cell.submit("low", gpus=2, priority=60, project="q", grace_s=600)
        running(cell, "low")
        cell.submit("mid", gpus=2, priority=40, project="q")
        cell.cycle()
        cell.submit("high", gpus=2, priority=1, project=project)
        drops = all_of(cell.cycle(after_s=1), dec.ReservationDroppedV1)
        assert bool(drops) is gives_way
