"""Tasks that `fair_share` preempts, and tasks that get their slots."""

import pytest

from tests.unit.core.scheduling.policies.fair_share.shared_pool import (
    all_start,
    held,
    obeyed,
    shared,
)
from tests.unit.core.scheduling.reading import all_of, kinds, running, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources


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


def test_idle_slots_that_are_reserved_with_released_ones_stay_in_the_shares() -> None:
    cell = shared(4, release="at_once")
    cell.submit("old", tasks=3)
    cell.cycle()
    all_start(cell)
    cell.submit("gang", gpus=2)
    assert stopped(cell.cycle()) == ["old.2"]
    # The shares are still 2 and 2 of 4, although no task may start on the idle slot.
    cell.submit("other", gpus=0)
    assert stopped(cell.run_until_idle()) == []


def test_a_reserved_slot_without_cpus_stays_in_the_shares() -> None:
    cell = Cell(policy="fair_share", release="at_once")
    cell.node("n1", gpus=4, cpu_milli=4000)
    cell.submit("old", tasks=4, resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=1000))
    cell.cycle()
    all_start(cell)
    cell.ends("old", 0)
    cell.cycle()
    cell.submit(
        "new", tasks=3, weight=2, resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=2000)
    )
    assert stopped(cell.cycle()) == ["old.3"]
    # Slot 0 is idle, its CPUs are released by `old.3`.
    cell.submit("other", gpus=0)
    assert stopped(cell.run_until_idle()) == []
