"""The `priority` policy, rule by rule (Determined's documentation and the behavior of its
planner).
"""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import started, stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.resources import Resources


def test_the_lower_number_goes_first() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=50)
    cell.submit("top", priority=10)
    assert started(cell.cycle()) == ["top"]


def test_equal_priority_goes_by_submission() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("one")
    cell.submit("two")
    assert started(cell.cycle()) == ["one"]


def test_inside_one_priority_a_small_task_overtakes_one_that_does_not_fit() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("big", gpus=2, preemptible=False)
    cell.submit("one", preemptible=False)
    cell.submit("two", preemptible=False)
    cell.node("n2", gpus=1)
    assert started(cell.cycle()) == ["big", "one"]


def test_a_task_that_does_not_fit_preempts_the_lowest_priority() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("mid", priority=40)
    cell.submit("low", priority=60)
    cell.cycle()
    cell.submit("top", priority=1)
    decided = cell.cycle()
    assert stopped(decided) == ["low"]
    stop = next(e for e in decided if isinstance(e, PreemptionRequestedV1)).stop
    assert (stop.code, stop.rule, stop.for_task) == (
        "priority",
        "better_priority",
        cell.task("top").id,
    )
    assert stop.numbers["priority"] == 60
    assert stop.numbers["for_priority"] == 1
    assert cell.wait_code("top") == "waiting_for_victims"


def test_of_one_priority_the_latest_submission_is_preempted_first() -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    for name in ("one", "two", "three"):
        cell.submit(name, priority=60)
    cell.cycle()
    cell.submit("top", priority=1)
    assert stopped(cell.cycle()) == ["three"]


def test_a_task_preempts_its_own_priority_only_if_submitted_earlier() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("old", gpus=2)
    cell.submit("young")
    assert started(cell.cycle()) == ["young"]
    cell.node("n2", gpus=1)
    cell.cycle()
    cell.submit("newest")
    decided = cell.cycle()
    assert started(decided) == ["newest"]
    cell.submit("third")
    assert stopped(cell.cycle()) == []


def test_unneeded_victims_keep_running() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=4)
    cell.submit("pair", gpus=2, priority=90)
    cell.submit("quad", gpus=4, priority=80)
    cell.cycle()
    cell.submit("top", gpus=4, priority=1)
    assert stopped(cell.cycle()) == ["quad"], "stopping `pair` frees too small a node"


def test_no_task_is_preempted_for_one_that_would_not_fit_even_then() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("top", gpus=4, priority=1)
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("top") == "exceeds_every_node"


def test_a_non_preemptible_task_is_never_preempted() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("shell", priority=90, preemptible=False)
    cell.cycle()
    cell.submit("top", priority=1)
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("top") == "insufficient_free"


def test_without_preemption_no_task_is_preempted() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=1)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("top", priority=1)
    assert stopped(cell.cycle()) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [({"preemption": False}, "behind_task"), ({"backfill": False}, "backfill_not_allowed")],
)
def test_without_backfilling_no_lower_priority_starts_while_a_higher_one_waits(
    options: dict[str, Any], code: str
) -> None:
    cell = Cell(**options)
    cell.node("n1", gpus=2)
    cell.submit("held", priority=1, preemptible=False)
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.submit("low", priority=50)
    assert started(cell.cycle()) == []
    assert cell.wait_code("low") == code
    cell.starts("held")
    cell.ends("held")
    assert started(cell.run_until_idle()) == ["pair"]


def test_a_preemptible_task_may_use_capacity_that_the_first_in_the_queue_cannot() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("held", priority=1, preemptible=False)
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.submit("shell", priority=50, preemptible=False)
    cell.submit("low", priority=50)
    decided = cell.cycle()
    assert started(decided) == ["low"]
    start = next(e for e in decided if isinstance(e, SlotsAllocatedV1)).start
    assert start.rule == "backfill"
    assert cell.wait_code("shell") == "backfill_not_allowed"


def test_a_lower_priority_starts_on_what_is_idle_and_not_reserved() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=1)
    cell.submit("low", gpus=2, priority=90)
    cell.submit("hold", priority=1, preemptible=False)
    cell.cycle()
    cell.starts("low")
    cell.starts("hold")
    cell.submit("top", gpus=2, priority=5)
    assert stopped(cell.cycle()) == ["low"]
    cell.ends("hold")
    cell.submit("next", priority=50)
    decided = cell.cycle()
    assert started(decided) == ["next"]
    start = next(e for e in decided if isinstance(e, SlotsAllocatedV1)).start
    assert start.rule == "backfill"
    cell.submit("late", priority=50)
    assert started(cell.cycle()) == []
    cell.ends("low")
    assert started(cell.run_until_idle()) == ["top"]


def with_slots_reserved(**options: Any) -> Cell:
    """Return a cell in which `hi` waits for the 4 GPUs of its victim `low` on n1, and one GPU is
    idle on n2.
    """
    cell = Cell(**options)
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=4, priority=60)
    cell.cycle()
    cell.node("n2", gpus=4)
    cell.submit("held", gpus=3, priority=1, preemptible=False)
    cell.cycle()
    cell.starts("low")
    cell.starts("held")
    cell.submit("hi", gpus=4, priority=10)
    assert stopped(cell.cycle()) == ["low"]
    return cell


NOT_AT_ONCE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"backfill": False}, {}),
    ({}, {"preemptible": False}),
    ({}, {"min_runtime_s": 60}),
]


@pytest.mark.parametrize(("options", "spec"), NOT_AT_ONCE)
def test_a_task_whose_slots_are_reserved_is_passed_by_none_that_cannot_be_preempted_at_once(
    options: dict[str, Any], spec: dict[str, Any]
) -> None:
    cell = with_slots_reserved(**options)
    cell.submit("mid", priority=40, **spec)
    decided = cell.cycle()
    assert started(decided) == []
    wait = next(e for e in decided if isinstance(e, TaskUnschedulableV1)).wait
    assert (wait.code, wait.about) == ("backfill_not_allowed", cell.task("hi").id)
    assert wait.numbers == {"priority": 40, "priority_ahead": 10}
    cell.ends("low")
    assert started(cell.cycle()) == ["hi", "mid"]


def test_without_preemption_none_of_lower_priority_passes_a_task_with_reserved_slots() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=2)
    cell.submit("one", gpus=1)
    cell.cycle()
    cell.starts("one")
    cell.cancel("one")
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.cycle()
    assert cell.wait_code("pair") == "waiting_for_victims"
    cell.node("n2", gpus=1)
    cell.submit("mid", priority=40)
    assert started(cell.cycle()) == []
    assert cell.wait_code("mid") == "behind_task"
    cell.cancel("pair")
    assert started(cell.cycle()) == ["mid"]


@pytest.mark.parametrize("spec", [{"preemptible": False}, {"min_runtime_s": 60}])
def test_a_task_that_loses_its_reserved_slots_finds_no_lower_one_in_its_way(
    spec: dict[str, Any],
) -> None:
    cell = with_slots_reserved()
    cell.submit("mid", priority=40, **spec)
    cell.cycle()
    cell.cordon("n1")
    cell.ends("held")
    assert started(cell.cycle()) == ["hi"]


def test_slots_reserved_in_one_pool_keep_lower_priorities_pending_in_the_other_pools() -> None:
    cell = with_slots_reserved()
    cell.pool("side")
    cell.node("s1", gpus=1, pool="side")
    cell.submit("top", gpus=4, priority=5, pools=("main", "side"))
    cell.cycle()
    assert cell.wait_code("top") == "waiting_for_victims"
    cell.submit("mid", priority=40, preemptible=False, pools=("side",))
    assert started(cell.cycle()) == []
    cell.ends("low")
    assert started(cell.cycle()) == ["top", "mid"]


def test_a_preemption_changes_no_reason_of_the_lower_priorities_that_do_not_fit() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", tasks=2, priority=60)
    cell.cycle()
    for index in (0, 1):
        cell.starts("low", index)
    for number in range(3):
        cell.submit(f"own{number}", project=f"p{number}", priority=60, preemptible=False)
    cell.cycle()
    cell.submit("hi", priority=10)
    decided = cell.cycle()
    cell.ends("low", 1)
    decided += cell.cycle()
    assert started(decided) == ["hi"]
    changed = [event.task_id for event in decided if isinstance(event, TaskUnschedulableV1)]
    assert changed == [cell.task("low", 1).id]


def test_a_task_with_a_minimum_run_time_passes_no_task_of_higher_priority() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("held", priority=1, preemptible=False)
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.submit("low", priority=50, min_runtime_s=60)
    assert started(cell.cycle()) == []
    assert cell.wait_code("low") == "backfill_not_allowed"
    cell.starts("held")
    cell.ends("held")
    assert started(cell.cycle()) == ["pair"]


def test_slots_of_victims_are_reserved_for_the_task_that_preempted_them() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("one", gpus=2, priority=90)
    cell.submit("two", gpus=2, priority=90)
    cell.cycle()
    cell.starts("one")
    cell.starts("two")
    cell.submit("top", gpus=4, priority=5)
    assert sorted(stopped(cell.cycle())) == ["one", "two"]
    cell.ends("one")
    cell.submit("equal", gpus=2, priority=5)
    assert started(cell.cycle()) == [], "half of what was freed for `top` must not go to an equal"
    cell.ends("two")
    assert started(cell.cycle()) == ["top"]


def test_slots_that_a_cancel_frees_stay_reserved_in_later_cycles_too() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("held", priority=10)
    cell.cycle()
    cell.starts("held")
    cell.submit("pair", replicas=2, priority=42, preemptible=False)
    cell.cycle()
    cell.cancel("held")
    cell.cycle()
    assert cell.wait_code("pair") == "waiting_for_victims", "one GPU is idle, one is being freed"
    cell.submit("late", priority=42)
    assert started(cell.cycle()) == []
    cell.ends("held")
    assert started(cell.run_until_idle()) == ["pair"]


def test_a_preempted_task_keeps_its_queue_position_and_its_checkpoint() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("first", priority=50)
    cell.cycle()
    cell.starts("first")
    cell.submit("later", priority=50)
    cell.submit("top", priority=1)
    cell.cycle()
    cell.checkpoints("first", step=7)
    cell.ends("first")
    assert started(cell.cycle()) == ["top"]
    assert cell.phase("first") == "pending"
    cell.starts("top")
    cell.ends("top")
    decided = cell.cycle()
    assert started(decided) == ["first"]
    again = next(e for e in decided if isinstance(e, SlotsAllocatedV1))
    assert again.attempt == 2
    assert again.checkpoint is not None
    assert again.checkpoint.step == 7


def test_tasks_without_gpus_do_not_wait_for_tasks_with_gpus() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=1)
    cell.submit("held", priority=1)
    cell.cycle()
    cell.submit("gpu", priority=10)
    cell.submit("cpu", gpus=0, priority=50)
    assert started(cell.cycle()) == ["cpu"]


def test_a_task_is_not_preempted_within_its_minimum_run_time() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=90, min_runtime_s=60)
    cell.cycle()
    cell.starts("low")
    cell.cycle()
    cell.submit("top", priority=1)
    assert stopped(cell.cycle()) == []
    assert cell.wait_code("top") == "victims_protected"
    assert stopped(cell.cycle(after_s=59)) == []
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 1000
    assert stopped(cell.cycle(after_s=1)) == ["low"]


def test_a_wait_is_recorded_once_for_all_equals() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("many", tasks=100, preemptible=False)
    decided = cell.cycle()
    assert len([e for e in decided if isinstance(e, TaskUnschedulableV1)]) == 1
    assert cell.cycle() == []


def test_changed_policy_options_take_effect_and_affect_no_running_task() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=1)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("top", priority=1)
    cell.cycle()
    cell.pool("main", preemption=True)
    assert stopped(cell.cycle()) == ["low"]


def test_all_tasks_of_one_priority_that_fit_start_before_any_preemption_for_the_rest() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=1)
    cell.submit("low", priority=90)
    cell.cycle()
    assert cell.slots_of("low") == [("n2", (0,))]
    cell.node("n3", gpus=2)
    cell.submit("full", gpus=2, preemptible=False)
    cell.cycle()
    cell.submit("big", replicas=3, preemptible=False)
    cell.submit("small")
    decided = cell.cycle()
    assert started(decided) == ["small"]
    assert stopped(decided) == [], "without the GPU that `small` took the other does not help"


def test_a_task_that_starts_in_a_cycle_is_not_preempted_in_it() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("pair", gpus=2)
    cell.submit("one")
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["one"], [])


def test_tasks_of_one_job_do_not_preempt_each_other() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("many", tasks=3, max_concurrent=2)
    cell.cycle()
    cell.starts("many", 0)
    cell.starts("many", 1)
    cell.ends("many", 0, exit_code=0)
    cell.submit("hold", priority=1, preemptible=False)
    cell.cycle()
    assert [cell.phase("many", index) for index in range(3)] == ["succeeded", "running", "pending"]
    cell.pause("many", 1)
    cell.cycle()
    cell.ends("many", 1)
    cell.cycle()
    assert cell.phase("many", 2) == "starting"
    cell.resume("many", 1)
    assert stopped(cell.cycle()) == [], "the earlier task of the same job waits"


def test_each_task_starts_on_the_slots_that_were_reserved_for_it() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("worst", gpus=2, priority=90)
    cell.submit("bad", gpus=2, priority=80)
    cell.cycle()
    cell.submit("top", gpus=2, priority=1)
    cell.submit("mid", gpus=2, priority=40)
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == ([], ["worst", "bad"])
    assert [cell.wait_code(name) for name in ("top", "mid")] == ["waiting_for_victims"] * 2
    cell.never_starts("bad")
    assert started(cell.cycle()) == ["mid"]
    cell.never_starts("worst")
    assert started(cell.cycle()) == ["top"]


def test_slots_that_a_victim_releases_beyond_the_need_are_not_preempted_for_twice() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=1, priority=90)
    cell.submit("bad", gpus=3, priority=80)
    cell.cycle()
    cell.submit("top", gpus=3, priority=1)
    cell.submit("mid", gpus=1, priority=40)
    cell.submit("late", gpus=1, priority=40)
    decided = cell.cycle()
    assert stopped(decided) == ["bad", "low"]
    assert cell.wait_code("mid") == "waiting_for_victims"
    assert cell.run_until_idle() == []


STRICT_OPTIONS: list[dict[str, Any]] = [{}, {"preemption": False}, {"backfill": False}]


@pytest.mark.parametrize("options", STRICT_OPTIONS)
def test_a_task_that_no_node_can_hold_blocks_no_lower_priority(options: dict[str, Any]) -> None:
    cell = Cell(**options)
    cell.node("n1", gpus=2)
    cell.submit("huge", gpus=4, priority=10)
    cell.submit("low", priority=50, preemptible=False)
    assert started(cell.cycle()) == ["low"]
    assert cell.wait_code("huge") == "exceeds_every_node"
    cell.submit("late", priority=50, preemptible=False)
    cell.node("n2", gpus=4)
    assert started(cell.cycle()) == ["huge", "late"]


@pytest.mark.parametrize("options", STRICT_OPTIONS)
@pytest.mark.parametrize("how", ["cordoned", "lost", "disabled"])
def test_a_task_that_needs_an_unavailable_node_blocks_no_lower_priority(
    how: str, options: dict[str, Any]
) -> None:
    cell = Cell(**options)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("held", priority=1, preemptible=False)
    cell.cycle()
    cell.submit("gang", gpus=2, replicas=2, priority=10)
    cell.submit("low", priority=50, preemptible=False)
    assert started(cell.cycle()) == []
    take_away(cell, "n2", how)
    assert started(cell.cycle(after_s=60, silent=silent(cell, how))) == ["low"]
    assert cell.wait_code("gang") == "nodes_unavailable"


def take_away(cell: Cell, node: str, how: str) -> None:
    """Cordon a node, or disable its slots; a node is lost by the silence of its agent."""
    if how == "cordoned":
        cell.cordon(node)
    elif how == "disabled":
        cell.disable(node, 0)


def silent(cell: Cell, how: str) -> dict[str, int]:
    """Return the silence by which n2 is lost, if that is `how` it becomes unavailable."""
    return {"n2": cell.now_ms} if how == "lost" else {}


def test_with_impossible_block_a_task_that_no_node_can_hold_blocks_lower_priorities() -> None:
    for options in STRICT_OPTIONS:
        cell = Cell(impossible_block=True, **options)
        cell.node("n1", gpus=2)
        cell.submit("huge", gpus=4, priority=10)
        cell.submit("low", priority=50, preemptible=False)
        assert started(cell.cycle()) == []
        assert [cell.wait_code(name) for name in ("huge", "low")] == [
            "exceeds_every_node",
            "behind_task" if options == {"preemption": False} else "backfill_not_allowed",
        ]
        cell.node("n2", gpus=4)
        assert started(cell.cycle()) == ["huge", "low"]


def test_with_impossible_block_a_task_that_needs_a_cordoned_node_blocks_lower_priorities() -> None:
    cell = Cell(impossible_block=True)
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.cordon("n2")
    cell.submit("gang", gpus=2, replicas=2, priority=10)
    cell.submit("low", priority=50, preemptible=False)
    assert started(cell.cycle()) == []
    assert cell.wait_code("gang") == "nodes_unavailable"


def test_impossible_block_takes_effect_when_it_changes() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("huge", gpus=4, priority=10)
    cell.submit("one", priority=50, preemptible=False)
    assert started(cell.cycle()) == ["one"]
    cell.pool("main", impossible_block=True)
    cell.submit("two", priority=50, preemptible=False)
    assert started(cell.cycle()) == []
    assert cell.wait_code("two") == "backfill_not_allowed"
    assert_sound(cell.state)
    cell.pool("main")
    assert started(cell.cycle()) == ["two"]
    assert_sound(cell.state)


def test_with_impossible_block_a_task_that_has_another_pool_blocks_no_task() -> None:
    cell = Cell(preemption=False, impossible_block=True)
    cell.node("n1", gpus=2)
    cell.submit("huge", gpus=4, priority=10, pools=("main", "side"))
    cell.submit("low", priority=50)
    assert started(cell.cycle()) == ["low"]


def test_an_equal_that_was_let_pass_is_not_preempted_before_it_runs() -> None:
    cell = Cell(policy="priority")
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=3)
    cell.submit("low", priority=99, gpus=2, tasks=2)
    cell.cycle()
    for index in (0, 1):
        cell.starts("low", index)
    cell.cycle()
    cell.ends("low", 0)
    cell.submit("wide", priority=1, gpus=3, tasks=2, preemptible=False)
    cell.submit("pair", priority=1, gpus=1, replicas=2)
    assert sorted(started(cell.cycle())) == ["pair", "wide"]
    assert cell.run_until_idle() == []
    cell.starts("pair")
    assert sorted(stopped(cell.cycle())) == ["low.1", "pair"]


def test_a_task_with_gpus_preempts_a_later_equal_without_gpus_once_that_runs() -> None:
    cell = Cell(policy="priority")
    cell.node("n1", gpus=1, cpu_milli=4000)
    cell.submit("held", preemptible=False)
    cell.submit("older", resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=4000))
    cell.submit("younger", resources=Resources(gpus=0, gpu_milli=0, cpu_milli=4000))
    assert started(cell.cycle()) == ["held", "younger"]
    cell.starts("held")
    cell.ends("held")
    assert stopped(cell.cycle()) == [], "`younger` was just let pass"
    cell.starts("younger")
    assert stopped(cell.cycle()) == ["younger"]


@pytest.mark.parametrize("policy", ["priority", "fitgpp"])
def test_a_victim_that_ended_keeps_protected_tasks_behind_until_it_released_its_slots(
    policy: str,
) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("low", priority=60, min_runtime_s=600)
    cell.cycle()
    cell.starts("low")
    cell.submit("first", replicas=2, priority=10, preemptible=False)
    cell.submit("behind", priority=80, min_runtime_s=600)
    assert started(cell.cycle()) == []
    cell.exits("low", exit_code=0)
    # All tasks are considered again.
    cell.node("n3", gpus=0)
    assert started(cell.cycle()) == []
    cell.releases("low")
    assert started(cell.cycle()) == ["first"]


def gang_among_protected_tasks(policy: str) -> Cell:
    """Return a cell in which a gang waits while tasks of lower priority, with a minimum run time
    of 60 s each, come and end one after another for 10 minutes, or until the gang starts.
    """
    cell = Cell(policy=policy)
    cell.node("n1", gpus=4)
    since: dict[str, int] = {}
    for step in range(30):
        name = f"l{step:05d}"
        cell.submit(name, priority=60, min_runtime_s=60)
        since[name] = 0
        if step == 4:
            cell.submit("gang", gpus=4, priority=1, preemptible=False)
        cell.cycle(after_s=20)
        for name in [*since]:
            phase = cell.phase(name)
            if phase == "starting":
                cell.starts(name)
                since[name] = cell.now_ms
            elif phase == "stopping" or (
                phase == "running" and cell.now_ms - since[name] >= 80_000
            ):
                cell.ends(name)
                del since[name]
        cell.cycle()
        if step >= 4 and cell.phase("gang") != "pending":
            break
    return cell


@pytest.mark.parametrize("policy", ["priority", "fitgpp", "lrtp", "rand"])
def test_tasks_with_a_minimum_run_time_do_not_pass_a_gang_one_after_another(policy: str) -> None:
    cell = gang_among_protected_tasks(policy)
    assert cell.phase("gang") == "starting"


def test_tasks_without_a_minimum_run_time_pass_a_gang_whose_victims_are_protected() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", priority=60, min_runtime_s=60)
    cell.cycle()
    cell.starts("low")
    cell.submit("gang", priority=1, gpus=2)
    cell.cycle()
    cell.submit("mid", priority=50, min_runtime_s=60)
    cell.submit("end", priority=60)
    assert started(cell.cycle()) == ["end"]
    assert cell.wait_code("mid") == "backfill_not_allowed"
    cell.starts("end")
    cell.cycle()
    cell.cancel("gang")
    assert started(cell.cycle()) == [], "one GPU is free only once a task ends"
    cell.ends("end")
    assert started(cell.cycle()) == ["mid"]


def test_a_task_with_gpus_preempts_tasks_without_for_their_cpus() -> None:
    cell = Cell()
    cell.node("n1", gpus=8, cpu_milli=64_000)
    cell.submit("cpu", tasks=64, priority=99, resources=Resources(cpu_milli=1000))
    cell.cycle()
    cell.submit("gpu", priority=1, resources=Resources(gpus=8, gpu_milli=1000, cpu_milli=8000))
    decided = cell.cycle()
    assert stopped(decided) == [f"cpu.{index}" for index in range(63, 55, -1)]
    assert cell.task("gpu").reserved is not None


def test_a_task_with_gpus_preempts_no_task_without_where_only_gpus_are_short() -> None:
    cell = Cell()
    cell.node("n1", gpus=1, cpu_milli=64_000)
    cell.submit("cpu", tasks=2, priority=99, resources=Resources(cpu_milli=1000))
    cell.submit("low", priority=60)
    cell.cycle()
    cell.submit("gpu", priority=1, resources=Resources(gpus=1, gpu_milli=1000, cpu_milli=8000))
    assert stopped(cell.cycle()) == ["low"]


@pytest.mark.parametrize("groups", [1, 3])
def test_the_number_and_the_end_of_protected_victims_are_those_of_the_tasks_below(
    groups: int,
) -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    for name, seconds in (("one", 50), ("two", 40), ("six", 60)):
        cell.submit(name, priority=42, min_runtime_s=seconds)
    cell.cycle()
    for name in ("one", "two", "six"):
        cell.starts(name)
    cell.cycle()
    for number in range(groups):
        cell.submit(f"top{number}", priority=1, max_slots_milli=1000 + number)
    cell.cycle()
    for number in range(groups):
        group = cell.task(f"top{number}").group
        assert group is not None
        wait = group.waits["main"][0]
        assert wait.numbers == {"victims": 3, "until_at_ms": cell.now_ms + 40_000}
