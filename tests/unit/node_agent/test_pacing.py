"""Reports of one kind: at most one per interval, the newest wins, none is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from yardmaster_node_agent.executors.port import FetchProgress
from yardmaster_node_agent.pacing import MAX_REPORTS, PacedReport, PullReports
from yardmaster_runtime.clock import ManualClock


class Sent:
    """A value that is reported, and what was sent of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.value = 0
        self.values: list[int] = []
        self.coalesced = 0
        self.paced = PacedReport(self.clock, 10, self.send, self)

    def inc(self) -> None:
        self.coalesced += 1

    def send(self) -> None:
        self.values.append(self.value)

    def offer(self, *values: int) -> None:
        for self.value in values:
            self.paced.offer()

    async def after(self, seconds: float) -> list[int]:
        """The reports that were sent after that time."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.clock.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.values


@pytest.fixture
async def sent() -> AsyncIterator[Sent]:
    sent = Sent()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sent.paced.run())
        yield sent
        running.cancel()


async def test_the_first_report_is_sent_at_once_and_the_newest_of_the_next_ten_seconds_after_them(
    sent: Sent,
) -> None:
    sent.offer(1, 2, 3)
    assert sent.values == [1]
    assert await sent.after(9.9) == [1]
    sent.offer(4)
    assert await sent.after(0.1) == [1, 4]
    assert sent.coalesced == 2
    assert await sent.after(100) == [1, 4]
    sent.offer(5)
    assert sent.values == [1, 4, 5]


async def test_a_flush_sends_the_pending_report_once(sent: Sent) -> None:
    sent.offer(1, 2)
    sent.paced.flush()
    sent.paced.flush()
    assert sent.values == [1, 2]
    sent.offer(3)
    assert await sent.after(9.9) == [1, 2], "a flush begins an interval"
    assert await sent.after(0.1) == [1, 2, 3]


async def test_after_a_hurry_the_next_report_is_sent_at_once_and_the_one_after_it_waits(
    sent: Sent,
) -> None:
    sent.offer(1, 2)
    await sent.after(0)
    sent.paced.hurry()
    assert sent.values == [1, 2]
    sent.offer(3, 4)
    assert sent.values == [1, 2, 3]
    assert await sent.after(10) == [1, 2, 3, 4]


def test_a_pull_is_reported_every_5_s_then_every_30_s_and_at_most_1000_times() -> None:
    clock, sent = ManualClock(), list[FetchProgress]()
    reports = PullReports(clock, sent.append)
    at_s: list[float] = []
    for second in range(12 * 3600):
        before = len(sent)
        reports.offer(FetchProgress(bytes_done=second))
        at_s += [second] * (len(sent) - before)
        clock.advance(1)
    assert at_s[:13] == [*range(0, 60, 5), 85]
    assert len(sent) == MAX_REPORTS


def test_a_pull_that_does_not_move_is_not_reported() -> None:
    clock, sent = ManualClock(), list[FetchProgress]()
    reports = PullReports(clock, sent.append)
    reports.offer(FetchProgress(bytes_done=1))
    reports.offer(FetchProgress(bytes_done=2))
    clock.advance(1000)
    assert [each.bytes_done for each in sent] == [1]
