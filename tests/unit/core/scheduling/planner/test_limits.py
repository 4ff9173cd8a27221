"""Limits on what jobs, projects and departments hold, and arrays with `max_concurrent`."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, only, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wake_index import WakeIndex
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.reasons import Wait
from yardmaster_schemas.resources import Resources

HALF = Resources(gpus=1, gpu_milli=500)


def big_cell() -> Cell:
    """Return a cell with enough capacity for all tasks, in two pools."""
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=8)
    cell.node("n2", gpus=8, pool="side")
    return cell


def test_a_project_holds_no_more_than_its_limit_over_all_pools() -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=3000)
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, pools=("side",))
    cell.submit("three", pools=("side",))
    assert started(cell.cycle()) == ["one", "three"]
    wait = waits(cell, "two", "side")
    assert (wait.code, wait.about) == ("at_limit", "p")
    assert wait.numbers == {"limit_milli": 3000, "used_milli": 2000, "asked_milli": 2000}


def test_a_project_holds_no_more_of_a_pool_than_its_limit_there() -> None:
    cell = big_cell()
    cell.entitle("p", quotas={"main": req.Quota(limit_milli=1000)})
    cell.submit("one", tasks=3)
    cell.submit("two", tasks=3, pools=("side",))
    assert len(all_of(cell.cycle(), dec.SlotsAllocatedV1)) == 1 + 3
    assert waits(cell, "one").code == "at_limit"


def nested_cell() -> Cell:
    """Return a cell with project p in department d, and q in e, which is a part of d."""
    cell = big_cell()
    cell.entitle("p")
    cell.entitle("q", department="e")
    cell.entitle_department("d", main=3000)
    cell.configure_department("e", parent="d")
    return cell


def test_a_department_limits_the_projects_of_departments_below_it_too() -> None:
    cell = nested_cell()
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, project="q", department="e")
    cell.submit("three", project="q", department="e")
    assert started(cell.cycle()) == ["one", "three"]
    wait = waits(cell, "two")
    assert (wait.code, wait.about) == ("at_limit", "d")
    assert wait.numbers == {"limit_milli": 3000, "used_milli": 2000, "asked_milli": 2000}
    cell.starts("one")
    cell.ends("one")
    assert started(cell.cycle()) == ["two"]


def test_a_department_that_leaves_another_one_no_longer_counts_in_it() -> None:
    cell = nested_cell()
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, project="q", department="e")
    assert started(cell.cycle()) == ["one"]
    cell.entitle_department("e")
    assert started(cell.cycle()) == ["two"]
    assert_sound(cell.state)


def test_a_department_limits_the_sum_of_its_projects() -> None:
    cell = big_cell()
    cell.entitle("p")
    cell.entitle("q")
    cell.entitle_department("d", main=3000)
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, project="q")
    cell.submit("three", project="q")
    assert started(cell.cycle()) == ["one", "three"]
    assert (waits(cell, "two").code, waits(cell, "two").about) == ("at_limit", "d")


def test_a_task_that_waits_for_a_limit_starts_when_enough_was_released_elsewhere() -> None:
    cell = big_cell()
    cell.entitle_department("d", main=2000)
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, project="q")
    cell.cycle()
    cell.starts("one")
    cell.ends("one")
    assert started(cell.cycle()) == ["two"]


def test_raising_a_limit_lets_tasks_start_that_waited_for_it() -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=1000)
    cell.submit("one", tasks=2)
    cell.cycle()
    cell.entitle("p", limit_milli=2000)
    assert started(cell.cycle()) == ["one.1"]


def test_lowering_a_limit_stops_no_running_task() -> None:
    cell = big_cell()
    cell.submit("one", tasks=4)
    cell.cycle()
    cell.entitle("p", limit_milli=1000)
    assert cell.cycle() == []


def test_a_task_above_a_limit_by_itself_never_starts() -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=1000)
    cell.submit("big", gpus=2)
    cell.cycle()
    wait = waits(cell, "big")
    assert (wait.code, wait.code.wait_class) == ("exceeds_limit", "never")
    assert (wait.numbers, wait.about) == ({"asked_milli": 2000, "limit_milli": 1000}, "p")
    cell.entitle("p", limit_milli=2000)
    assert started(cell.cycle()) == ["big"]


def test_a_task_at_a_limit_blocks_no_other() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=4)
    cell.entitle("p", limit_milli=1000)
    cell.submit("one", tasks=2, priority=1)
    cell.submit("other", project="q", priority=90, preemptible=False)
    assert started(cell.cycle()) == ["one", "other"]


def test_a_task_behind_one_that_reached_its_limit_preempts_those_that_passed_once_they_run() -> (
    None
):
    cell = Cell(impossible_block=True)
    cell.node("n1", gpus=3)
    cell.submit("front", gpus=3)
    cell.cycle()
    cell.submit("big", gpus=3, replicas=2, priority=3)
    cell.submit("behind", gpus=1, priority=9, preemptible=False)
    cell.submit("low", gpus=1, priority=63, tasks=3)
    cell.cycle()
    cell.entitle_department("d", main=6000)
    cell.starts("front")
    cell.ends("front")
    assert started(cell.cycle()) == ["low", "low.1", "low.2"], "they may be preempted later"
    assert waits(cell, "big").code == "at_limit"
    assert waits(cell, "behind").code == "insufficient_free"
    cell.starts("low", 2)
    assert stopped(cell.cycle()) == ["low.2"]


def test_limits_count_fractions_of_gpus() -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=1200)
    cell.submit("half", tasks=3, resources=HALF)
    assert started(cell.cycle()) == ["half", "half.1"]
    wait = waits(cell, "half")
    assert wait.numbers == {"limit_milli": 1200, "used_milli": 1000, "asked_milli": 500}


def test_tasks_without_gpus_have_no_limit() -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=0)
    cell.submit("cpu", resources=Resources(cpu_milli=1000))
    assert started(cell.cycle()) == ["cpu"]


def test_a_project_that_moves_leaves_its_part_of_a_limit_to_the_remaining_projects() -> None:
    cell = big_cell()
    cell.entitle("p")
    cell.entitle("q")
    cell.entitle_department("d", main=2000)
    cell.submit("one", gpus=2)
    cell.submit("two", gpus=2, project="q")
    assert started(cell.cycle()) == ["one"]
    cell.entitle("p", department="e")
    assert started(cell.cycle()) == ["two"]
    assert_sound(cell.state)


# max_slots


def test_a_job_holds_no_more_than_its_max_slots() -> None:
    cell = big_cell()
    cell.submit("job", tasks=4, max_slots_milli=2000)
    assert started(cell.cycle()) == ["job", "job.1"]
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("at_max_slots", "job")
    assert wait.numbers == {"limit_milli": 2000, "used_milli": 2000, "asked_milli": 1000}
    cell.starts("job", 0)
    cell.ends("job", 0)
    assert started(cell.cycle()) == ["job.2"]


def test_a_task_above_max_slots_by_itself_never_starts() -> None:
    cell = big_cell()
    cell.submit("job", gpus=3, max_slots_milli=2000)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "exceeds_max_slots",
        {"asked_milli": 3000, "limit_milli": 2000},
    )


def test_max_slots_can_be_raised_lifted_and_lowered_while_tasks_run() -> None:
    cell = big_cell()
    cell.submit("job", tasks=5, max_slots_milli=1000)
    assert started(cell.cycle()) == ["job"]
    cell.set_max_slots("job", 2)
    assert started(cell.cycle()) == ["job.1"]
    cell.set_max_slots("job", 1)
    assert started(cell.cycle()) == []
    assert cell.phase("job", 1) == "starting"
    cell.set_max_slots("job", None)
    assert started(cell.cycle()) == ["job.2", "job.3", "job.4"]
    assert_sound(cell.state)


def test_a_job_with_a_limit_of_its_own_does_not_stand_for_others() -> None:
    cell = big_cell()
    cell.submit("bound", tasks=2, max_slots_milli=1000)
    cell.submit("free", tasks=2)
    assert started(cell.cycle()) == ["bound", "free", "free.1"]


def test_of_the_jobs_at_one_limit_only_those_are_considered_that_the_freed_amount_suffices_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = big_cell()
    cell.entitle("p", limit_milli=2000)
    for number in range(50):
        cell.submit(f"j{number:02d}x", max_slots_milli=1000 + number)
    assert started(cell.cycle()) == ["j00x", "j01x"]
    cell.starts("j00x")
    cell.cycle()
    cell.ends("j00x")
    asked = []

    def counted(state: ClusterState, pool: Pool, task: Task) -> Wait | None:
        asked.append(task.id)
        return limit_reached(state, pool, task)

    monkeypatch.setattr("yardmaster_core.scheduling.planner.pool_pass.limit_reached", counted)
    assert started(cell.cycle()) == ["j02x"]
    assert len(set(asked)) == 2, "the one that starts, and the next one"


def test_a_release_wakes_only_the_tasks_that_wait_for_a_limit_of_its_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = big_cell()
    names = ("one", "two", "three")
    for name in names:
        cell.submit(name, tasks=2, max_slots_milli=1000)
    cell.cycle()
    for name in names:
        cell.starts(name)
    cell.cycle()
    cell.ends("two")
    seen: set[str] = set()
    wake = WakeIndex.wake

    def noting(self: WakeIndex, pool: Pool, group: Group) -> None:
        seen.add(group.first.job.id.rstrip("0"))
        wake(self, pool, group)

    monkeypatch.setattr(WakeIndex, "wake", noting)
    assert started(cell.cycle()) == ["two.1"]
    assert seen == {"two"}
    assert_sound(cell.state)


# max_concurrent


def test_a_task_whose_limit_is_now_that_of_another_owner_is_woken_by_that_owner() -> None:
    cell = big_cell()
    cell.entitle_department("d", main=2000)
    cell.entitle("p", department="d", limit_milli=1000)
    cell.entitle("q", department="d")
    cell.submit("a", project="p")
    cell.submit("b", project="q")
    cell.submit("c", project="p")
    assert started(cell.cycle()) == ["a", "b"]
    cell.starts("b")
    cell.entitle("p", department="d", limit_milli=3000)
    decided = cell.cycle()
    assert [event.wait.about for event in all_of(decided, dec.TaskUnschedulableV1)] == ["d"]
    assert_sound(cell.state)
    cell.ends("b")
    assert started(cell.cycle()) == ["c"]


def test_an_array_lets_max_concurrent_of_its_tasks_through_in_the_order_of_their_index() -> None:
    cell = big_cell()
    cell.submit("array", tasks=5, max_concurrent=2)
    assert started(cell.cycle()) == ["array", "array.1"]
    cell.starts("array", 1)
    cell.ends("array", 1)
    assert started(cell.cycle()) == ["array.2"]
    assert [cell.task("array", i).released for i in range(5)] == [True, True, True, False, False]
    assert_sound(cell.state)


def test_a_preempted_task_of_an_array_keeps_its_place() -> None:
    cell = big_cell()
    cell.submit("array", tasks=3, max_concurrent=1, priority=50, gpus=8)
    cell.cycle()
    cell.submit("top", priority=1, gpus=8)
    cell.cycle()
    cell.never_starts("array", 0)
    assert started(cell.cycle()) == ["top"]
    cell.starts("top")
    cell.ends("top")
    assert started(cell.cycle()) == ["array"]


def test_a_paused_task_leaves_its_place_under_max_concurrent_once_it_holds_no_slots() -> None:
    cell = big_cell()
    cell.submit("array", tasks=4, max_concurrent=1)
    cell.cycle()
    cell.pause("array", 0)
    assert started(cell.cycle()) == []
    cell.never_starts("array", 0)
    assert started(cell.cycle()) == ["array.1"]
    cell.restart()
    cell.resume("array", 0)
    assert started(cell.cycle()) == [], "task 1 has the only place"
    assert_sound(cell.state)
    cell.starts("array", 1)
    cell.ends("array", 1)
    assert started(cell.cycle()) == ["array"], "the first task without a place gets the next one"
    cell.starts("array", 0)
    cell.ends("array", 0)
    assert started(cell.cycle()) == ["array.2"]
    assert_sound(cell.state)


def test_a_pause_of_a_pending_task_lets_the_next_one_start() -> None:
    cell = big_cell()
    cell.submit("array", tasks=4, max_concurrent=1)
    cell.pause("array", 0)
    assert started(cell.cycle()) == ["array.1"]


def test_a_paused_search_resumes_with_max_concurrent_of_its_tasks() -> None:
    cell = big_cell()
    cell.submit("array", tasks=4, max_concurrent=2)
    cell.pause("array")
    assert started(cell.cycle()) == []
    assert [cell.task("array", i).released for i in range(4)] == [False] * 4
    cell.resume("array")
    assert started(cell.cycle()) == ["array", "array.1"]
    assert_sound(cell.state)


def test_a_failed_task_of_an_array_lets_the_next_one_through_once_it_is_over() -> None:
    cell = big_cell()
    cell.submit("array", tasks=2, max_concurrent=1, max_restarts=1)
    cell.cycle()
    cell.starts("array")
    cell.ends("array", exit_code=1)
    assert started(cell.cycle()) == []
    assert started(cell.cycle(after_s=1)) == ["array"]
    cell.starts("array")
    cell.ends("array", exit_code=1)
    assert started(cell.cycle()) == ["array.1"]


def test_a_cancelled_task_that_waited_for_max_concurrent_is_skipped() -> None:
    cell = big_cell()
    cell.submit("array", tasks=3, max_concurrent=1)
    cell.cycle()
    cell.cancel("array", 1)
    assert kinds(cell.cycle()) == ["TaskEnded"]
    cell.starts("array")
    cell.ends("array")
    assert started(cell.cycle()) == ["array.2"]


# unschedulable: fail


def test_a_task_that_can_never_fit_waits_unless_its_job_chose_to_fail() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("waits", gpus=4)
    cell.submit("fails", gpus=4, unschedulable=req.Unschedulable.FAIL)
    decided = cell.cycle()
    ended = only(decided, dec.TaskEndedV1)
    assert ended.task_id == cell.task("fails").id
    assert (ended.outcome, ended.code, ended.attempt) == ("failed", "unschedulable", 0)
    assert waits(cell, "waits").code == "exceeds_every_node"
    assert cell.cycle() == []
    assert_sound(cell.state)


def test_it_fails_only_when_it_fits_in_none_of_its_pools() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=4, pool="side")
    cell.submit("held", gpus=4, pools=("side",), preemptible=False, priority=1)
    cell.submit(
        "job", gpus=4, pools=("main", "side"), unschedulable=req.Unschedulable.FAIL, priority=50
    )
    decided = cell.cycle()
    assert all_of(decided, dec.TaskEndedV1) == []
    assert waits(cell, "job", "main").code == "exceeds_every_node"
    assert waits(cell, "job", "side").code == "insufficient_free"


def test_an_array_fails_whole_though_most_tasks_waited_for_max_concurrent() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("array", gpus=4, tasks=5, max_concurrent=2, unschedulable=req.Unschedulable.FAIL)
    cell.run_until_idle()
    assert [cell.phase("array", i) for i in range(5)] == ["failed"] * 5
    assert_sound(cell.state)


def test_a_temporarily_unavailable_node_is_no_reason_to_fail() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.cordon("n1")
    cell.submit("job", gpus=4, unschedulable=req.Unschedulable.FAIL)
    assert all_of(cell.cycle(), dec.TaskEndedV1) == []
    assert waits(cell, "job").code == "nodes_unavailable"


@pytest.mark.parametrize("bounded_by", ["project", "job"])
def test_no_more_tasks_are_preempted_than_the_limits_let_start(bounded_by: str) -> None:
    cell = Cell()
    cell.node("n1", gpus=8)
    cell.entitle("q", limit_milli=4000 if bounded_by == "project" else None)
    bound: dict[str, Any] = {"max_slots_milli": 4000} if bounded_by == "job" else {}
    cell.submit("one", gpus=4, priority=60)
    cell.submit("two", gpus=4, priority=60)
    cell.cycle()
    cell.submit("top", project="q", gpus=4, tasks=2, priority=1, **bound)
    decided = ["PreemptionRequested", "SlotsReserved", "TaskUnschedulable"]
    assert kinds(cell.cycle()) == decided
    assert cell.run_until_idle() == []
    assert_sound(cell.state)


def test_a_limit_has_room_again_when_a_reservation_is_dropped() -> None:
    cell = Cell()
    cell.node("n1", gpus=6)
    cell.entitle("q", department="e", limit_milli=6000)
    cell.submit("low", gpus=4, priority=60)
    cell.cycle()
    cell.submit("top", project="q", gpus=6, priority=1)
    cell.cycle()
    cell.submit("small", project="q", gpus=2, priority=1)
    cell.cycle()
    assert waits(cell, "small").code == "at_limit"
    cell.cancel("top")
    assert "small" in started(cell.cycle())
    assert_sound(cell.state)


def test_a_group_that_reached_a_limit_meanwhile_blocks_no_other() -> None:
    cell = Cell(impossible_block=True)
    cell.pool("side")
    cell.entitle("q", limit_milli=4000)
    cell.submit("own", project="q", gpus=4, priority=1, preemptible=False)
    cell.submit("low", gpus=1, priority=60, preemptible=False)
    cell.submit("else", project="q", gpus=4, priority=1, pools=("side",))
    cell.node("n1", gpus=2)
    cell.node("n3", gpus=4)
    cell.cordon("n3")
    cell.cycle()
    assert waits(cell, "low").code == "backfill_not_allowed"
    cell.node("n2", gpus=4, pool="side")
    assert started(cell.cycle()) == ["else", "low"]
    assert waits(cell, "own").code == "at_limit"
    assert_sound(cell.state)
