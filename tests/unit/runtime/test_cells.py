"""Cells over replicas: each is led by one, all fold along, and none is left without a leader."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.toy_cell import answers, until
from tests.support.toy_machine import ToyMachine, job_id, request
from yardmaster_core.errors import ForeignRecord
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.membership import MemoryGroup
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.cells import run_cells
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.candidate import Candidate
from yardmaster_runtime.machine.election import GroupElection
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.service import Ports, candidate
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import TOPICS

CELLS = ("main", "east")
PAUSE_S = 6.0


class World:
    """A log with two cells, and the group of those that lead them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.chance = SeededChance(7)
        self.log = MemoryLog(self.clock)
        self.group = MemoryGroup()
        self.requested = dict.fromkeys(CELLS, 0)

    async def create(self) -> "World":
        await self.log.create_topics(list(TOPICS.values()), partitions=len(CELLS))
        return self

    async def ask(self, cell: str) -> None:
        """One more request of a cell."""
        record = encode(request(self.requested[cell]), cell)
        self.requested[cell] += 1
        await self.log.append(Partition("requests", CELLS.index(cell)), [record])

    async def fold(self, cell: str) -> Fold[Any]:
        partition = CELLS.index(cell)
        fold: Fold[Any] = Fold(self.log, ToyMachine.quota(), cell, partition=partition)
        await fold.catch_up()
        return fold

    async def answered(self, cell: str) -> bool:
        """Whether each request of the cell was answered once."""
        return answers(await self.fold(cell)) == {job_id(n): 1 for n in range(self.requested[cell])}

    async def until_answered(self, *cells: str) -> None:
        for cell in cells:
            for _ in range(400):
                if await self.answered(cell):
                    break
                self.clock.advance(0.02)
                await asyncio.sleep(0)
            assert await self.answered(cell), cell


class Replica:
    """One process of the service, while it runs; `end` leaves in order, `kill` does not."""

    def __init__(self, world: World, log: EventLog | None = None) -> None:
        self.world = world
        self.lines = io.StringIO()
        self.member = world.group.member()
        self.candidates: dict[str, Candidate[Any]] = {}
        self.ports = Ports(
            log=log or world.log.handle(),
            clock=world.clock,
            chance=world.chance,
            telemetry=Telemetry("toy", now_ms=world.clock.now_ms, stream=self.lines),
            elections=lambda partition: GroupElection(
                self.member, partition, world.clock, pause_s=PAUSE_S
            ),
        )

    async def run(self) -> None:
        await run_cells(self.ports, RuntimeSettings(cells=CELLS), self._serve)

    async def _serve(self, ports: Ports, settings: RuntimeSettings) -> None:
        machine = candidate(ToyMachine.quota(), ports, settings)
        self.candidates[settings.cell] = machine
        await machine.run()

    def leads(self) -> set[str]:
        return {cell for cell, each in self.candidates.items() if each.leader is not None}

    def codes(self, event: str = "leading_ended") -> list[tuple[str, str]]:
        lines = map(json.loads, self.lines.getvalue().splitlines())
        return [(line["cell"], line["code"]) for line in lines if line["event"] == event]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.ports.telemetry.registry.get_sample_value(f"yard_toy_{name}", labels)


@pytest.fixture
async def world() -> World:
    return await World().create()


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run replicas until the end of the block; cancelled there, they leave no group."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in replicas]
        yield tasks
        for task in tasks:
            task.cancel()


async def led(world: World, *want: tuple[Replica, set[str]]) -> None:
    await until(lambda: all(replica.leads() == cells for replica, cells in want), world.clock)


async def test_two_cells_spread_over_two_replicas_and_move_when_a_replica_leaves(
    world: World,
) -> None:
    first, second = Replica(world), Replica(world)
    async with running(first):
        await led(world, (first, set(CELLS)))
        async with running(second) as (task,):
            await until(lambda: len(first.leads()) == len(second.leads()) == 1, world.clock)
            assert first.leads() | second.leads() == set(CELLS)
            for cell in CELLS:
                await world.ask(cell)
            await world.until_answered(*CELLS)
            # Killed: the group notices later.
            task.cancel()
            await asyncio.sleep(0)
            world.group.expire(second.member)
            await led(world, (first, set(CELLS)))
            for cell in CELLS:
                await world.ask(cell)
            await world.until_answered(*CELLS)
        third = Replica(world)
        async with running(third):
            await until(lambda: len(first.leads()) == len(third.leads()) == 1, world.clock)
            for cell in CELLS:
                await world.ask(cell)
            await world.until_answered(*CELLS)


async def test_standbys_of_all_cells_follow_the_log(world: World) -> None:
    first, second = Replica(world), Replica(world)
    async with running(first, second):
        await until(lambda: len(first.leads()) == len(second.leads()) == 1, world.clock)
        for cell in CELLS:
            await world.ask(cell)
        await world.until_answered(*CELLS)
        for replica in (first, second):
            for cell in CELLS:
                assert replica.sample("term", cell=cell) == (await world.fold(cell)).reader.term
        assert [replica.sample("leading", cell="main") for replica in (first, second)].count(1) == 1


async def test_a_batch_written_after_the_takeover_is_dropped_and_its_leader_is_fenced(
    world: World,
) -> None:
    # The leader of `main` is stopped while its first cycle is on its way to the log.
    plan = FaultPlan(
        world.clock, [Fault(topic="admissions", nth=3, kind=FaultKind.STALLED, after_s=30)]
    )
    slow, other = Replica(world, FaultyLog(world.log.handle(), plan)), Replica(world)
    async with running(slow):
        await led(world, (slow, set(CELLS)))
        await world.ask("main")
        await until(lambda: bool(plan.happened))
        async with running(other):
            # Its session ends; nothing tells it so.
            world.group.expire(slow.member)
            await until(lambda: other.leads() == set(CELLS))
            await world.ask("main")
            await world.until_answered("main")
            before = (await world.fold("main")).dump()
            dropped = (await world.fold("main")).reader.dropped
            world.clock.advance(30)
            await until(lambda: ("main", "fenced") in slow.codes())
            after = await world.fold("main")
            assert after.reader.dropped > dropped, "the batch did land"
            assert after.dump()["state"] == before["state"]
            assert after.dump()["digest"] == before["digest"]
            # It believes that the cell is its, but the group does not confirm it.
            world.clock.advance(5 * PAUSE_S)
            for _ in range(100):
                await asyncio.sleep(0)
            assert slow.member.assigned.partitions == {0, 1}
            assert "main" not in slow.leads()
            assert other.leads() == set(CELLS)
            # Back in the group it shares again.
            world.group.rebalance(slow.member)
            await until(lambda: len(slow.leads()) == len(other.leads()) == 1, world.clock)
            for cell in CELLS:
                await world.ask(cell)
            await world.until_answered(*CELLS)


async def test_a_fenced_leader_leads_again_when_the_other_is_gone(world: World) -> None:
    first, second = Replica(world), Replica(world)
    async with running(first):
        await led(world, (first, set(CELLS)))
        async with running(second):
            world.group.expire(first.member)
            await led(world, (second, set(CELLS)))
            await until(lambda: first.leads() == set(), world.clock)
        # Both were killed as far as the group knows; then the first is heard again.
        world.group.expire(second.member)
        world.group.rebalance(first.member)
        await led(world, (first, set(CELLS)))
        await world.ask("east")
        await world.until_answered("east")


async def test_a_stopped_machine_leaves_only_its_own_cell_to_others(
    world: World,
) -> None:
    first, second = Replica(world), Replica(world)
    async with running(first, second):
        await until(lambda: len(first.leads()) == len(second.leads()) == 1, world.clock)
        await until(lambda: not first.ports.health.reasons, world.clock)
        # No reader can pass this record: every machine that leads `east` stops.
        await world.log.append(Partition("admissions", 1), [Record(b"east", b"junk")])
        await until(lambda: bool(first.codes("machine_stopped")), world.clock)
        await until(lambda: bool(second.codes("machine_stopped")), world.clock)
        for replica in (first, second):
            assert replica.codes("machine_stopped") == [("east", ForeignRecord.code)]
            assert list(replica.ports.health.reasons) == ["cell east"]
            assert replica.sample("stopped", cell="east") == 1
            assert replica.sample("stopped", cell="main") == 0
        await until(lambda: first.leads() | second.leads() == {"main"}, world.clock)
        await world.ask("main")
        await world.until_answered("main")


async def test_a_process_ends_when_the_last_of_its_machines_has_stopped(world: World) -> None:
    replica = Replica(world)

    async def spoil() -> None:
        for number, cell in enumerate(CELLS):
            await led(world, (replica, set(CELLS[number:])))
            record = Record(cell.encode(), b"junk")
            await world.log.append(Partition("admissions", number), [record])

    async with asyncio.TaskGroup() as group:
        group.create_task(spoil())
        with pytest.raises(ForeignRecord):
            await replica.run()
    assert replica.codes("machine_stopped") == [(cell, ForeignRecord.code) for cell in CELLS]


async def test_samples_and_log_lines_name_their_cell(world: World) -> None:
    replica = Replica(world)
    async with running(replica):
        await led(world, (replica, set(CELLS)))
        await world.ask("east")
        await world.until_answered("east")
        await until(lambda: bool(replica.sample("cycles_total", cell="east")), world.clock)
    assert replica.sample("cycles_total", cell="main") == 0
    assert replica.sample("inputs_total", cell="east", topic="requests") == 1
    text = replica.ports.telemetry.exposition().decode()
    assert text.count("# TYPE yard_toy_cycles_total counter") == 1
    assert 'yard_toy_cycle_seconds_bucket{cell="east",le="0.001"}' in text
    lines = [json.loads(line) for line in replica.lines.getvalue().splitlines()]
    assert {line["cell"] for line in lines if line["event"] == "term_started"} == set(CELLS)


async def test_a_leader_that_must_restore_leaves_its_cell_to_a_standby(world: World) -> None:
    plan = FaultPlan(world.clock, [Fault(topic="admissions", nth=3, kind=FaultKind.LOST)])
    first, second = Replica(world, FaultyLog(world.log.handle(), plan)), Replica(world)
    async with running(first):
        await led(world, (first, set(CELLS)))
        async with running(second):
            await until(lambda: len(first.leads()) == len(second.leads()) == 1, world.clock)
            (cell,) = first.leads()
            await world.ask(cell)
            await until(lambda: (cell, "append_outcome_unknown") in first.codes(), world.clock)
            # It pauses before it restores: meanwhile the standby takes the cell.
            await until(lambda: cell in second.leads())


def test_each_cell_knows_the_number_of_cells_in_the_log() -> None:
    assert [one.partitions for one in RuntimeSettings(cells=CELLS).served()] == [2, 2]
    assert [one.partitions for one in RuntimeSettings().served()] == [1]
    assert RuntimeSettings(partition=2).partitions == 3
