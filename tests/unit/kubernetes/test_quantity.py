"""Quantities as Kubernetes reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_kubernetes.errors import QuantityInvalid
from yardmaster_kubernetes.quantity import LARGEST, NANO, milli, nano, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4", 4 * NANO),
        ("+4", 4 * NANO),
        ("-1", -NANO),
        ("500m", NANO // 2),
        ("0.5", NANO // 2),
        (".5", NANO // 2),
        ("5.", 5 * NANO),
        ("100u", 100_000),
        ("7n", 7),
        ("1k", 1000 * NANO),
        ("1Ki", 1024 * NANO),
        ("1.5Gi", 3 * 512 * 1024**2 * NANO),
        ("1E", 10**18 * NANO),
        ("1Ei", 1024**6 * NANO),
        ("1e3", 1000 * NANO),
        ("1E3", 1000 * NANO),
        ("25e-1", 5 * NANO // 2),
    ],
)
def test_each_notation_has_its_value(text: str, value: int) -> None:
    assert nano(text) == value


@pytest.mark.parametrize(
    "text", ["", ".", "m", "1 Gi", "1gi", "1KI", "1K", "0x1", "1e", "\u0661", "1e3Ki"]
)
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(QuantityInvalid, match="no quantity of Kubernetes"):
        nano(text)


def test_a_part_finer_than_a_billionth_is_rounded_up() -> None:
    assert nano("0.0000000001") == 1
    assert nano("-0.0000000001") == -1


def test_numbers_too_large_become_the_largest() -> None:
    assert nano("100E") == LARGEST * NANO
    assert milli(nano("100E")) == LARGEST


def test_cpus_count_in_thousandths_and_the_rest_as_whole_numbers_rounded_up() -> None:
    assert milli(nano("2500u")) == 3
    assert whole(nano("1500m")) == 2


@given(st.integers(0, 10**12))
def test_a_whole_number_keeps_its_value(number: int) -> None:
    assert whole(nano(str(number))) == number
