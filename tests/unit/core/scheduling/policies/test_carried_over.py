"""Changes count in the cycle that handles them and in the next."""

import pytest

from yardmaster_core.scheduling.policies.carried_over import (
    CarriedOver,
    CarriedOverFlag,
    dump_all,
)


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
