"""A task that does not release its slots in time: nothing is planned on them any longer."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, only, running, started, stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import DropCode

#: The grace period of the victims, and how long after it a stop is overdue (s).
GRACE_S, OVERDUE_S = 30, 60


def stuck(policy: str = "priority") -> Cell:
    """Return a cell in which `stuck` of n2 is preempted for `high`, and `other` runs on n1."""
    cell = Cell(policy=policy)
    for name, deserved in (("p", 2000), ("q", 0)):
        cell.entitle(name, quotas={"main": Quota(deserved_milli=deserved)})
    low: dict[str, Any] = {"gpus": 1, "priority": 60, "project": "q", "grace_s": GRACE_S}
    for node, name in (("n1", "other"), ("n2", "stuck")):
        cell.node(node, gpus=1)
        cell.submit(name, **low)
        running(cell, name)
    cell.submit("high", gpus=1, priority=1, project="p")
    assert stopped(cell.cycle()) == ["stuck"]
    return cell


@pytest.mark.parametrize("policy", ["priority", "quota"])
def test_another_victim_is_preempted_once_the_first_one_is_overdue(policy: str) -> None:
    cell = stuck(policy)
    assert all_of(cell.cycle(after_s=GRACE_S + OVERDUE_S - 1), dec.StopOverdueV1) == []
    decided = cell.cycle(after_s=1)
    overdue = only(decided, dec.StopOverdueV1)
    assert overdue.task_id == cell.task("stuck").id
    drop = only(decided, dec.ReservationDroppedV1)
    assert (drop.task_id, drop.code) == (cell.task("high").id, DropCode.STOP_OVERDUE)
    assert drop.about == "n2"
    decided += cell.cycle()
    assert stopped(decided) == ["other"]
    assert_sound(cell.state)
    cell.ends("other")
    assert started(cell.cycle()) == ["high"]
    assert cell.slots_of("high") == [("n1", (0,))]
    assert_sound(cell.state)


def test_a_cycle_at_its_limit_does_not_leave_slots_reserved_that_may_never_be_released() -> None:
    cell = stuck()
    decided = cell.cycle(after_s=GRACE_S + OVERDUE_S, limit=1)
    assert [type(event) for event in decided] == [dec.StopOverdueV1, dec.ReservationDroppedV1]
    assert_sound(cell.state)


def test_the_slots_are_free_again_as_soon_as_they_are_released() -> None:
    cell = stuck()
    cell.cycle(after_s=GRACE_S + OVERDUE_S)
    cell.cycle()
    cell.ends("stuck")
    decided = cell.cycle()
    assert started(decided) == ["high"]
    assert cell.slots_of("high") == [("n2", (0,))]
    assert_sound(cell.state)


def test_a_restart_changes_nothing_about_an_overdue_stop() -> None:
    cell = stuck()
    cell.restart()
    decided = cell.cycle(after_s=GRACE_S + OVERDUE_S)
    assert len(all_of(decided, dec.StopOverdueV1)) == 1
    cell.restart()
    assert_sound(cell.state)
    for _ in range(3):
        assert all_of(cell.cycle(after_s=1), dec.StopOverdueV1) == []
    cell.ends("stuck")
    cell.cycle()
    assert_sound(cell.state)


def test_a_stop_in_time_is_not_overdue() -> None:
    cell = stuck()
    cell.cycle(after_s=GRACE_S)
    cell.ends("stuck")
    decided = cell.cycle(after_s=OVERDUE_S)
    assert all_of(decided, dec.StopOverdueV1) == []
    assert started(decided) == ["high"]


def test_only_what_is_reserved_on_the_held_slots_is_dropped() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    for name in ("kept", "stuck"):
        cell.submit(name, gpus=2, priority=60, grace_s=GRACE_S)
        running(cell, name)
    cell.submit("first", gpus=2, priority=1)
    cell.submit("second", gpus=2, priority=2)
    assert stopped(cell.cycle()) == ["stuck", "kept"]
    cell.cycle(after_s=GRACE_S)
    cell.ends("kept")
    [went] = started(cell.cycle())
    decided = cell.cycle(after_s=OVERDUE_S)
    drop = only(decided, dec.ReservationDroppedV1)
    assert drop.code is DropCode.STOP_OVERDUE
    assert drop.task_id != cell.task(went).id
    assert_sound(cell.state)
