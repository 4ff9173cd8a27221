"""Agents that come back to a machine that lost power, or while their log is away."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_agent import DEADLINE_S, AgentCell, alive, sh
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_localcluster.orphans import end_tasks
from yardmaster_node_agent.agent import run
from yardmaster_node_agent.errors import LedgerInUse
from yardmaster_schemas.events.node_events import CheckpointDoneV1, TaskExitedV1

#: Runs until a test says so.
UNTIL_GO = "echo pid $$; until [ -e ../../../go ]; do sleep 0.05; done; exit 4"


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


async def test_replicas_that_ended_with_the_machine_are_lost_with_the_node_and_did_not_fail(
    cell: AgentCell,
) -> None:
    note = '{"uri":"s3://a/b","step":7}'
    async with cell.agent() as old:
        over = await cell.allocate(sh(UNTIL_GO))
        pid = int((await cell.until_output(over, "pid")).split()[1])
        script = f"echo ready; until [ -e ../../../go ]; do sleep 0.05; done; echo '{note}' > "
        lost = await cell.allocate(sh(script + "../checkpoint.json; echo last; sleep 1000"))
        await cell.until_output(lost, "ready")
    (cell.data_dir / "go").touch()
    (written,) = cell.data_dir.glob(f"replicas/{lost}.1.0/stdout")
    deadline = cell.clock.monotonic_s() + DEADLINE_S
    while alive(pid) or "last" not in written.read_text():
        assert cell.clock.monotonic_s() < deadline
        await asyncio.sleep(0.02)
    assert end_tasks(cell.data_dir) > 0
    async with cell.agent() as new:
        assert (new.incarnation != old.incarnation, new.running) == (True, ())
        assert (await cell.exit_of(over)).exit_code == 4, "its end is known, and reported before"
        assert [c.step for c in await cell.of_type(CheckpointDoneV1, lost)] == [7]
        assert "last" in await cell.output(lost)
        kinds = [e.type for e in await cell.envelopes()]
        assert kinds.index("SlotsReleased") < len(kinds) - 1 - kinds[::-1].index("NodeJoined")
        after = await cell.allocate(sh("true"))
        await cell.ended(after)
    assert not await cell.of_type(TaskExitedV1, lost), "its exit is unknown"


async def test_a_runner_that_was_killed_alone_while_no_agent_lived_ended_its_task(
    cell: AgentCell,
) -> None:
    async with cell.agent() as old:
        task = await cell.allocate(sh("echo parent $PPID self $$; sleep 1000"))
        words = (await cell.until_output(task, "self")).split()
        other = await cell.allocate(sh(UNTIL_GO))
        await cell.until_output(other, "pid")
    os.kill(int(words[1]), signal.SIGKILL)
    async with cell.agent() as new:
        assert new.incarnation == old.incarnation, "the machine did not lose power: others live"
        assert (await cell.exit_of(task)).signal == signal.SIGKILL
        assert not alive(int(words[3]))
        (cell.data_dir / "go").touch()
        assert (await cell.exit_of(other)).exit_code == 4


class Gone:
    """A log that cannot be reached."""

    def __getattr__(self, name: str) -> Any:
        async def call(*_: object, **__: object) -> None:
            raise LogUnavailable(found="gone")

        return call


async def test_an_agent_that_starts_while_the_log_is_unavailable_executes_its_ledger(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        script = "trap '' TERM; echo pid $$; while :; do sleep 0.05 || :; done"
        task = await cell.allocate(sh(script))
        pid = int((await cell.until_output(task, "pid")).split()[1])
        await cell.stop(task, grace_s=2)
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while b'"deadline_ms"' not in (cell.data_dir / "ledger").read_bytes():
            assert cell.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
    assert alive(pid)
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(run(replace(cell.ports(), log=Gone()), cell.settings))
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while alive(pid):
            assert cell.clock.monotonic_s() < deadline, "its grace is over"
            await asyncio.sleep(0.02)
        with pytest.raises(LedgerInUse):
            await run(cell.ports(), cell.settings)
        agent.cancel()
    async with cell.agent():
        assert (await cell.exit_of(task)).signal == signal.SIGKILL
