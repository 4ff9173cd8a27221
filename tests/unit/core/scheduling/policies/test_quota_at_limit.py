"""The policy `quota`: what counts at a limit at which a task preempts others of its project."""

from typing import Any

import pytest

from tests.histories.properties import CheckedCell, CheckedPlayer
from tests.unit.core.scheduling.planner.test_gpu_memory import GIB, by_memory, milli_of
from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import all_of, only, running, started, stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import DropCode, WaitCode
from yardmaster_schemas.resources import Resources

#: The grace period of the victims, and how long after it a stop is overdue (s).
GRACE_S, OVERDUE_S = 30, 60
BOUNDS = [{"limit": 2}, {"over_quota": False}, {"limit_cpu_milli": 2000}]


def amount(gpus: int) -> Resources:
    """Return these GPUs, with a CPU for each."""
    return Resources(gpus=gpus, gpu_milli=1000, cpu_milli=gpus * 1000)


def full(bound: dict[str, Any]) -> QuotaCell:
    """Return a cell in which two tasks of `a` run and hold all that its limit allows."""
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2, **bound)
    for name in ("early", "late"):
        cell.submit(name, project="a", priority=60, resources=amount(1), grace_s=GRACE_S)
        cell.run()
    return cell


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_task_that_has_ended_counts_until_its_slots_are_released(bound: dict[str, Any]) -> None:
    """The agent may take long: a task that preempts others is not left waiting for it."""
    cell = full(bound)
    cell.exits("late")
    cell.submit("high", project="a", priority=10, resources=amount(2))
    assert stopped(cell.cycle(after_s=1)) == []
    assert cell.wait_of("high") is WaitCode.AT_LIMIT
    cell.releases("late")
    assert stopped(cell.cycle(after_s=1)) == ["early"]
    assert "high" in started(cell.run())


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_task_at_a_limit_preempts_another_one_if_a_stop_is_overdue(
    bound: dict[str, Any],
) -> None:
    cell = full(bound)
    cell.submit("high", project="a", priority=10, resources=amount(1))
    assert stopped(cell.cycle(after_s=1)) == ["late"]
    cell.restart()
    decided = cell.cycle(after_s=GRACE_S + OVERDUE_S)
    assert len(all_of(decided, dec.StopOverdueV1)) == 1
    assert only(decided, dec.ReservationDroppedV1).code is DropCode.STOP_OVERDUE
    assert_sound(cell.state)
    assert stopped([*decided, *cell.cycle()]) == ["early"]
    cell.restart()
    cell.ends("early")
    assert started(cell.cycle()) == ["high"]
    assert cell.held("a") == 2
    assert_sound(cell.state)


def test_a_reservation_that_relies_on_an_overdue_stop_is_dropped_after_a_cycle_at_its_limit() -> (
    None
):
    cell = QuotaCell({"n1": 2, "n2": 1})
    cell.entitle_to("a", 2, limit=2)
    for name in ("early", "late"):
        cell.submit(name, project="a", priority=60, avoid_nodes=("n2",), grace_s=GRACE_S)
        cell.run()
    cell.submit("high", project="a", priority=10, avoid_nodes=("n1",))
    assert stopped(cell.cycle(after_s=1)) == ["late"]
    only(cell.cycle(after_s=GRACE_S + OVERDUE_S, limit=1), dec.StopOverdueV1)
    cell.restart()
    assert only(cell.cycle(), dec.ReservationDroppedV1).code is DropCode.STOP_OVERDUE
    assert_sound(cell.state)


def test_a_task_is_moved_off_the_gpu_where_limits_let_a_request_by_memory_start() -> None:
    """The request fits on an idle GPU too, but takes more there than the limit leaves."""
    cell = CheckedCell()
    cell.pool("main", policy="quota")
    cell.node("large", gpus=1, gpu_memory_mib=80 * GIB)
    cell.entitle("p", limit_milli=1300, quotas={"main": Quota(deserved_milli=1000)})
    cell.submit("whole", gpus=1, project="p", priority=60)
    running(cell, "whole")
    cell.node("small", gpus=1, gpu_memory_mib=40 * GIB)
    cell.cycle()
    # 250 of the large GPU, 500 of the small one.
    cell.submit("part", resources=by_memory(20), project="p", priority=60)
    assert stopped(cell.cycle()) == ["whole"]
    cell.ends("whole")
    cell.run_until_idle()
    assert milli_of(cell, "part") == [250]
    assert cell.slots_of("whole") == [("small", (0,))]


def test_a_task_at_a_limit_preempts_one_that_passed_it_once_that_runs() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2, limit=2)
    cell.submit("low", project="a", gpus=2, priority=60)
    cell.run()
    cell.submit("middle", project="a", gpus=2, priority=40)
    assert stopped(cell.cycle(after_s=1)) == ["low"]
    cell.submit("high", project="a", priority=10)
    cell.ends("low")
    # It starts on slots that were reserved for it before.
    assert started(cell.cycle(after_s=1)) == ["middle"]
    assert cell.wait_of("high") is WaitCode.AT_LIMIT
    cell.run_until_idle()
    cell.starts("middle")
    assert stopped(cell.cycle(after_s=1)) == ["middle"]


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_task_gets_the_slots_of_tasks_that_stop_although_it_is_at_its_limit(
    bound: dict[str, Any],
) -> None:
    """Else a later task of its project would start there, and be preempted for it at once."""
    cell = full(bound)
    cell.cancel("late")
    cell.submit("high", project="a", priority=10, resources=amount(1))
    decided = cell.cycle(after_s=1)
    assert (only(decided, dec.SlotsReservedV1).victims, stopped(decided)) == (0, ["late"])
    cell.submit("last", project="a", priority=70, resources=amount(1))
    assert started(cell.cycle(after_s=1)) == []
    cell.ends("late")
    assert started(cell.cycle(after_s=1)) == ["high"]
    assert_sound(cell.state)


def test_a_task_at_a_limit_gets_slots_once_it_fits_without_tasks_of_others_that_stop() -> None:
    """The project has no task that may be preempted."""
    cell = QuotaCell({"n1": 1, "n2": 1})
    cell.entitle_to("a", 1, limit=1)
    cell.entitle_to("b", 1)
    cell.submit("low", project="a", avoid_nodes=("n2",), grace_s=GRACE_S)
    cell.submit("other", project="b", avoid_nodes=("n1",), grace_s=GRACE_S)
    cell.run()
    cell.cancel("low")
    cell.submit("high", project="a", avoid_nodes=("n1",))
    assert all_of(cell.cycle(after_s=1), dec.SlotsReservedV1) == []
    assert cell.wait_of("high") is WaitCode.AT_LIMIT
    cell.cancel("other")
    assert only(cell.cycle(after_s=1), dec.SlotsReservedV1).victims == 0
    cell.ends("other")
    assert started(cell.cycle(after_s=1)) == []
    cell.ends("low")
    assert started(cell.cycle(after_s=1)) == ["high"]
    assert_sound(cell.state)


def test_a_task_at_a_limit_preempts_others_once_it_would_fit_without_them() -> None:
    """Tasks of other projects release the capacity that it waits for."""
    cell = QuotaCell({"n1": 2, "n2": 2})
    cell.entitle_to("a", 2, limit=2)
    cell.entitle_to("b", 2)
    for name, project in (("low", "a"), ("other", "b")):
        for node, other in (("n1", "n2"), ("n2", "n1")):
            spec: dict[str, Any] = {"preemptible": project == "a", "avoid_nodes": (other,)}
            cell.submit(f"{name}{node}", project=project, priority=60, **spec)
            cell.run()
    cell.submit("high", project="a", gpus=2, priority=10)
    assert stopped(cell.cycle(after_s=1)) == []
    assert cell.wait_of("high") is WaitCode.AT_LIMIT
    cell.run_until_idle()
    cell.ends("othern1")
    assert stopped(cell.cycle(after_s=1)) == ["lown2", "lown1"]


def test_a_task_at_a_limit_is_considered_although_an_earlier_one_does_not_fit() -> None:
    cell = QuotaCell({"n1": 2, "n2": 2})
    cell.entitle_to("a", 2, limit=1)
    cell.entitle_to("b", 2)
    cell.submit("other", project="b", gpus=2, avoid_nodes=("n1",))
    cell.submit("low", project="a", priority=5, avoid_nodes=("n2",))
    cell.run()
    cell.submit("first", project="a", priority=10, avoid_nodes=("n1",))
    cell.submit("second", project="a", priority=20)
    cell.run()
    assert [cell.wait_of(name) for name in ("first", "second")] == [WaitCode.AT_LIMIT] * 2
    cell.set_priority("low", 60)
    assert stopped(cell.cycle(after_s=1)) == ["low"]
    assert "second" in started(cell.run())


def with_protected_tasks(limit: int) -> QuotaCell:
    """Return a cell in which `gang` of `c` waits for a task of `b` that is protected by its minimum
    run time; `a` deserves the GPU that it holds.
    """
    cell = QuotaCell({"n1": 3, "n2": 2})
    cell.entitle_to("a", 1, limit=limit)
    cell.entitle_to("b", 0)
    cell.entitle_to("c", 3)
    cell.submit("busy", project="b", gpus=3, min_runtime_s=600)
    cell.submit("low", project="a", priority=60)
    cell.run()
    cell.submit("gang", project="c", gpus=3)
    cell.run()
    assert cell.wait_of("gang") is WaitCode.VICTIMS_PROTECTED
    return cell


def test_tasks_that_are_preempted_at_a_limit_do_not_count_towards_what_is_deserved() -> None:
    """So the task does not wait behind one whose victims are protected."""
    cell = with_protected_tasks(limit=1)
    cell.submit("high", project="a", priority=10, min_runtime_s=600)
    assert stopped(cell.cycle(after_s=1)) == ["low"]


def test_a_task_at_a_limit_that_waits_behind_another_one_is_considered_when_that_is_gone() -> None:
    cell = with_protected_tasks(limit=2)
    cell.submit("high", project="a", gpus=2, priority=10, min_runtime_s=600)
    assert stopped(cell.run()) == []
    assert cell.wait_of("high") is WaitCode.BEHIND_TASK
    cell.cancel("gang")
    assert stopped(cell.cycle(after_s=1)) == ["low"]


def test_a_task_at_a_limit_preempts_so_much_that_it_need_not_wait_behind_another_one() -> None:
    """Without one of the victims the limit holds, but its project holds more than it deserves."""
    player = CheckedPlayer()
    cell = player.cell
    cell.pool("main", policy="quota")
    for project, deserved, limit in (("a", 1, 2), ("b", 0, None), ("c", 3, None)):
        quota = Quota(deserved_milli=deserved * 1000, limit_milli=limit and limit * 1000)
        cell.entitle(project, quotas={"main": quota})
    player.join(name="n1", gpus=3)
    player.join(name="n2", gpus=2)
    player.submit(name="busy", project="b", spec={"gpus": 3, "min_runtime_s": 600})
    player.submit(name="low", project="a", spec={"priority": 60, "tasks": 2})
    player.start(number=None)
    player.submit(name="gang", project="c", spec={"gpus": 3})
    high = {"priority": 10, "min_runtime_s": 600}
    player.submit(name="high", project="a", spec=high, at_once=False)
    assert stopped(player.cycle()) == ["low.1", "low"]


def test_a_task_that_alone_exceeds_a_limit_says_so_whatever_others_hold() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2, limit=1, limit_cpu_milli=1000)
    cell.submit("low", project="a", priority=60)
    cell.run()
    wide = Resources(gpus=1, gpu_milli=1000, cpu_milli=2000)
    cell.submit("high", project="a", priority=10, resources=wide)
    cell.cycle()
    assert cell.wait_of("high") is WaitCode.EXCEEDS_LIMIT
