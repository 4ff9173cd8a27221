"""Restarts: tasks outlive their agent, nothing starts twice, a lost node joins again."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_agent import (
    DEADLINE_S,
    OTHER_INCARNATION,
    AgentWorld,
    Deaf,
    alive,
    python,
    sh,
)
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_node_agent.agent import run
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.errors import (
    AgentError,
    AssignmentUnreadable,
    LedgerCorrupt,
    LedgerInUse,
    NodeTaken,
)
from yardmaster_node_agent.executors.port import Launch, Process
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.decisions import LossCause
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    NodeJoinedV1,
    ReplicaRef,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.topics import assignments

#: Runs until a file appears next to its directory, so that a test decides when it ends.
UNTIL_GO = """
echo started >> ../../../starts
echo "pid $$"
while [ ! -e ../../../go ]; do sleep 0.05; done
echo finished
exit 4
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    world = await AgentWorld(tmp_path / "n1").open()
    yield world
    await world.assert_honest()
    await world.log.close()


@contextmanager
def process(world: AgentWorld, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent as a process of its own; it is killed -9 at the end at the latest."""
    env = {
        **os.environ,
        "YARD_LOG": f"sqlite:///{log}",
        "YARD_AGENT_NODE": world.node,
        "YARD_AGENT_DATA_DIR": str(world.data_dir),
        "YARD_AGENT_GPUS": "4",
        "YARD_AGENT_CPU_MILLI": "8000",
        "YARD_AGENT_MEMORY_MIB": "4096",
        "YARD_AGENT_TICK_S": "0.05",
    }
    command = [sys.executable, "-m", "yardmaster_node_agent.main"]
    with subprocess.Popen(command, env=env) as running:
        yield running
        running.kill()


def go(world: AgentWorld) -> None:
    (world.data_dir / "go").touch()


def starts(world: AgentWorld) -> int:
    return (world.data_dir / "starts").read_text().count("started")


async def test_a_task_outlives_its_agent_and_is_found_again(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh(UNTIL_GO))
        await world.until_output(task, "pid")
    async with world.agent() as joined:
        assert joined.running == (ReplicaRef(task_id=task, attempt=1, replica=0),)
        go(world)
        assert (await world.exit_of(task)).exit_code == 4
        await world.ended(task)
    assert starts(world) == 1
    assert (await world.output(task)).endswith("finished\n")
    joins = await world.of_type(NodeJoinedV1)
    assert joins[0].incarnation == joins[1].incarnation
    assert len({e.epoch for e in await world.envelopes()}) == 2


async def test_an_exit_while_no_agent_lived_is_reported_by_the_next(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh(UNTIL_GO))
        pid = int((await world.until_output(task, "pid")).split()[1])
    go(world)
    deadline = world.clock.monotonic_s() + DEADLINE_S
    while alive(pid):
        assert world.clock.monotonic_s() < deadline
        await asyncio.sleep(0.02)
    async with world.agent():
        assert (await world.exit_of(task)).exit_code == 4
        await world.ended(task)
        assert (await world.output(task)).endswith("finished\n")


async def test_an_agent_killed_minus_9_at_any_moment_starts_nothing_twice(tmp_path: Path) -> None:
    clock = SystemClock()
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path, clock)
    world = await AgentWorld(tmp_path / "n1", log=log, clock=clock).open()
    tasks: list[str] = []
    try:
        for pause_s in (0.0, 0.02, 0.06, 0.15):
            with process(world, path) as agent:
                await world.until(NodeJoinedV1, count=len(tasks) + 1)
                tasks.append(await world.allocate(sh(UNTIL_GO)))
                await asyncio.sleep(pause_s)  # the moment at which the agent is killed
                agent.kill()
        go(world)
        with process(world, path):
            await world.until(NodeJoinedV1, count=len(tasks) + 1)
            for task in tasks:
                released = await world.ended(task)
                if not released[-1].never_started:
                    exits = await world.of_type(TaskExitedV1, task)
                    assert exits[-1].exit_code == 4
        ran = {event.task_id for event in await world.of_type(TaskStartedV1)}
        assert starts(world) == len(ran)
        await world.assert_honest()
    finally:
        await log.close()


async def test_an_ordered_stop_is_executed_by_the_next_agent(world: AgentWorld) -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05 || :; done"
    async with world.agent():
        task = await world.allocate(sh(script))
        await world.until_output(task, "ready")
        await world.stop(task, grace_s=2)
        await world.until_output(task, "asked")
    async with world.agent():
        assert (await world.exit_of(task)).signal == signal.SIGKILL
        await world.ended(task)
    assert (await world.output(task)).count("asked") == 1, "the signal is sent once"


async def test_a_running_task_reaches_the_next_agent_where_it_reached_the_last(
    world: AgentWorld,
) -> None:
    code = """
import pathlib, time
from yardmaster import task
print("ready", flush=True)
while not pathlib.Path("../../../go").exists(): time.sleep(0.02)
task.report_checkpoint("s3://runs/a", 1)
"""
    async with world.agent():
        name = await world.allocate(python(code))
        await world.until_output(name, "ready")
    async with world.agent():
        go(world)
        await world.ended(name)
        assert (await world.exit_of(name)).exit_code == 0
    # The file was not needed: the API answered at its old place.
    assert not (world.data_dir / "replicas" / f"{name}.1.0" / "checkpoint.json").exists()
    assert len(await world.of_type(CheckpointDoneV1, name)) == 1


async def test_facts_that_did_not_reach_the_log_are_reported_by_the_next_agent(
    world: AgentWorld,
) -> None:
    log = Deaf(world.log)
    async with world.agent(replace(world.ports(), log=log)):
        log.deaf_to = {"node-events"}
        task = await world.allocate(sh('echo \'{"uri":"s3://a/b","step":1}\' > ../checkpoint.json'))
        await log.refused_one.wait()
        deadline = world.clock.monotonic_s() + DEADLINE_S
        while b'"released"' not in (world.data_dir / "ledger").read_bytes():
            assert world.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
    assert not await world.of_type(TaskStartedV1)
    async with world.agent():
        await world.ended(task)
    kinds = [e.type for e in await world.envelopes() if e.subject == task]
    assert kinds == ["TaskStarted", "CheckpointDone", "TaskExited", "SlotsReleased"]


async def test_an_append_of_unknown_outcome_is_retried_with_the_same_numbers(
    world: AgentWorld,
) -> None:
    log = Forgetful(world)
    async with world.agent(replace(world.ports(), log=log)):
        task = await world.allocate(sh("echo hello"))
        await world.ended(task)
        assert await world.output(task) == "hello\n"
    seen = [e.id for e in await world.envelopes()]
    assert len(seen) > len(set(seen)), "some landed although their outcome was not known"
    kinds = [e.type for e in await world.envelopes() if e.subject == task]
    assert list(dict.fromkeys(kinds)) == ["TaskStarted", "TaskExited", "SlotsReleased"]
    world.log = MemoryLog(world.clock)  # the repeats are what `assert_honest` refuses
    await world.open()


class Stuck:
    """An executor whose start never gets anywhere, as if the agent had died in it."""

    def __init__(self, world: AgentWorld) -> None:
        self._inner = world.ports().executor
        self.asked = asyncio.Event()

    async def start(self, launch: Launch) -> Process:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_replica_in_the_ledger_that_never_ran_is_reported_as_never_started(
    world: AgentWorld,
) -> None:
    stuck = Stuck(world)
    async with world.agent(replace(world.ports(), executor=stuck)):
        task = await world.allocate(sh("echo started >> ../../../starts"))
        await stuck.asked.wait()
    async with world.agent() as joined:
        assert joined.running == ()
        assert (await world.ended(task))[0].never_started
    assert not (world.data_dir / "starts").exists()


async def test_a_lost_ledger_is_a_new_incarnation_with_nothing_running(world: AgentWorld) -> None:
    async with world.agent() as old:
        task = await world.allocate(sh(UNTIL_GO))
        pid = int((await world.until_output(task, "pid")).split()[1])
    (world.data_dir / "ledger").unlink()
    late = await world.log.end(Partition(assignments("n1").name))
    async with world.agent() as new:
        assert new.incarnation != old.incarnation
        assert new.running == ()
        assert not alive(pid), "it joined while a task of the old incarnation ran"
        stored = await world.log.read(Partition(assignments("n1").name), late - 1)
        await world.repeat(stored[0].record)
        mine = await world.allocate(sh("true"))
        await world.ended(mine)
    assert starts(world) == 1
    sources = [e.source for e in await world.envelopes() if e.type == "NodeJoined"]
    assert len(set(sources)) == 2, "its reports are numbered from one again"


async def test_a_wiped_data_directory_leaves_no_orphan(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh("echo pid $$; sleep 1000"))
        pid = int((await world.until_output(task, "pid")).split()[1])
    shutil.rmtree(world.data_dir)
    async with world.agent():
        assert not alive(pid)


async def test_a_wiped_data_directory_leaves_no_orphan_that_cleared_its_environment(
    world: AgentWorld,
) -> None:
    """One command has an empty environment; the other's child left its session as well."""
    child = "import os, time; os.setsid(); print('pid', os.getpid(), flush=True); time.sleep(1000)"
    async with world.agent():
        tasks = [
            await world.allocate(sh("echo pid $$; exec env -i sleep 1000"), slots=[(0, 1)]),
            await world.allocate(
                sh(f'env -i {sys.executable} -c "{child}" & exec env -i sleep 99')
            ),
        ]
        pids = [int((await world.until_output(task, "pid")).split()[1]) for task in tasks]
    assert all(alive(pid) for pid in pids)
    shutil.rmtree(world.data_dir)
    async with world.agent():
        assert [pid for pid in pids if alive(pid)] == [], "it joined while they held its slots"
        after = await world.allocate(sh("true"), slots=[(0, 1)])
        assert not (await world.ended(after))[0].never_started


async def test_a_sweep_ends_a_runner_that_was_stopped(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh("echo pid $PPID; exec env -i sleep 1000"))
        runner = int((await world.until_output(task, "pid")).split()[1])
    os.kill(runner, signal.SIGSTOP)
    shutil.rmtree(world.data_dir)
    async with world.agent():
        assert not alive(runner)


async def test_a_node_counted_as_lost_kills_all_and_joins_again(world: AgentWorld) -> None:
    async with world.agent() as old:
        task = await world.allocate(sh("trap '' TERM; echo pid $$; while :; do sleep 0.05; done"))
        pid = int((await world.until_output(task, "pid")).split()[1])
        await world.lose(OTHER_INCARNATION)
        await world.lose(old.incarnation)
        new = (await world.until(NodeJoinedV1, count=2))[1]
        assert not alive(pid)
        assert (new.incarnation != old.incarnation, new.running) == (True, ())
        after = await world.allocate(sh("true"))
        await world.ended(after)
    assert not await world.of_type(TaskExitedV1, task), "facts of a lost incarnation are void"


async def test_an_agent_whose_node_another_agent_took_kills_its_tasks_and_ends_for_good(
    world: AgentWorld,
) -> None:
    async with world.agent() as old:
        task = await world.allocate(sh("echo pid $$; while :; do sleep 0.05; done"))
        pid = int((await world.until_output(task, "pid")).split()[1])
    await world.lose(old.incarnation, LossCause.REPLACED)
    for _ in range(2):
        with pytest.raises(NodeTaken):
            await run(world.ports(), world.settings)
        assert not alive(pid)
    joins = await world.of_type(NodeJoinedV1)
    assert {joined.incarnation for joined in joins} == {old.incarnation}, "it takes no name back"
    (world.data_dir / "ledger").unlink()
    async with world.agent() as new:
        assert new.incarnation != joins[0].incarnation


async def test_a_node_lost_while_no_agent_ran_joins_again(world: AgentWorld) -> None:
    async with world.agent() as old:
        task = await world.allocate(sh(UNTIL_GO))
        pid = int((await world.until_output(task, "pid")).split()[1])
    await world.lose(old.incarnation)
    async with world.agent():
        joins = await world.until(
            NodeJoinedV1, where=lambda joined: joined.incarnation != old.incarnation
        )
        assert joins[0].running == ()
        assert not alive(pid)


async def test_a_runner_that_was_killed_takes_its_task_with_it(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh("echo parent $PPID self $$; sleep 1000"))
        words = (await world.until_output(task, "self")).split()
        os.kill(int(words[1]), signal.SIGKILL)
        assert (await world.exit_of(task)).signal == signal.SIGKILL
        await world.ended(task)
        assert not alive(int(words[3]))
        await world.until_output(task, "was not seen", stream="agent")


async def test_a_damaged_ledger_stops_the_agent_and_starts_nothing(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh("true"))
        await world.ended(task)
    ledger = world.data_dir / "ledger"
    raw = bytearray(ledger.read_bytes())
    raw[len(raw) // 3] ^= 1
    ledger.write_bytes(raw)
    with pytest.raises(LedgerCorrupt, match="line"):
        await run(world.ports(), world.settings)


async def test_two_agents_do_not_share_a_ledger(world: AgentWorld) -> None:
    async with world.agent():
        with pytest.raises(LedgerInUse):
            await run(world.ports(), world.settings)


async def test_an_agent_does_not_take_another_nodes_ledger(world: AgentWorld) -> None:
    async with world.agent():
        pass
    with pytest.raises(AgentError, match="n1"):
        await run(world.ports(), world.settings.model_copy(update={"node": "n2"}))


async def test_a_record_of_a_newer_scheduler_stops_the_agent_and_not_its_tasks(
    world: AgentWorld,
) -> None:
    async with world.agent():
        task = await world.allocate(sh(UNTIL_GO))
        pid = int((await world.until_output(task, "pid")).split()[1])
    headers = (("ce_type", b"SlotsMoved"), ("yard_version", b"1"))
    await world.repeat(Record(b"main", b"{}", headers))
    with pytest.raises(AssignmentUnreadable, match="SlotsMoved"):
        await run(world.ports(), world.settings)
    assert alive(pid)
    go(world)


async def test_assignments_of_other_sources_stop_the_agent(world: AgentWorld) -> None:
    async with world.agent():
        pass
    await world.stop("000000000001.0")
    stored = await world.log.read(Partition(assignments("n1").name), 0)
    forged = stored[0].record
    value = (forged.value or b"").replace(b"scheduler/main", b"gateway/mai_n")
    headers = tuple(
        (name, content.replace(b"scheduler/main", b"gateway/mai_n"))
        for name, content in forged.headers
    )
    await world.repeat(Record(forged.key, value, headers))
    with pytest.raises(AssignmentUnreadable, match="no scheduler"):
        await run(world.ports(), world.settings)


async def test_a_changed_offer_waits_until_nothing_runs(world: AgentWorld) -> None:
    async with world.agent() as first:
        task = await world.allocate(sh(UNTIL_GO))
        await world.until_output(task, "pid")
    world.configure(gpus=2)
    async with world.agent() as second:
        assert (second.gpus, second.incarnation) == (4, first.incarnation)
        go(world)
        await world.ended(task)
        await world.until(NodeHeartbeatV1, where=lambda beat: beat.running == 0)
    async with world.agent() as third:
        assert third.gpus == 2
        assert third.incarnation != first.incarnation


async def test_heartbeats_count_running_replicas(world: AgentWorld) -> None:
    async with world.agent():
        task = await world.allocate(sh("sleep 1000"), slots=[(0, 1)], gpu_milli=500)
        await world.until(
            NodeHeartbeatV1, where=lambda beat: (beat.running, beat.gpu_milli_used) == (1, 1000)
        )
        await world.stop(task, grace_s=0)
        await world.ended(task)
        beats = await world.of_type(NodeHeartbeatV1)
        await world.until(
            NodeHeartbeatV1, count=len(beats) + 1, where=lambda beat: beat.sent_at_ms > 0
        )
        await world.until(NodeHeartbeatV1, where=lambda beat: beat.gpu_milli_used == 0)


async def test_old_directories_are_removed_and_their_attempts_still_start_once(
    world: AgentWorld,
) -> None:
    world.configure(kept_directories=1, remembered=1)
    async with world.agent():
        tasks = []
        for _ in range(4):
            tasks.append(await world.allocate(sh("echo started >> ../../../starts")))
            await world.ended(tasks[-1])
        root = world.data_dir / "replicas"
        deadline = world.clock.monotonic_s() + DEADLINE_S
        while len(list(root.iterdir())) > 1:
            assert world.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
        for stored in await world.log.read(Partition(assignments("n1").name), 0):
            await world.repeat(stored.record)
        last = await world.allocate(sh("true"))
        await world.ended(last)
    assert starts(world) == 4
    ledger = world.ports().ledger
    kept = ledger.load()
    ledger.close()
    assert kept is not None
    assert ReplicaKey(tasks[0], 1, 0) not in kept.replicas


class Forgetful:
    """A log that takes every record, and does not say so the first time."""

    def __init__(self, world: AgentWorld) -> None:
        self._inner = world.log
        self._known: set[bytes] = set()

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        offset = await self._inner.append(partition, batch)
        first = batch[0].value or b""
        if partition.topic != "heartbeats" and first not in self._known:
            self._known.add(first)
            raise AppendOutcomeUnknown(topic=partition.topic, found="forgotten")
        return offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Away(Deaf):
    """A log that cannot be read for a moment."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.away_for = 3

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        if partition.topic == "details" and self.away_for:
            self.away_for -= 1
            raise LogUnavailable(found="away")
        return await self._inner.read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )


async def test_an_agent_outlives_a_log_that_cannot_be_read_for_a_moment(world: AgentWorld) -> None:
    away: Any = Away(world.log)
    async with world.agent(replace(world.ports(), log=away)):
        task = await world.allocate(sh("true"))
        assert (await world.exit_of(task)).exit_code == 0
    assert away.away_for == 0
