"""Cells over replicas: each is led by one, all fold along, and none is left without a leader."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from tests.support.memory_cell import MemoryCell
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


class TwoCells(MemoryCell):
    """A log with two cells, and the group of those that lead them."""

    clock: ManualClock
    log: MemoryLog

    def __init__(self) -> None:
        super().__init__()
        self.chance = SeededChance(7)
        self.group = MemoryGroup()
        self.requested = dict.fromkeys(CELLS, 0)

    async def create(self) -> Self:
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

    def __init__(self, toy: TwoCells, log: EventLog | None = None) -> None:
        self.toy = toy
        self.lines = io.StringIO()
        self.member = toy.group.member()
        self.candidates: dict[str, Candidate[Any]] = {}
        self.ports = Ports(
            log=log or toy.log.handle(),
            clock=toy.clock,
            chance=toy.chance,
            telemetry=Telemetry("toy", now_ms=toy.clock.now_ms, stream=self.lines),
            elections=lambda partition: GroupElection(
                self.member, partition, toy.clock, pause_s=PAUSE_S
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
async def toy() -> TwoCells:
    return await TwoCells().create()


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run replicas until the end of the block; cancelled there, they leave no group."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in replicas]
        yield tasks
        for task in tasks:
            task.cancel()


async def led(toy: TwoCells, *want: tuple[Replica, set[str]]) -> None:
    await until(lambda: all(replica.leads() == cells for replica, cells in want), toy.clock)


async def test_two_cells_spread_over_two_replicas_and_move_when_a_replica_leaves(
    toy: TwoCells,
) -> None:
    first, second = Replica(toy), Replica(toy)
    async with running(first):
        await led(toy, (first, set(CELLS)))
        async with running(second) as (task,):
            await until(lambda: len(first.leads()) == len(second.leads()) == 1, toy.clock)
            assert first.leads() | second.leads() == set(CELLS)
            for cell in CELLS:
                await toy.ask(cell)
            await toy.until_answered(*CELLS)
            # Killed: the group notices later.
            task.cancel()
            await asyncio.sleep(0)
            toy.group.expire(second.member)
            await led(toy, (first, set(CELLS)))
            for cell in CELLS:
                await toy.ask(cell)
            await toy.until_answered(*CELLS)
        third = Replica(toy)
        async with running(third):
            await until(lambda: len(first.leads()) == len(third.leads()) == 1, toy.clock)
            for cell in CELLS:
                await toy.ask(cell)
            await toy.until_answered(*CELLS)


async def test_standbys_of_all_cells_follow_the_log(toy: TwoCells) -> None:
    first, second = Replica(toy), Replica(toy)
    async with running(first, second):
        await until(lambda: len(first.leads()) == len(second.leads()) == 1, toy.clock)
        for cell in CELLS:
            await toy.ask(cell)
        await toy.until_answered(*CELLS)
        for replica in (first, second):
            for cell in CELLS:
                assert replica.sample("term", cell=cell) == (await toy.fold(cell)).reader.term
        assert [replica.sample("leading", cell="main") for replica in (first, second)].count(1) == 1


async def test_a_batch_written_after_the_takeover_is_dropped_and_its_leader_is_fenced(
    toy: TwoCells,
) -> None:
    # The leader of `main` is stopped while its first cycle is on its way to the log.
    plan = FaultPlan(
        toy.clock, [Fault(topic="admissions", nth=3, kind=FaultKind.STALLED, after_s=30)]
    )
    slow, other = Replica(toy, FaultyLog(toy.log.handle(), plan)), Replica(toy)
    async with running(slow):
        await led(toy, (slow, set(CELLS)))
        await toy.ask("main")
        await until(lambda: bool(plan.happened))
        async with running(other):
            # Its session ends; nothing tells it so.
            toy.group.expire(slow.member)
            await until(lambda: other.leads() == set(CELLS))
            await toy.ask("main")
            await toy.until_answered("main")
            before = (await toy.fold("main")).dump()
            dropped = (await toy.fold("main")).reader.dropped
            toy.clock.advance(30)
            await until(lambda: ("main", "fenced") in slow.codes())
            after = await toy.fold("main")
            assert after.reader.dropped > dropped, "the batch did land"
            assert after.dump()["state"] == before["state"]
            assert after.dump()["digest"] == before["digest"]
            # It believes that the cell is its, but the group does not confirm it.
            toy.clock.advance(5 * PAUSE_S)
            for _ in range(100):
                await asyncio.sleep(0)
            assert slow.member.assigned.partitions == {0, 1}
            assert "main" not in slow.leads()
            assert other.leads() == set(CELLS)
            # Back in the group it shares again.
            toy.group.rebalance(slow.member)
            await until(lambda: len(slow.leads()) == len(other.leads()) == 1, toy.clock)
            for cell in CELLS:
                await toy.ask(cell)
            await toy.until_answered(*CELLS)


async def test_a_fenced_leader_leads_again_when_the_other_is_gone(toy: TwoCells) -> None:
    first, second = Replica(toy), Replica(toy)
    async with running(first):
        await led(toy, (first, set(CELLS)))
        async with running(second):
            toy.group.expire(first.member)
            await led(toy, (second, set(CELLS)))
            await until(lambda: first.leads() == set(), toy.clock)
        # Both were killed as far as the group knows; then the first is heard again.
        toy.group.expire(second.member)
        toy.group.rebalance(first.member)
        await led(toy, (first, set(CELLS)))
        await toy.ask("east")
        await toy.until_answered("east")


async def test_a_stopped_machine_leaves_only_its_own_cell_to_others(
    toy: TwoCells,
) -> None:
    first, second = Replica(toy), Replica(toy)
    async with running(first, second):
        await until(lambda: len(first.leads()) == len(second.leads()) == 1, toy.clock)
        await until(lambda: not first.ports.health.reasons, toy.clock)
        # No reader can pass this record: every machine that leads `east` stops.
        await toy.log.append(Partition("admissions", 1), [Record(b"east", b"junk")])
        await until(lambda: bool(first.codes("machine_stopped")), toy.clock)
        await until(lambda: bool(second.codes("machine_stopped")), toy.clock)
        for replica in (first, second):
            assert replica.codes("machine_stopped") == [("east", ForeignRecord.code)]
            assert list(replica.ports.health.reasons) == ["cell east"]
            assert replica.sample("stopped", cell="east") == 1
            assert replica.sample("stopped", cell="main") == 0
        await until(lambda: first.leads() | second.leads() == {"main"}, toy.clock)
        await toy.ask("main")
        await toy.until_answered("main")


async def test_a_process_ends_when_the_last_of_its_machines_has_stopped(toy: TwoCells) -> None:
    replica = Replica(toy)

    async def spoil() -> None:
        for number, cell in enumerate(CELLS):
            await led(toy, (replica, set(CELLS[number:])))
            record = Record(cell.encode(), b"junk")
            await toy.log.append(Partition("admissions", number), [record])

    async with asyncio.TaskGroup() as group:
        group.create_task(spoil())
        with pytest.raises(ForeignRecord):
            await replica.run()
    assert replica.codes("machine_stopped") == [(cell, ForeignRecord.code) for cell in CELLS]


async def test_samples_and_log_lines_name_their_cell(toy: TwoCells) -> None:
    replica = Replica(toy)
    async with running(replica):
        await led(toy, (replica, set(CELLS)))
        await toy.ask("east")
        await toy.until_answered("east")
        await until(lambda: bool(replica.sample("cycles_total", cell="east")), toy.clock)
    assert replica.sample("cycles_total", cell="main") == 0
    assert replica.sample("inputs_total", cell="east", topic="requests") == 1
    text = replica.ports.telemetry.exposition().decode()
    assert text.count("# TYPE yard_toy_cycles_total counter") == 1
    assert 'yard_toy_cycle_seconds_bucket{cell="east",le="0.001"}' in text
    lines = [json.loads(line) for line in replica.lines.getvalue().splitlines()]
    assert {line["cell"] for line in lines if line["event"] == "term_started"} == set(CELLS)


async def test_a_leader_that_must_restore_leaves_its_cell_to_a_standby(toy: TwoCells) -> None:
    plan = FaultPlan(toy.clock, [Fault(topic="admissions", nth=3, kind=FaultKind.LOST)])
    first, second = Replica(toy, FaultyLog(toy.log.handle(), plan)), Replica(toy)
    async with running(first):
        await led(toy, (first, set(CELLS)))
        async with running(second):
            await until(lambda: len(first.leads()) == len(second.leads()) == 1, toy.clock)
            (cell,) = first.leads()
            await toy.ask(cell)
            await until(lambda: (cell, "append_outcome_unknown") in first.codes(), toy.clock)
            # It pauses before it restores: meanwhile the standby takes the cell.
            await until(lambda: cell in second.leads())


def test_each_cell_knows_the_number_of_cells_in_the_log() -> None:
    assert [one.partitions for one in RuntimeSettings(cells=CELLS).served()] == [2, 2]
    assert [one.partitions for one in RuntimeSettings().served()] == [1]
    assert RuntimeSettings(partition=2).partitions == 3
