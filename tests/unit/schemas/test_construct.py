"""The faster constructors behave like those that they replace."""

import inspect
from dataclasses import FrozenInstanceError, dataclass, field, fields
from enum import Enum

import pytest

from yardmaster_schemas.construct import (
    added_in,
    fields_above,
    is_sparse,
    rules_of,
    sparse,
    writes_slots,
)
from yardmaster_schemas.events.registry import EVENTS
from yardmaster_schemas.events.requests import DepartmentConfig, ProjectConfig, Quota
from yardmaster_schemas.members import plain_members


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    a: int
    b: str = "b"
    c: tuple[int, ...] = (1,)


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    a: int
    b: str = "b"
    c: tuple[int, ...] = (1,)


def test_the_constructor_has_the_same_arguments_and_sets_the_same_values() -> None:
    for given in ({"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": ()}):
        plain, quick = Plain(**given), Quick(**given)
        assert [getattr(plain, f.name) for f in fields(plain)] == [
            getattr(quick, f.name) for f in fields(quick)
        ]
    assert inspect.signature(Quick) == inspect.signature(Plain)


@pytest.mark.parametrize("given", [{}, {"a": 1, "z": 2}])
def test_missing_and_unknown_arguments_are_errors(given: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Quick(**given)  # type: ignore[arg-type]


def test_the_class_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Quick(a=1).a = 2  # type: ignore[misc]


def test_post_init_still_runs() -> None:
    @writes_slots
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("below zero")

    assert Checked(a=0).a == 0
    with pytest.raises(ValueError, match="below zero"):
        Checked(a=-1)


def test_a_class_with_a_default_factory_keeps_its_constructor() -> None:
    @writes_slots
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Made:
        a: list[int] = field(default_factory=list)

    assert Made().a is not Made().a


def test_a_missing_argument_gets_its_default() -> None:
    @writes_slots
    @dataclass(frozen=True, slots=True)
    class Noted:
        a: int
        note: str | None = field(default="none yet", init=False)

    assert Noted(1).note == "none yet"
    assert list(inspect.signature(Noted).parameters) == ["a"]


def test_every_event_can_be_made_with_all_of_its_fields() -> None:
    for cls in set(EVENTS.values()):
        parameters = inspect.signature(cls).parameters
        assert list(parameters) == [f.name for f in fields(cls)], cls.__name__  # type: ignore[arg-type]


def test_plain_members_are_the_same_members() -> None:
    class Colour(Enum):
        RED = 1
        BLUE = 2

    before = list(Colour)
    plain_members(Colour)
    assert [Colour.RED, Colour.BLUE] == before == list(Colour)
    assert vars(Colour)["RED"] is Colour.RED is Colour(1) is Colour["RED"]
    with pytest.raises(AttributeError):
        Colour.RED = 3  # type: ignore[misc]


# Fields of newer rules -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    a: int = 0
    b: int = field(default=1, metadata=added_in(7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    parts: dict[str, Part] = field(default_factory=dict)
    names: tuple[str, ...] = field(default=(), metadata=added_in(8))


def test_a_field_with_its_default_is_left_out_by_itself() -> None:
    whole = Whole(parts={"x": Part(a=2), "y": Part(b=2)})
    assert sparse(whole) == {"parts": {"x": {"a": 2}, "y": {"a": 0, "b": 2}}}
    assert sparse(Whole(names=("n",))) == {"parts": {}, "names": ["n"]}
    assert is_sparse(Whole)
    assert not is_sparse(Plain)


def test_the_fields_that_older_programs_cannot_read_are_named() -> None:
    whole = Whole(parts={"x": Part(a=2), "y": Part(b=2)}, names=("n",))
    assert list(fields_above(whole, 6)) == [(("parts", "y", "b"), 7), (("names",), 8)]
    assert list(fields_above(whole, 7)) == [(("names",), 8)]
    assert list(fields_above(whole, 8)) == []
    assert [rules_of(each) for each in (whole, Whole(), None)] == [8, 0, 0]


def test_a_configuration_with_settings_of_the_policy_quota_needs_rules_8() -> None:
    quotas = {"h100": Quota(deserved_milli=1000, over_quota=False)}
    assert rules_of(DepartmentConfig(weight=2, quotas={"h100": Quota(over_quota_weight=3)})) == 0
    assert list(fields_above(DepartmentConfig(parent="all", rank=1, quotas=quotas), 7)) == [
        (("quotas", "h100", "over_quota"), 8),
        (("parent",), 8),
        (("rank",), 8),
    ]
    assert rules_of(ProjectConfig(department="all", max_unfinished=1)) == 6
    assert rules_of(ProjectConfig(department="all", max_unfinished=1, rank=1)) == 8
