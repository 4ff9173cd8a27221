"""Silence: measured by the shell's own time, from heartbeats that are the node's own."""

import asyncio
import io
from typing import Any

import pytest

from tests.support.toy_cell import until
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_scheduler.silence import LiveNode, SilenceWatch
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.decisions import NodeSilenceObservedV1
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import HEARTBEATS

LIFE, OTHER = "0" * 12, "1" * 12


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        telemetry = Telemetry("scheduler", now_ms=self.clock.now_ms, stream=io.StringIO())
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
async def rig() -> Any:
    rig = Rig()
    await rig.log.create_topics([HEARTBEATS])
    async with asyncio.TaskGroup() as group:
        work = group.create_task(rig.watch.run())
        for _ in range(30):
            await asyncio.sleep(0)
        yield rig
        work.cancel()


async def test_a_node_is_silent_when_its_pools_timeout_has_passed(rig: Rig) -> None:
    start_ms = rig.clock.now_ms()
    for _ in range(15):
        await rig.beat("a")
        await rig.passes(1)
    assert rig.silent() == [("b", start_ms)]


async def test_silence_counts_from_the_start_of_this_watch(rig: Rig) -> None:
    await rig.passes(10)
    assert rig.silent() == []
    await rig.passes(1)
    assert {node for node, _ in rig.silent()} == {"a", "b"}


async def test_the_observation_names_the_last_heartbeat(rig: Rig) -> None:
    await rig.passes(5)
    await rig.beat("a")
    await rig.passes(1)
    heard_ms = rig.clock.now_ms()
    await rig.passes(12)
    (found,) = [at_ms for node, at_ms in rig.silent() if node == "a"]
    assert abs(found - heard_ms) <= 1000


async def test_a_node_that_joins_gets_its_full_timeout(rig: Rig) -> None:
    await rig.passes(8)
    rig.nodes = [*rig.nodes, LiveNode("c", LIFE, 10)]
    await rig.passes(8)
    assert {node for node, _ in rig.silent()} == {"a", "b"}


async def test_heartbeats_of_other_incarnations_or_nodes_do_not_count(rig: Rig) -> None:
    for _ in range(13):
        await rig.beat("a", by="b")
        await rig.beat("b", OTHER)
        await rig.beat("unknown")
        await rig.log.append(Partition("heartbeats"), [Record(b"a", b"junk")])
        await rig.passes(1)
    assert {node for node, _ in rig.silent()} == {"a", "b"}
    assert len(rig.watch._heard) == 2, "what is not live takes no memory"


async def test_the_same_silence_is_queued_once(rig: Rig) -> None:
    await rig.passes(20)
    assert len(rig.silent()) == 2
    assert rig.metrics.silences._value.get() == 2


async def test_nodes_that_are_no_longer_live_are_forgotten(rig: Rig) -> None:
    rig.nodes = []
    await rig.passes(20)
    assert rig.silent() == []
    await until(lambda: not rig.watch._heard, rig.clock)


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
    """A rig whose log goes away: set `rig.log.away` to have it back."""
    rig = Rig()
    await rig.log.create_topics([HEARTBEATS])
    log: Any = Away(rig.log, rig.clock)
    rig.watch._log = log
    async with asyncio.TaskGroup() as group:
        work = group.create_task(rig.watch.run())
        for _ in range(30):
            await asyncio.sleep(0)
        yield rig, log.away
        work.cancel()


async def test_while_the_log_is_unavailable_no_node_becomes_silent(away: Any) -> None:
    rig, there = away
    await rig.passes(4)
    there.clear()
    await rig.passes(100)
    assert rig.silent() == []
    there.set()
    await rig.passes(1)
    assert rig.silent() == [], "they could not be heard"
    await rig.beat("a")
    await rig.passes(4)
    assert {node for node, _ in rig.silent()} == {"b"}, "4 s, 5 s that are not forgiven, and these"


async def test_a_heartbeat_that_was_written_but_not_read_yet_counts(away: Any) -> None:
    rig, there = away
    for _ in range(9):
        await rig.beat("b")
        await rig.passes(1)
    there.clear()
    await rig.beat("a")
    await rig.passes(3)
    there.set()
    await rig.passes(1)
    assert rig.silent() == [], "a was last read 13 s ago, but its heartbeat lay there unread"


async def test_after_a_loss_of_heartbeats_the_watch_continues_at_the_end_of_the_topic(
    rig: Rig,
) -> None:
    for _ in range(30):
        await rig.beat("a")
        await rig.beat("b")
        await rig.passes(1)
    rig.log.cut(Partition(HEARTBEATS.name), 20)
    for _ in range(15):
        await rig.beat("a")
        await rig.passes(1)
    assert {node for node, _ in rig.silent()} == {"b"}, "b is silent, and a was heard"
    assert rig.metrics.heartbeats_lost._value.get() == 1


async def test_after_a_loss_of_heartbeats_every_node_gets_its_full_timeout_again(rig: Rig) -> None:
    await rig.beat("a")
    await rig.beat("b")
    await rig.passes(9)
    rig.log.cut(Partition(HEARTBEATS.name), 1)
    await rig.passes(9)
    assert rig.silent() == []
    await rig.passes(3)
    assert {node for node, _ in rig.silent()} == {"a", "b"}
