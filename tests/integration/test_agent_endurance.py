"""Many containers, and agents that are killed; the engine is the test's own."""

import asyncio
from pathlib import Path

import pytest

from tests.support.docker_engine import IMAGE, OwnEngine
from tests.support.half_open import collect_half_open
from tests.support.kills import LEAVES_SOCKETS, killed_at
from tests.support.node_agent import AgentCell
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.executors.port import Executor, Launch
from yardmaster_schemas.events.details import Run

pytestmark = pytest.mark.timeout(180)

CYCLES = 500
AT_ONCE = 6
#: One cycle in five has an agent that is killed, and another a container that runs to its end.
OF = 5


async def cycle(executor: Executor, key: ReplicaKey, *, runs: bool = True) -> None:
    """Create a container, let it run, and remove it."""
    launch = Launch(key, Run(script="echo made > /yard/work/made", image=IMAGE), {})
    await executor.prepare(launch)
    if runs:
        assert await (await executor.start(launch)).exited() == Exit(exit_code=0)
    assert await executor.forget(key)


async def clear(executor: Executor, key: ReplicaKey) -> None:
    """Remove what the agent before has left of a replica, as its successor does."""
    found = (await executor.find(key)).execution or await executor.withdraw(key)
    if found is not None:
        await found.kill()
        await found.exited()
    await executor.forget(key)


@LEAVES_SOCKETS
async def test_500_containers_and_killed_agents_leave_nothing(
    docker_engine: OwnEngine, tmp_path: Path
) -> None:
    """Each further agent that is killed is killed two waits later."""
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", engine_socket=docker_engine.socket, task_users="same")
    before = await asyncio.to_thread(docker_engine.holds)
    agent, left, killed = cell.ports().executor, iter(range(CYCLES)), 0

    async def work() -> None:
        nonlocal killed
        for number in left:
            key = ReplicaKey(f"{number:012d}.0", 1, 0)
            if number % OF:
                await cycle(agent, key, runs=number % OF == 1)
            elif not await killed_at(cycle(cell.ports().executor, key), number * 2 // OF):
                killed += 1
                await clear(agent, key)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    assert killed > CYCLES // OF // 2
    await cycle(cell.ports().executor, ReplicaKey(f"{CYCLES:012d}.0", 1, 0), runs=False)
    after = await asyncio.to_thread(docker_engine.holds)
    assert after == before
    assert list((cell.data_dir / "containers").iterdir()) == []
    await cell.log.close()
    collect_half_open()
