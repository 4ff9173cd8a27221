"""One parser for the times of all options."""

import pytest

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.times import future_ms, past_ms

NOW_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("2h", 2 * HOUR_MS),
        ("-2h", 2 * HOUR_MS),
        ("30d", 720 * HOUR_MS),
        ("-30d", 720 * HOUR_MS),
        ("1h30m", 1.5 * HOUR_MS),
        ("2026-01-31T11:00:00Z", HOUR_MS),
        ("2026-01-31T11:00Z", HOUR_MS),
        ("2026-01-31t12:00:00+01:00", HOUR_MS),
        ("2026-01-31 11:00:00", HOUR_MS),
        ("2026-01-31T11:59:59.5Z", 500),
        ("2026-01-31", 12 * HOUR_MS),
    ],
)
def test_a_time_is_relative_or_of_a_clock(text: str, ago_ms: float) -> None:
    assert past_ms(text, NOW_MS, "--since") == NOW_MS - ago_ms


@pytest.mark.parametrize(
    "text", ["", "2", "-2", "yesterday", "2x", "--2h", "20260131", "2026-02-30", "1969-01-01"]
)
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(BadUsage) as caught:
        past_ms(text, NOW_MS, "--since")
    assert caught.value.message.startswith("--since: ")
    assert "2026-01-31T12:00:00Z" in str(caught.value.hint)


def test_a_time_to_come_counts_forward_and_may_not_have_passed() -> None:
    assert future_ms("2h", NOW_MS, "--deadline") == NOW_MS + 2 * HOUR_MS
    assert future_ms("2026-01-31T13:00:00Z", NOW_MS, "--deadline") == NOW_MS + HOUR_MS
    for text in ("-2h", "2026-01-31"):
        with pytest.raises(BadUsage, match="is in the past"):
            future_ms(text, NOW_MS, "--deadline")
