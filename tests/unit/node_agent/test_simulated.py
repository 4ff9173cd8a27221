"""An agent with simulated tasks, on a clock that the test moves."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.mps import FakeDaemon, mps_limiter
from tests.support.node_agent import AgentCell, sh
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_node_agent.agent import Ports, run, simulated_ports
from yardmaster_node_agent.executors.port import Execution, Launch
from yardmaster_node_agent.executors.simulated import SimulatedExecutor
from yardmaster_node_agent.ledger import MemoryLedger
from yardmaster_node_agent.renewals import MemoryRenewals
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.cut import CutPlan
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.machine import LogCutV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    ExecutorKind,
    NodeJoinedV1,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskPreparingV1,
    TaskStartedV1,
)
from yardmaster_schemas.sources import next_incarnation
from yardmaster_schemas.topics import CUTS, HEARTBEATS, assignments


@dataclass
class SimulatedHost:
    """The objects that several agents use in turn: ledger, renewals, executor, clock."""

    cell: AgentCell
    clock: ManualClock
    ledger: MemoryLedger
    renewals: MemoryRenewals
    executor: SimulatedExecutor
    seed: int = 1

    def ports(self) -> Ports:
        return simulated_ports(
            self.cell.settings,
            log=self.cell.log,
            clock=self.clock,
            chance=SeededChance(self.seed),
            telemetry=Telemetry("node_agent", now_ms=self.clock.now_ms, level="warning"),
            ledger=self.ledger,
            renewals=self.renewals,
            executor=self.executor,
        )

    async def run_due(self) -> None:
        """Run every task that is due now."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def after(self, seconds: float) -> None:
        """Advance the clock in steps, and run every due task at each step."""
        while seconds > 0:
            await self.run_due()
            self.clock.advance(min(seconds, 0.1))
            seconds -= 0.1
        await self.run_due()


@pytest.fixture
async def host(tmp_path: Path) -> SimulatedHost:
    clock = ManualClock()
    cell = await AgentCell(tmp_path / "unused", clock=clock).open()
    cell.configure(api=False)
    return SimulatedHost(cell, clock, MemoryLedger(), MemoryRenewals(), SimulatedExecutor(clock))


async def test_a_task_takes_as_long_as_its_environment_sets(host: SimulatedHost) -> None:
    cell = host.cell
    async with cell.agent(host.ports()):
        task = await cell.allocate(sh("x", env={"SIM_SECONDS": "5", "SIM_EXIT": "3"}))
        await host.after(4)
        assert await cell.of_type(TaskStartedV1, task)
        assert not await cell.of_type(TaskExitedV1, task)
        await host.after(2)
        assert [e.exit_code for e in await cell.of_type(TaskExitedV1, task)] == [3]
        assert await cell.of_type(SlotsReleasedV1, task)
    await cell.assert_honest()


class Slow:
    """An executor whose starts wait for their turn to end."""

    def __init__(self, inner: SimulatedExecutor) -> None:
        self._inner = inner
        self.turns = asyncio.Semaphore(0)

    async def start(self, launch: Launch) -> Execution:
        await self.turns.acquire()
        return await self._inner.start(launch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_tasks_that_wait_for_the_starts_of_others_report_them_while_these_end(
    host: SimulatedHost,
) -> None:
    cell, slow = host.cell, Slow(host.executor)
    cell.configure(starts_at_once=1)
    async with cell.agent(replace(host.ports(), executor=slow)):
        tasks = [await cell.allocate(sh("x")) for _ in range(3)]
        await host.after(40)
        assert not await cell.of_type(TaskPreparingV1), "no start has ended"
        slow.turns.release()
        await host.after(40)
        (waits,) = await cell.of_type(TaskPreparingV1)
        assert (waits.task_id, waits.starts_ahead) == (tasks[2], 1)


async def test_a_signalled_task_saves_takes_its_time_and_ends(host: SimulatedHost) -> None:
    cell = host.cell
    env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "2", "SIM_CHECKPOINT": "s3://a/b"}
    async with cell.agent(host.ports()):
        task = await cell.allocate(sh("x", env=env))
        await host.after(1)
        await cell.stop(task, grace_s=30)
        await host.after(1)
        assert [c.step for c in await cell.of_type(CheckpointDoneV1, task)] == [1]
        assert not await cell.of_type(TaskExitedV1, task)
        await host.after(2)
        assert [e.exit_code for e in await cell.of_type(TaskExitedV1, task)] == [0]


async def test_an_agent_stops_a_task_for_a_policy_that_it_does_not_know(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    async with cell.agent(host.ports()):
        task = await cell.allocate(sh("x", env={"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "2"}))
        await host.after(1)
        await cell.preempt(task, "toy", grace_s=30)
        await host.after(3)
        assert await cell.of_type(TaskExitedV1, task)
        assert await cell.of_type(SlotsReleasedV1, task)


async def test_a_task_that_ignores_the_signal_is_killed_at_the_deadline(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    async with cell.agent(host.ports()):
        env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "-1"}
        task = await cell.allocate(sh("x", env=env))
        await host.after(1)
        await cell.stop(task, grace_s=30)
        await host.after(29)
        assert not await cell.of_type(TaskExitedV1, task), "its grace is not over"
        await host.after(2)
        assert [e.signal for e in await cell.of_type(TaskExitedV1, task)] == [9]


async def test_a_deadline_by_a_clock_that_is_ahead_gives_the_grace_and_no_more(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    async with cell.agent(host.ports()):
        env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "-1"}
        task = await cell.allocate(sh("x", env=env))
        await host.after(1)
        host.clock._now_ms += 3_600_000  # the scheduler's hour is later
        stop = cell.stop(task, grace_s=10)
        await stop
        host.clock._now_ms -= 3_600_000
        await host.after(12)
        assert await cell.of_type(TaskExitedV1, task)


async def test_an_agent_ends_when_cancelled_however_soon_after_the_loss_of_its_node(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    for steps in range(40):
        running = asyncio.create_task(run(host.ports(), cell.settings))
        await host.after(1)
        await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
        await cell.lose(await cell.incarnation())
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await host.after(1)
        assert running.cancelled(), (
            f"cancelled {steps} steps of the loop after the loss, it still runs"
        )
    assert len({e.incarnation for e in await cell.of_type(NodeJoinedV1)}) > 1


async def test_a_simulated_task_keeps_running_while_there_is_no_agent(host: SimulatedHost) -> None:
    cell = host.cell
    async with cell.agent(host.ports()):
        task = await cell.allocate(sh("x", env={"SIM_SECONDS": "5"}))
        await host.after(1)
    host.ledger.crash()
    host.clock.advance(60)
    async with cell.agent(host.ports()) as joined:
        assert len(joined.running) == 1
        await host.after(1)
        assert await cell.of_type(SlotsReleasedV1, task)
    # The ledger lost that the start was reported: it is reported again, with the same identity.
    assert len(set(await cell.of_type(TaskStartedV1, task))) == 1
    await cell.assert_honest()


async def test_replicas_of_a_machine_that_lost_power_are_lost_with_the_incarnation(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    async with cell.agent(host.ports()) as old:
        task = await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
    host.ledger.crash()
    host.executor, host.seed = SimulatedExecutor(host.clock), 2
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(run(host.ports(), cell.settings))
        await host.after(2)
        new = (await cell.of_type(NodeJoinedV1))[-1]
        assert (new.incarnation != old.incarnation, new.running) == (True, ())
        agent.cancel()
    assert not await cell.of_type(TaskExitedV1, task), "it did not fail"
    assert not await cell.of_type(SlotsReleasedV1, task)
    await cell.assert_honest()


async def test_a_node_without_assignments_repeats_its_join(host: SimulatedHost) -> None:
    cell = host.cell
    cell.configure(ask_again_s=20)
    async with cell.agent(host.ports()) as joined:
        await host.after(19)
        assert len(await cell.of_type(NodeJoinedV1)) == 1
        await host.after(22)
        assert await cell.of_type(NodeJoinedV1) == [joined] * 3
        await cell.allocate(sh("x", env={"SIM_SECONDS": "1"}))
        await host.after(60)
        assert await cell.of_type(NodeJoinedV1) == [joined] * 3, "it is in"


async def test_a_fraction_does_not_start_when_what_enforces_it_has_ended(
    host: SimulatedHost,
) -> None:
    cell, daemon = host.cell, FakeDaemon()
    ports = replace(host.ports(), limiter=mps_limiter(daemon))
    run_ = sh("x", env={"SIM_SECONDS": "500"})
    async with cell.agent(ports):
        first = await cell.allocate(run_, slots=[(0,)], gpu_milli=500)
        await host.after(1)
        assert await cell.of_type(TaskStartedV1, first)
        daemon.running = False
        fraction = await cell.allocate(run_, slots=[(1,)], gpu_milli=500)
        whole = await cell.allocate(run_, slots=[(2,)], gpu_milli=1000)
        await host.after(1)
        assert await cell.of_type(TaskStartedV1, whole)
        (released,) = await cell.of_type(SlotsReleasedV1, fraction)
        assert (released.never_started, released.failure) == (True, "other")
        assert not await cell.of_type(SlotsReleasedV1, first), "what runs continues"


async def test_a_lost_node_kills_all_replicas(host: SimulatedHost) -> None:
    cell = host.cell
    async with cell.agent(host.ports()) as old:
        await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
        await cell.lose(old.incarnation)
        await host.after(1)
        joins = await cell.of_type(NodeJoinedV1)
        assert [join.running for join in joins] == [(), ()]
        assert await host.executor.sweep() == 0


def shorten(cell: AgentCell, partition: Partition, end: int) -> None:
    """Lose the end of a topic; agents that start later have a handle that has read nothing."""
    assert isinstance(cell.log, MemoryLog)
    cell.log.cut(partition, end)
    cell.log = cell.log.handle()


async def run_for(host: SimulatedHost, seconds: float) -> None:
    """Run an agent for a time; raise what ends it earlier."""
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(run(host.ports(), host.cell.settings))
        await host.after(seconds)
        agent.cancel()


async def record_cut(cell: AgentCell, generation: int) -> None:
    event = LogCutV1(generation=generation, cycles=(), kept=())
    plan = CutPlan(cell="main", number=0, event=event, broken=None)
    await cell.log.append(Partition(CUTS.name), [plan.record(0)])


@pytest.mark.parametrize("grown", [False, True])
async def test_an_agent_whose_assignments_lost_what_its_ledger_names_joins_again_without_replicas(
    host: SimulatedHost, grown: bool
) -> None:
    cell = host.cell
    place = Partition(assignments("n1").name)
    async with cell.agent(host.ports()) as old:
        await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
    (lost,) = await cell.log.read(place, await cell.log.end(place) - 1)
    shorten(cell, place, lost.offset)
    if grown:
        other = replace(lost.record, key=b"n1-other")
        await cell.log.append(place, [other, other])
    await run_for(host, 5)
    joins = await cell.of_type(NodeJoinedV1)
    assert [join.running for join in joins[1:]] == [()], "it joins once"
    assert joins[-1].incarnation == next_incarnation(old.incarnation)
    assert await host.executor.sweep() == 0, "what ran was killed before the join"
    await run_for(host, 5)
    again = (await cell.of_type(NodeJoinedV1))[-1]
    assert again.incarnation == joins[-1].incarnation, "a restart begins no further incarnation"


async def test_an_agent_whose_assignments_lose_what_it_has_read_joins_again_and_runs_new_ones(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    place = Partition(assignments("n1").name)
    assert isinstance(cell.log, MemoryLog)
    async with cell.agent(host.ports()) as old:
        void = await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
        (lost,) = await cell.log.read(place, await cell.log.end(place) - 1)
        before = await cell.log.end(Partition(HEARTBEATS.name))
        cell.log.cut(place, lost.offset)
        await host.after(60)
        new = (await cell.of_type(NodeJoinedV1))[-1]
        assert (new.incarnation, new.running) == (next_incarnation(old.incarnation), ())
        assert await cell.log.end(Partition(HEARTBEATS.name)) > before + 10, "it sends heartbeats"
        # The relay copies again what the topic lost: it is void.
        await cell.log.append(place, [lost.record])
        started = await cell.allocate(sh("y", env={"SIM_SECONDS": "500"}))
        await host.after(60)
    starts = [event.task_id for event in await cell.of_type(TaskStartedV1)]
    assert starts == [void, started]


async def test_an_agent_that_has_read_nothing_notices_that_its_assignments_lost_records(
    host: SimulatedHost,
) -> None:
    """Otherwise it would wait for an offset that other records have by then."""
    cell = host.cell
    place = Partition(assignments("n1").name)
    async with cell.agent(host.ports()) as old:
        await cell.allocate(sh("x", env={"SIM_SECONDS": "1"}))
        await host.after(5)
        await cell.lose(old.incarnation)
        await host.after(60)
        assert len(await cell.of_type(NodeJoinedV1)) == 2
    (lost,) = await cell.log.read(place, await cell.log.end(place) - 1)
    shorten(cell, place, lost.offset)
    await cell.log.append(place, [replace(lost.record, key=b"n1-other")] * 2)
    await run_for(host, 5)
    joins = await cell.of_type(NodeJoinedV1)
    assert joins[-1].incarnation == next_incarnation(next_incarnation(old.incarnation))


async def test_after_a_cut_of_the_log_an_agent_begins_another_incarnation(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    async with cell.agent(host.ports()) as old:
        await cell.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await host.after(1)
    await record_cut(cell, 1)
    cell.log = cell.log.handle()  # type: ignore[attr-defined]
    await run_for(host, 2)
    new = (await cell.of_type(NodeJoinedV1))[-1]
    assert (new.incarnation != old.incarnation, new.running) == (True, ())
    await run_for(host, 2)
    again = (await cell.of_type(NodeJoinedV1))[-1]
    assert again.incarnation == new.incarnation, "the generation is in its ledger"


async def test_an_agent_does_not_start_on_a_log_that_lost_the_record_of_a_cut(
    host: SimulatedHost,
) -> None:
    cell = host.cell
    await record_cut(cell, 1)
    async with cell.agent(host.ports()):
        await host.after(1)
    shorten(cell, Partition(CUTS.name), 0)
    with pytest.raises(ExceptionGroup) as stopped:
        await run_for(host, 5)
    assert stopped.value.subgroup(LogTruncated) is not None


async def test_without_an_engine_auto_runs_processes_only(tmp_path: Path) -> None:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", engine_socket=tmp_path / "no.sock")
    async with cell.agent(cell.ports()) as joined:
        assert joined.executors == (ExecutorKind.PROCESS,)
        task = await cell.allocate(sh("exit 3"))
        assert (await cell.exit_of(task)).exit_code == 3
        await cell.ended(task)
    await cell.log.close()


async def test_the_setting_selects_the_executor(tmp_path: Path) -> None:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="simulated")
    async with cell.agent(cell.ports()):
        task = await cell.allocate(sh("exit 1", env={"SIM_SECONDS": "0.05", "SIM_EXIT": "3"}))
        assert (await cell.exit_of(task)).exit_code == 3, "the command itself exits with 1"
        await cell.ended(task)
    assert not (tmp_path / "n1" / "replicas").exists()
    await cell.log.close()
