"""`fair_share`, rule by rule."""

import pytest

from tests.unit.core.scheduling.policies.fair_share.shared_pool import (
    all_start,
    held,
    obeyed,
    shared,
)
from tests.unit.core.scheduling.reading import all_of, only, running, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.errors import BadPolicyOptions
from yardmaster_core.scheduling.policies import POLICIES, options_of
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources

# Shares


def test_the_documented_demands_of_10_and_30_get_2_and_6_of_8() -> None:
    cell = shared()
    cell.submit("ten", tasks=10)
    cell.submit("thirty", tasks=30)
    cell.cycle()
    assert (held(cell, "ten"), held(cell, "thirty")) == (2, 6)
    assert_sound(cell.state)


def test_with_weights_of_3_and_1_they_get_4_and_4() -> None:
    cell = shared()
    cell.submit("ten", tasks=10, weight=3)
    cell.submit("thirty", tasks=30)
    cell.cycle()
    assert (held(cell, "ten"), held(cell, "thirty")) == (4, 4)


def test_as_determineds_code_computes_they_get_4_and_4() -> None:
    cell = shared(variant="max_min")
    cell.submit("ten", tasks=10)
    cell.submit("thirty", tasks=30)
    cell.cycle()
    assert (held(cell, "ten"), held(cell, "thirty")) == (4, 4)


def test_a_single_claimant_has_the_whole_pool() -> None:
    cell = shared()
    cell.submit("job", tasks=10)
    assert len(all_of(cell.cycle(), dec.SlotsAllocatedV1)) == 8
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("over_fair_share", cell.task("job").job.id)
    assert wait.numbers == {
        "fair_share_milli": 8000,
        "weight": 1,
        "used_milli": 8000,
        "asked_milli": 1000,
    }


def test_a_start_says_by_which_share() -> None:
    cell = shared()
    cell.submit("job", weight=2)
    start = only(cell.cycle(), dec.SlotsAllocatedV1).start
    assert start.rule == "fair_share"
    assert start.numbers == {"fair_share_milli": 1000, "weight": 2, "used_milli": 0}


def test_a_job_counts_no_more_than_its_max_slots() -> None:
    cell = shared(variant="max_min")
    cell.submit("bound", tasks=20, max_slots_milli=2000)
    cell.submit("free", tasks=20)
    cell.cycle()
    assert (held(cell, "bound"), held(cell, "free")) == (2, 6)
    assert waits(cell, "bound").code == "at_max_slots"


def test_a_job_counts_only_the_tasks_that_max_concurrent_lets_through() -> None:
    cell = shared(variant="max_min")
    cell.submit("array", tasks=20, max_concurrent=1)
    cell.submit("free", tasks=20)
    cell.cycle()
    assert (held(cell, "array"), held(cell, "free")) == (1, 7)


def test_paused_tasks_do_not_count() -> None:
    cell = shared(variant="max_min")
    cell.submit("paused", tasks=20)
    cell.pause("paused")
    cell.submit("free", tasks=20)
    cell.cycle()
    assert (held(cell, "paused"), held(cell, "free")) == (0, 8)
    cell.resume("paused")
    assert len(stopped(cell.cycle())) == 4


def test_tasks_that_could_never_start_do_not_count() -> None:
    cell = shared(variant="max_min")
    cell.submit("huge", gpus=9)
    cell.submit("typed", tasks=20, node_types=("sxm",))
    cell.submit("free", tasks=20)
    cell.cycle()
    assert held(cell, "free") == 8
    assert waits(cell, "huge").code == "exceeds_every_node"
    assert waits(cell, "typed").code == "no_matching_node"


@pytest.mark.parametrize("most", [1, 4])
def test_no_task_is_preempted_for_demand_above_a_limit(most: int) -> None:
    cell = shared()
    cell.submit("free", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("huge", gpus=8, max_slots_milli=most * 1000)
    assert stopped(cell.run_until_idle()) == []
    assert waits(cell, "huge").code == "exceeds_max_slots"


def test_demand_above_a_limit_does_not_count() -> None:
    cell = shared()
    cell.submit("huge", gpus=8, max_slots_milli=4000)
    cell.submit("free", tasks=8)
    assert len(started(cell.cycle())) == 8


def test_as_determineds_code_computes_a_limit_counts_also_if_no_task_fits_in_it() -> None:
    cell = shared(variant="max_min")
    cell.submit("huge", gpus=8, max_slots_milli=4000)
    cell.submit("free", tasks=8)
    assert len(started(cell.cycle())) == 4


def test_a_limit_reduces_a_demand_to_whole_tasks() -> None:
    cell = shared()
    cell.submit("free", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("pairs", gpus=2, tasks=9, max_slots_milli=3000)
    obeyed(cell)
    assert (held(cell, "free"), held(cell, "pairs")) == (6, 2)
    assert waits(cell, "pairs").code == "at_max_slots"


def test_no_task_is_preempted_for_a_claimant_at_a_limit_elsewhere() -> None:
    cell = Cell(policy="fair_share", among="project")
    cell.pool("other")
    cell.node("n1", gpus=8)
    cell.node("o1", gpus=8, pool="other")
    cell.entitle("p", limit_milli=8000)
    cell.submit("here", project="q", tasks=8)
    cell.submit("there", project="p", pools=("other",), gpus=6)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("gang", project="p", gpus=4)
    assert stopped(cell.run_until_idle()) == []
    assert waits(cell, "gang").code == "at_limit"


def test_tasks_that_do_not_fit_next_to_non_preemptible_ones_do_not_count() -> None:
    cell = shared(4)
    cell.submit("shell", preemptible=False)
    running(cell, "shell")
    cell.submit("gang", gpus=4)
    cell.submit("free", tasks=4)
    assert len(started(cell.cycle())) == 3
    assert waits(cell, "gang").code == "insufficient_free"
    cell.ends("shell")
    assert "free.3" in started(cell.cycle()), "the smallest demand comes first"


def test_fractions_of_gpus_are_divided_too() -> None:
    cell = shared(1, variant="max_min")
    half = Resources(gpus=1, gpu_milli=500)
    cell.submit("one", tasks=2, resources=half)
    cell.submit("two", tasks=2, resources=half)
    assert started(cell.cycle()) == ["one", "two"]


def test_of_gangs_that_would_each_get_half_their_slots_the_older_gets_all() -> None:
    cell = shared(2)
    cell.submit("old", gpus=2)
    cell.submit("young", gpus=2)
    assert started(cell.cycle()) == ["old"]
    assert waits(cell, "young").numbers["fair_share_milli"] == 0


# Order


def test_tasks_without_gpus_have_no_shares_and_are_first_come_first_served() -> None:
    cell = shared(1)
    cell.submit("gpu", tasks=3)
    cell.submit("cpu", resources=Resources(cpu_milli=40_000), tasks=2)
    cell.submit("late", resources=Resources(cpu_milli=40_000))
    decided = cell.cycle()
    assert started(decided) == ["cpu", "gpu"]
    assert waits(cell, "cpu").code == "insufficient_free"
    assert {event.start.rule for event in all_of(decided, dec.SlotsAllocatedV1)} == {
        "no_gpus",
        "fair_share",
    }


def test_a_task_that_does_not_fit_lets_others_pass() -> None:
    cell = Cell(policy="fair_share", variant="max_min")
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("first", tasks=2)
    cell.submit("second", tasks=1, gpus=2)
    cell.cycle()
    assert sorted(started(cell.run_until_idle())) == []
    assert held(cell, "first") == 2
    assert held(cell, "second") == 2


def test_a_non_preemptible_task_counts_as_fixed_from_the_next_cycle_on() -> None:
    cell = shared(4, variant="max_min")
    cell.submit("shell", tasks=4, preemptible=False)
    cell.submit("other", tasks=4)
    assert len(started(cell.cycle())) == 4
    assert (held(cell, "shell"), held(cell, "other")) == (2, 2)
    assert cell.state.cycle_due, "what it holds now is fixed: shares are looked at again"
    assert cell.machine.due_ms(cell.state) == cell.now_ms
    cell.restart()
    assert cell.state.cycle_due
    assert cell.state.pools["main"].index.due
    assert cell.run_until_idle() == []
    assert not cell.state.cycle_due


# Among projects


def test_a_pool_can_be_divided_among_projects() -> None:
    cell = shared(8, among="project", variant="max_min")
    cell.entitle("p", weight=1)
    cell.entitle("q", weight=3)
    cell.submit("one", tasks=8)
    cell.submit("two", tasks=8)
    cell.submit("three", tasks=8, project="q")
    cell.cycle()
    used = [held(cell, name) for name in ("one", "two", "three")]
    assert used == [2, 0, 6]
    assert waits(cell, "two").about == "p"
    assert_sound(cell.state)


def test_a_projects_weight_counts_also_without_pending_tasks() -> None:
    cell = shared(4, among="project", variant="max_min")
    cell.entitle("p", weight=3)
    cell.entitle("q")
    cell.submit("one", tasks=3)
    cell.submit("two", tasks=4, project="q")
    cell.cycle()
    all_start(cell)
    cell.cycle()
    assert (held(cell, "one"), held(cell, "two")) == (3, 1)
    cell.entitle("p", weight=1)
    assert len(stopped(cell.cycle())) == 1


def test_of_a_project_above_its_share_the_latest_task_is_preempted() -> None:
    cell = shared(4, among="project")
    cell.submit("one", tasks=2)
    cell.submit("two", tasks=2)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("other", tasks=4, project="q")
    assert stopped(cell.cycle()) == ["two.1", "two"]
    obeyed(cell)
    assert [held(cell, name) for name in ("one", "two", "other")] == [2, 0, 2]


def test_jobs_of_a_project_with_a_limit_divide_the_limit() -> None:
    cell = shared(8, variant="max_min")
    cell.entitle("p", limit_milli=2000)
    cell.submit("one", tasks=8)
    cell.submit("two", tasks=8)
    cell.submit("other", tasks=8, project="q")
    cell.cycle()
    assert [held(cell, name) for name in ("one", "two", "other")] == [1, 1, 6]


def test_projects_of_a_department_with_a_limit_divide_the_limit() -> None:
    cell = shared(8, variant="max_min", among="project")
    cell.entitle("p")
    cell.entitle("q")
    cell.entitle("r", department="e")
    cell.entitle_department("d", main=2000)
    for name, project in (("one", "p"), ("two", "q"), ("other", "r")):
        cell.submit(name, tasks=8, project=project)
    cell.cycle()
    assert [held(cell, name) for name in ("one", "two", "other")] == [1, 1, 6]


def test_a_project_counts_no_more_than_its_limits() -> None:
    cell = shared(8, variant="max_min", among="project")
    cell.entitle("p", quotas={"main": req.Quota(limit_milli=1000)})
    cell.submit("one", tasks=8)
    cell.submit("other", tasks=8, project="q")
    cell.cycle()
    assert (held(cell, "one"), held(cell, "other")) == (1, 7)


# The policy of the pool


def test_a_pool_that_changes_to_fair_share_and_back_groups_pending_tasks_again() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("one", tasks=8)
    cell.submit("two", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    assert (held(cell, "one"), held(cell, "two")) == (4, 0)
    assert cell.task("one").job.shape is cell.task("two").job.shape
    cell.pool("main", policy="fair_share")
    assert len(stopped(cell.cycle())) == 2
    assert cell.task("one").job.shape is not cell.task("two").job.shape
    assert_sound(cell.state)
    cell.restart()
    assert_sound(cell.state)
    obeyed(cell)
    assert (held(cell, "one"), held(cell, "two")) == (2, 2)
    cell.pool("main", policy="fair_share", among="project")
    cell.cycle()
    assert cell.task("one").job.shape is cell.task("two").job.shape
    assert_sound(cell.state)


def test_pools_share_nothing_and_a_task_of_two_counts_in_both() -> None:
    cell = shared(2, variant="max_min")
    cell.pool("side", policy="fair_share", variant="max_min")
    cell.node("n2", gpus=2, pool="side")
    cell.submit("both", tasks=2, pools=("side", "main"))
    cell.submit("here", tasks=4)
    cell.cycle()
    assert (held(cell, "both"), held(cell, "here")) == (2, 1)
    assert started(cell.run_until_idle()) == ["here.1"], (
        "the other asks for nothing more of this pool"
    )
    assert_sound(cell.state)


def test_a_restart_at_any_point_decides_the_same() -> None:
    twins = [shared(4), shared(4)]
    for step in range(12):
        for number, cell in enumerate(twins):
            if step % 3 == 0:
                cell.submit(f"job{step}x", tasks=1 + step, weight=1 + step % 2)
            if step % 4 == 1:
                all_start(cell)
            for task in cell.state.tasks.values():
                run = task.run
                if run is not None and run.stop is not None and run.open and run.started:
                    cell.ends(task.job.id.rstrip("0"), task.index)
            if number:
                cell.restart()
        assert twins[0].cycle() == twins[1].cycle()
        assert twins[0].state.digest() == twins[1].state.digest()
        assert_sound(twins[1].state)


def test_unknown_options_are_refused() -> None:
    assert ("fair_share", 1) in POLICIES
    ref = req.PolicyRef(name="fair_share", options={"variant": "max_min", "among": "project"})
    assert options_of(ref).among == "project"
    for wrong in ({"variant": "fair"}, {"among": "user"}, {"other": "1"}):
        with pytest.raises(BadPolicyOptions):
            options_of(req.PolicyRef(name="fair_share", options=dict(wrong.items())))


def test_a_task_over_its_share_is_considered_after_its_pool_was_configured_again() -> None:
    cell = shared(2, among="project")
    cell.submit("first", tasks=2)
    cell.submit("second", tasks=2, project="q")
    cell.run_until_idle()
    cell.pool("main", policy="fair_share", among="project", start_timeout_s=90)
    cell.cycle()
    assert_sound(cell.state)
    cell.starts("second")
    cell.ends("second")
    assert started(cell.run_until_idle()) == ["second.1"]
