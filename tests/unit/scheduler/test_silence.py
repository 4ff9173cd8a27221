"""Silence: measured by the shell's own time, from heartbeats that are the node's own."""

import asyncio
from typing import Any

import pytest

from tests.support.memory_cell import MemoryCell
from tests.support.toy_cell import until
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_scheduler.silence import LiveNode, SilenceWatch
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.decisions import NodeSilenceObservedV1
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import HEARTBEATS

LIFE, OTHER = "0" * 12, "1" * 12


class SilenceCell(MemoryCell):
    clock: ManualClock
    log: MemoryLog

    def __init__(self) -> None:
        super().__init__()
        telemetry = self.telemetry("scheduler")
        self.observations = Observations(100, RuntimeMetrics(telemetry))
        self.nodes = [LiveNode("a", LIFE, 10), LiveNode("b", LIFE, 10)]
        self.metrics = ShellMetrics(telemetry)
        self.watch = SilenceWatch(
            self.log,
            lambda: self.nodes,
            self.observations,
            now_ms=self.clock.now_ms,
            clock=self.clock,
            limits=ShellLimits(),
            metrics=self.metrics,
        )
        self._seq = 0

    async def beat(self, node: str, life: str = LIFE, *, by: str | None = None) -> None:
        event = NodeHeartbeatV1(
            node=node, incarnation=life, sent_at_ms=1, running=0, gpu_milli_used=0
        )
        self._seq += 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=agent_source(by or node, life),
            epoch=1,
            seq=self._seq,
            subject=node,
            time_ms=1,
            actor=Actor(kind=ActorKind.NODE, id=by or node),
            data=event,
        )
        await self.log.append(Partition("heartbeats"), [encode(envelope, node)])

    def silent(self) -> list[tuple[str, int]]:
        return [
            (d.event.node, d.event.last_heard_at_ms)
            for d in self.observations.first(100)
            if isinstance(d.event, NodeSilenceObservedV1)
        ]

    async def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            for _ in range(30):
                await asyncio.sleep(0)


@pytest.fixture
async def cell() -> Any:
    cell = SilenceCell()
    await cell.log.create_topics([HEARTBEATS])
    async with asyncio.TaskGroup() as group:
        work = group.create_task(cell.watch.run())
        for _ in range(30):
            await asyncio.sleep(0)
        yield cell
        work.cancel()


async def test_a_node_is_silent_when_its_pools_timeout_has_passed(cell: SilenceCell) -> None:
    start_ms = cell.clock.now_ms()
    for _ in range(15):
        await cell.beat("a")
        await cell.passes(1)
    assert cell.silent() == [("b", start_ms)]


async def test_silence_counts_from_the_start_of_this_watch(cell: SilenceCell) -> None:
    await cell.passes(10)
    assert cell.silent() == []
    await cell.passes(1)
    assert {node for node, _ in cell.silent()} == {"a", "b"}


async def test_the_observation_names_the_last_heartbeat(cell: SilenceCell) -> None:
    await cell.passes(5)
    await cell.beat("a")
    await cell.passes(1)
    heard_ms = cell.clock.now_ms()
    await cell.passes(12)
    (found,) = [at_ms for node, at_ms in cell.silent() if node == "a"]
    assert abs(found - heard_ms) <= 1000


async def test_a_node_that_joins_gets_its_full_timeout(cell: SilenceCell) -> None:
    await cell.passes(8)
    cell.nodes = [*cell.nodes, LiveNode("c", LIFE, 10)]
    await cell.passes(8)
    assert {node for node, _ in cell.silent()} == {"a", "b"}


async def test_heartbeats_of_other_incarnations_or_nodes_do_not_count(cell: SilenceCell) -> None:
    for _ in range(13):
        await cell.beat("a", by="b")
        await cell.beat("b", OTHER)
        await cell.beat("unknown")
        await cell.log.append(Partition("heartbeats"), [Record(b"a", b"junk")])
        await cell.passes(1)
    assert {node for node, _ in cell.silent()} == {"a", "b"}
    assert len(cell.watch._heard) == 2, "what is not live takes no memory"


async def test_forged_heartbeats_keep_a_dead_node_up_only_for_as_long_as_they_are_sent(
    cell: SilenceCell,
) -> None:
    # Nothing in a record says which user of the brokers wrote it.
    for _ in range(30):
        await cell.beat("a")
        await cell.passes(1)
    assert [node for node, _ in cell.silent()] == ["b"]
    await cell.passes(12)
    assert {node for node, _ in cell.silent()} == {"a", "b"}


async def test_the_same_silence_is_queued_once(cell: SilenceCell) -> None:
    await cell.passes(20)
    assert len(cell.silent()) == 2
    assert cell.metrics.silences._value.get() == 2


async def test_nodes_that_are_no_longer_live_are_forgotten(cell: SilenceCell) -> None:
    cell.nodes = []
    await cell.passes(20)
    assert cell.silent() == []
    await until(lambda: not cell.watch._heard, cell.clock)


class Away:
    """A log that can be made unreadable."""

    def __init__(self, log: MemoryLog, clock: ManualClock) -> None:
        self._log = log
        self._clock = clock
        self.away = asyncio.Event()
        self.away.set()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self.away.wait()
            return await getattr(self._log, name)(*args, **kwargs)

        return call


@pytest.fixture
async def away() -> Any:
    """A cell whose log goes away: set `cell.log.away` to have it back."""
    cell = SilenceCell()
    await cell.log.create_topics([HEARTBEATS])
    log: Any = Away(cell.log, cell.clock)
    cell.watch._log = log
    async with asyncio.TaskGroup() as group:
        work = group.create_task(cell.watch.run())
        for _ in range(30):
            await asyncio.sleep(0)
        yield cell, log.away
        work.cancel()


async def test_while_the_log_is_unavailable_no_node_becomes_silent(away: Any) -> None:
    cell, there = away
    await cell.passes(4)
    there.clear()
    await cell.passes(100)
    assert cell.silent() == []
    there.set()
    await cell.passes(1)
    assert cell.silent() == [], "they could not be heard"
    await cell.beat("a")
    await cell.passes(4)
    assert {node for node, _ in cell.silent()} == {"b"}, "4 s, 5 s that are not forgiven, and these"


async def test_a_heartbeat_that_was_written_but_not_read_yet_counts(away: Any) -> None:
    cell, there = away
    for _ in range(9):
        await cell.beat("b")
        await cell.passes(1)
    there.clear()
    await cell.beat("a")
    await cell.passes(3)
    there.set()
    await cell.passes(1)
    assert cell.silent() == [], "a was last read 13 s ago, but its heartbeat lay there unread"


async def test_after_a_loss_of_heartbeats_the_watch_continues_at_the_end_of_the_topic(
    cell: SilenceCell,
) -> None:
    for _ in range(30):
        await cell.beat("a")
        await cell.beat("b")
        await cell.passes(1)
    cell.log.cut(Partition(HEARTBEATS.name), 20)
    for _ in range(15):
        await cell.beat("a")
        await cell.passes(1)
    assert {node for node, _ in cell.silent()} == {"b"}, "b is silent, and a was heard"
    assert cell.metrics.heartbeats_lost._value.get() == 1


async def test_after_a_loss_of_heartbeats_every_node_gets_its_full_timeout_again(
    cell: SilenceCell,
) -> None:
    await cell.beat("a")
    await cell.beat("b")
    await cell.passes(9)
    cell.log.cut(Partition(HEARTBEATS.name), 1)
    await cell.passes(9)
    assert cell.silent() == []
    await cell.passes(3)
    assert {node for node, _ in cell.silent()} == {"a", "b"}
