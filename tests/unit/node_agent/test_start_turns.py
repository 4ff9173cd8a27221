"""The limit of starts at once, and what a replica reports while it waits for its turn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Gauge

from yardmaster_node_agent.pacing import SLOW_S
from yardmaster_node_agent.start_turns import StartTurns
from yardmaster_runtime.clock import ManualClock


class Node:
    """Starts of replicas, each of which ends at `may_end`, and what they report meanwhile."""

    def __init__(self, limit: int) -> None:
        self.registry = CollectorRegistry()
        self.clock = ManualClock()
        gauge = Gauge("waiting", "Replicas that wait.", registry=self.registry)
        self.turns = StartTurns(limit, gauge, self.clock)
        self.begun = asyncio.Queue[int]()
        self.reports: list[tuple[int, int]] = []
        self.may_end: dict[int, asyncio.Event] = {}

    async def start(self, number: int, *, in_container: bool = False) -> None:
        self.may_end[number] = asyncio.Event()

        def report(ahead: int) -> None:
            self.reports.append((number, ahead))

        async with self.turns.turn(in_container=in_container, report=report):
            self.begun.put_nowait(number)
            await self.may_end[number].wait()

    def waiting(self) -> float | None:
        return self.registry.get_sample_value("waiting")

    async def pass_time(self) -> list[tuple[int, int]]:
        """Let the time between two reports pass; return the new reports."""
        self.reports.clear()
        self.clock.advance(SLOW_S)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.reports


@asynccontextmanager
async def starting(node: Node, numbers: range) -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(node.start(number))
        yield group


async def test_a_start_beyond_the_limit_waits_for_the_end_of_another_start() -> None:
    node = Node(limit=2)
    async with starting(node, range(4)) as group:
        assert [await node.begun.get(), await node.begun.get()] == [0, 1]
        group.create_task(node.start(4, in_container=True))
        assert await node.begun.get() == 4
        assert (node.begun.qsize(), node.waiting()) == (0, 2)
        for event in node.may_end.values():
            event.set()
    assert [node.begun.get_nowait(), node.begun.get_nowait()] == [2, 3]
    assert node.waiting() == 0


async def test_a_waiting_replica_reports_how_many_start_before_it_while_starts_end() -> None:
    node = Node(limit=1)
    async with starting(node, range(4)):
        assert await node.begun.get() == 0
        node.may_end[0].set()
        assert await node.begun.get() == 1
        assert await node.pass_time() == [(2, 1), (3, 2)]
        assert await node.pass_time() == [], "no start has ended since the last reports"
        node.may_end[1].set()
        assert await node.begun.get() == 2
        assert await node.pass_time() == [(3, 1)]
        for event in node.may_end.values():
            event.set()


async def test_a_replica_that_no_longer_waits_is_before_none_and_takes_no_turn() -> None:
    node = Node(limit=1)
    async with starting(node, range(2)) as group:
        assert await node.begun.get() == 0
        gives_up = group.create_task(node.start(2))
        group.create_task(node.start(3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert node.waiting() == 3
        gives_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        node.may_end[0].set()
        assert await node.begun.get() == 1
        assert await node.pass_time() == [(3, 1)]
        node.may_end[1].set()
        assert await node.begun.get() == 3
        node.may_end[3].set()
