"""Fenced containers of an agent that is gone, and the guard that kills them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import docker
import pytest

from tests.support.containers import CONTAINER_IMAGE, ENGINE_SOCKET, is_there
from tests.support.half_open import collect_half_open
from tests.support.node_agent import AgentCell, alive
from yardmaster_node_agent import container_guard
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import NodeJoinedV1, TaskExitedV1

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", engine_socket=ENGINE_SOCKET, engine_check_s=0.2)
    yield cell
    await cell.ports().executor.sweep()
    await until(lambda: guard_of(cell) is None)
    await cell.assert_honest()
    await cell.log.close()
    collect_half_open()


def guard_of(cell: AgentCell) -> int | None:
    """The process that guards the containers of the node, if there is one."""
    folder = cell.data_dir / "containers.guard"
    words = f"-m\0{container_guard.__name__}\0{folder}\0".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if words in (path / "cmdline").read_bytes() and alive(int(path.name)):
                return int(path.name)
        except OSError:
            continue
    return None


def runs(task: str) -> bool:
    """Whether a container of the first attempt of a task runs."""
    client = docker.from_env()
    try:
        label = f"dev.yardmaster.key={task}.1.0"
        return bool(client.containers.list(filters={"label": label}))
    finally:
        client.close()
        collect_half_open()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if await asyncio.to_thread(holds):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not hold after 30 s")


UNTIL_GO = "echo ready; while [ ! -e /yard/work/go ]; do sleep 0.05; done"


async def test_a_guard_kills_a_fenced_container_when_the_agent_is_gone(cell: AgentCell) -> None:
    async with cell.agent() as joined:
        fenced = await cell.allocate(Run(script=UNTIL_GO, image=CONTAINER_IMAGE), fence_s=5)
        free = await cell.allocate(Run(script=UNTIL_GO, image=CONTAINER_IMAGE))
        for task in (fenced, free):
            await cell.until_output(task, "ready")
    await until(lambda: not runs(fenced))
    assert runs(free), "a container without a fence continues"
    async with cell.agent() as again:
        assert again.incarnation != joined.incarnation
    assert not await cell.of_type(TaskExitedV1, fenced), "a kill by the guard is no task's failure"


async def test_an_agent_that_restarts_in_time_keeps_a_fenced_container(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(Run(script=UNTIL_GO, image=CONTAINER_IMAGE), fence_s=30)
        await cell.until_output(task, "ready")
    async with cell.agent():
        assert runs(task)
        (cell.data_dir / "containers" / f"{task}.1.0" / "work" / "go").touch()
        assert (await cell.exit_of(task)).exit_code == 0
        await cell.ended(task)
        await until(lambda: guard_of(cell) is None)
    assert len({e.incarnation for e in await cell.of_type(NodeJoinedV1)}) == 1


async def test_a_guard_that_was_killed_is_started_again_and_there_is_one(cell: AgentCell) -> None:
    async with cell.agent():
        tasks = [
            await cell.allocate(Run(script=UNTIL_GO, image=CONTAINER_IMAGE), fence_s=5)
            for _ in range(2)
        ]
        for task in tasks:
            await cell.until_output(task, "ready")
        first = guard_of(cell)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: guard_of(cell) not in (None, first))
    await until(lambda: not any(map(runs, tasks)))


async def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_guarded(
    cell: AgentCell, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cell.data_dir / "containers.guard"
    folder.mkdir(parents=True)
    damaged = folder / "damaged"
    damaged.write_text("{")
    async with cell.agent():
        fenced = await cell.allocate(Run(script=UNTIL_GO, image=CONTAINER_IMAGE), fence_s=5)
        await cell.until_output(fenced, "ready")
    assert capsys.readouterr().err.count("container_unguarded") == 1
    guard = guard_of(cell)
    await until(lambda: not runs(fenced))
    assert guard_of(cell) == guard is not None
    said = (folder / ".log").read_text()
    assert said.count("nothing guards damaged") == 1
    damaged.unlink()
