"""Counts in messages have a noun in the right number."""

import pytest

from yardmaster_schemas.counts import count_of


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), ("0.5", "0.5 tasks"), ("1", "1 task")],
)
def test_only_one_of_a_thing_is_singular(number: int | str, shown: str) -> None:
    assert count_of(number, "task") == shown


def test_a_noun_may_have_another_plural() -> None:
    assert count_of(1, "process", "processes") == "1 process"
    assert count_of(2, "process", "processes") == "2 processes"
