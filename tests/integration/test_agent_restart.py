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
    AgentCell,
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
from yardmaster_node_agent.executors.port import Execution, Launch
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
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


@contextmanager
def process(cell: AgentCell, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent as a process of its own; it is killed -9 at the end at the latest."""
    env = {
        **os.environ,
        "YARD_LOG": f"sqlite:///{log}",
        "YARD_AGENT_NODE": cell.node,
        "YARD_AGENT_DATA_DIR": str(cell.data_dir),
        "YARD_AGENT_GPUS": "4",
        "YARD_AGENT_CPU_MILLI": "8000",
        "YARD_AGENT_MEMORY_MIB": "4096",
        "YARD_AGENT_TICK_S": "0.05",
    }
    command = [sys.executable, "-m", "yardmaster_node_agent.main"]
    with subprocess.Popen(command, env=env) as running:
        yield running
        running.kill()


def go(cell: AgentCell) -> None:
    (cell.data_dir / "go").touch()


def starts(cell: AgentCell) -> int:
    return (cell.data_dir / "starts").read_text().count("started")


async def test_a_task_outlives_its_agent_and_is_found_again(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh(UNTIL_GO))
        await cell.until_output(task, "pid")
    async with cell.agent() as joined:
        assert joined.running == (ReplicaRef(task_id=task, attempt=1, replica=0),)
        go(cell)
        assert (await cell.exit_of(task)).exit_code == 4
        await cell.ended(task)
    assert starts(cell) == 1
    assert (await cell.output(task)).endswith("finished\n")
    joins = await cell.of_type(NodeJoinedV1)
    assert joins[0].incarnation == joins[1].incarnation
    assert len({e.epoch for e in await cell.envelopes()}) == 2


async def test_an_exit_while_no_agent_lived_is_reported_by_the_next(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh(UNTIL_GO))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    go(cell)
    deadline = cell.clock.monotonic_s() + DEADLINE_S
    while alive(pid):
        assert cell.clock.monotonic_s() < deadline
        await asyncio.sleep(0.02)
    async with cell.agent():
        assert (await cell.exit_of(task)).exit_code == 4
        await cell.ended(task)
        assert (await cell.output(task)).endswith("finished\n")


async def test_an_agent_killed_minus_9_at_any_moment_starts_nothing_twice(tmp_path: Path) -> None:
    clock = SystemClock()
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path, clock)
    cell = await AgentCell(tmp_path / "n1", log=log, clock=clock).open()
    tasks: list[str] = []
    try:
        for pause_s in (0.0, 0.02, 0.06, 0.15):
            with process(cell, path) as agent:
                await cell.until(NodeJoinedV1, count=len(tasks) + 1)
                tasks.append(await cell.allocate(sh(UNTIL_GO)))
                await asyncio.sleep(pause_s)  # the moment at which the agent is killed
                agent.kill()
        go(cell)
        with process(cell, path):
            await cell.until(NodeJoinedV1, count=len(tasks) + 1)
            for task in tasks:
                released = await cell.ended(task)
                if not released[-1].never_started:
                    exits = await cell.of_type(TaskExitedV1, task)
                    assert exits[-1].exit_code == 4
        ran = {event.task_id for event in await cell.of_type(TaskStartedV1)}
        assert starts(cell) == len(ran)
        await cell.assert_honest()
    finally:
        await log.close()


async def test_an_ordered_stop_is_executed_by_the_next_agent(cell: AgentCell) -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05 || :; done"
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=2)
        await cell.until_output(task, "asked")
    async with cell.agent():
        assert (await cell.exit_of(task)).signal == signal.SIGKILL
        await cell.ended(task)
    assert (await cell.output(task)).count("asked") == 1, "the signal is sent once"


async def test_a_running_task_reaches_the_next_agent_where_it_reached_the_last(
    cell: AgentCell,
) -> None:
    code = """
import pathlib, time
from yardmaster import task
print("ready", flush=True)
while not pathlib.Path("../../../go").exists(): time.sleep(0.02)
task.report_checkpoint("s3://runs/a", 1)
"""
    async with cell.agent():
        name = await cell.allocate(python(code))
        await cell.until_output(name, "ready")
    async with cell.agent():
        go(cell)
        await cell.ended(name)
        assert (await cell.exit_of(name)).exit_code == 0
    # The file was not needed: the API answered at its old place.
    assert not (cell.data_dir / "replicas" / f"{name}.1.0" / "checkpoint.json").exists()
    assert len(await cell.of_type(CheckpointDoneV1, name)) == 1


async def test_facts_that_did_not_reach_the_log_are_reported_by_the_next_agent(
    cell: AgentCell,
) -> None:
    log = Deaf(cell.log)
    async with cell.agent(replace(cell.ports(), log=log)):
        log.deaf_to = {"node-events"}
        task = await cell.allocate(sh('echo \'{"uri":"s3://a/b","step":1}\' > ../checkpoint.json'))
        await log.refused_one.wait()
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while b'"released"' not in (cell.data_dir / "ledger").read_bytes():
            assert cell.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
    assert not await cell.of_type(TaskStartedV1)
    async with cell.agent():
        await cell.ended(task)
    kinds = [e.type for e in await cell.envelopes() if e.subject == task]
    assert kinds == ["TaskStarted", "CheckpointDone", "TaskExited", "SlotsReleased"]


async def test_an_append_of_unknown_outcome_is_retried_with_the_same_numbers(
    cell: AgentCell,
) -> None:
    log = Forgetful(cell)
    async with cell.agent(replace(cell.ports(), log=log)):
        task = await cell.allocate(sh("echo hello"))
        await cell.ended(task)
        assert await cell.output(task) == "hello\n"
    seen = [e.id for e in await cell.envelopes()]
    assert len(seen) > len(set(seen)), "some landed although their outcome was not known"
    kinds = [e.type for e in await cell.envelopes() if e.subject == task]
    assert list(dict.fromkeys(kinds)) == ["TaskStarted", "TaskExited", "SlotsReleased"]
    cell.log = MemoryLog(cell.clock)  # the repeats are what `assert_honest` refuses
    await cell.open()


class Stuck:
    """An executor whose start never gets anywhere, as if the agent had died in it."""

    def __init__(self, cell: AgentCell) -> None:
        self._inner = cell.ports().executor
        self.asked = asyncio.Event()

    async def start(self, launch: Launch) -> Execution:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_replica_in_the_ledger_that_never_ran_is_reported_as_never_started(
    cell: AgentCell,
) -> None:
    stuck = Stuck(cell)
    async with cell.agent(replace(cell.ports(), executor=stuck)):
        task = await cell.allocate(sh("echo started >> ../../../starts"))
        await stuck.asked.wait()
    async with cell.agent() as joined:
        assert joined.running == ()
        assert (await cell.ended(task))[0].never_started
    assert not (cell.data_dir / "starts").exists()


async def test_a_lost_ledger_is_a_new_incarnation_with_nothing_running(cell: AgentCell) -> None:
    async with cell.agent() as old:
        task = await cell.allocate(sh(UNTIL_GO))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    (cell.data_dir / "ledger").unlink()
    late = await cell.log.end(Partition(assignments("n1").name))
    async with cell.agent() as new:
        assert new.incarnation != old.incarnation
        assert new.running == ()
        assert not alive(pid), "it joined while a task of the old incarnation ran"
        stored = await cell.log.read(Partition(assignments("n1").name), late - 1)
        await cell.repeat(stored[0].record)
        mine = await cell.allocate(sh("true"))
        await cell.ended(mine)
    assert starts(cell) == 1
    sources = [e.source for e in await cell.envelopes() if e.type == "NodeJoined"]
    assert len(set(sources)) == 2, "its reports are numbered from one again"


async def test_a_wiped_data_directory_leaves_no_orphan(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("echo pid $$; sleep 1000"))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    shutil.rmtree(cell.data_dir)
    async with cell.agent():
        assert not alive(pid)


async def test_a_wiped_data_directory_leaves_no_orphan_that_cleared_its_environment(
    cell: AgentCell,
) -> None:
    """One command has an empty environment; the other's child left its session as well."""
    child = "import os, time; os.setsid(); print('pid', os.getpid(), flush=True); time.sleep(1000)"
    async with cell.agent():
        tasks = [
            await cell.allocate(sh("echo pid $$; exec env -i sleep 1000"), slots=[(0, 1)]),
            await cell.allocate(sh(f'env -i {sys.executable} -c "{child}" & exec env -i sleep 99')),
        ]
        pids = [int((await cell.until_output(task, "pid")).split()[1]) for task in tasks]
    assert all(alive(pid) for pid in pids)
    shutil.rmtree(cell.data_dir)
    async with cell.agent():
        assert [pid for pid in pids if alive(pid)] == [], "it joined while they held its slots"
        after = await cell.allocate(sh("true"), slots=[(0, 1)])
        assert not (await cell.ended(after))[0].never_started


async def test_a_sweep_ends_a_runner_that_was_stopped(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("echo pid $PPID; exec env -i sleep 1000"))
        runner = int((await cell.until_output(task, "pid")).split()[1])
    os.kill(runner, signal.SIGSTOP)
    shutil.rmtree(cell.data_dir)
    async with cell.agent():
        assert not alive(runner)


async def test_a_node_counted_as_lost_kills_all_and_joins_again(cell: AgentCell) -> None:
    async with cell.agent() as old:
        task = await cell.allocate(sh("trap '' TERM; echo pid $$; while :; do sleep 0.05; done"))
        pid = int((await cell.until_output(task, "pid")).split()[1])
        await cell.lose(OTHER_INCARNATION)
        await cell.lose(old.incarnation)
        new = (await cell.until(NodeJoinedV1, count=2))[1]
        assert not alive(pid)
        assert (new.incarnation != old.incarnation, new.running) == (True, ())
        after = await cell.allocate(sh("true"))
        await cell.ended(after)
    assert not await cell.of_type(TaskExitedV1, task), "facts of a lost incarnation are void"


async def test_an_agent_whose_node_another_agent_took_kills_its_tasks_and_ends_for_good(
    cell: AgentCell,
) -> None:
    async with cell.agent() as old:
        task = await cell.allocate(sh("echo pid $$; while :; do sleep 0.05; done"))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    await cell.lose(old.incarnation, LossCause.REPLACED)
    for _ in range(2):
        with pytest.raises(NodeTaken):
            await run(cell.ports(), cell.settings)
        assert not alive(pid)
    joins = await cell.of_type(NodeJoinedV1)
    assert {joined.incarnation for joined in joins} == {old.incarnation}, "it takes no name back"
    (cell.data_dir / "ledger").unlink()
    async with cell.agent() as new:
        assert new.incarnation != joins[0].incarnation


async def test_a_node_lost_while_no_agent_ran_joins_again(cell: AgentCell) -> None:
    async with cell.agent() as old:
        task = await cell.allocate(sh(UNTIL_GO))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    await cell.lose(old.incarnation)
    async with cell.agent():
        joins = await cell.until(
            NodeJoinedV1, where=lambda joined: joined.incarnation != old.incarnation
        )
        assert joins[0].running == ()
        assert not alive(pid)


async def test_a_runner_that_was_killed_takes_its_task_with_it(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("echo parent $PPID self $$; sleep 1000"))
        words = (await cell.until_output(task, "self")).split()
        os.kill(int(words[1]), signal.SIGKILL)
        assert (await cell.exit_of(task)).signal == signal.SIGKILL
        await cell.ended(task)
        assert not alive(int(words[3]))
        await cell.until_output(task, "was not seen", stream="agent")


async def test_a_damaged_ledger_stops_the_agent_and_starts_nothing(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("true"))
        await cell.ended(task)
    ledger = cell.data_dir / "ledger"
    raw = bytearray(ledger.read_bytes())
    raw[len(raw) // 3] ^= 1
    ledger.write_bytes(raw)
    with pytest.raises(LedgerCorrupt, match="line"):
        await run(cell.ports(), cell.settings)


async def test_two_agents_do_not_share_a_ledger(cell: AgentCell) -> None:
    async with cell.agent():
        with pytest.raises(LedgerInUse):
            await run(cell.ports(), cell.settings)


async def test_an_agent_does_not_take_another_nodes_ledger(cell: AgentCell) -> None:
    async with cell.agent():
        pass
    with pytest.raises(AgentError, match="n1"):
        await run(cell.ports(), cell.settings.model_copy(update={"node": "n2"}))


async def test_a_record_of_a_newer_scheduler_stops_the_agent_and_not_its_tasks(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        task = await cell.allocate(sh(UNTIL_GO))
        pid = int((await cell.until_output(task, "pid")).split()[1])
    headers = (("ce_type", b"SlotsMoved"), ("yard_version", b"1"))
    await cell.repeat(Record(b"main", b"{}", headers))
    with pytest.raises(AssignmentUnreadable, match="SlotsMoved"):
        await run(cell.ports(), cell.settings)
    assert alive(pid)
    go(cell)


async def test_assignments_of_other_sources_stop_the_agent(cell: AgentCell) -> None:
    async with cell.agent():
        pass
    await cell.stop("000000000001.0")
    stored = await cell.log.read(Partition(assignments("n1").name), 0)
    forged = stored[0].record
    value = (forged.value or b"").replace(b"scheduler/main", b"gateway/mai_n")
    headers = tuple(
        (name, content.replace(b"scheduler/main", b"gateway/mai_n"))
        for name, content in forged.headers
    )
    await cell.repeat(Record(forged.key, value, headers))
    with pytest.raises(AssignmentUnreadable, match="no scheduler"):
        await run(cell.ports(), cell.settings)


async def test_a_changed_offer_waits_until_nothing_runs(cell: AgentCell) -> None:
    async with cell.agent() as first:
        task = await cell.allocate(sh(UNTIL_GO))
        await cell.until_output(task, "pid")
    cell.configure(gpus=2)
    async with cell.agent() as second:
        assert (second.gpus, second.incarnation) == (4, first.incarnation)
        go(cell)
        await cell.ended(task)
        await cell.until(NodeHeartbeatV1, where=lambda beat: beat.running == 0)
    async with cell.agent() as third:
        assert third.gpus == 2
        assert third.incarnation != first.incarnation


async def test_heartbeats_count_running_replicas(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("sleep 1000"), slots=[(0, 1)], gpu_milli=500)
        await cell.until(
            NodeHeartbeatV1, where=lambda beat: (beat.running, beat.gpu_milli_used) == (1, 1000)
        )
        await cell.stop(task, grace_s=0)
        await cell.ended(task)
        beats = await cell.of_type(NodeHeartbeatV1)
        await cell.until(
            NodeHeartbeatV1, count=len(beats) + 1, where=lambda beat: beat.sent_at_ms > 0
        )
        await cell.until(NodeHeartbeatV1, where=lambda beat: beat.gpu_milli_used == 0)


async def test_old_directories_are_removed_and_their_attempts_still_start_once(
    cell: AgentCell,
) -> None:
    cell.configure(kept_directories=1, remembered=1)
    async with cell.agent():
        tasks = []
        for _ in range(4):
            tasks.append(await cell.allocate(sh("echo started >> ../../../starts")))
            await cell.ended(tasks[-1])
        root = cell.data_dir / "replicas"
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while len(list(root.iterdir())) > 1:
            assert cell.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
        for stored in await cell.log.read(Partition(assignments("n1").name), 0):
            await cell.repeat(stored.record)
        last = await cell.allocate(sh("true"))
        await cell.ended(last)
    assert starts(cell) == 4
    ledger = cell.ports().ledger
    kept = ledger.load()
    ledger.close()
    assert kept is not None
    assert ReplicaKey(tasks[0], 1, 0) not in kept.replicas


class Forgetful:
    """A log that takes every record, and does not say so the first time."""

    def __init__(self, cell: AgentCell) -> None:
        self._inner = cell.log
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


async def test_an_agent_outlives_a_log_that_cannot_be_read_for_a_moment(cell: AgentCell) -> None:
    away: Any = Away(cell.log)
    async with cell.agent(replace(cell.ports(), log=away)):
        task = await cell.allocate(sh("true"))
        assert (await cell.exit_of(task)).exit_code == 0
    assert away.away_for == 0
