"""An agent with simulated tasks, on a clock that the test moves."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.mps import FakeDaemon, mps_limiter
from tests.support.node_agent import AgentWorld, sh
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_node_agent.agent import Ports, run, simulated_ports
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.port import Launch
from yardmaster_node_agent.executors.simulated import SimulatedExecutor
from yardmaster_node_agent.ledger import MemoryLedger
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.cut import CutPlan
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.machine import LogCutV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    NodeJoinedV1,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.sources import next_incarnation
from yardmaster_schemas.topics import CUTS, HEARTBEATS, assignments


@dataclass
class Machine:
    """The objects that several agents use in turn: ledger, executor, clock."""

    world: AgentWorld
    clock: ManualClock
    ledger: MemoryLedger
    executor: SimulatedExecutor
    seed: int = 1

    def ports(self) -> Ports:
        return simulated_ports(
            self.world.settings,
            log=self.world.log,
            clock=self.clock,
            chance=SeededChance(self.seed),
            telemetry=Telemetry("node_agent", now_ms=self.clock.now_ms, level="warning"),
            ledger=self.ledger,
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
async def machine(tmp_path: Path) -> Machine:
    clock = ManualClock()
    world = await AgentWorld(tmp_path / "unused", clock=clock).open()
    world.configure(api=False)
    return Machine(world, clock, MemoryLedger(), SimulatedExecutor(clock))


async def test_a_task_takes_as_long_as_its_environment_sets(machine: Machine) -> None:
    world = machine.world
    async with world.agent(machine.ports()):
        task = await world.allocate(sh("x", env={"SIM_SECONDS": "5", "SIM_EXIT": "3"}))
        await machine.after(4)
        assert await world.of_type(TaskStartedV1, task)
        assert not await world.of_type(TaskExitedV1, task)
        await machine.after(2)
        assert [e.exit_code for e in await world.of_type(TaskExitedV1, task)] == [3]
        assert await world.of_type(SlotsReleasedV1, task)
    await world.assert_honest()


async def test_a_signalled_task_saves_takes_its_time_and_ends(machine: Machine) -> None:
    world = machine.world
    env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "2", "SIM_CHECKPOINT": "s3://a/b"}
    async with world.agent(machine.ports()):
        task = await world.allocate(sh("x", env=env))
        await machine.after(1)
        await world.stop(task, grace_s=30)
        await machine.after(1)
        assert [c.step for c in await world.of_type(CheckpointDoneV1, task)] == [1]
        assert not await world.of_type(TaskExitedV1, task)
        await machine.after(2)
        assert [e.exit_code for e in await world.of_type(TaskExitedV1, task)] == [0]


async def test_an_agent_stops_a_task_for_a_policy_that_it_does_not_know(machine: Machine) -> None:
    world = machine.world
    async with world.agent(machine.ports()):
        task = await world.allocate(sh("x", env={"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "2"}))
        await machine.after(1)
        await world.preempt(task, "toy", grace_s=30)
        await machine.after(3)
        assert await world.of_type(TaskExitedV1, task)
        assert await world.of_type(SlotsReleasedV1, task)


async def test_a_task_that_ignores_the_signal_is_killed_at_the_deadline(machine: Machine) -> None:
    world = machine.world
    async with world.agent(machine.ports()):
        env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "-1"}
        task = await world.allocate(sh("x", env=env))
        await machine.after(1)
        await world.stop(task, grace_s=30)
        await machine.after(29)
        assert not await world.of_type(TaskExitedV1, task), "its grace is not over"
        await machine.after(2)
        assert [e.signal for e in await world.of_type(TaskExitedV1, task)] == [9]


async def test_a_deadline_by_a_clock_that_is_ahead_gives_the_grace_and_no_more(
    machine: Machine,
) -> None:
    world = machine.world
    async with world.agent(machine.ports()):
        env = {"SIM_SECONDS": "500", "SIM_STOP_SECONDS": "-1"}
        task = await world.allocate(sh("x", env=env))
        await machine.after(1)
        machine.clock._now_ms += 3_600_000  # the scheduler's hour is later
        stop = world.stop(task, grace_s=10)
        await stop
        machine.clock._now_ms -= 3_600_000
        await machine.after(12)
        assert await world.of_type(TaskExitedV1, task)


async def test_an_agent_ends_when_cancelled_however_soon_after_the_loss_of_its_node(
    machine: Machine,
) -> None:
    world = machine.world
    for steps in range(40):
        running = asyncio.create_task(run(machine.ports(), world.settings))
        await machine.after(1)
        await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
        await world.lose(await world.incarnation())
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await machine.after(1)
        assert running.cancelled(), (
            f"cancelled {steps} steps of the loop after the loss, it still runs"
        )
    assert len({e.incarnation for e in await world.of_type(NodeJoinedV1)}) > 1


async def test_a_simulated_task_keeps_running_while_there_is_no_agent(machine: Machine) -> None:
    world = machine.world
    async with world.agent(machine.ports()):
        task = await world.allocate(sh("x", env={"SIM_SECONDS": "5"}))
        await machine.after(1)
    machine.ledger.crash()
    machine.clock.advance(60)
    async with world.agent(machine.ports()) as joined:
        assert len(joined.running) == 1
        await machine.after(1)
        assert await world.of_type(SlotsReleasedV1, task)
    # The ledger lost that the start was reported: it is reported again, with the same identity.
    assert len(set(await world.of_type(TaskStartedV1, task))) == 1
    await world.assert_honest()


async def test_replicas_of_a_machine_that_lost_power_are_lost_with_the_incarnation(
    machine: Machine,
) -> None:
    world = machine.world
    async with world.agent(machine.ports()) as old:
        task = await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
    machine.ledger.crash()
    machine.executor, machine.seed = SimulatedExecutor(machine.clock), 2
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(run(machine.ports(), world.settings))
        await machine.after(2)
        new = (await world.of_type(NodeJoinedV1))[-1]
        assert (new.incarnation != old.incarnation, new.running) == (True, ())
        agent.cancel()
    assert not await world.of_type(TaskExitedV1, task), "it did not fail"
    assert not await world.of_type(SlotsReleasedV1, task)
    await world.assert_honest()


async def test_a_node_without_assignments_repeats_its_join(machine: Machine) -> None:
    world = machine.world
    world.configure(ask_again_s=20)
    async with world.agent(machine.ports()) as joined:
        await machine.after(19)
        assert len(await world.of_type(NodeJoinedV1)) == 1
        await machine.after(22)
        assert await world.of_type(NodeJoinedV1) == [joined] * 3
        await world.allocate(sh("x", env={"SIM_SECONDS": "1"}))
        await machine.after(60)
        assert await world.of_type(NodeJoinedV1) == [joined] * 3, "it is in"


async def test_a_fraction_does_not_start_when_what_enforces_it_has_ended(machine: Machine) -> None:
    world, daemon = machine.world, FakeDaemon()
    ports = replace(machine.ports(), limiter=mps_limiter(daemon))
    run_ = sh("x", env={"SIM_SECONDS": "500"})
    async with world.agent(ports):
        first = await world.allocate(run_, slots=[(0,)], gpu_milli=500)
        await machine.after(1)
        assert await world.of_type(TaskStartedV1, first)
        daemon.running = False
        fraction = await world.allocate(run_, slots=[(1,)], gpu_milli=500)
        whole = await world.allocate(run_, slots=[(2,)], gpu_milli=1000)
        await machine.after(1)
        assert await world.of_type(TaskStartedV1, whole)
        (released,) = await world.of_type(SlotsReleasedV1, fraction)
        assert (released.never_started, released.failure) == (True, "other")
        assert not await world.of_type(SlotsReleasedV1, first), "what runs continues"


async def test_a_lost_node_kills_all_replicas(machine: Machine) -> None:
    world = machine.world
    async with world.agent(machine.ports()) as old:
        await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
        await world.lose(old.incarnation)
        await machine.after(1)
        joins = await world.of_type(NodeJoinedV1)
        assert [join.running for join in joins] == [(), ()]
        assert await machine.executor.sweep() == 0


def shorten(world: AgentWorld, partition: Partition, end: int) -> None:
    """Lose the end of a topic; agents that start later have a handle that has read nothing."""
    assert isinstance(world.log, MemoryLog)
    world.log.cut(partition, end)
    world.log = world.log.handle()


async def run_for(machine: Machine, seconds: float) -> None:
    """Run an agent for a time; raise what ends it earlier."""
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(run(machine.ports(), machine.world.settings))
        await machine.after(seconds)
        agent.cancel()


async def record_cut(world: AgentWorld, generation: int) -> None:
    event = LogCutV1(generation=generation, cycles=(), kept=())
    plan = CutPlan(cell="main", number=0, event=event, broken=None)
    await world.log.append(Partition(CUTS.name), [plan.record(0)])


@pytest.mark.parametrize("grown", [False, True])
async def test_an_agent_whose_assignments_lost_what_its_ledger_names_joins_again_without_replicas(
    machine: Machine, grown: bool
) -> None:
    world = machine.world
    place = Partition(assignments("n1").name)
    async with world.agent(machine.ports()) as old:
        await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
    (lost,) = await world.log.read(place, await world.log.end(place) - 1)
    shorten(world, place, lost.offset)
    if grown:
        other = replace(lost.record, key=b"n1-other")
        await world.log.append(place, [other, other])
    await run_for(machine, 5)
    joins = await world.of_type(NodeJoinedV1)
    assert [join.running for join in joins[1:]] == [()], "it joins once"
    assert joins[-1].incarnation == next_incarnation(old.incarnation)
    assert await machine.executor.sweep() == 0, "what ran was killed before the join"
    await run_for(machine, 5)
    again = (await world.of_type(NodeJoinedV1))[-1]
    assert again.incarnation == joins[-1].incarnation, "a restart begins no further incarnation"


async def test_an_agent_whose_assignments_lose_what_it_has_read_joins_again_and_runs_new_ones(
    machine: Machine,
) -> None:
    world = machine.world
    place = Partition(assignments("n1").name)
    assert isinstance(world.log, MemoryLog)
    async with world.agent(machine.ports()) as old:
        void = await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
        (lost,) = await world.log.read(place, await world.log.end(place) - 1)
        before = await world.log.end(Partition(HEARTBEATS.name))
        world.log.cut(place, lost.offset)
        await machine.after(60)
        new = (await world.of_type(NodeJoinedV1))[-1]
        assert (new.incarnation, new.running) == (next_incarnation(old.incarnation), ())
        assert await world.log.end(Partition(HEARTBEATS.name)) > before + 10, "it sends heartbeats"
        # The relay copies again what the topic lost: it is void.
        await world.log.append(place, [lost.record])
        started = await world.allocate(sh("y", env={"SIM_SECONDS": "500"}))
        await machine.after(60)
    starts = [event.task_id for event in await world.of_type(TaskStartedV1)]
    assert starts == [void, started]


async def test_an_agent_that_has_read_nothing_notices_that_its_assignments_lost_records(
    machine: Machine,
) -> None:
    """Otherwise it would wait for an offset that other records have by then."""
    world = machine.world
    place = Partition(assignments("n1").name)
    async with world.agent(machine.ports()) as old:
        await world.allocate(sh("x", env={"SIM_SECONDS": "1"}))
        await machine.after(5)
        await world.lose(old.incarnation)
        await machine.after(60)
        assert len(await world.of_type(NodeJoinedV1)) == 2
    (lost,) = await world.log.read(place, await world.log.end(place) - 1)
    shorten(world, place, lost.offset)
    await world.log.append(place, [replace(lost.record, key=b"n1-other")] * 2)
    await run_for(machine, 5)
    joins = await world.of_type(NodeJoinedV1)
    assert joins[-1].incarnation == next_incarnation(next_incarnation(old.incarnation))


async def test_after_a_cut_of_the_log_an_agent_begins_another_incarnation(
    machine: Machine,
) -> None:
    world = machine.world
    async with world.agent(machine.ports()) as old:
        await world.allocate(sh("x", env={"SIM_SECONDS": "500"}))
        await machine.after(1)
    await record_cut(world, 1)
    world.log = world.log.handle()  # type: ignore[attr-defined]
    await run_for(machine, 2)
    new = (await world.of_type(NodeJoinedV1))[-1]
    assert (new.incarnation != old.incarnation, new.running) == (True, ())
    await run_for(machine, 2)
    again = (await world.of_type(NodeJoinedV1))[-1]
    assert again.incarnation == new.incarnation, "the generation is in its ledger"


async def test_an_agent_does_not_start_on_a_log_that_lost_the_record_of_a_cut(
    machine: Machine,
) -> None:
    world = machine.world
    await record_cut(world, 1)
    async with world.agent(machine.ports()):
        await machine.after(1)
    shorten(world, Partition(CUTS.name), 0)
    with pytest.raises(ExceptionGroup) as stopped:
        await run_for(machine, 5)
    assert stopped.value.subgroup(LogTruncated) is not None


async def test_a_key_starts_once(machine: Machine) -> None:
    executor = machine.executor
    first, second = ReplicaKey("000000000001.0", 1, 0), ReplicaKey("000000000001.0", 2, 0)
    await executor.start(Launch(first, Run(script="x"), {}))
    with pytest.raises(ExecutorFailed):
        await executor.start(Launch(first, Run(script="x"), {}))
    assert await executor.adopt(second) is None
    with pytest.raises(ExecutorFailed, match="prevented"):
        await executor.start(Launch(second, Run(script="x"), {}))


async def test_the_setting_selects_the_executor(tmp_path: Path) -> None:
    world = await AgentWorld(tmp_path / "n1").open()
    world.configure(executor="simulated")
    async with world.agent(world.ports()):
        task = await world.allocate(sh("exit 1", env={"SIM_SECONDS": "0.05", "SIM_EXIT": "3"}))
        assert (await world.exit_of(task)).exit_code == 3, "the command itself exits with 1"
        await world.ended(task)
    assert not (tmp_path / "n1" / "replicas").exists()
    await world.log.close()
