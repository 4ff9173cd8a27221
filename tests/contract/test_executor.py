"""The contract of the executors of a node agent (`executors.port`), for each in `EXECUTORS`."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.port import Executor, Launch, Process, Renewal
from yardmaster_node_agent.executors.process import ProcessExecutor
from yardmaster_node_agent.executors.task_user import DEFAULT_ID, TaskUser
from yardmaster_node_agent.ports import EXECUTORS
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run

#: Does with a process what the simulated executor does by itself.
SCRIPT = """
trap 'printf "%s" "$NOTE" > "$YARD_CHECKPOINT_FILE"; exit 0' TERM
sleep "$SIM_SECONDS" & wait $!
exit "$SIM_EXIT"
"""
KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
OTHER = ReplicaKey("4kq7w2mz9c1f.1", 1, 0)


@pytest.fixture(params=[*EXECUTORS, "process as another user"])
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Executor]:
    if request.param == "process as another user":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        # Other users cannot pass through the folders of pytest.
        with TemporaryDirectory() as folder:
            os.chmod(folder, 0o711)
            user = TaskUser(DEFAULT_ID, DEFAULT_ID)
            made: Executor = ProcessExecutor(Path(folder) / "replicas", SystemClock(), user)
            yield made
            await made.sweep()
        return
    settings = Settings(node="n1", data_dir=tmp_path, executor=request.param)
    telemetry = Telemetry("node_agent", now_ms=lambda: 0, level="warning")
    made = EXECUTORS[settings.executor](settings, SystemClock(), telemetry).executor
    yield made
    await made.sweep()


def launch(
    executor: Executor, key: ReplicaKey = KEY, *, seconds: float = 60, exit_code: int = 0
) -> Launch:
    """A replica that runs for `seconds`; a stop signal makes it note a checkpoint and exit."""
    env = {
        "PATH": os.environ["PATH"],
        "SIM_SECONDS": str(seconds),
        "SIM_EXIT": str(exit_code),
        "SIM_CHECKPOINT": "s3://runs/a",
        "NOTE": '{"uri": "s3://runs/a", "step": 1}',
        "YARD_CHECKPOINT_FILE": executor.paths(key).checkpoint_file,
        "YARD_STOP_FILE": executor.paths(key).stop_file,
    }
    return Launch(key=key, run=Run(script=SCRIPT), env=env)


async def started(executor: Executor, key: ReplicaKey = KEY) -> Process:
    return await executor.start(launch(executor, key))


async def end_of(process: Process) -> Exit:
    async with asyncio.timeout(30):
        found = await process.exited()
        await process.gone()
    return found


async def killed(process: Process) -> Exit:
    """Kill until nothing is left: a process may fork between two calls."""
    ending = asyncio.ensure_future(end_of(process))
    while not ending.done():
        process.kill()
        await asyncio.sleep(0.05)
    return ending.result()


@pytest.mark.parametrize("exit_code", [0, 3])
async def test_a_replica_ends_with_the_exit_code_of_its_program(
    executor: Executor, exit_code: int
) -> None:
    process = await executor.start(launch(executor, seconds=0.05, exit_code=exit_code))
    assert await end_of(process) == Exit(exit_code=exit_code)
    assert not process.is_alive()
    assert not process.vanished()


async def test_a_started_replica_is_found_again_under_its_identity(executor: Executor) -> None:
    process = await started(executor)
    found = await executor.adopt(KEY, process.identity)
    assert found is not None
    assert found.identity == process.identity
    assert found.is_alive()
    assert await killed(found) == Exit(signal=signal.SIGKILL)


async def test_a_replica_that_was_never_started_is_not_found(executor: Executor) -> None:
    await started(executor, OTHER)
    assert await executor.adopt(KEY) is None


async def test_a_replica_starts_once(executor: Executor) -> None:
    process = await started(executor)
    with pytest.raises(ExecutorFailed):
        await started(executor)
    assert process.is_alive()


async def test_two_replicas_have_two_identities(executor: Executor) -> None:
    first, second = await started(executor), await started(executor, OTHER)
    assert first.identity != second.identity
    await killed(first)
    assert second.is_alive()


async def test_a_stop_notice_is_accepted_and_a_signal_lets_the_replica_save(
    executor: Executor,
) -> None:
    process = await started(executor)
    assert process.announce_stop('{"code": "priority"}')
    assert process.checkpoint_note() is None
    ending = asyncio.ensure_future(process.exited())
    # A program that has not set its trap yet is ended by the signal, one that forks may miss it.
    while not ending.done():
        process.signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
    assert ending.result() in (Exit(exit_code=0), Exit(signal=signal.SIGTERM))
    await killed(process)


async def test_a_signal_to_an_ended_replica_does_nothing(executor: Executor) -> None:
    process = await executor.start(launch(executor, seconds=0.01))
    await end_of(process)
    process.signal(signal.SIGTERM)
    process.kill()
    assert await end_of(process) == Exit(exit_code=0)


async def test_output_past_its_limit_is_freed(executor: Executor) -> None:
    process = await executor.start(launch(executor, seconds=0.01))
    await end_of(process)
    assert process.bound_output(0, 0)
    assert process.read_output("stdout", process.output_size("stdout"), 10) == b""


async def test_a_sweep_ends_every_replica_and_says_how_many(executor: Executor) -> None:
    processes = [await started(executor), await started(executor, OTHER)]
    assert await executor.sweep() >= len(processes)
    assert [process.is_alive() for process in processes] == [False, False]
    assert await executor.sweep() == 0


async def test_a_forgotten_replica_leaves_nothing_to_sweep(executor: Executor) -> None:
    process = await executor.start(launch(executor, seconds=0.01))
    await end_of(process)
    executor.forget(KEY)
    assert await executor.sweep() == 0


async def test_the_last_renewal_is_kept(executor: Executor) -> None:
    assert executor.renewal() is None
    first, last = (Renewal("boot", "0123456789ab", seconds, 0.5) for seconds in (1.0, 2.0))
    executor.renew(first)
    executor.renew(last)
    assert executor.renewal() == last
