"""Scenarios of Determined as inputs of the core; unclear ones are skipped rather than guessed."""

from typing import Any

import pytest

from yardmaster_core.testing import Cell
from yardmaster_simulation.conformance import scenario_cluster as scenario_cluster
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.scenarios import (
    Format,
    Outcome,
    UnreadableScenario,
    Verdict,
    check,
    read,
)


def agent(name: str, slots: int = 4, used: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": name, "slots": slots, "slots_used": used, **more}


def task(name: str, group: str, slots: int = 1, **more: Any) -> dict[str, Any]:
    on = more.pop("on", None)
    state: dict[str, Any] = {"state": "pending"}
    if on is not None:
        held = [{"agent": name, "slots_held": gpus} for name, gpus in on.items()]
        state = {"state": "allocated", "on": held}
    return {"id": name, "group": group, "slots": slots, "created_order": 1, **state, **more}


def scenario(policy: str = "priority", **fields: Any) -> dict[str, Any]:
    options = {"variant": "max_min"} if policy == "fair_share" else {}
    groups = {task["group"] for task in fields.get("tasks", ())}
    return {
        "id": "one",
        "policy": policy,
        "options": options,
        "agents": [agent("a1")],
        "groups": [{"id": name, "weight": 1, "priority": 42} for name in sorted(groups)],
        "expected": {"to_allocate": [], "to_release": []},
        **fields,
    }


def checked(**fields: Any) -> Verdict:
    return check(scenario(**fields), FORMATS)


def expect(*starts: str, stops: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"to_allocate": list(starts), "to_release": list(stops)}


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that ran the scenarios."""
    made: list[Cell] = []

    class RecordedCell(Cell):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(scenario_cluster, "Cell", RecordedCell)
    return made


def test_the_difference_names_missing_and_unexpected_tasks() -> None:
    verdict = checked(tasks=[task("t1", "g")], expected=expect("t2", stops=("t3",)))
    assert verdict == Verdict(
        "one",
        Outcome.FAILED,
        "missing in starts: t2; unexpected in starts: t1; missing in stops: t3",
    )


def test_equal_tasks_of_a_group_become_one_job(cells: list[Cell]) -> None:
    tasks = [task("t1", "g"), task("t2", "g", created_order=2)]
    assert checked(policy="fair_share", tasks=tasks, expected=expect("t1", "t2")).why == ""
    assert [len(job.tasks) for job in cells[0].state.jobs.values()] == [2]
    config = cells[0].state.pools["main"].config
    assert config is not None
    assert config.policy.options == {"variant": "max_min", "among": "job"}


def test_groups_with_unequal_tasks_become_projects_with_their_weight(cells: list[Cell]) -> None:
    tasks = [task("t1", "g"), task("t2", "g", 2, created_order=2), task("t3", "h")]
    groups = [{"id": "g", "weight": 1.5, "max_slots": 3}, {"id": "h", "weight": 0.25}]
    checked(policy="fair_share", tasks=tasks, groups=groups)
    state = cells[0].state
    assert len(state.jobs) == 3
    weights = [(p.config.weight, p.config.limit_milli) for p in state.projects.values() if p.config]
    assert sorted(weights) == [(1, None), (6, 3000)]


def test_allocated_tasks_are_running_when_the_cell_decides(cells: list[Cell]) -> None:
    tasks = [task("t1", "g", 8, on={"a1": 4, "a2": 4}), task("z", "g", 0, on={"a1": 0})]
    agents = [agent("a1", used=4, zero_slot_used=1), agent("a2", used=4)]
    assert checked(agents=agents, tasks=tasks).why == ""
    assert [task.phase.name for task in cells[0].state.tasks.values()] == ["RUNNING"] * 2
    assert [len(node.open) for node in cells[0].state.nodes.values()] == [2, 1]


def test_fillers_hold_used_slots_that_no_task_explains() -> None:
    tasks = [task("t1", "g", 2)]
    agents = [agent("a1", used=3, max_zero_slot=1, zero_slot_used=1)]
    assert checked(agents=agents, tasks=tasks).why == ""
    half_free = [agent("a1", used=2)]
    assert checked(agents=half_free, tasks=tasks, expected=expect("t1")).why == ""


def test_nothing_starts_on_agents_that_are_disabled_or_draining() -> None:
    agents = [agent("a1", enabled=False), agent("a2", draining=True), agent("a3")]
    tasks = [task("t1", "g", 4), task("t2", "g", 4, created_order=2)]
    assert checked(agents=agents, tasks=tasks, expected=expect("t1")).why == ""


@pytest.mark.parametrize("most", [[1, 1], [1, 2]])
def test_agents_limit_the_number_of_tasks_without_slots(most: list[int]) -> None:
    agents = [agent(f"a{number}", max_zero_slot=each) for number, each in enumerate(most)]
    tasks = [task(f"t{number}", "g", 0, created_order=number) for number in range(5)]
    starts = [f"t{number}" for number in range(sum(most))]
    assert checked(agents=agents, tasks=tasks, expected=expect(*starts)).why == ""


@pytest.mark.parametrize(
    ("options", "agents", "first"),
    [
        ({}, [agent("a1", max_zero_slot=4), agent("a2", max_zero_slot=2)], "a2"),
        (
            {},
            [
                agent("a1", max_zero_slot=2),
                agent("a2", max_zero_slot=4, zero_slot_used=2),
            ],
            "a1",
        ),
        ({}, [agent("a1", 2, max_zero_slot=0), agent("a2", max_zero_slot=1)], "a2"),
    ],
)
def test_zero_slot_places_that_an_agent_lacks_count_as_used(
    options: dict[str, Any], agents: list[dict[str, Any]], first: str
) -> None:
    place = {"id": "one", "options": options, "agents": agents, "task": {"slots": 0}}
    verdict = check({**place, "expected": {"first_agent": first}}, FORMATS)
    assert verdict.why == ""


def test_positions_order_groups_if_every_group_has_one() -> None:
    tasks = [task("t1", "g", 4), task("t2", "h", 4, created_order=2)]
    placed = {"queue_positions": {"g": "2", "h": "1" + "0" * 400}}
    assert checked(tasks=tasks, options=placed, expected=expect("t1")).why == ""
    placed = {"queue_positions": {"g": "2.5", "h": "2.25"}}
    assert checked(tasks=tasks, options=placed, expected=expect("t2")).why == ""
    placed = {"queue_positions": {"h": "1"}}
    assert checked(tasks=tasks, options=placed, expected=expect("t1")).why == ""


def test_without_a_priority_tasks_neither_start_nor_stop_but_hold_their_slots() -> None:
    groups = [{"id": "g"}, {"id": "h", "priority": 1}]
    tasks = [task("t1", "g", 2, on={"a1": 2}), task("t2", "g"), task("t3", "h", 4)]
    agents = [agent("a1", used=2)]
    assert checked(agents=agents, groups=groups, tasks=tasks).why == ""


def test_a_scenario_that_a_tie_decides_is_skipped() -> None:
    # Which of two equal agents takes the first task decides whether the second may have the other.
    agents = [agent("a1"), agent("a2")]
    tasks = [task("t1", "g", 4), task("t2", "g", 4, created_order=2, blocked_agents=["a2"])]
    verdict = checked(agents=agents, tasks=tasks, expected=expect("t1", "t2"))
    assert verdict.outcome is Outcome.SKIPPED
    assert verdict.why == (
        "a tie between equal nodes decides: as expected if they join in the order a2, a1, "
        "otherwise missing in starts: t2"
    )
    assert checked(agents=agents, tasks=tasks, expected=expect("t2")).outcome is Outcome.FAILED


def test_with_many_nodes_each_node_is_tried_first_and_last() -> None:
    agents = [agent(f"a{number}") for number in range(7)]
    tasks = [
        task("t1", "g", 4),
        task("t2", "g", 4, created_order=2, blocked_agents=[f"a{n}" for n in range(1, 7)]),
    ]
    verdict = checked(agents=agents, tasks=tasks, expected=expect("t1", "t2"))
    assert verdict.outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tasks": [task("t1", "g", 2, on={})]}, "t1 runs, but the scenario does not say where"),
        ({"tasks": [task("t1", "g", 2, on={"a1": 1})]}, "t1 runs, but the scenario does not say"),
        ({"tasks": [task("t1", "g", 2, on={"a9": 2})]}, "t1 runs on a9, an agent that is not"),
        ({"tasks": [task("t1", "g", 2, on={"a1": 2})]}, "a1 lists other used slots than its"),
        ({"tasks": [task("t1", "g")], "groups": []}, "t1 belongs to g, a group that is not listed"),
        ({"tasks": [task("t1", "g"), task("t1", "g")]}, "two tasks have the same id"),
    ],
)
def test_an_incomplete_scenario_is_skipped(fields: dict[str, Any], why: str) -> None:
    verdict = checked(**fields)
    assert verdict.outcome is Outcome.SKIPPED
    assert verdict.why.startswith(why)


@pytest.mark.parametrize("error", [AssertionError, IndexError])
def test_a_scenario_that_makes_the_core_raise_fails(error: type[Exception]) -> None:
    def broken(_: object) -> str:
        raise error("no")

    verdict = check({"id": "x", "y": 1}, (Format("y", frozenset({"y"}), broken),))
    why = f"the core raised {error.__name__}: no"
    assert (verdict.outcome, verdict.why) == (Outcome.FAILED, why)


def test_empty_lines_are_skipped_and_other_lines_must_be_objects_with_an_id() -> None:
    assert [one["id"] for one in read('{"id": "a"}\n\n{"id": "b"}\n')] == ["a", "b"]
    with pytest.raises(UnreadableScenario, match="line 2"):
        list(read('{"id": "a"}\n{}\n'))
