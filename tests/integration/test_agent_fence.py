"""One node that is cut off from its log: what runs on, and that nothing under a fence does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.node_agent import DEADLINE_S, AgentCell, Deaf, alive, sh
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.events.node_events import NodeJoinedV1, TaskExitedV1, TaskStartedV1


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


async def test_a_fenced_node_kills_its_tasks_before_they_can_start_elsewhere(
    cell: AgentCell,
) -> None:
    log = Deaf(cell.log)
    async with cell.agent(replace(cell.ports(), log=log)) as joined:
        task = await cell.allocate(sh("echo pid $$; sleep 1000"), fence_s=5)
        pid = int((await cell.until_output(task, "pid")).split()[1])
        # Heartbeats alone count: they are what a node is judged by.
        log.deaf_to = {"heartbeats"}
        await until_dead(cell, pid)
        log.deaf_to = set()
        (_, again) = await cell.until(NodeJoinedV1, count=2)
        assert again.incarnation != joined.incarnation
        assert again.running == ()
    assert not await cell.of_type(TaskExitedV1, task), "a kill by the fence is no task's failure"


async def test_tasks_without_a_fence_continue_while_the_log_is_unavailable(
    cell: AgentCell,
) -> None:
    log = Deaf(cell.log)
    async with cell.agent(replace(cell.ports(), log=log)):
        task = await cell.allocate(sh("echo pid $$; sleep 1000"))
        pid = int((await cell.until_output(task, "pid")).split()[1])
        log.deaf_to = {"heartbeats", "node-events", "task-logs"}
        await asyncio.sleep(2)  # nothing may happen in this time
        assert alive(pid)
        log.deaf_to = set()
        await cell.stop(task, grace_s=0)
        await cell.ended(task)
    assert len(await cell.of_type(NodeJoinedV1)) == 1


async def test_output_that_waits_for_the_log_is_bounded_on_disk_too(cell: AgentCell) -> None:
    cell.configure(output_limit_bytes=10_000)
    log = Deaf(cell.log)
    async with cell.agent(replace(cell.ports(), log=log)):
        log.deaf_to = {"task-logs"}
        task = await cell.allocate(sh("echo first; exec yes more of it"))
        await cell.until(TaskStartedV1, task)
        (replica,) = cell.data_dir.glob("replicas/*")
        stdout = replica / "stdout"
        for _ in range(400):
            # The command's process opens it, which has yet to come when it is known.
            if stdout.exists():
                break
            await asyncio.sleep(0.05)
        freed = 0
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while freed < 3:
            assert cell.clock.monotonic_s() < deadline, f"freed {freed} times, and not again"
            await asyncio.sleep(0.1)
            found = stdout.stat()
            freed += found.st_blocks * 512 < found.st_size // 4
        log.deaf_to = set()
        said = await cell.until_output(task, "output is cut here", stream="agent")
        assert "at most 10000 bytes" in said
        assert "the newest 2500 bytes follow" in said
        await cell.stop(task, grace_s=0)
        await cell.ended(task)
        said = await cell.output(task)
        assert said.startswith("first\nmore of it\n")
        assert 9_900 < len(said) <= 10_000


async def test_a_runner_kills_its_fenced_task_when_the_agent_is_gone(
    cell: AgentCell,
) -> None:
    async with cell.agent() as joined:
        # One that leaves its group and session, and whose parent has ended.
        hidden = "setsid sh -c 'echo orphan $$; sleep 1000' & echo pid $$; sleep 1000"
        task = await cell.allocate(sh(hidden), fence_s=5)
        said = (await cell.until_output(task, "orphan")) + await cell.until_output(task, "pid")
        words = said.split()
        pids = {int(words[words.index(which) + 1]) for which in ("orphan", "pid")}
    for pid in pids:
        await until_dead(cell, pid)
    async with cell.agent() as again:
        assert again.incarnation != joined.incarnation
    assert not await cell.of_type(TaskExitedV1, task)


async def test_an_agent_that_restarts_in_time_keeps_fenced_tasks(
    cell: AgentCell, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with cell.agent():
        until_go = f"echo pid $$; while [ ! -e {go} ]; do sleep 0.05; done"
        task = await cell.allocate(sh(until_go), fence_s=10)
        pid = int((await cell.until_output(task, "pid")).split()[1])
    async with cell.agent():
        assert alive(pid)
        go.touch()
        assert (await cell.exit_of(task)).exit_code == 0
    assert len({e.incarnation for e in await cell.of_type(NodeJoinedV1)}) == 1


async def test_no_fenced_task_starts_on_a_node_that_was_cut_off_for_as_long(
    cell: AgentCell,
) -> None:
    log = Deaf(cell.log)
    async with cell.agent(replace(cell.ports(), log=log)) as joined:
        before = await cell.allocate(sh("true"), fence_s=5)
        await cell.ended(before)
        log.deaf_to = {"heartbeats"}
        await asyncio.sleep(5.5)  # longer than the fence
        log.deaf_to = set()
        beats = len(await cell.of_type(NodeHeartbeatV1))
        await cell.until(NodeHeartbeatV1, count=beats + 2)
        task = await cell.allocate(sh("true"), fence_s=5)
        (_, again) = await cell.until(NodeJoinedV1, count=2)
        assert again.incarnation != joined.incarnation
        assert not await cell.of_type(TaskStartedV1, task)
        other = await cell.allocate(sh("true"), fence_s=10)
        assert (await cell.exit_of(other)).exit_code == 0


async def until_dead(cell: AgentCell, pid: int) -> None:
    """Wait until a process is no more."""
    deadline = cell.clock.monotonic_s() + DEADLINE_S
    while alive(pid):
        assert cell.clock.monotonic_s() < deadline, f"process {pid} runs on"
        await asyncio.sleep(0.02)
