"""The limits of replicas that run as processes, by cgroups of this machine, of either version."""

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.executors import cgroups as cgroups_module
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.cgroups import Cgroups, Group, find_cgroups
from yardmaster_node_agent.executors.port import Execution, Launch, Phase
from yardmaster_node_agent.executors.process import ProcessExecutor
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.details import Run

KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
#: A program of Python that uses memory.
LARGE = "size = 200 * 2**20; held = b'x' * size; print(len(held))"


class Agent:
    """An agent's executor of processes with limits."""

    def __init__(self, root: Path) -> None:
        self.root = root / "replicas"
        found, reason = find_cgroups("auto", str(self.root))
        if found is None or set(found.parents) != {"memory", "cpu", "pids"}:
            pytest.skip(f"this machine cannot limit processes: {found or reason}")
        self.cgroups: Cgroups = found
        self.executor = self.later()

    def later(self) -> ProcessExecutor:
        """Return the executor of a later agent process."""
        renewed = self.root.with_name("renewed")
        return ProcessExecutor(self.root, SystemClock(), renewed=renewed, cgroups=self.cgroups)

    def launch(self, script: str, **limits: Any) -> Launch:
        env = {
            "PATH": os.environ["PATH"],
            "YARD_STOP_FILE": str(self.root / str(KEY) / "stop.json"),
        }
        return Launch(key=KEY, run=Run(script=script), env=env, **limits)

    async def run(self, script: str, **limits: int) -> Execution:
        launch = self.launch(script, **limits)
        await self.executor.prepare(launch)
        return await self.executor.start(launch)

    @property
    def folders(self) -> list[Path]:
        """The folders of groups of this agent."""
        return list(self.cgroups.left().folders)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    await agent.executor.sweep()
    assert agent.folders == []


def python(program: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"


async def end_of(execution: Execution) -> Exit:
    async with asyncio.timeout(60):
        found = await execution.exited()
        await execution.gone()
    return found


async def killed(execution: Execution) -> Exit:
    ending = asyncio.ensure_future(end_of(execution))
    while not ending.done():
        await execution.kill()
        await asyncio.sleep(0.05)
    return ending.result()


def is_there(path: Path) -> bool:
    return path.exists()


async def until_there(path: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not is_there(path):
        assert time.monotonic() < deadline_s, f"{path} is missing"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (f"exec {python(LARGE)}", {"signal": signal.SIGKILL}),
        (f"{python(LARGE)} || exit 7", {"exit_code": 7}),
    ],
    ids=["the main program", "a child"],
)
async def test_a_replica_that_exceeds_its_memory_ends_with_out_of_memory(
    agent: Agent, script: str, end: dict[str, Any]
) -> None:
    execution = await agent.run(script, memory_mib=64)
    assert await end_of(execution) == Exit(**end, out_of_memory=True)
    assert agent.folders == []


async def test_a_replica_within_its_memory_ends_as_its_program_does(agent: Agent) -> None:
    execution = await agent.run(f"{python(LARGE)}; exit 7", memory_mib=512)
    assert await end_of(execution) == Exit(exit_code=7)
    assert execution.files.read_output("stdout", 0, 100) == b"209715200\n"


async def test_a_replica_that_requested_no_memory_has_no_limit_of_it(agent: Agent) -> None:
    assert await end_of(await agent.run(python(LARGE))) == Exit(exit_code=0)


async def test_a_replica_that_survives_the_end_of_a_child_has_its_own_end(agent: Agent) -> None:
    execution = await agent.run(f"{python(LARGE)} || true", memory_mib=64)
    assert await end_of(execution) == Exit(exit_code=0)


async def test_the_processes_of_a_replica_are_bounded(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups_module, "MAX_PIDS", 20)
    program = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 40:\n"
        "        made += 1\n"
        "        os.fork() or time.sleep(60) or os._exit(0)\n"
        "except BlockingIOError:\n"
        "    print(made, flush=True)\n"
    )
    execution = await agent.run(f"exec {python(program)}")
    assert await execution.exited() == Exit(exit_code=0)
    assert execution.files.read_output("stdout", 0, 100) == b"20\n"
    await killed(execution)


async def test_a_replica_gets_no_more_cpus_than_it_requested(agent: Agent) -> None:
    program = "import time\nwhile time.process_time() < 0.5: pass"
    began_s = time.monotonic()
    await end_of(await agent.run(f"exec {python(program)}", cpu_milli=200))
    # A period of 0.1 s may begin in the middle.
    assert time.monotonic() - began_s > 0.5 / 0.2 - 0.2


async def test_processes_that_hide_are_killed_also_without_their_runner(agent: Agent) -> None:
    hidden = agent.root.with_name("hidden")
    script = f"setsid env -i sh -c 'echo $$ > {hidden}.new; mv {hidden}.new {hidden}; sleep 600' &"
    execution = await agent.run(f"{script}\nwait; sleep 600")
    await until_there(hidden)
    (runner,) = procfs.runners("runner.py", str(agent.root))
    os.kill(runner.pid, signal.SIGKILL)
    main = int(execution.identity.id.partition("-")[0])
    os.kill(main, signal.SIGKILL)
    assert (await killed(execution)).lost
    left = procfs.look(int(hidden.read_text()))
    assert left is None or left.ended
    assert agent.folders == []


async def test_a_replica_outlives_its_agent_in_its_group(agent: Agent) -> None:
    script = f": > {agent.root.with_name('up')}; sleep 600; :"
    execution = await agent.run(script, memory_mib=64)
    await until_there(agent.root.with_name("up"))
    folders = agent.folders
    found = await agent.later().find(KEY, execution.identity)
    assert found.phase is Phase.RUNNING
    assert found.execution is not None
    assert sorted(agent.folders) == sorted(folders)
    assert (await killed(found.execution)).signal == signal.SIGKILL
    assert agent.folders == []


async def test_a_sweep_finds_groups_whose_directories_are_gone(agent: Agent) -> None:
    group = agent.cgroups.make(KEY, memory_mib=64, cpu_milli=100)
    sleeper = await asyncio.create_subprocess_exec("sleep", "600")
    for folder in group.folders:
        (folder / "cgroup.procs").write_text(str(sleeper.pid))
    assert await agent.later().sweep() == 1
    assert await sleeper.wait() == -signal.SIGKILL
    assert agent.folders == []


async def test_an_agent_without_cgroups_ends_what_an_earlier_one_limited(agent: Agent) -> None:
    execution = await agent.run("sleep 600; :", memory_mib=64)
    renewed = agent.root.with_name("renewed")
    plain = ProcessExecutor(agent.root, SystemClock(), renewed=renewed)
    found = await plain.find(KEY, execution.identity)
    assert found.execution is not None
    assert await killed(found.execution) == Exit(signal=signal.SIGKILL)
    await plain.forget(KEY)
    assert agent.folders == []
    assert not (agent.root / str(KEY)).exists()


async def test_a_group_that_the_setting_names_holds_those_of_replicas(agent: Agent) -> None:
    name = f"/yard-test-{os.getpid()}"
    found, _ = find_cgroups(name, str(agent.root))
    assert found is not None
    parents = {folder.name for folder in found.parents.values()}
    assert parents == {name[1:]}
    agent.cgroups = found
    agent.executor = agent.later()
    execution = await agent.run(f"exec {python(LARGE)}", memory_mib=64)
    assert (await end_of(execution)).out_of_memory
    assert Group(tuple(found.parents.values())).remove()


async def test_a_group_that_was_made_before_its_agent_ended_is_made_again(agent: Agent) -> None:
    launch = agent.launch("exit 3", memory_mib=64)
    await agent.executor.prepare(launch)
    directory: Any = agent.executor._directory(KEY)
    agent.cgroups.group(KEY).note(directory)
    agent.cgroups.make(KEY, memory_mib=32, cpu_milli=0)
    assert await end_of(await agent.later().start(launch)) == Exit(exit_code=3)
    assert Group.of(directory).folders
    assert agent.folders == []


async def test_a_command_whose_limits_cannot_be_set_does_not_start(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Cgroups.make

    def broken(self: Cgroups, key: ReplicaKey, **limits: int) -> Group:
        group = make(self, key, **limits)
        group.remove()
        return group

    monkeypatch.setattr(Cgroups, "make", broken)
    with pytest.raises(Exception, match="its limits cannot be set"):
        await agent.run("exit 3", memory_mib=64)
    assert (await agent.later().find(KEY)).phase is Phase.ABSENT
