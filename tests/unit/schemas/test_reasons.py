"""Reason codes are those of the public interface, each with its numbers."""

import pytest
from pydantic import TypeAdapter

from yardmaster_schemas.fields import Numbers
from yardmaster_schemas.reasons import NUMBERS, EndCode, StopCode, WaitClass, WaitCode

NEVER = {
    *("no_matching_node", "exceeds_every_node", "exceeds_pool", "gang_indivisible"),
    *("no_executor", "exceeds_limit", "exceeds_max_slots", "exceeds_deserved"),
}


@pytest.mark.parametrize("code", [*WaitCode, *StopCode])
def test_every_wait_and_stop_has_its_numbers(code: WaitCode | StopCode) -> None:
    names = NUMBERS[code]
    assert len(set(names)) == len(names)
    TypeAdapter(Numbers).validate_python(dict.fromkeys(names, 0))


def test_numbers_go_with_waits_and_stops_only() -> None:
    assert set(NUMBERS) == {*WaitCode, *StopCode}


def test_names_of_times_and_amounts_end_with_their_unit() -> None:
    for code, names in NUMBERS.items():
        for name in names:
            if "_at" in name:
                assert name.endswith("_at_ms"), f"{code}: {name}"


@pytest.mark.parametrize("code", WaitCode)
def test_never_held_and_not_now_are_distinguished(code: WaitCode) -> None:
    if code in NEVER:
        assert code.wait_class is WaitClass.NEVER
    elif code is WaitCode.PAUSED:
        assert code.wait_class is WaitClass.HELD
    else:
        assert code.wait_class is WaitClass.NOT_NOW


def test_every_stop_but_of_a_gang_whose_end_has_the_cause_is_also_an_end() -> None:
    stops = {code.value for code in StopCode} - {StopCode.GANG_INCOMPLETE.value}
    assert stops <= {code.value for code in EndCode}
