"""The promises of every clock and of every source of random names."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from yardmaster_runtime.chance import Chance, SeededChance, SystemChance
from yardmaster_runtime.clock import Clock, ManualClock, SystemClock

#: Longer than any sleep below.
ENOUGH_S = 1.0


@dataclass
class Subject:
    """A clock under test; `pass_time` lets time pass, where the clock does not do so by itself."""

    clock: Clock
    pass_time: Callable[[], object]


@pytest.fixture(params=["system", "manual"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "system":
        return Subject(SystemClock(), lambda: None)
    clock = ManualClock()
    return Subject(clock, lambda: clock.advance(ENOUGH_S))


@pytest.fixture(params=[SystemChance, lambda: SeededChance(7)], ids=["system", "seeded"])
def chance(request: pytest.FixtureRequest) -> Chance:
    chance: Chance = request.param()
    return chance


async def finish(subject: Subject, task: asyncio.Task[None]) -> None:
    """Let time pass until the task has ended."""
    async with asyncio.timeout(10):
        while not task.done():
            await asyncio.sleep(0.001)
            subject.pass_time()


async def test_time_is_in_milliseconds_since_1970(subject: Subject) -> None:
    assert 1_600_000_000_000 < subject.clock.now_ms() < 4_000_000_000_000


async def test_elapsed_time_never_decreases(subject: Subject) -> None:
    seen = []
    for _ in range(10):
        seen.append(subject.clock.monotonic_s())
        subject.pass_time()
    assert seen == sorted(seen)


@pytest.mark.parametrize("step_s", [-365 * 86_400, -86_400, 86_400, 365 * 86_400])
def test_a_clock_that_follows_a_log_ignores_the_time_of_its_host(
    monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    clock, right_ns = SystemClock(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + step_s * 10**9)
    assert abs(clock.follow(right_ns() // 10**6) - step_s * 1000) < 5_000
    assert abs(clock.now_ms() - right_ns() // 10**6) < 5_000
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() - step_s * 10**9)
    assert abs(clock.now_ms() - right_ns() // 10**6) < 5_000


def test_a_clock_that_follows_several_brokers_never_goes_back() -> None:
    clock = SystemClock()
    right_ms = clock.now_ms()
    for ahead_ms in (0, 90_000, -86_400_000):
        clock.follow(right_ms + ahead_ms)
    assert 90_000 <= clock.now_ms() - right_ms < 95_000


def elapse(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.clock_gettime_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: now(which) + int(seconds * 10**9))


def test_a_clock_meets_the_clock_of_a_log_that_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    right_ms, passed_s = clock.now_ms(), 0
    clock.follow(right_ms + 100_000)
    seen = []
    for _ in range(25):
        clock.follow(right_ms + passed_s * 1000)
        seen.append((clock.now_ms(), clock.ahead_ms(), passed_s))
        elapse(monkeypatch, 10)
        passed_s += 10
    times = [now_ms for now_ms, _, _ in seen]
    assert times == sorted(times)
    first_s = 10
    for now_ms, ahead_ms, at_s in seen[1:]:
        expected_ms = max(0, 100_000 - (at_s - first_s) * 500)
        assert abs(now_ms - right_ms - at_s * 1000 - expected_ms) < 3_000
        assert abs(ahead_ms - expected_ms) < 3_000


def test_one_late_answer_does_not_slow_a_clock_down(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    right_ms = clock.now_ms()
    clock.follow(right_ms)
    for passed_s in range(0, 60, 20):
        clock.follow(right_ms + passed_s * 1000 - 15_000)
        clock.follow(right_ms + passed_s * 1000)
        elapse(monkeypatch, 20)
    assert abs(clock.now_ms() - right_ms - 60_000) < 3_000
    assert clock.ahead_ms() == 0


def test_a_clock_that_resumes_a_log_from_the_future_meets_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    right_ms = clock.now_ms()
    clock.resume(right_ms + 100_000)
    assert abs(clock.now_ms() - right_ms - 100_000) < 3_000
    elapse(monkeypatch, 100)
    assert abs(clock.now_ms() - right_ms - 150_000) < 3_000
    elapse(monkeypatch, 150)
    assert abs(clock.now_ms() - right_ms - 250_000) < 3_000


async def test_a_sleep_lasts_at_least_its_seconds(subject: Subject) -> None:
    started_s = subject.clock.monotonic_s()
    async with asyncio.TaskGroup() as group:
        await finish(subject, group.create_task(subject.clock.sleep(0.02)))
    assert subject.clock.monotonic_s() - started_s >= 0.02


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_sleep_of_no_seconds_ends_without_time_passing(
    subject: Subject, seconds: float
) -> None:
    async with asyncio.timeout(10):
        await subject.clock.sleep(seconds)


async def test_a_sleep_lets_other_tasks_run(subject: Subject) -> None:
    ran = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(subject.clock.sleep(0.01))
        group.create_task(_set(ran))
        await finish(subject, sleeping)
    assert ran.is_set()


async def test_a_sleep_can_be_cancelled(subject: Subject) -> None:
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(subject.clock.sleep(3600))
        await asyncio.sleep(0)
        sleeping.cancel()
    assert sleeping.cancelled()


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize("digits", [1, 12, 32, 129])
def test_a_name_has_the_requested_number_of_hexadecimal_digits(chance: Chance, digits: int) -> None:
    assert re.fullmatch(rf"[0-9a-f]{{{digits}}}", chance.hex("test", digits))


def test_names_do_not_repeat_within_or_across_purposes(chance: Chance) -> None:
    names = [chance.hex(purpose, 32) for purpose in ("a", "b") for _ in range(50)]
    assert len(set(names)) == len(names)
