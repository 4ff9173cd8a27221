"""Containers of an engine that is restarted; the engine is the test's own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.docker_engine import IMAGE, OwnEngine, until_there
from tests.support.half_open import collect_half_open
from tests.support.node_agent import AgentCell
from yardmaster_schemas.events.details import Run

pytestmark = pytest.mark.timeout(120)

#: Writes numbered lines, and ends with 0 at a stop signal.
COUNTS = """
trap 'exit 0' TERM
n=0
while :; do n=$((n + 1)); echo "line $n"; sleep 0.01; done
"""


async def restart(engine: OwnEngine, end: str) -> None:
    """End the engine in one of its ways, and start it."""
    await asyncio.to_thread(getattr(engine, end))
    await asyncio.to_thread(engine.start)


@pytest.fixture
async def cell(docker_engine: OwnEngine, tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", engine_socket=docker_engine.socket)
    yield cell
    await cell.ports().executor.sweep()
    await cell.assert_honest()
    await cell.log.close()
    collect_half_open()


@pytest.mark.parametrize("end", ["kill", "stop", "lose"])
@pytest.mark.parametrize("agent_away", [False, True])
async def test_a_restart_of_the_engine_is_not_the_fault_of_a_task_and_keeps_its_output(
    cell: AgentCell, docker_engine: OwnEngine, end: str, agent_away: bool
) -> None:
    # Without a handler, the exit alone shows an agent that was away what the engine did.
    script = COUNTS.replace("trap", "# trap") if agent_away else COUNTS
    async with cell.agent():
        task = await cell.allocate(Run(script=script, image=IMAGE))
        await cell.until_output(task, "line 20\n")
        if not agent_away:
            await restart(docker_engine, end)
            await cell.exit_of(task)
    if agent_away:
        await restart(docker_engine, end)
    async with cell.agent():
        exited = await cell.exit_of(task)
        await cell.ended(task)
    assert exited.engine_restarted
    lines = (await cell.output(task)).splitlines()
    assert lines == [f"line {number + 1}" for number in range(len(lines))]


async def test_the_exit_of_a_container_that_ends_while_its_engine_is_away_is_seen(
    cell: AgentCell, docker_engine: OwnEngine
) -> None:
    script = (
        "echo one; while [ ! -e /yard/work/go ]; do sleep 0.01; done; touch /yard/work/gone; exit 3"
    )
    async with cell.agent():
        task = await cell.allocate(Run(script=script, image=IMAGE, working_dir="."))
        await cell.until_output(task, "one")
        work = cell.data_dir / "containers" / f"{task}.1.0" / "work"
        await asyncio.to_thread(docker_engine.kill)
        (work / "go").touch()
        await until_there(work / "gone")
        await asyncio.to_thread(docker_engine.start)
        exited = await cell.exit_of(task)
        await cell.ended(task)
    assert exited.exit_code == 3


@pytest.mark.parametrize(("program", "end"), [("exit 255", 255), ("kill -9 $$", 9)])
async def test_a_task_that_ends_itself_as_an_engine_would_has_failed(
    cell: AgentCell, program: str, end: int
) -> None:
    async with cell.agent():
        task = await cell.allocate(Run(script=program, image=IMAGE))
        exited = await cell.exit_of(task)
        await cell.ended(task)
    assert (exited.exit_code or exited.signal, exited.engine_restarted) == (end, False)


async def test_a_log_that_the_engine_cannot_read_delays_the_exit_only(
    cell: AgentCell, docker_engine: OwnEngine
) -> None:
    script = "echo one; touch /yard/work/said; sleep 1; echo two; exit 3"
    async with cell.agent():
        task = await cell.allocate(Run(script=script, image=IMAGE, working_dir="."))
        work = cell.data_dir / "containers" / f"{task}.1.0" / "work"
        await until_there(work / "said")
        await cell.until_output(task, "one")
    await asyncio.to_thread(docker_engine.wait, task)
    await asyncio.to_thread(docker_engine.spoil_log, task)
    async with cell.agent():
        exited = await cell.exit_of(task)
        await cell.ended(task)
    assert exited.exit_code == 3
    # Whether this engine says that it could not read its log is a matter of chance.
    assert (await cell.output(task, stream=None)).startswith("one\n")
