"""A real agent and both real machines: lost ledgers and assignments, clocks, refused joins."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cell_world import World, of, submission
from tests.support.node_agent import Deaf
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown
from yardmaster_eventlog.port import Partition, Record
from yardmaster_node_agent.agent import run, simulated_ports
from yardmaster_node_agent.agent_state import ReplicaState
from yardmaster_node_agent.errors import NodeTaken
from yardmaster_node_agent.joining import POLL_S
from yardmaster_node_agent.ledger import MemoryLedger
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import NodeLostV1, SlotsAllocatedV1, TaskEndedV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.node_events import NodeJoinedV1, SlotsReleasedV1
from yardmaster_schemas.events.requests import Enrollment, NodeEnrolRequestedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS, follows


class Skewed:
    """A host's clock with an offset from the other clocks."""

    def __init__(self, clock: ManualClock, skew_ms: int) -> None:
        self._clock = clock
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


@dataclass
class AgentHost:
    """The machine of a node in a `World`; its agents run one after another."""

    world: World
    folder: Path
    seed: int = 1
    lines: io.StringIO = field(default_factory=io.StringIO)
    health: Health = field(default_factory=Health)

    @asynccontextmanager
    async def agent(
        self, ledger: MemoryLedger | None = None, *, skew_ms: int = 0
    ) -> AsyncIterator[None]:
        clock = Skewed(self.world.clock, skew_ms)
        settings = Settings(node="n1", data_dir=self.folder, gpus=1, api=False)
        self.seed += 1
        telemetry = Telemetry("node_agent", now_ms=clock.now_ms, stream=self.lines)
        self.health = Health()
        ports = simulated_ports(
            settings,
            log=self.world.log,
            clock=clock,
            chance=SeededChance(self.seed),
            telemetry=telemetry,
            ledger=ledger,
            health=self.health,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run(ports, settings))
            yield
            running.cancel()

    async def until(self, true: Callable[[], bool], seconds: float = 200) -> None:
        """Advance the clock until `true` returns true."""
        clock = self.world.clock
        ends_s = clock.monotonic_s() + seconds
        while not true():
            assert clock.monotonic_s() < ends_s, (self.lines.getvalue(), self.health.reasons)
            await self.world.pass_time(0.1)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Lines of the agent's log."""
        lines = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


class Lossy:
    """A log whose broker acknowledges a node's assignments and loses `lose` batches of them."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.lose = 0
        self.lost: list[Record] = []

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        if self.lose and partition.topic == "assignments.n1":
            self.lose -= 1
            self.lost += batch
            end: int = await self._log.end(partition)
            return end
        appended: int = await self._log.append(partition, batch)
        return appended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Twice:
    """A log that writes every report to `node-events` and then does not answer, once each."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._answered: set[bytes] = set()
        self.written = 0

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        appended: int = await self._log.append(partition, batch)
        ids = {dict(record.headers)["ce_id"] for record in batch}
        if partition.topic == "node-events" and not ids <= self._answered:
            self._answered |= ids
            self.written += 1
            raise AppendOutcomeUnknown(topic=partition.topic, found="no answer")
        return appended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[AgentHost]:
    world = World(tmp_path / "snapshots")
    await world.create(node_timeout_s=60, start_timeout_s=15)
    async with world.running():
        yield AgentHost(world, tmp_path / "n1")


async def reported(world: World, kind: type[Event]) -> list[Envelope[Any]]:
    stored = await world.log.read(Partition("node-events"), 0, max_records=10_000)
    return [e for e in (decode(each.record) for each in stored) if isinstance(e.data, kind)]


async def refusals(world: World) -> list[RefusalCode]:
    commits = of(CycleCommittedV1, await world.decisions())
    return [one.code for commit in commits for one in commit.refused]


async def test_a_node_with_a_lost_ledger_and_a_clock_stepped_back_joins_when_its_timeout_has_passed(
    host: AgentHost,
) -> None:
    world = host.world
    async with host.agent(MemoryLedger()):
        await host.until(lambda: not host.health.reasons)
    started_s = world.clock.monotonic_s()
    async with host.agent(MemoryLedger(), skew_ms=-600_000):
        await host.until(lambda: bool(host.logged("join_refused")))
        assert "node_taken" in host.health.reasons["node"]
        await host.until(lambda: not host.health.reasons)
        assert world.clock.monotonic_s() - started_s < 60 + 2 * POLL_S, "it joins at the loss"
        await world.request(submission(0))
        await world.happens(lambda d: bool(of(SlotsAllocatedV1, d)))
        # Its details are not written here, so the agent releases the slots at once.
        await world.happens(lambda d: bool(of(TaskEndedV1, d)))
    assert (await reported(world, SlotsReleasedV1))[0].data.never_started
    assert await refusals(world) == [RefusalCode.NODE_TAKEN]
    await world.prove()


async def test_of_two_agents_with_one_name_the_second_ends_and_the_first_is_undisturbed(
    host: AgentHost,
) -> None:
    """Each end of the second is followed by a start, as a supervisor does."""
    world, ledgers = host.world, (MemoryLedger(), MemoryLedger())
    ends = 0
    async with host.agent(ledgers[0]):
        await host.until(lambda: not host.health.reasons)
        first = (await reported(world, NodeJoinedV1))[0].data.incarnation
        began_s = world.clock.monotonic_s()
        while world.clock.monotonic_s() - began_s < 300:
            with pytest.raises(ExceptionGroup) as ended:
                async with host.agent(ledgers[1]):
                    await host.until(lambda: False, 300)
            assert [type(error) for error in ended.value.exceptions] == [NodeTaken]
            ends += 1
    joins = await reported(world, NodeJoinedV1)
    assert 1 < ends <= 300 / (2 * POLL_S) + 1, "at most one join in 20 s"
    assert sum(join.data.incarnation != first for join in joins) == ends
    assert of(NodeLostV1, await world.decisions()) == []
    assert set(await refusals(world)) == {RefusalCode.NODE_TAKEN}
    refused = len(host.logged("join_refused"))
    async with host.agent(ledgers[1]):
        await host.until(lambda: len(host.logged("join_refused")) > refused)
        await host.until(lambda: not host.health.reasons)
    (lost,) = of(NodeLostV1, await world.decisions())
    assert (lost.incarnation, lost.cause) == (first, "silent"), "then the name is free"
    await world.prove()


async def test_a_copy_of_a_ledger_ends_and_the_agent_of_the_original_is_undisturbed(
    host: AgentHost,
) -> None:
    """Each end of the copy is followed by a start, as a supervisor does."""
    world, original, copy = host.world, MemoryLedger(), MemoryLedger("another place")
    async with host.agent(original):
        await host.until(lambda: not host.health.reasons)
        first = (await reported(world, NodeJoinedV1))[0].data.incarnation
        copy._lines = list(original._lines)
        for _ in range(3):
            with pytest.raises(ExceptionGroup) as ended:
                async with host.agent(copy):
                    await host.until(lambda: False, 300)
            assert [type(error) for error in ended.value.exceptions] == [NodeTaken]
    assert len(host.logged("ledger_copied")) == 1, "then the copy has a ledger of its own"
    joins = {join.data.incarnation for join in await reported(world, NodeJoinedV1)}
    assert len(joins - {first}) == 1
    assert of(NodeLostV1, await world.decisions()) == []
    assert set(await refusals(world)) == {RefusalCode.NODE_TAKEN}
    await world.prove()


async def push(
    world: World, join: Envelope[Any], *, epoch: int, event: Event | None = None
) -> None:
    """Write a record in the name of an agent, with another epoch."""
    data = event or join.data
    forged = replace(join, type=data.TYPE, version=data.VERSION, epoch=epoch, seq=0, data=data)
    await world.log.append(Partition("node-events"), [encode(forged, "main")])


@pytest.mark.parametrize("given", [False, True])
async def test_a_ledger_that_came_back_from_a_backup_joins_as_its_next_incarnation(
    host: AgentHost, given: bool
) -> None:
    world, ledger = host.world, MemoryLedger()
    async with host.agent(ledger):
        await host.until(lambda: not host.health.reasons)
        if given:
            await world.request(submission(0))
            await world.happens(lambda d: bool(of(TaskEndedV1, d)))
    join = (await reported(world, NodeJoinedV1))[-1]
    await push(world, join, epoch=join.epoch + 5)
    async with host.agent(ledger):
        await host.until(lambda: bool(host.logged("incarnation_over")))
        await host.until(lambda: not host.health.reasons)
        await world.run_for_half_a_second()
    last = (await reported(world, NodeJoinedV1))[-1]
    assert follows(last.data.incarnation, join.data.incarnation)
    assert (await refusals(world))[-1] is RefusalCode.REPEATED, "and the next join is accepted"
    await world.prove()


@pytest.mark.parametrize("ahead_ms", [1, 59 * 60_000, MAX_EPOCH_AHEAD_MS + 60_000, 2**52])
async def test_a_forged_epoch_silences_no_agent_for_longer_than_it_takes_to_join_again(
    host: AgentHost, ahead_ms: int
) -> None:
    world = host.world
    async with host.agent(MemoryLedger()):
        await host.until(lambda: not host.health.reasons)
        await world.run_for_half_a_second()
        join = (await reported(world, NodeJoinedV1))[-1]
        await push(world, join, epoch=world.clock.now_ms() + ahead_ms)
        await world.run_for_half_a_second()
        refused = ahead_ms > MAX_EPOCH_AHEAD_MS
        assert await refusals(world) == [RefusalCode.EPOCH_AHEAD] * refused
        began_s = world.clock.monotonic_s()
        # Its details are not written here, so the agent reports that it cannot start.
        await world.request(submission(0))
        ended = False

        async def look() -> None:
            nonlocal ended
            ended = bool(of(TaskEndedV1, await world.decisions()))

        while not ended:
            assert world.clock.monotonic_s() - began_s < 4 * POLL_S, host.lines.getvalue()
            await world.run_for_half_a_second()
            await look()
    lost = of(NodeLostV1, await world.decisions())
    assert [one.cause for one in lost] == ([] if refused else ["replaced"])
    await world.prove()


async def test_a_report_that_is_in_the_log_twice_does_not_end_the_incarnation(
    host: AgentHost,
) -> None:
    world = host.world
    twice = Twice(world.log)
    world.log = twice  # type: ignore[assignment]
    async with host.agent(MemoryLedger()):
        await host.until(lambda: not host.health.reasons)
        await world.request(submission(0))
        await world.happens(lambda d: bool(of(TaskEndedV1, d)))
        began_s = world.clock.monotonic_s()
        await host.until(lambda: world.clock.monotonic_s() - began_s > 4 * POLL_S)
    assert twice.written > 2
    assert RefusalCode.REPEATED in await refusals(world)
    assert host.logged("incarnation_over") == []


async def test_an_agent_is_not_ready_before_its_join_is_in_the_log(host: AgentHost) -> None:
    world, ledger = host.world, MemoryLedger()
    async with host.agent(ledger):
        await host.until(lambda: not host.health.reasons)
        await world.request(submission(0))
        await world.happens(lambda d: bool(of(TaskEndedV1, d)))
    joins = len(await reported(world, NodeJoinedV1))
    deaf = Deaf(world.log)
    world.log = deaf  # type: ignore[assignment]
    deaf.deaf_to = {"node-events"}
    async with host.agent(ledger):
        await deaf.refused_one.wait()
        await host.until(lambda: bool(host.health.reasons), 1)
        assert "node" in host.health.reasons
        deaf.deaf_to = set()
        await host.until(lambda: not host.health.reasons)
    assert len(await reported(world, NodeJoinedV1)) == joins + 1


async def test_a_node_that_is_not_enrolled_is_not_ready_until_it_is(host: AgentHost) -> None:
    world = host.world
    bounds = Enrollment(pool="default", gpus=1)
    await world.request(NodeEnrolRequestedV1(node="n2", enrollment=bounds))
    await world.run_for_half_a_second()
    async with host.agent(MemoryLedger()):
        await host.until(lambda: bool(host.logged("join_refused")))
        assert "yard nodes enroll n1" in host.health.reasons["node"]
        await world.request(NodeEnrolRequestedV1(node="n1", enrollment=bounds))
        await host.until(lambda: not host.health.reasons)
        await world.request(submission(0))
        await world.happens(lambda d: bool(of(SlotsAllocatedV1, d)))
    assert set(await refusals(world)) == {RefusalCode.NOT_ENROLLED}


async def test_a_lost_assignment_releases_its_slots_and_is_not_started_when_it_arrives_late(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "snapshots")
    lossy = Lossy(world.log)
    world.log = lossy  # type: ignore[assignment]
    await world.create(node_timeout_s=60, start_timeout_s=15)
    host, ledger = AgentHost(world, tmp_path / "n1"), MemoryLedger()
    async with world.running(), host.agent(ledger):
        await host.until(lambda: not host.health.reasons)
        lossy.lose = 1
        await world.request(submission(0))
        await world.happens(lambda d: bool(of(SlotsAllocatedV1, d)))
        await host.until(lambda: bool(lossy.lost))
        await host.until(lambda: bool(host.logged("assignment_lost")))
        assert host.logged("assignment_lost")[0]["level"] == "error"
        await world.happens(lambda d: len(of(SlotsAllocatedV1, d)) == 2)
        released = [e.data for e in await reported(world, SlotsReleasedV1)]
        assert [(r.attempt, r.never_started) for r in released][:1] == [(1, True)]
        await world.log.append(Partition("assignments.n1"), lossy.lost)
        await world.run_for_half_a_second()
    state = ledger.load()
    assert state is not None
    late = [r for r in state.replicas.values() if r.key.attempt == 1]
    assert [(r.state, r.identity) for r in late] == [(ReplicaState.RELEASED, None)]
    assert await refusals(world) == []
    await world.prove()
