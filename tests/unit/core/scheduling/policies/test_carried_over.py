"""Changes count in the cycle that handles them; those by the planner also in the next one."""

import pytest

from tests.unit.core.scheduling.reading import started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.policies.carried_over import (
    CarriedOver,
    CarriedOverFlag,
    dump_all,
)
from yardmaster_core.testing import Cell


def is_due(cell: Cell) -> bool:
    """Whether another cycle follows at once."""
    return cell.state.cycle_due


def test_a_value_counts_until_the_end_of_the_next_cycle() -> None:
    names = CarriedOver[str]("names")
    assert not names
    names.add("b")
    names.add("a")
    assert list(names) == ["b", "a"]
    names.cycle_ended()
    names.add("c")
    assert list(names) == ["b", "a", "c"]
    names.cycle_ended()
    assert list(names) == ["c"]
    names.cycle_ended()
    assert not names


def test_a_value_for_this_cycle_does_not_count_in_the_next() -> None:
    names = CarriedOver[str]("names")
    names.add("a")
    names.add_for_this_cycle("b")
    assert list(names) == ["a", "b"]
    names.cycle_ended()
    assert list(names) == ["a"]


def test_what_inputs_changed_counts_in_one_cycle() -> None:
    names, due = CarriedOver[str]("names"), CarriedOverFlag("due")
    names.add("by an input")
    due.set()
    for carried in (names, due):
        carried.inputs_ended()
    assert (list(names), bool(due)) == (["by an input"], True)
    names.add("by a decision")
    for carried in (names, due):
        carried.cycle_ended()
    assert (list(names), bool(due)) == (["by a decision"], False)


@pytest.mark.parametrize("policy", ["quota", "starved_first"])
def test_an_end_that_lets_no_task_start_needs_one_cycle_and_a_start_two(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=2)
    cell.submit("job", tasks=2)
    cell.cycle()
    assert is_due(cell), "what others may claim depends on what has started"
    cell.run_until_idle()
    cell.starts("job", 0)
    cell.ends("job", 0)
    cell.cycle()
    assert not is_due(cell)
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["quota", "starved_first"])
def test_changes_by_inputs_of_a_cycle_that_stops_at_its_limit_count_in_the_next_one(
    policy: str,
) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=4)
    cell.submit("job", tasks=4)
    assert started(cell.cycle(limit=1)) == ["job"]
    cell.restart()
    assert started(cell.cycle()) == ["job.1", "job.2", "job.3"]
    cell.run_until_idle()
    assert not is_due(cell)


def test_a_flag_is_set_until_the_end_of_the_next_cycle() -> None:
    flag = CarriedOverFlag("due")
    assert not flag
    flag.set()
    flag.cycle_ended()
    assert flag
    flag.cycle_ended()
    assert not flag
    flag.set_for_this_cycle()
    assert flag
    flag.cycle_ended()
    assert not flag


def test_a_restored_copy_continues_like_the_original() -> None:
    names, due = CarriedOver[str]("names"), CarriedOverFlag("due")
    names.add("b")
    names.add("a")
    names.cycle_ended()
    names.add("c")
    due.set_for_this_cycle()
    dump = dump_all((names, due))
    assert dump == {
        "names": ["b", "a", "c"],
        "names_next": ["c"],
        "due": True,
        "due_next": False,
    }

    restored_names, restored_due = CarriedOver[str]("names"), CarriedOverFlag("due")
    for restored in (restored_names, restored_due):
        restored.load(dump)
    assert (list(restored_names), bool(restored_due)) == (["b", "a", "c"], True)
    for restored in (restored_names, restored_due):
        restored.cycle_ended()
    assert (list(restored_names), bool(restored_due)) == (["c"], False)


def test_a_dump_undoes_what_was_added_after_it() -> None:
    names = CarriedOver[str]("names")
    names.add("a")
    dump = names.dump()
    names.add("b")
    names.load(dump)
    assert list(names) == ["a"]
    names.cycle_ended()
    assert list(names) == ["a"]


def test_values_are_loaded_in_ascending_order_on_request() -> None:
    ordinals = CarriedOver[int]("ordinals", ascending=True)
    for ordinal in (10, 9, 2):
        ordinals.add(ordinal)
    assert list(ordinals) == [10, 9, 2]
    ordinals.load(ordinals.dump())
    assert list(ordinals) == [2, 9, 10]


def test_a_dump_without_the_values_is_refused() -> None:
    with pytest.raises(KeyError, match="due_next"):
        CarriedOverFlag("due").load({"due": True})
