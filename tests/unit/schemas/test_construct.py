"""The faster constructors behave like those that they replace."""

import inspect
from dataclasses import FrozenInstanceError, dataclass, field, fields
from enum import Enum

import pytest

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.events.registry import EVENTS
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
