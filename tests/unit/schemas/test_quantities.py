"""Amounts as people write them become integers with a unit, rounded up, or are refused."""

import pytest

from yardmaster.schemas.quantities import duration_s, gpu_slots, memory_mib, milli
from yardmaster.schemas.resources import Resources


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("512Mi", 512),
        ("256Gi", 262_144),
        ("1.5Ti", 1_572_864),
        ("64G", 61_036),
        ("1048576", 1),
        ("1", 1),
        ("0", 0),
    ],
)
def test_memory(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90), ("20m", 1200), ("12h", 43_200), ("1h30m", 5400), ("7d", 604_800)),
        *(("500ms", 1), ("1ms", 1), ("1.5s", 2), ("2w", 1_209_600), ("0s", 0)),
        *(("1.1h", 3960), ("0.7m", 42), ("1.001s", 2)),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "-1s", "1y", "20m\n", "4000d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|ten years"):
        duration_s(text)


@pytest.mark.parametrize("text", ["", "lots", "-1Gi", "1Gib", "1 Gi", "1Gi\n"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="amount of memory"):
        memory_mib(text)


@pytest.mark.parametrize(
    ("amount", "slots"),
    [
        (8, Resources(gpus=8, gpu_milli=1000)),
        (0.5, Resources(gpus=1, gpu_milli=500)),
        (0, Resources()),
        (1, Resources(gpus=1, gpu_milli=1000)),
        (0.001, Resources(gpus=1, gpu_milli=1)),
    ],
)
def test_gpus(amount: float, slots: Resources) -> None:
    assert gpu_slots(amount) == slots


@pytest.mark.parametrize(
    ("amount", "word"), [(1.5, "several ways"), (1025, "slots a node"), (-1, "out of range")]
)
def test_gpus_that_could_mean_several_things_are_refused(amount: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        gpu_slots(amount)


@pytest.mark.parametrize("amount", [0.0005, float("nan"), float("inf"), -0.5])
def test_thousandths_are_exact_or_refused(amount: float) -> None:
    with pytest.raises(ValueError, match=r"cpus"):
        milli(amount, "cpus")
