"""The limit of starts at once."""

import asyncio

from prometheus_client import CollectorRegistry, Gauge

from yardmaster_node_agent.start_turns import StartTurns


async def test_a_start_beyond_the_limit_waits_for_the_end_of_another_start() -> None:
    registry = CollectorRegistry()
    turns = StartTurns(2, Gauge("waiting", "Replicas that wait.", registry=registry))
    may_end, begun = asyncio.Event(), asyncio.Queue[int]()

    async def start(number: int, *, in_container: bool = False) -> None:
        async with turns.turn(in_container=in_container):
            begun.put_nowait(number)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(start(number))
        assert [await begun.get(), await begun.get()] == [0, 1]
        group.create_task(start(4, in_container=True))
        assert await begun.get() == 4
        assert (begun.qsize(), registry.get_sample_value("waiting")) == (0, 2)
        may_end.set()
    assert [begun.get_nowait(), begun.get_nowait()] == [2, 3]
    assert registry.get_sample_value("waiting") == 0
