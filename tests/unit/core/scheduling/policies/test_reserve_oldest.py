"""`quota` and `starved_first`: later tasks of an owner do not pass one that has waited for long."""

from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import started, stopped, waits
from yardmaster_schemas.reasons import WaitCode

RESERVE_S = 3600
NAMES = "abcd"
POLICIES = pytest.mark.parametrize("policy", ["quota", "starved_first"])


def cell_of(policy: str, **options: Any) -> QuotaCell:
    """Return a cell of 4 GPUs whose project `p` deserves all of them."""
    chosen = {"reserve_oldest_s": RESERVE_S, **options}
    if policy == "starved_first":
        chosen.setdefault("non_preemptible_permille", 1000)
    cell = QuotaCell({"n1": 4}, policy=policy, **chosen)
    cell.entitle_to("p", 4)
    cell.entitle_to("q", 0)
    return cell


def submit(cell: QuotaCell, name: str, gpus: int = 1, **spec: Any) -> str:
    cell.submit(name, **{"project": "p", "user": "ann", "gpus": gpus, **spec})
    return name


def gang_behind_a_stream(cell: QuotaCell, **spec: Any) -> None:
    """Fill the cell with tasks, and submit a gang that needs all of it and one more task."""
    for number in range(4):
        submit(cell, f"run{NAMES[number]}", **spec)
    cell.run()
    submit(cell, "gang", 4, **spec)
    cell.run()


def replace_one(cell: QuotaCell, number: int, **spec: Any) -> list[str]:
    """Submit a task, let a running one end; return the tasks that start."""
    submit(cell, f"late{NAMES[number]}", **spec)
    cell.ends(f"run{NAMES[number]}", done=True)
    return started(cell.run())


@POLICIES
@pytest.mark.parametrize("spec", [{}, {"preemptible": False}])
def test_later_tasks_pass_a_gang_until_it_has_waited(policy: str, spec: dict[str, Any]) -> None:
    cell = cell_of(policy)
    gang_behind_a_stream(cell, **spec)
    assert replace_one(cell, 0, **spec) == ["latea"]
    cell.cycle(after_s=RESERVE_S)
    assert replace_one(cell, 1, **spec) == []
    assert (waits(cell, "lateb").code, waits(cell, "lateb").about) == (
        WaitCode.BEHIND_TASK,
        cell.task("gang").id,
    )
    assert replace_one(cell, 2, **spec) == replace_one(cell, 3, **spec) == []
    cell.ends("latea", done=True)
    assert started(cell.run()) == ["gang"]
    cell.ends("gang", done=True)
    assert started(cell.run()) == ["lateb", "latec", "lated"]


@POLICIES
def test_without_the_option_they_pass_it_without_end(policy: str) -> None:
    cell = cell_of(policy, reserve_oldest_s=None)
    gang_behind_a_stream(cell)
    cell.cycle(after_s=RESERVE_S)
    assert [replace_one(cell, number) for number in range(3)] == [["latea"], ["lateb"], ["latec"]]


@POLICIES
def test_the_wait_reason_says_from_when_later_tasks_wait(policy: str) -> None:
    cell = cell_of(policy)
    gang_behind_a_stream(cell)
    assert "reserved_from_at_ms" not in waits(cell, "gang").numbers
    cell.cycle(after_s=RESERVE_S)
    replace_one(cell, 0)
    numbers = waits(cell, "gang").numbers
    assert numbers["reserved_from_at_ms"] == cell.task("gang").queued_ms + RESERVE_S * 1000


@POLICIES
def test_a_task_that_comes_first_passes_it(policy: str) -> None:
    cell = cell_of(policy)
    gang_behind_a_stream(cell)
    cell.cycle(after_s=RESERVE_S)
    assert replace_one(cell, 0, priority=1) == ["latea"]


@POLICIES
def test_tasks_that_cannot_use_its_nodes_pass_it(policy: str) -> None:
    cell = cell_of(policy)
    cell.node("cpus", 0)
    cell.node("other", 1, node_type="other")
    gang_behind_a_stream(cell, node_types=("any",))
    cell.cycle(after_s=RESERVE_S)
    submit(cell, "cpu", 0)
    submit(cell, "elsewhere", node_types=("other",))
    assert started(cell.run()) == ["cpu", "elsewhere"]


@POLICIES
@pytest.mark.parametrize("spec", [{"avoid_nodes": ("n1",)}, {"node_types": ("none",)}])
def test_tasks_pass_one_at_a_limit_that_no_node_can_take(policy: str, spec: dict[str, Any]) -> None:
    cell = cell_of(policy)
    cell.entitle_to("p", 4, limit=2)
    submit(cell, "runs")
    cell.run()
    submit(cell, "never", 2, **spec)
    cell.run()
    assert waits(cell, "never").code is WaitCode.AT_LIMIT
    cell.cycle(after_s=RESERVE_S)
    submit(cell, "late")
    assert started(cell.run()) == ["late"]


@POLICIES
def test_tasks_wait_behind_the_oldest_of_those_that_nodes_can_take(policy: str) -> None:
    cell = cell_of(policy)
    cell.entitle_to("p", 4, limit=2)
    submit(cell, "runs")
    cell.run()
    submit(cell, "never", 2, node_types=("none",))
    submit(cell, "pair", 2)
    cell.run()
    cell.cycle(after_s=RESERVE_S)
    submit(cell, "late")
    assert started(cell.run()) == []
    assert waits(cell, "late").about == cell.task("pair").id


@POLICIES
def test_nothing_waits_for_a_gang_that_nodes_cannot_take(policy: str) -> None:
    cell = cell_of(policy)
    submit(cell, "gang", 8)
    cell.node("n2", 4)
    submit(cell, "pair", 4, replicas=2)
    cell.cordon("n2")
    for number in range(4):
        submit(cell, f"run{NAMES[number]}")
    cell.run()
    cell.cycle(after_s=RESERVE_S)
    assert replace_one(cell, 0) == ["latea"]


@POLICIES
def test_nor_for_one_that_is_larger_than_the_share_of_its_owner(policy: str) -> None:
    cell = cell_of(policy)
    cell.entitle_to("p", 2)
    cell.entitle_to("q", 2)
    submit(cell, "theirs", tasks=4, project="q", user="bob")
    for number in range(2):
        submit(cell, f"run{NAMES[number]}")
    cell.run()
    submit(cell, "gang", 4)
    cell.run()
    cell.cycle(after_s=RESERVE_S)
    assert replace_one(cell, 0) == ["latea"]


@POLICIES
def test_a_task_that_was_requeued_waits_from_then_on(policy: str) -> None:
    cell = cell_of(policy)
    submit(cell, "gang", 4)
    cell.run()
    cell.cycle(after_s=2 * RESERVE_S)
    cell.cordon("n1")
    cell.ends("gang", exit_code=1)
    cell.node("n2", 4)
    submit(cell, "rune", 1, priority=1)
    cell.run()
    submit(cell, "late")
    assert started(cell.run()) == ["late"]


def test_tasks_of_other_projects_use_the_slots_until_it_reclaims_them() -> None:
    cell = cell_of("quota")
    gang_behind_a_stream(cell)
    cell.cycle(after_s=RESERVE_S)
    submit(cell, "borrows", tasks=3, project="q", user="bob")
    for number in range(3):
        replace_one(cell, number)
    assert cell.held("q") == 3
    cell.ends("rund", done=True)
    decided = cell.run()
    assert len(stopped(decided)) == 3
    assert started(decided)[-1] == "gang"


def test_a_task_at_the_limit_of_its_project_is_waited_for() -> None:
    cell = cell_of("quota")
    cell.node("n2", 4)
    cell.entitle_to("p", 4, limit=4)
    gang_behind_a_stream(cell)
    assert waits(cell, "gang").code is WaitCode.AT_LIMIT
    cell.cycle(after_s=RESERVE_S)
    assert replace_one(cell, 0) == []
    for number in range(1, 4):
        cell.ends(f"run{NAMES[number]}", done=True)
    assert started(cell.run()) == ["gang"]


def test_a_task_behind_the_oldest_one_starts_in_the_same_cycle_before_an_owner_with_more() -> None:
    cell = cell_of("starved_first")
    submit(cell, "big", 2, user="bob", grace_s=0)
    submit(cell, "held", 2, user="cy", preemptible=False)
    cell.run()
    submit(cell, "oldest")
    assert stopped(cell.cycle()) == ["big"]
    # The stop becomes overdue.
    cell.cycle(after_s=RESERVE_S + 1)
    submit(cell, "following", priority=60)
    submit(cell, "more", user="cy")
    for _ in range(3):
        cell.cycle()
    assert waits(cell, "following").code is WaitCode.BEHIND_TASK
    cell.ends("big", done=True)
    assert started(cell.cycle()) == ["oldest", "following"]
