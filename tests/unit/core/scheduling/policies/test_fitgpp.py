"""The `fitgpp` policy, rule by rule; numbers of equations are the paper's."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, only, running, started, stopped
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.requests import Layout, PolicyRef
from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources


def fitgpp(**options: Any) -> Cell:
    return Cell(policy="fitgpp", **options)


def best_effort(cell: Cell, name: str, gpus: int = 1, **changes: Any) -> None:
    cell.submit(name, gpus=gpus, **changes)


def urgent(cell: Cell, name: str, gpus: int = 1, **changes: Any) -> None:
    cell.submit(name, gpus=gpus, preemptible=False, **changes)


def leaves(cell: Cell, name: str) -> None:
    cell.starts(name)
    cell.ends(name)


def test_without_options_it_is_as_in_the_paper() -> None:
    options = options_of(PolicyRef(name="fitgpp"))
    assert (options.s_milli, options.p, options.backfill_s) == (4000, 1, None)


def test_non_preemptible_tasks_come_first() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    best_effort(cell, "be")
    urgent(cell, "te")
    assert started(cell.cycle()) == ["te"]


def test_no_task_is_preempted_for_one_that_fits() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    best_effort(cell, "be")
    cell.cycle()
    urgent(cell, "te")
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["te"], [])


def test_a_victim_qualifies_only_if_the_task_fits_without_it() -> None:
    """Equation 2: `small` has the lower score, but the task would not fit without it."""
    cell = fitgpp()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=3)
    best_effort(cell, "large", gpus=2, grace_s=100)
    best_effort(cell, "small", grace_s=1)
    best_effort(cell, "other", gpus=2, grace_s=100)
    cell.cycle()
    urgent(cell, "te", gpus=2)
    assert stopped(cell.cycle()) == ["large"]


def test_free_capacity_on_a_victims_node_counts() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=3)
    best_effort(cell, "small", grace_s=1)
    best_effort(cell, "one", grace_s=100)
    cell.cycle()
    urgent(cell, "te", gpus=2)
    assert stopped(cell.cycle()) == ["small"]


def test_every_resource_must_suffice() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=4, cpu_milli=8000, memory_mib=8192)
    for name, cpu, memory in (("memory", 1000, 6000), ("cpu", 6000, 1000)):
        requested = Resources(gpus=1, gpu_milli=1000, cpu_milli=cpu, memory_mib=memory)
        cell.submit(name, resources=requested, grace_s=1 if name == "memory" else 100)
    cell.cycle()
    requested = Resources(gpus=1, gpu_milli=1000, cpu_milli=5000, memory_mib=1000)
    cell.submit("te", resources=requested, preemptible=False)
    assert stopped(cell.cycle()) == ["cpu"]


def test_a_fraction_of_a_gpu_needs_a_victim_on_the_same_gpu() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    for name, milli, grace_s in (("half", 500, 1), ("most", 800, 100), ("rest", 500, 2)):
        cell.submit(name, resources=Resources(gpus=1, gpu_milli=milli), grace_s=grace_s)
    cell.cycle()
    fraction = Resources(gpus=1, gpu_milli=700)
    cell.submit("te", resources=fraction, preemptible=False)
    # Another half of a GPU does not make 700 on one GPU: only the GPU of `most` can.
    assert stopped(cell.cycle()) == ["most"]


def test_size_and_grace_period_make_the_score() -> None:
    """Equations 1 and 3, with the numbers in the stop."""
    cell = fitgpp()
    cell.node("n1", gpus=8, cpu_milli=32_000, memory_mib=256 * 1024)
    for name, gpus, grace_s in (("long", 2, 400), ("short", 4, 100)):
        requested = Resources(gpus=gpus, gpu_milli=1000, cpu_milli=4000 * gpus)
        cell.submit(name, resources=requested, grace_s=grace_s)
    cell.cycle()
    urgent(cell, "te", gpus=4)
    stop = only(cell.cycle(), PreemptionRequestedV1)
    assert stop.stop.code == "fitgpp"
    assert (stop.stop.rule, stop.stop.for_task) == ("lowest_score", cell.task("te").id)
    # Size sqrt(0.5^2 + 0.5^2); score 1 + 4 * 100 / 400.
    assert stop.stop.numbers == {
        "size": 707,
        "grace_s": 100,
        "score": 2000,
        "times_stopped": 0,
        "limit": 1,
    }


@pytest.mark.parametrize(("s_milli", "victim"), [(0, "small"), (4000, "brief")])
def test_s_is_the_weight_of_the_grace_period(s_milli: int, victim: str) -> None:
    cell = fitgpp(s_milli=s_milli)
    cell.node("n1", gpus=3)
    best_effort(cell, "small", grace_s=300)
    best_effort(cell, "brief", gpus=2, grace_s=30)
    cell.cycle()
    urgent(cell, "te")
    assert stopped(cell.cycle()) == [victim]


def test_the_capacity_is_the_most_that_any_node_has() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=8, cpu_milli=16_000)
    cell.node("n2", gpus=2, cpu_milli=64_000)
    cell.submit("be", resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=15_000))
    cell.submit("fix", gpus=2, preemptible=False)
    cell.cycle()
    urgent(cell, "te", gpus=8)
    stop = only(cell.cycle(), PreemptionRequestedV1)
    # sqrt((15/64)^2 + (1/8)^2), though it runs on a node of 16 CPUs.
    assert (stop.nodes, stop.stop.numbers["size"]) == (("n1",), 265)


def test_of_equal_scores_the_earlier_submission_is_preempted() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    best_effort(cell, "one")
    best_effort(cell, "two")
    cell.cycle()
    urgent(cell, "te")
    assert stopped(cell.cycle()) == ["one"]


def test_a_task_is_preempted_at_most_p_times_while_others_qualify() -> None:
    cell = fitgpp(p=1)
    cell.node("n1", gpus=2)
    best_effort(cell, "brief", grace_s=1)
    best_effort(cell, "long", grace_s=600)
    cell.cycle()
    urgent(cell, "te1")
    assert stopped(cell.cycle()) == ["brief"]
    leaves(cell, "brief")
    assert started(cell.cycle()) == ["te1"]
    leaves(cell, "te1")
    assert started(cell.cycle()) == ["brief"]
    cell.restart()
    urgent(cell, "te2")
    stop = only(cell.cycle(), PreemptionRequestedV1)
    assert stop.task_id.startswith("long")
    assert stop.stop.numbers["times_stopped"] == 0


def test_p_may_be_unlimited() -> None:
    cell = fitgpp(p=None)
    cell.node("n1", gpus=2)
    best_effort(cell, "brief", grace_s=1)
    best_effort(cell, "long", grace_s=600)
    cell.cycle()
    for number in range(3):
        urgent(cell, f"te{number}x")
        stop = only(cell.cycle(), PreemptionRequestedV1)
        assert stop.task_id.startswith("brief")
        assert stop.stop.numbers["times_stopped"] == number
        assert "limit" not in stop.stop.numbers
        leaves(cell, "brief")
        cell.cycle()
        leaves(cell, f"te{number}x")
        cell.cycle()


def test_if_no_victim_qualifies_random_ones_are_preempted_until_the_task_fits() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=1)
    for number in range(4):
        best_effort(cell, f"b{number}x")
    best_effort(cell, "apart")
    cell.cycle()
    urgent(cell, "te", gpus=2)
    decided = all_of(cell.cycle(), PreemptionRequestedV1)
    nodes = {task.run.placements[0].node for task in cell.state.tasks.values() if task.run}
    assert nodes == {"n1", "n2"}
    assert len(decided) == 2
    assert {stop.nodes for stop in decided} == {("n1",)}
    assert {stop.stop.rule for stop in decided} == {"drawn"}


def test_random_victims_depend_on_the_seed_alone() -> None:
    def victims(seed: int) -> list[str]:
        cell = fitgpp(seed=seed)
        cell.node("n1", gpus=8)
        for number in range(8):
            best_effort(cell, f"b{number}x")
        cell.cycle()
        urgent(cell, "te", gpus=3)
        return stopped(cell.cycle())

    assert victims(7) == victims(7)
    assert len({tuple(victims(seed)) for seed in range(6)}) > 1


def test_a_task_over_the_limit_is_drawn_only_after_tasks_below_it() -> None:
    cell = fitgpp(p=1)
    cell.node("n1", gpus=3)
    for name in ("one", "two", "tri"):
        best_effort(cell, name)
    cell.cycle()
    urgent(cell, "te0")
    (first,) = stopped(cell.cycle())
    leaves(cell, first)
    cell.cycle()
    leaves(cell, "te0")
    cell.cycle()
    urgent(cell, "te1", gpus=2)
    assert sorted(stopped(cell.cycle())) == sorted({"one", "two", "tri"} - {first})


def test_a_task_over_the_limit_is_preempted_if_no_other_suffices() -> None:
    cell = fitgpp(p=1)
    cell.node("n1", gpus=1)
    best_effort(cell, "be")
    cell.cycle()
    for number in range(2):
        urgent(cell, f"te{number}x")
        stop = only(cell.cycle(), PreemptionRequestedV1)
        assert stop.stop.rule == ("drawn" if number else "lowest_score")
        leaves(cell, "be")
        cell.cycle()
        leaves(cell, f"te{number}x")
        cell.cycle()


def test_a_non_preemptible_task_is_never_preempted() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    urgent(cell, "te1", gpus=2)
    cell.cycle()
    urgent(cell, "te2")
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("te2") == "insufficient_free"


def test_a_preemptible_task_preempts_no_task() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    best_effort(cell, "one")
    cell.cycle()
    best_effort(cell, "two", priority=1)
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("two") == "insufficient_free"


def test_a_task_behind_a_waiting_one_of_its_kind_waits_and_preempts_no_task() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    best_effort(cell, "be1")
    best_effort(cell, "be2")
    cell.cycle()
    urgent(cell, "te1")
    urgent(cell, "te2")
    assert len(stopped(cell.cycle())) == 1
    assert cell.wait_code("te1") == "waiting_for_victims"
    leaves(cell, "be1")
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["te1"], ["be2"])


def test_a_preemptible_task_starts_on_slots_that_are_not_reserved() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=1)
    best_effort(cell, "be1", gpus=4)
    cell.cycle()
    urgent(cell, "te", gpus=3)
    best_effort(cell, "be2")
    best_effort(cell, "be3")
    decided = cell.cycle()
    assert (stopped(decided), started(decided)) == (["be1"], ["be2"])
    leaves(cell, "be1")
    # Three of the four are reserved for it.
    assert started(cell.cycle()) == ["te", "be3"]
    assert cell.wait_code("be1") == "insufficient_free"
    assert cell.phase("be3") == "starting", "the fourth was reserved for it"


def test_a_preempted_task_returns_to_the_front_of_its_queue() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    best_effort(cell, "old")
    cell.cycle()
    best_effort(cell, "new")
    urgent(cell, "te")
    assert stopped(cell.cycle()) == ["old"]
    leaves(cell, "old")
    decided = cell.cycle()
    assert any(isinstance(e, TaskRequeuedV1) and e.code == "fitgpp" for e in decided)
    leaves(cell, "te")
    assert started(cell.cycle()) == ["old"]


def test_a_task_that_waits_for_its_victim_starts_wherever_capacity_is_free_first() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    best_effort(cell, "brief", grace_s=10)
    best_effort(cell, "long", grace_s=600)
    cell.cycle()
    urgent(cell, "te")
    assert stopped(cell.cycle()) == ["brief"]
    leaves(cell, "long")
    assert started(cell.cycle()) == ["te"]


def test_stopping_tasks_are_waited_for_before_others_are_preempted() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    best_effort(cell, "brief", grace_s=10)
    best_effort(cell, "long", grace_s=600)
    cell.cycle()
    urgent(cell, "te1")
    cell.cycle()
    leaves(cell, "long")
    urgent(cell, "te2")
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["te1"], [])
    assert cell.wait_code("te2") == "waiting_for_victims"


def test_no_task_is_preempted_within_its_minimum_run_time() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    best_effort(cell, "be", min_runtime_s=60)
    cell.cycle()
    cell.starts("be")
    urgent(cell, "te")
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("te") == "victims_protected"
    assert stopped(cell.cycle(after_s=61)) == ["be"]


def test_a_gang_preempts_as_many_tasks_as_it_needs_by_score() -> None:
    cell = fitgpp()
    for number in range(3):
        cell.node(f"n{number}", gpus=2)
        best_effort(cell, f"b{number}x", gpus=2, grace_s=100 * (number + 1))
    cell.cycle()
    urgent(cell, "te", gpus=2, replicas=2)
    assert stopped(cell.cycle()) == ["b0x", "b1x"]


def test_a_gang_does_not_preempt_victims_that_turn_out_unnecessary() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=3)
    best_effort(cell, "one", grace_s=1)
    best_effort(cell, "big", gpus=3, grace_s=100)
    cell.cycle()
    urgent(cell, "te", gpus=1, replicas=3)
    # Without `one` a replica fits, but all three fit only in place of `big`.
    assert stopped(cell.cycle()) == ["big"]


def test_a_gang_is_a_victim_as_a_whole() -> None:
    cell = fitgpp(s_milli=0)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    best_effort(cell, "gang", replicas=2)
    best_effort(cell, "lone", gpus=2)
    cell.cycle()
    urgent(cell, "te")
    stop = only(cell.cycle(), PreemptionRequestedV1)
    # Both hold two GPUs; of equal scores the earlier submission is preempted.
    assert stop.task_id.startswith("gang")
    assert stop.stop.numbers["size"] == 1000


def test_a_task_on_whole_nodes_preempts_all_tasks_on_them() -> None:
    cell = fitgpp()
    for name in ("n1", "n2"):
        cell.node(name, gpus=2)
    for name in ("b1x", "b2x"):
        best_effort(cell, name, gpus=2)
    cell.cycle()
    urgent(cell, "te", gpus=4, layout=Layout.WHOLE_NODES)
    assert sorted(stopped(cell.cycle())) == ["b1x", "b2x"]


def test_no_task_is_preempted_for_one_that_still_would_not_fit() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=2)
    urgent(cell, "te1")
    best_effort(cell, "be")
    cell.cycle()
    urgent(cell, "te2", gpus=2)
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("te2") == "insufficient_free"


def test_no_task_is_preempted_on_nodes_that_the_task_may_not_use() -> None:
    cell = fitgpp()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1, node_type="sxm")
    best_effort(cell, "brief", grace_s=1, node_types=("any",))
    best_effort(cell, "long", grace_s=600, node_types=("sxm",))
    cell.cycle()
    urgent(cell, "te", node_types=("sxm",))
    assert stopped(cell.cycle()) == ["long"]


@pytest.mark.parametrize("policy", ["fitgpp", "lrtp", "rand"])
def test_of_two_tasks_that_wait_for_each_others_pool_the_first_of_a_queue_starts(
    policy: str,
) -> None:
    # In `side` the preemptible task comes first, here the other: each waits for the other pool.
    cell = Cell(policy=policy)
    cell.pool("side", policy="priority")
    cell.node("n1", gpus=1)
    cell.submit("be", preemptible=True, pools=("main", "side"))
    cell.submit("te", preemptible=False, pools=("side", "main"))
    assert started(cell.cycle()) == ["te"]
    assert cell.run_until_idle() == []


def with_a_large_task_waiting(**options: Any) -> Cell:
    """A task holds one of the 2 GPUs of a node, and a task of 2 GPUs waits."""
    cell = fitgpp(**options)
    cell.node("n1", gpus=2)
    best_effort(cell, "runs")
    cell.cycle()
    cell.starts("runs")
    best_effort(cell, "large", gpus=2)
    cell.cycle()
    return cell


def test_with_backfilling_a_waiting_task_is_passed_until_it_is_overdue() -> None:
    cell = with_a_large_task_waiting(backfill_s=60)
    best_effort(cell, "small")
    decided = cell.cycle(after_s=50)
    assert started(decided) == ["small"]
    assert only(decided, SlotsAllocatedV1).start.rule == "backfill"
    leaves(cell, "small")
    best_effort(cell, "late")
    assert started(cell.cycle(after_s=20)) == []
    group = cell.task("late").group
    assert group is not None
    wait = group.waits["main"][0]
    assert (wait.code, wait.about) == (WaitCode.BEHIND_TASK, cell.task("large").id)


def test_tasks_behind_an_overdue_one_start_once_it_has_started() -> None:
    cell = with_a_large_task_waiting(backfill_s=60)
    best_effort(cell, "small")
    best_effort(cell, "other", gpus=1, priority=60)
    cell.cycle(after_s=70)
    assert cell.task("small").run is None
    leaves(cell, "runs")
    assert started(cell.cycle()) == ["large"]
    leaves(cell, "large")
    assert started(cell.cycle()) == ["small", "other"]


def test_a_task_behind_an_overdue_one_starts_when_that_is_cancelled() -> None:
    cell = with_a_large_task_waiting(backfill_s=60)
    best_effort(cell, "larger", gpus=2, priority=60)
    best_effort(cell, "small")
    cell.cycle(after_s=70)
    cell.cancel("large")
    # `larger` is overdue too, and of another group.
    assert started(cell.cycle()) == []
    cell.cancel("larger")
    assert started(cell.cycle()) == ["small"]


def test_a_task_behind_overdue_ones_starts_once_slots_are_reserved_for_the_last_of_them() -> None:
    cell = fitgpp(backfill_s=60)
    cell.node("n1", gpus=4)
    for name in ("one", "two"):
        urgent(cell, name, gpus=2)
    best_effort(cell, "large", gpus=2, tasks=2)
    cell.cycle()
    cell.starts("one")
    cell.starts("two")
    cell.cycle(after_s=70)
    cell.node("n2", gpus=1)
    best_effort(cell, "small")
    assert started(cell.cycle()) == []
    assert cell.wait_code("small") == "behind_task"
    cell.cancel("one")
    assert started(cell.cycle()) == []
    cell.cancel("two")
    assert started(cell.cycle()) == ["small"]


def test_a_task_behind_an_overdue_one_that_has_victims_starts_before_preemptible_tasks() -> None:
    cell = fitgpp(backfill_s=60)
    cell.node("n1", gpus=2, node_type="a")
    best_effort(cell, "victim", node_types=("a",))
    running(cell, "victim")
    urgent(cell, "first", node_types=("a",))
    running(cell, "first")
    cell.node("n2", gpus=2)
    urgent(cell, "second", gpus=2)
    running(cell, "second")
    urgent(cell, "overdue", gpus=2, node_types=("a",))
    best_effort(cell, "preemptible", gpus=2)
    cell.cycle(after_s=70)
    urgent(cell, "behind", gpus=2)
    cell.cycle()
    assert cell.wait_code("behind") == "behind_task"
    cell.ends("first", done=True)
    cell.ends("second", done=True)
    decided = cell.cycle()
    assert stopped(decided) == ["victim"]
    assert started(decided) == ["behind"]


def test_with_backfilling_a_task_preempts_while_an_earlier_one_waits_for_its_victims() -> None:
    cell = fitgpp(backfill_s=60)
    cell.node("n1", gpus=2)
    for name in ("one", "two"):
        best_effort(cell, name)
    cell.cycle()
    for name in ("one", "two"):
        cell.starts(name)
    urgent(cell, "first")
    assert len(stopped(cell.cycle())) == 1
    urgent(cell, "second")
    assert len(stopped(cell.cycle())) == 1


def test_with_backfilling_a_task_with_a_minimum_run_time_starts_once_no_victim_is_protected() -> (
    None
):
    cell = fitgpp(backfill_s=60)
    cell.node("n1", gpus=3)
    urgent(cell, "kept")
    best_effort(cell, "runs", min_runtime_s=100)
    cell.cycle()
    cell.starts("kept")
    cell.starts("runs")
    urgent(cell, "large", gpus=3)
    best_effort(cell, "held", min_runtime_s=100)
    cell.cycle()
    assert (cell.wait_code("large"), cell.wait_code("held")) == ("victims_protected", "behind_task")
    # `large` still waits, but not for the end of a minimum run time.
    assert started(cell.cycle(after_s=100)) == ["held"]
    assert cell.wait_code("large") == "insufficient_free"


@pytest.mark.parametrize("options", [{}, {"backfill_s": 1}])
def test_a_task_that_fits_on_no_node_lets_others_pass_while_victims_are_protected(
    options: dict[str, int],
) -> None:
    cell = fitgpp(**options)
    cell.node("n1", gpus=2)
    best_effort(cell, "runs", min_runtime_s=100)
    cell.cycle()
    cell.starts("runs")
    urgent(cell, "large", gpus=2)
    best_effort(cell, "impossible", gpus=3, min_runtime_s=100)
    best_effort(cell, "small")
    assert started(cell.cycle(after_s=1)) == ["small"]
    assert cell.wait_code("large") == "victims_protected"
    assert cell.wait_code("impossible") == "exceeds_every_node"


@pytest.mark.parametrize("policy", ["fitgpp", "lrtp"])
def test_a_task_at_a_limit_lets_others_pass_while_victims_are_protected(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.pool("side", policy=policy)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=1, pool="side")
    cell.entitle("limited", limit_milli=1000)
    best_effort(cell, "runs", min_runtime_s=100)
    cell.cycle()
    cell.starts("runs")
    urgent(cell, "large", gpus=2)
    best_effort(cell, "held", project="limited", min_runtime_s=100)
    best_effort(cell, "small")
    cell.cycle()
    assert [cell.wait_code(name) for name in ("held", "small")] == ["behind_task"] * 2
    # Now its project holds all that it may, in the other pool.
    best_effort(cell, "aside", project="limited", pools=("side",))
    assert started(cell.cycle()) == ["aside", "small"]
    assert cell.wait_code("held") == "at_limit"
