"""`fair_share`, rule by rule."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, only, running, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.errors import BadPolicyOptions
from yardmaster_core.scheduling.policies import POLICIES, options_of
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources


def shared(gpus: int = 8, **options: Any) -> Cell:
    """Return a cell with one node in a pool with shares."""
    cell = Cell(policy="fair_share", **options)
    cell.node("n1", gpus=gpus)
    return cell


def all_start(cell: Cell) -> None:
    """Report that every placed task runs."""
    for task in cell.state.tasks.values():
        if task.run is not None and not task.run.started:
            cell.starts(task.job.id.rstrip("0"), task.index)


def obeyed(cell: Cell) -> list[Event]:
    """Let preempted tasks stop; return the decisions until none follows."""
    decided: list[Event] = []
    for _ in range(20):
        decided += cell.run_until_idle()
        stopping = [t for t in cell.state.tasks.values() if t.run and t.run.stop and t.run.open]
        if not stopping:
            assert_sound(cell.state)
            return decided
        for task in stopping:
            name = task.job.id.rstrip("0")
            if task.run is not None and task.run.started:
                cell.ends(name, task.index)
            else:
                cell.never_starts(name, task.index)
    raise AssertionError("still stopping")


def held(cell: Cell, name: str) -> int:
    """Return the GPUs that a job holds."""
    return cell.task(name).job.used_milli // 1000


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


# Reclaiming


@pytest.mark.parametrize("variant", ["demand_proportional", "max_min"])
def test_a_new_claimant_gets_its_share_of_a_full_pool(variant: str) -> None:
    cell = shared(4, variant=variant)
    cell.submit("first", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("second", tasks=8)
    decided = cell.cycle()
    assert len(stopped(decided)) == 2
    assert [cell.wait_code("second", index=n) for n in (0, 1, 2)] == [
        *["waiting_for_victims"] * 2,
        "over_fair_share",
    ]
    obeyed(cell)
    assert (held(cell, "first"), held(cell, "second")) == (2, 2)
    assert waits(cell, "first").code == "over_fair_share"
    assert cell.run_until_idle() == []


def test_the_latest_submission_of_a_claimant_is_preempted_first() -> None:
    cell = shared(2)
    cell.submit("first", tasks=2)
    running(cell, "first")
    cell.submit("second", tasks=2)
    assert stopped(cell.cycle()) == ["first.1"]


def test_as_in_determineds_code_the_earliest_submission_is_preempted_first() -> None:
    cell = shared(2, variant="max_min")
    cell.submit("first", tasks=2)
    running(cell, "first")
    cell.submit("second", tasks=2)
    assert stopped(cell.cycle()) == ["first"]


def test_a_stop_names_its_receiver_and_the_numbers_of_both_sides() -> None:
    cell = shared(2)
    cell.submit("first", tasks=2)
    running(cell, "first")
    cell.submit("second", tasks=6, weight=3)
    stop = all_of(cell.cycle(), dec.PreemptionRequestedV1)[0].stop
    assert (stop.code, stop.rule) == ("fair_share", "over_fair_share")
    assert stop.for_task == cell.task("second").id
    assert stop.about == cell.task("first").job.id
    assert stop.numbers == {
        "fair_share_milli": 1000,
        "weight": 1,
        "used_milli": 2000,
        "for_fair_share_milli": 1000,
        "for_weight": 3,
        "for_used_milli": 0,
    }


def test_a_preempted_task_restarts_when_its_share_allows_it() -> None:
    cell = shared(2)
    cell.submit("first", tasks=2)
    running(cell, "first")
    cell.submit("second", tasks=2)
    assert kinds(obeyed(cell)).count("SlotsAllocated") == 1
    assert cell.phase("first", 1) == "pending"
    all_start(cell)
    cell.cycle()
    cell.cancel("second", 1)
    cell.ends("second")
    assert "first.1" in started(cell.run_until_idle())


def test_no_task_is_preempted_without_a_receiver() -> None:
    cell = shared(8)
    cell.submit("first", tasks=8)
    cell.cycle()
    all_start(cell)
    assert cell.run_until_idle() == []
    cell.set_weight("first", 5)
    assert cell.run_until_idle() == []
    cell.cordon("n1")
    assert stopped(cell.run_until_idle()) == []


def test_a_non_preemptible_task_counts_as_part_of_the_share() -> None:
    cell = shared(4, variant="max_min")
    cell.submit("shells", tasks=4, preemptible=False)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("other", tasks=4)
    assert stopped(cell.run_until_idle()) == []
    assert waits(cell, "other").code == "insufficient_free"


def test_a_task_is_preempted_when_its_minimum_run_time_is_over() -> None:
    cell = shared(2)
    cell.submit("first", tasks=2, min_runtime_s=60)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("second", tasks=2)
    assert stopped(cell.cycle()) == []
    assert waits(cell, "second").code == "victims_protected"
    cell.restart()
    due_ms = cell.machine.due_ms(cell.state)
    assert due_ms == cell.now_ms + 60_000
    assert stopped(cell.cycle(after_s=60)) == ["first.1"]
    assert_sound(cell.state)


def test_tasks_without_gpus_wait_for_no_minimum_run_time() -> None:
    cell = shared(2)
    cell.submit("first", tasks=2, min_runtime_s=60)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("second", tasks=2)
    cell.submit("cpu", resources=Resources(cpu_milli=100_000))
    cell.cycle()
    assert waits(cell, "second").code == "victims_protected"
    assert waits(cell, "cpu").code == "exceeds_every_node"


def test_tasks_above_a_lowered_limit_are_stopped_without_a_receiver() -> None:
    cell = shared(8)
    cell.submit("job", tasks=6)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.set_max_slots("job", 4)
    decided = cell.cycle()
    assert stopped(decided) == ["job.5", "job.4"]
    assert {event.stop.rule for event in all_of(decided, dec.StopRequestedV1)} == {"over_bound"}
    obeyed(cell)
    assert held(cell, "job") == 4


def test_tasks_above_a_limit_are_stopped_even_within_their_minimum_run_time() -> None:
    cell = shared(8)
    cell.submit("job", tasks=8, min_runtime_s=60)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.set_max_slots("job", 4)
    assert len(stopped(cell.run_until_idle())) == 4


def test_a_limit_over_two_shared_pools_is_enforced_once() -> None:
    cell = shared(4)
    cell.pool("side", policy="fair_share")
    cell.node("s1", gpus=4, pool="side")
    cell.submit("job", tasks=8, pools=("main", "side"))
    cell.cycle()
    all_start(cell)
    cell.cycle()
    assert held(cell, "job") == 8
    cell.set_max_slots("job", 4)
    assert len(stopped(cell.run_until_idle())) == 4
    obeyed(cell)
    assert held(cell, "job") == 4


def test_a_stopping_non_preemptible_task_counts_as_released() -> None:
    cell = shared(4, among="project")
    cell.entitle("p")
    cell.submit("shell", gpus=2, preemptible=False, project="p")
    cell.submit("array", tasks=2, project="p")
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.cancel("shell")
    cell.entitle("p", quotas={"main": req.Quota(limit_milli=2000)})
    cell.cycle()
    assert cell.phase("shell") == "stopping"
    assert {cell.phase("array", index) for index in (0, 1)} == {"running"}


@pytest.mark.parametrize("gangs", [1, 2])
def test_the_preempted_tasks_make_the_receivers_fit(gangs: int) -> None:
    cell = scattered("demand_proportional")
    cell.submit("pairs", gpus=2, tasks=gangs, weight=gangs)
    obeyed(cell)
    cell.run_until_idle()
    assert held(cell, "pairs") == 2 * gangs
    assert held(cell, "singles") == 8 - 2 * gangs
    assert cell.run_until_idle() == []


def test_as_in_determineds_code_the_oldest_stop_at_once_whether_or_not_another_task_fits() -> None:
    cell = scattered("max_min", release="at_once")
    cell.submit("pairs", gpus=2, tasks=2)
    assert stopped(cell.run_until_idle()) == ["singles", "singles.1", "singles.2", "singles.3"]


def test_as_in_determineds_code_tasks_above_a_share_stop_at_once_without_a_receiver() -> None:
    cell = shared(variant="max_min", release="at_once")
    cell.submit("free", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("huge", gpus=8, max_slots_milli=3000)
    decided = cell.run_until_idle()
    assert stopped(decided) == ["free", "free.1", "free.2"]
    stops = [each.stop for each in all_of(decided, dec.StopRequestedV1)]
    assert {(stop.rule, stop.for_task) for stop in stops} == {("over_fair_share", None)}
    obeyed(cell)
    assert held(cell, "free") == 5
    assert cell.run_until_idle() == []


def test_an_unrelated_job_stops_no_task_without_a_receiver() -> None:
    cell = shared(variant="max_min")
    cell.submit("free", gpus=2, tasks=4)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    # Its limit counts as a demand, but its task can never start.
    cell.submit("huge", gpus=8, max_slots_milli=3000)
    assert stopped(cell.run_until_idle()) == []
    cell.submit("cpu", resources=Resources(cpu_milli=10))
    assert stopped(cell.run_until_idle()) == []


@pytest.mark.parametrize("variant", ["demand_proportional", "max_min"])
def test_no_task_is_preempted_for_one_that_starts_in_its_other_pool(variant: str) -> None:
    cell = shared(6, variant=variant, among="project")
    cell.pool("side", policy="fair_share", variant=variant, among="project")
    cell.node("s1", gpus=4, pool="side")
    both = ("side", "main")
    cell.submit("r0", project="r", pools=both)
    cell.submit("q0", project="q", tasks=2, pools=both)
    cell.submit("q1", project="q", pools=("side",))
    obeyed(cell)
    all_start(cell)
    cell.submit("r1", project="r", pools=both)
    cell.submit("r2", project="r", tasks=5)
    for _ in range(5):
        assert stopped(cell.cycle(after_s=1)) == []
        all_start(cell)
    assert all(task.run is not None for task in cell.state.tasks.values())


def test_a_victim_that_may_not_be_taken_hides_none_that_may() -> None:
    """Each of two claimants has one GPU to release, on one node where two are needed."""
    cell = shared(8)
    cell.submit("one", tasks=4, weight=4)
    cell.submit("two", tasks=4, weight=4)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("pair", gpus=2, weight=4)
    assert sorted(stopped(cell.cycle())) == ["one.3", "two.3"]


def test_what_a_project_holds_in_one_pool_changes_shares_in_another() -> None:
    cell = shared(2, among="project")
    cell.pool("side", policy="fair_share", among="project")
    cell.entitle("p", weight=10, limit_milli=2000)
    cell.submit("first", project="q")
    cell.run_until_idle()
    all_start(cell)
    cell.node("n2", gpus=1)
    cell.submit("pair", gpus=2, project="p")
    cell.submit("other", project="q", tasks=2)
    assert started(cell.run_until_idle()) == []
    assert waits(cell, "pair").code == "fragmented"
    assert waits(cell, "other").code == "over_fair_share"
    cell.node("s1", gpus=2, pool="side")
    cell.submit("there", project="p", pools=("side",), tasks=2)
    # Now the limit of the project leaves it nothing of pool `main`.
    assert started(cell.run_until_idle()) == ["there", "there.1", "other", "other.1"]


def scattered(variant: str, **options: str) -> Cell:
    """Return four nodes of two GPUs with eight tasks of one GPU; consecutive tasks are on different
    nodes.
    """
    cell = Cell(policy="fair_share", placement="worst_fit", variant=variant, **options)
    for number in range(4):
        cell.node(f"n{number}", gpus=2)
    cell.submit("singles", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    return cell


def test_a_gang_on_unequal_nodes_counts_if_it_fits_on_some_but_not_on_all_nodes() -> None:
    cell = Cell(policy="fair_share", unequal_gangs=True)
    cell.node("n5", gpus=5)
    cell.submit("five", gpus=5)
    running(cell, "five")
    cell.node("n4", gpus=4)
    cell.node("n3", gpus=3)
    cell.submit("seven", gpus=7, layout=req.Layout.WHOLE_NODES)
    assert started(cell.run_until_idle()) == ["seven"]


def test_a_claimant_does_not_start_the_tasks_it_releases() -> None:
    cell = shared(4, variant="max_min")
    cell.submit("first", gpus=2, tasks=4)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.submit("second", tasks=20)
    cell.submit("third", tasks=20)
    # 4 GPUs for demands of 8, 20 and 20: 2, 1 and 1.
    assert len(stopped(cell.cycle())) == 1
    obeyed(cell)
    assert [held(cell, name) for name in ("first", "second", "third")] == [2, 1, 1]


def test_preempted_tasks_are_noted_until_something_else_changes() -> None:
    cell = shared(4)
    cell.submit("first", tasks=4)
    cell.cycle()
    all_start(cell)
    cell.submit("second", tasks=4)
    assert stopped(cell.cycle()) == ["first.3", "first.2"]
    noted = [cell.task("first", index).id for index in (3, 2)]
    assert cell.state.pools["main"].index.dump()["preempted"] == noted
    obeyed(cell)
    all_start(cell)
    cell.restart()
    assert cell.state.pools["main"].index.dump()["preempted"] == noted
    cell.set_weight("first", 3)
    assert stopped(cell.cycle()) == ["second.1"]
    assert cell.state.pools["main"].index.dump()["preempted"] == [cell.task("second", 1).id]


def test_a_changed_weight_changes_shares_at_once() -> None:
    cell = shared(8, variant="max_min")
    cell.submit("one", tasks=8)
    cell.submit("two", tasks=8)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    cell.set_weight("two", 3)
    assert len(stopped(cell.cycle())) == 2
    obeyed(cell)
    assert (held(cell, "one"), held(cell, "two")) == (2, 6)


def test_a_weight_counts_also_for_a_job_without_pending_tasks() -> None:
    cell = shared(4, variant="max_min")
    cell.submit("one", tasks=3, weight=3)
    cell.submit("two", tasks=4)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    assert (held(cell, "one"), held(cell, "two")) == (3, 1)
    cell.set_weight("one", 1)
    assert len(stopped(cell.cycle())) == 1


def test_a_task_that_stops_waiting_leaves_its_part_to_others_at_once() -> None:
    cell = shared()
    cell.submit("ten", tasks=10)
    cell.submit("thirty", tasks=30)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    for index in range(10, 30):
        cell.cancel("thirty", index)
    # Demands of 10 and 10 are left, on 8: 4 and 4.
    assert len(stopped(cell.cycle())) == 2


def test_a_task_that_joins_its_equals_counts_at_once() -> None:
    cell = shared()
    cell.submit("ten", tasks=10)
    cell.submit("thirty", tasks=30)
    for index in range(10, 30):
        cell.pause("thirty", index)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    assert (held(cell, "ten"), held(cell, "thirty")) == (4, 4)
    cell.resume("thirty")
    assert len(stopped(cell.cycle())) == 2


def test_a_task_that_fails_because_it_can_never_start_no_longer_counts() -> None:
    cell = shared()
    cell.submit("ten", tasks=10)
    cell.submit("thirty", tasks=30)
    fail = req.Unschedulable.FAIL
    cell.submit("never", gpus=3, max_slots_milli=2000, unschedulable=fail)
    cell.cycle()
    assert cell.phase("never") == "failed"
    obeyed(cell)
    assert (held(cell, "ten"), held(cell, "thirty")) == (2, 6)
    assert cell.run_until_idle() == []


def test_no_task_is_preempted_to_move_a_rounding_remainder() -> None:
    cell = shared(3, among="project")
    cell.submit("one", project="p", tasks=50)
    cell.submit("two", project="q", tasks=50)
    cell.cycle()
    all_start(cell)
    cell.cycle()
    for number in range(6):
        cell.submit(f"more{number}x", project="qp"[number % 2], tasks=2)
        assert stopped(cell.run_until_idle()) == []


def test_a_node_that_joins_or_leaves_changes_shares() -> None:
    cell = shared(2, variant="max_min")
    cell.submit("one", tasks=8)
    cell.submit("two", tasks=8)
    cell.cycle()
    cell.node("n2", gpus=4)
    assert len(started(cell.cycle())) == 4
    assert (held(cell, "one"), held(cell, "two")) == (3, 3)


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


def test_no_task_is_preempted_for_a_share_that_starts_of_the_same_cycle_changed() -> None:
    """The slots of tasks that cannot be preempted reduce the shares of the others."""
    cell = Cell(policy="fair_share")
    cell.node("n0", gpus=4)
    cell.submit("a", tasks=3, gpus=4, preemptible=False)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.submit("b", tasks=2, gpus=1, preemptible=False)
    cell.submit("c", tasks=3, gpus=1)
    cell.submit("d", gpus=1)
    cell.run_until_idle()
    cell.ends("a")
    decided = cell.run_until_idle()
    assert not [event for event in decided if isinstance(event, dec.PreemptionRequestedV1)]


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


def test_a_task_on_reserved_slots_beyond_a_share_is_preempted_once_it_runs_and_no_older_one() -> (
    None
):
    cell = Cell(policy="fair_share", among="project")
    cell.node("n1", gpus=4)
    cell.submit("first", project="p")
    cell.submit("old", project="q", tasks=3)
    cell.cycle()
    cell.starts("first")
    for index in range(3):
        cell.starts("old", index)
    cell.submit("new", project="p", tasks=2)
    assert stopped(cell.cycle()) == ["old.2"]
    cell.submit("more", project="q", tasks=9, priority=60)
    cell.cycle()
    cell.ends("old", 2, signal=15)
    assert started(cell.cycle()) == ["new"], "although the share of its project fell to one GPU"
    # The pool is divided again.
    cell.node("n2", gpus=0)
    assert stopped(cell.run_until_idle()) == []
    cell.starts("new")
    assert stopped(cell.run_until_idle()) == ["new"]


def test_a_claimant_releases_at_once_while_a_task_that_cannot_be_preempted_starts() -> None:
    cell = Cell(policy="fair_share", among="project")
    for number in range(3):
        cell.node(f"n{number}", gpus=2)
    cell.submit("first", gpus=2, project="s")
    running(cell, "first")
    cell.submit("second", gpus=2, project="p")
    cell.submit("third", gpus=2, project="s", preemptible=False)
    running(cell, "second")
    cell.starts("third")
    cell.submit("fourth", gpus=2, project="p", preemptible=False)
    assert stopped(cell.cycle()) == ["first"]
    cell.ends("first")
    assert started(cell.cycle()) == ["fourth"], "on reserved slots"
    # Now s has the larger share, and `second` is all that p may lose.
    cell.submit("fifth", gpus=2, project="s")
    assert stopped(cell.cycle()) == ["second"]
