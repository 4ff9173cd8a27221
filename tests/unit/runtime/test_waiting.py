"""Several coroutines as one; a log that retries; the queue of observations."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.toy_cell import ToyCell, until
from yardmaster_core.machine import Decision
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.retrying import RetryingLog
from yardmaster_runtime.settings import RetryLimits
from yardmaster_runtime.waiting import Work, first_of, together
from yardmaster_schemas.events.machine import SnapshotTakenV1


async def returns() -> int:
    return 1


async def fails() -> None:
    await asyncio.sleep(0)
    raise LogUnavailable(found="as the test wants")


async def never() -> None:
    await asyncio.Event().wait()


async def test_together_ends_when_all_have_ended() -> None:
    await together(returns(), returns())


async def test_a_failure_cancels_the_rest_and_is_raised_as_itself() -> None:
    with pytest.raises(LogUnavailable):
        await together(never(), fails(), never())
    with pytest.raises(LogUnavailable):
        await first_of(never(), together(never(), fails()))


async def test_first_of_ends_with_the_first() -> None:
    await first_of(never(), returns(), never())


async def test_two_failures_are_raised_as_a_group() -> None:
    async def fails_on_the_way_out() -> None:
        try:
            await never()
        finally:
            raise ValueError("two")

    with pytest.raises(ExceptionGroup) as failed:
        await together(fails_on_the_way_out(), fails())
    assert [type(one) for one in failed.value.exceptions] == [LogUnavailable, ValueError]


async def test_a_cancellation_of_the_caller_is_not_lost_to_a_failure() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await never()
        finally:
            raise ValueError("on the way out")

    for way in (together, first_of):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_of(way, fails_when_cancelled(), never()))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()


async def _of(way: Callable[..., Awaitable[None]], *work: Work) -> None:
    await way(*work)


async def test_a_cancellation_before_the_work_started_leaves_no_coroutine_unawaited() -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_of(first_of, never(), never()))
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()


THREE = RetryLimits(attempts=3, first_pause_s=1, longest_pause_s=2)


def retrying(cell: ToyCell, kinds: list[FaultKind], limits: RetryLimits = THREE) -> RetryingLog:
    faults = [
        Fault(topic="requests", nth=nth, kind=kind) for nth, kind in enumerate(kinds, start=1)
    ]
    log = FaultyLog(cell.log, FaultPlan(cell.clock, faults))
    return RetryingLog(log, cell.clock, limits, cell.metrics().retries)


REQUESTS = Partition("requests")


async def test_unavailable_calls_are_retried_with_back_off_up_to_the_limit() -> None:
    cell = await ToyCell().create()
    log = retrying(cell, [FaultKind.UNAVAILABLE] * 2)
    started_s = cell.clock.monotonic_s()

    async def append() -> None:
        await log.append(REQUESTS, [Record(b"k", b"v")])

    done = asyncio.Event()
    await together(_then(append(), done), until(done.is_set, cell.clock))
    assert cell.clock.monotonic_s() - started_s >= 3
    assert await cell.log.end(REQUESTS) == 1
    log = retrying(cell, [FaultKind.UNAVAILABLE] * 3)
    with pytest.raises(LogUnavailable):
        await first_of(append(), until(lambda: False, cell.clock))


async def test_without_a_limit_a_call_is_retried_until_it_succeeds() -> None:
    cell = await ToyCell().create()
    forever = RetryLimits(attempts=0, first_pause_s=0.02, longest_pause_s=0.02)
    log = retrying(cell, [FaultKind.UNAVAILABLE] * 50, forever)
    done = asyncio.Event()
    await together(
        _then(log.append(REQUESTS, [Record(b"k", b"v")]), done), until(done.is_set, cell.clock)
    )
    assert await cell.log.end(REQUESTS) == 1


async def _then(work: object, done: asyncio.Event) -> None:
    await work  # type: ignore[misc]
    done.set()


async def test_an_append_of_unknown_outcome_is_never_retried() -> None:
    cell = await ToyCell().create()
    log = retrying(cell, [FaultKind.LANDED])
    with pytest.raises(AppendOutcomeUnknown):
        await log.append(REQUESTS, [Record(b"k", b"v")])
    assert await cell.log.end(REQUESTS) == 1


def seen(number: int) -> Decision:
    return Decision(SnapshotTakenV1(cycle=number, state_digest="0" * 64), "main")


async def test_observations_are_bounded_ordered_and_removed_when_recorded() -> None:
    metrics = ToyCell().metrics()
    waiting = Observations(3, metrics)
    assert [waiting.put(seen(n), urgent=False) for n in (1, 1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert metrics.observations_dropped._value.get() == 1
    assert not waiting.urgent.is_set()
    waiting.recorded(1)
    assert waiting.put(seen(5))
    assert waiting.urgent.is_set()
    assert list(waiting.first(2)) == [seen(2), seen(3)]
    waiting.recorded(3)
    assert not waiting.urgent.is_set()
    waiting.put(seen(6))
    waiting.clear()
    assert len(waiting) == 0


async def test_a_failure_in_a_task_group_below_is_raised_as_itself() -> None:
    async def owns_tasks() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(never())
            await fails()

    with pytest.raises(LogUnavailable):
        await together(owns_tasks(), never())
