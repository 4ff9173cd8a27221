"""The contract of the executors of a node agent (`executors.port`), for each in `EXECUTORS`."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.containers import CONTAINER_IMAGE, ENGINE_SOCKET, is_there
from tests.support.half_open import collect_half_open
from tests.support.kills import LEAVES_SOCKETS, killed_at
from tests.support.task_users import SIZE, users_of_test
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.by_image import ExecutorByImage
from yardmaster_node_agent.executors.cgroups import Cgroups, find_cgroups
from yardmaster_node_agent.executors.docker import DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Execution, Executor, Launch, Phase
from yardmaster_node_agent.executors.process import ProcessExecutor
from yardmaster_node_agent.executors.task_user import TaskUsers
from yardmaster_node_agent.ports import EXECUTORS
from yardmaster_node_agent.settings import ExecutorName, Settings
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import RunIdentity, RunKind

#: Notes its start, then does with a process what the simulated executor does by itself.
SCRIPT = """
(set -C; : > "$WITNESS") 2> /dev/null || echo again >> "$WITNESS"
trap 'printf "%s" "$NOTE" > "$YARD_CHECKPOINT_FILE"; exit 0' TERM
sleep "$SIM_SECONDS" & wait $!
exit "$SIM_EXIT"
"""
KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
OTHER = ReplicaKey("4kq7w2mz9c1f.1", 1, 0)
#: Hosts whose replicas have users of their own.
AS_USERS = ("processes of users", "containers of users")
#: More suspensions than any call of an executor has.
MANY = 200


@dataclass
class Host:
    """A machine: `agent` makes the executor of a further agent process on it."""

    agent: Callable[[], Executor]
    #: The directory of the replicas' directories.
    replicas: Path
    #: Whether it starts programs, or only simulates them.
    real: bool = True
    #: The image of its containers.
    image: str | None = None
    #: Where a program finds the directory of its replica.
    inside: str | None = None
    #: The users of its replicas.
    users: TaskUsers | None = None
    #: The waits from one tried kill to the next: a request to an engine has several waits.
    stride: int = 1

    def witness(self, key: ReplicaKey) -> Path:
        """Return the file that the program of a replica creates when it starts."""
        return self.replicas / str(key) / "work" / "witness"

    def launch(
        self, key: ReplicaKey = KEY, *, seconds: float = 60, exit_code: int = 0, **run: Any
    ) -> Launch:
        """A replica that runs for `seconds`; a stop signal makes it note a checkpoint and exit."""
        program = Run(script=SCRIPT, image=self.image, **run)
        paths = self.agent().paths(key, program)
        env = {
            "SIM_SECONDS": str(seconds),
            "SIM_EXIT": str(exit_code),
            "SIM_CHECKPOINT": "s3://runs/a",
            "NOTE": '{"uri": "s3://runs/a", "step": 1}',
            # Tests that run at the same time find only their own programs.
            "HOST_OF_TEST": str(self.replicas),
            "WITNESS": str(Path(self.inside or self.replicas / str(key)) / "work" / "witness"),
            "YARD_CHECKPOINT_FILE": paths.checkpoint_file,
            "YARD_STOP_FILE": paths.stop_file,
        }
        if self.image is None:
            env["PATH"] = os.environ["PATH"]
        user = None
        if self.users is not None:
            # Replicas that a test runs together have different users, as an agent gives them.
            after = self.users.first + (2 * key.attempt + int(key.task_id[-1])) % (SIZE - 1)
            user = self.users.own((), after, shared=False)
        return Launch(key=key, run=program, env=env, user=user)

    async def until_running(self, key: ReplicaKey = KEY) -> None:
        """Wait until the program of a replica has noted its start."""
        deadline_s = time.monotonic() + 30
        while self.real and not self.witness(key).exists():
            assert time.monotonic() < deadline_s, f"{key} noted no start"
            await asyncio.sleep(0.01)

    def left(self) -> list[str]:
        """Return the folders of replicas that are left, and the pids of their programs."""
        if not self.real:
            return []
        mark = f"HOST_OF_TEST={self.replicas}\0".encode()
        pids = [pid for pid in procfs.processes() if procfs.has_variable(pid, mark)]
        folders = self.replicas.iterdir() if self.replicas.exists() else ()
        return [*(path.name for path in folders), *map(str, pids)]

    def assert_started_once_at_most(self, key: ReplicaKey = KEY) -> None:
        if self.witness(key).exists():
            assert self.witness(key).read_text() == "", f"{key} was started again"


@pytest.fixture(params=[*EXECUTORS, *AS_USERS, "process in cgroups", "containers of auto"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Host]:
    # Other users cannot pass through the folders of pytest.
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        data_dir = Path(folder) / "data"
        users = None
        if request.param in AS_USERS:
            if os.geteuid() != 0:
                pytest.skip("needs root")
            users = users_of_test()
        if request.param == "processes of users":

            def agent() -> Executor:
                root, renewed = data_dir / "replicas", tmp_path / "renewed"
                return ProcessExecutor(root, SystemClock(), users, renewed=renewed)
        elif request.param == "process in cgroups":
            root, renewed = data_dir / "replicas", tmp_path / "renewed"
            cgroups = limiting_cgroups(root)

            def agent() -> Executor:
                return ProcessExecutor(root, SystemClock(), renewed=renewed, cgroups=cgroups)
        elif request.param == "simulated":
            # A simulated host lives as long as its executor.
            only = of_settings("simulated", tmp_path)

            def agent() -> Executor:
                return only
        else:
            with_image = request.param.startswith("containers of")
            if with_image and not is_there(CONTAINER_IMAGE):
                pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")

            def agent() -> Executor:
                return of_settings("auto" if with_image else request.param, data_dir)

        if request.param.startswith("containers of"):
            root = data_dir / "containers"
            yield Host(agent, root, image=CONTAINER_IMAGE, inside="/yard", users=users, stride=9)
        else:
            real = request.param != "simulated"
            yield Host(agent, data_dir / "replicas", real=real, users=users)
        await agent().sweep()


def limiting_cgroups(root: Path) -> Cgroups:
    cgroups, reason = find_cgroups("auto", str(root))
    if cgroups is None or "memory" not in cgroups.parents:
        pytest.skip(f"this machine cannot limit memory by cgroups: {cgroups or reason}")
    return cgroups


def of_settings(name: ExecutorName, data_dir: Path) -> Executor:
    settings = Settings(
        node="n1",
        data_dir=data_dir,
        executor=name,
        engine_socket=ENGINE_SOCKET,
        task_users="same",
        cgroups="off",
    )
    telemetry = Telemetry("node_agent", now_ms=lambda: 0, level="warning")
    return EXECUTORS[settings.executor](settings, SystemClock(), telemetry).executor


@pytest.fixture
def executor(host: Host) -> Executor:
    return host.agent()


async def run(executor: Executor, launch: Launch) -> Execution:
    await executor.prepare(launch)
    return await executor.start(launch)


async def phase_of(executor: Executor, key: ReplicaKey = KEY) -> Phase:
    return (await executor.find(key)).phase


async def end_of(execution: Execution) -> Exit:
    async with asyncio.timeout(30):
        found = await execution.exited()
        await execution.gone()
    return found


async def killed(execution: Execution) -> Exit:
    """Kill until nothing is left: a process may fork between two calls."""
    ending = asyncio.ensure_future(end_of(execution))
    while not ending.done():
        await execution.kill()
        await asyncio.sleep(0.05)
    return ending.result()


# --- prepare and start ------------------------------------------------------------------------


async def test_a_prepared_replica_does_not_run(host: Host, executor: Executor) -> None:
    assert await phase_of(executor) is Phase.ABSENT
    await executor.prepare(host.launch())
    assert await phase_of(executor) is Phase.PREPARED
    assert await phase_of(executor, OTHER) is Phase.ABSENT
    assert not host.witness(KEY).exists()


async def test_a_repeated_preparation_changes_nothing(host: Host, executor: Executor) -> None:
    await executor.prepare(host.launch())
    await host.agent().prepare(host.launch())
    assert await phase_of(executor) is Phase.PREPARED
    execution = await executor.start(host.launch())
    await executor.prepare(host.launch())
    assert await phase_of(executor) is Phase.RUNNING
    await killed(execution)


async def test_a_replica_that_was_not_prepared_does_not_start(
    host: Host, executor: Executor
) -> None:
    with pytest.raises(ExecutorFailed):
        await executor.start(host.launch())
    assert await phase_of(executor) is Phase.ABSENT


@pytest.mark.parametrize("exit_code", [0, 3])
async def test_a_replica_ends_with_the_exit_code_of_its_program(
    host: Host, executor: Executor, exit_code: int
) -> None:
    execution = await run(executor, host.launch(seconds=0.05, exit_code=exit_code))
    assert await end_of(execution) == Exit(exit_code=exit_code)
    found = await executor.find(KEY, execution.identity)
    assert (found.phase, found.exit_lost) == (Phase.ENDED, False)


async def test_a_repeated_start_returns_the_execution_of_the_first(
    host: Host, executor: Executor
) -> None:
    first = await run(executor, host.launch())
    await host.until_running()
    again = await executor.start(host.launch())
    later = await host.agent().start(host.launch())
    assert first.identity == again.identity == later.identity
    await killed(first)
    ended = await executor.start(host.launch())
    assert ended.identity == first.identity
    host.assert_started_once_at_most()


async def test_a_later_agent_starts_what_an_earlier_one_prepared(
    host: Host, executor: Executor
) -> None:
    await executor.prepare(host.launch())
    execution = await host.agent().start(host.launch())
    await host.until_running()
    await killed(execution)
    host.assert_started_once_at_most()


async def test_two_replicas_have_two_identities(host: Host, executor: Executor) -> None:
    first = await run(executor, host.launch())
    second = await run(executor, host.launch(OTHER))
    assert first.identity != second.identity
    await killed(first)
    assert await phase_of(executor, OTHER) is Phase.RUNNING
    await killed(second)


# --- find and withdraw ------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
async def test_a_later_agent_finds_what_runs_under_its_identity(
    host: Host, executor: Executor, known: bool
) -> None:
    execution = await run(executor, host.launch())
    found = await host.agent().find(KEY, execution.identity if known else None)
    assert found.phase is Phase.RUNNING
    assert found.execution is not None
    assert found.execution.identity == execution.identity
    assert await killed(found.execution) == Exit(signal=signal.SIGKILL)


async def test_a_later_agent_finds_the_exit_of_what_ended_meanwhile(
    host: Host, executor: Executor
) -> None:
    execution = await run(executor, host.launch(seconds=0.01, exit_code=3))
    await end_of(execution)
    found = await host.agent().find(KEY)
    assert found.phase is Phase.ENDED
    assert found.execution is not None
    assert await end_of(found.execution) == Exit(exit_code=3)


async def test_a_withdrawn_replica_never_starts(host: Host, executor: Executor) -> None:
    await executor.prepare(host.launch())
    assert await host.agent().withdraw(KEY) is None
    assert await phase_of(executor) is Phase.ABSENT
    with pytest.raises(ExecutorFailed):
        await executor.start(host.launch())
    assert not host.witness(KEY).exists()


async def test_a_replica_that_was_started_is_not_withdrawn(host: Host, executor: Executor) -> None:
    execution = await run(executor, host.launch())
    found = await host.agent().withdraw(KEY)
    assert found is not None
    assert found.identity == execution.identity
    assert await phase_of(executor) is Phase.RUNNING
    await killed(execution)
    assert await executor.withdraw(KEY) is not None


async def test_nothing_is_withdrawn_of_an_absent_replica(executor: Executor) -> None:
    assert await executor.withdraw(KEY) is None
    assert await phase_of(executor) is Phase.ABSENT


@pytest.mark.parametrize("kind", [RunKind.PROCESS, RunKind.CONTAINER, RunKind.POD])
async def test_the_phase_of_a_foreign_kind_of_run_is_unknown(tmp_path: Path, kind: RunKind) -> None:
    known = RunIdentity(kind=kind, id="1-1", host="here")
    telemetry = Telemetry("node_agent", now_ms=lambda: 0, level="warning")
    engine = Engine(tmp_path / "nowhere.sock")
    processes = ProcessExecutor(tmp_path / "p", SystemClock(), renewed=tmp_path / "renewed")
    guarding = Guarding(tmp_path / "c.guard", tmp_path / "nowhere.sock", tmp_path / "renewed")
    containers = DockerExecutor(tmp_path / "c", SystemClock(), engine, telemetry, guarding=guarding)
    both = ExecutorByImage(processes, containers)
    phases = [(await each.find(KEY, known)).phase for each in (processes, containers, both)]
    of_processes = Phase.ENDED if kind is RunKind.PROCESS else Phase.UNKNOWN
    assert phases == [of_processes, Phase.UNKNOWN, of_processes]
    collect_half_open()


# --- stop and end -----------------------------------------------------------------------------


async def test_a_stop_notice_is_accepted_and_a_signal_lets_the_replica_save(
    host: Host, executor: Executor
) -> None:
    execution = await run(executor, host.launch())
    assert execution.files.announce_stop('{"code": "priority"}')
    assert execution.files.checkpoint_note() is None
    await host.until_running()
    ending = asyncio.ensure_future(execution.exited())
    # A program that has not set its trap yet is ended by the signal, one that forks may miss it.
    while not ending.done():
        await execution.signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
    assert ending.result() in (Exit(exit_code=0), Exit(signal=signal.SIGTERM))
    await killed(execution)


async def test_a_later_agent_stops_what_an_earlier_one_started(
    host: Host, executor: Executor
) -> None:
    await run(executor, host.launch())
    await host.until_running()
    found = (await host.agent().find(KEY)).execution
    assert found is not None
    ending = asyncio.ensure_future(found.exited())
    while not ending.done():
        await found.signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
    assert not ending.result().lost
    await killed(found)


async def test_a_signal_to_an_ended_replica_does_nothing(host: Host, executor: Executor) -> None:
    execution = await run(executor, host.launch(seconds=0.01))
    await end_of(execution)
    await execution.signal(signal.SIGTERM)
    await execution.kill()
    assert await end_of(execution) == Exit(exit_code=0)


async def test_output_past_its_limit_is_freed(host: Host, executor: Executor) -> None:
    execution = await run(executor, host.launch(seconds=0.01))
    await end_of(execution)
    assert execution.files.bound_output(0, 0)
    assert execution.files.read_output("stdout", execution.files.output_size("stdout"), 10) == b""


async def test_a_sweep_ends_every_replica_and_says_how_many(host: Host, executor: Executor) -> None:
    third = ReplicaKey("4kq7w2mz9c1f.2", 1, 0)
    for key in (KEY, OTHER):
        await run(executor, host.launch(key))
    await executor.prepare(host.launch(third))
    assert await host.agent().sweep() >= 2
    assert {await phase_of(executor, key) for key in (KEY, OTHER, third)} == {Phase.ABSENT}
    assert await executor.sweep() == 0


async def test_a_forgotten_replica_leaves_nothing_to_sweep(host: Host, executor: Executor) -> None:
    execution = await run(executor, host.launch(seconds=0.01))
    await end_of(execution)
    await executor.forget(KEY)
    assert await phase_of(executor) is Phase.ABSENT
    await executor.forget(KEY)
    assert await executor.sweep() == 0


# --- an agent that is killed while it waits ---------------------------------------------------


@LEAVES_SOCKETS
@pytest.mark.parametrize("step", ["prepare", "start", "find", "withdraw", "end", "sweep", "forget"])
async def test_an_agent_killed_at_any_wait_starts_nothing_twice_and_leaves_nothing(
    host: Host, step: str
) -> None:
    async def end(execution: Execution | None) -> None:
        assert execution is not None
        await execution.signal(signal.SIGTERM)
        await execution.kill()
        await execution.exited()
        await execution.gone()

    for number in range(0, MANY, host.stride):
        key = ReplicaKey("4kq7w2mz9c1f.0", number + 1, 0)
        launch, agent = host.launch(key), host.agent()
        if step != "prepare":
            await agent.prepare(launch)
        execution = None
        if step in ("end", "sweep", "forget"):
            execution = await agent.start(launch)
            await host.until_running(key)
            assert len(host.left()) > 1 or not host.real, "a program that runs is found"
            if step == "forget":
                await killed(execution)
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "prepare": lambda: agent.prepare(launch),  # noqa: B023
            "start": lambda: agent.start(launch),  # noqa: B023
            "find": lambda: agent.find(key),  # noqa: B023
            "withdraw": lambda: agent.withdraw(key),  # noqa: B023
            "end": lambda: end(execution),  # noqa: B023
            "sweep": agent.sweep,
            "forget": lambda: agent.forget(key),  # noqa: B023
        }
        over = await killed_at(calls[step](), number)
        # The next agent: what may still start is withdrawn, what runs is found and ended.
        later = host.agent()
        found = (await later.find(key)).execution
        if found is None:
            found = await later.withdraw(key)
        if found is not None:
            await killed(found)
        assert await phase_of(later, key) is not Phase.RUNNING
        host.assert_started_once_at_most(key)
        await later.forget(key)
        assert await phase_of(later, key) is Phase.ABSENT
        assert host.left() == []
        if over:
            collect_half_open()
            return
    raise AssertionError(f"{step} waits more than {MANY} times")


@LEAVES_SOCKETS
async def test_an_agent_killed_in_its_start_and_its_successor_start_a_replica_once(
    host: Host,
) -> None:
    for number in range(0, MANY, host.stride):
        key = ReplicaKey("4kq7w2mz9c1f.0", number + 1, 0)
        launch, agent = host.launch(key), host.agent()
        await agent.prepare(launch)
        over = await killed_at(agent.start(launch), number)
        execution = await host.agent().start(launch)
        await host.until_running(key)
        await killed(execution)
        host.assert_started_once_at_most(key)
        if over:
            collect_half_open()
            return
    raise AssertionError(f"start waits more than {MANY} times")
