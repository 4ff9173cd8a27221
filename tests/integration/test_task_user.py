"""Tasks as other users than the agent: what they may write, and what is closed to them."""

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.node_agent import AgentCell, sh
from tests.support.task_users import foreign_program, settings_of, users_of_test
from yardmaster_node_agent.agent_state import AgentState, ReplicaKey, ReplicaState, TaskUser
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.port import Execution, Launch
from yardmaster_node_agent.ledger import FileLedger
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    Isolation,
    SlotsReleasedV1,
    TaskExitedV1,
)
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.run_as import RunAs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through; they cannot pass through those of pytest."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


@pytest.fixture
def cell(folder: Path) -> AgentCell:
    """A node whose tasks are other users."""
    cell = AgentCell(folder / "data")
    cell.configure(**settings_of(users_of_test()))
    return cell


def state_of(cell: AgentCell) -> AgentState:
    """Return what the ledger says, without an agent."""
    ledger = FileLedger(cell.data_dir / "ledger")
    state = ledger.load()
    ledger.close()
    assert state is not None
    return state


def user_of(cell: AgentCell, task: str, replica: int = 0) -> TaskUser:
    user = state_of(cell).replicas[ReplicaKey(task, 1, replica)].user
    assert user is not None
    return user


async def test_a_task_writes_its_work_its_checkpoint_and_its_output(cell: AgentCell) -> None:
    await cell.open()
    script = (
        'test "$(id -u)" = "$(id -G)" && '
        'test "$HOME" = "$PWD" && test "$USER" = task && echo saved > state && '
        "echo out && echo err > /dev/stderr && echo again > /dev/stdout && "
        'printf \'{"uri": "s3://a/b", "step": 3}\' > "$YARD_CHECKPOINT_FILE.new" && '
        'mv "$YARD_CHECKPOINT_FILE.new" "$YARD_CHECKPOINT_FILE" && '
        'test ! -e "$YARD_STOP_FILE"'
    )
    async with cell.agent() as joined:
        assert joined.isolation is Isolation.USER
        task = await cell.allocate(sh(script))
        (done,) = await cell.until(CheckpointDoneV1)
        assert done.step == 3
        (exited,) = await cell.until(TaskExitedV1)
        assert (exited.exit_code, exited.signal) == (0, None)
        await cell.until(SlotsReleasedV1)
        assert (await cell.output(task)).endswith("again\n")
    uid = user_of(cell, task).uid
    replica = cell.data_dir / "replicas" / f"{task}.1.0"
    found = {
        name: (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        for name in ("", "work", "task", "work/state", "stdout")
        for status in [(replica / name).stat()]
    }
    # Only the task's own group passes through the folder, and the task is alone in this group.
    assert found.pop("") == (0o710, 0, uid)
    assert found.pop("stdout")[:2] == (0o600, uid)
    assert found.pop("work/state") == (0o660, uid, uid)
    assert set(found.values()) == {(0o700, uid, uid)}


async def test_tasks_share_a_folder_through_their_further_group(
    cell: AgentCell, folder: Path
) -> None:
    await cell.open()
    group = users_of_test().first
    shared = folder / "shared"
    shared.mkdir()
    os.chown(shared, 0, group)
    shared.chmod(0o2770)
    cell.configure(task_group=group)
    async with cell.agent():
        for attempt, text in enumerate(("", "1", "12"), start=1):
            script = f'touch {shared}/log; test "$(cat {shared}/log)" = "{text}"; '
            script += f"printf {attempt} >> {shared}/log"
            task = await cell.allocate(sh(script))
            assert (await cell.exit_of(task)).exit_code == 0
    assert (shared / "log").read_text() == "123"


async def test_a_task_cannot_report_its_own_end_or_read_the_files_of_its_agent(
    cell: AgentCell, folder: Path
) -> None:
    await cell.open()
    secret = folder / "password"
    secret.write_text("of-the-agent")
    secret.chmod(0o600)
    script = f"""
    set +e
    cd "$(dirname "$YARD_STOP_FILE")" || exit 1
    for name in exit gone process start fenced bell user .exit.1; do
      (echo '{{"exit_code": 0}}' > $name) 2>/dev/null && exit 2
      rm -f $name 2>/dev/null; mv $name x 2>/dev/null && exit 3
    done
    mv work x 2>/dev/null && exit 4
    mv task x 2>/dev/null && exit 5
    for name in {secret} ../../ledger runner.log; do
      cat $name 2>/dev/null && exit 6
    done
    (echo '{{}}' > ../../replicas.renewed) 2>/dev/null && exit 7
    kill -9 $PPID 2>/dev/null && exit 8
    cat /proc/$PPID/environ 2>/dev/null && exit 9
    exit 42
    """
    async with cell.agent():
        await cell.allocate(sh(script))
        (exited,) = await cell.until(TaskExitedV1)
        assert (exited.exit_code, exited.signal) == (42, None)


async def test_the_replicas_of_an_attempt_have_a_user_that_no_other_attempt_has(
    cell: AgentCell,
) -> None:
    await cell.open()
    async with cell.agent():
        tasks = [await cell.allocate(sh("true"), replicas=2) for _ in range(3)]
        for task in tasks:
            await cell.ended(task, count=2)
    users = [user_of(cell, task) for task in tasks]
    assert [user_of(cell, task, 1) for task in tasks] == users
    assert len({user.uid for user in users}) == 3
    first = int(cell.settings.task_users.partition("-")[0])
    assert first not in {user.uid for user in users}, "it is for tasks with fractions of GPUs"


async def test_a_job_runs_as_the_user_that_it_names_and_ends_nothing_else_of_it(
    cell: AgentCell, folder: Path
) -> None:
    await cell.open()
    other = users_of_test()
    ada = RunAs(uid=other.first, gid=other.last)
    shared = folder / "shared"
    shared.mkdir()
    os.chown(shared, ada.uid, ada.gid)
    shared.chmod(0o700)
    left = Path("/tmp") / f"yard-run-as-{ada.uid}"
    script = (
        f'echo "$(id -u):$(id -G)"; echo kept > {shared}/new; echo kept > {left}; '
        "trap '' TERM; setsid sleep 600 & echo $! > child; test -O child"
    )
    with foreign_program(ada):
        async with cell.agent():
            tasks = [await cell.allocate(sh(script), run_as=ada) for _ in range(2)]
            for task in tasks:
                await cell.until_output(task, f"{ada}\n")
                assert (await cell.exit_of(task)).exit_code == 0
                await cell.ended(task)
            for task in tasks:
                work = cell.data_dir / "replicas" / f"{task}.1.0" / "work"
                assert (work.stat().st_uid, work.stat().st_gid) == (ada.uid, ada.gid)
                script_file = (work.parent / "script").stat()
                assert (stat.S_IMODE(script_file.st_mode), script_file.st_uid) == (0o400, ada.uid)
                assert procfs.look(int((work / "child").read_text())) is None
        async with cell.agent():
            own = await cell.allocate(sh("id -u"))
            await cell.ended(own)
    for path in (shared / "new", left):
        assert (path.stat().st_uid, path.stat().st_gid) == (ada.uid, ada.gid)
    left.unlink()
    assert user_of(cell, own).uid != ada.uid


async def test_a_user_of_the_node_cannot_be_named(cell: AgentCell) -> None:
    await cell.open()
    uid = int(cell.settings.task_users.partition("-")[0])
    async with cell.agent():
        task = await cell.allocate(sh("id -u"), run_as=RunAs(uid=uid, gid=100))
        (released,) = await cell.ended(task)
        assert released.never_started
        found = f"this node cannot run it as {uid}:100 (run_as): the node gives that number"
        await cell.until_output(task, found, stream=None)


async def test_an_agent_that_does_not_switch_users_starts_no_job_that_names_one(
    folder: Path,
) -> None:
    cell = await AgentCell(folder / "data").open()
    cell.configure(task_users="same")
    async with cell.agent():
        task = await cell.allocate(sh("id -u"), run_as=RunAs(uid=1500, gid=100))
        (released,) = await cell.ended(task)
        assert (released.never_started, released.failure) == (True, StartFailure.OTHER)
        await cell.until_output(task, "its tasks run as the agent's own user", stream=None)


class Killed:
    """An executor whose agent ends between the ledger's entry of a start and the start."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached = asyncio.Event()

    async def start(self, _: Launch) -> Execution:
        self.reached.set()
        await asyncio.Event().wait()
        raise AssertionError("the agent has ended")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_an_agent_killed_before_a_start_leaves_the_user_with_its_replica(
    cell: AgentCell,
) -> None:
    await cell.open()
    ports = cell.ports()
    executor = Killed(ports.executor)
    async with cell.agent(replace(ports, executor=executor)):
        first = await cell.allocate(sh("true"))
        await executor.reached.wait()
    before = state_of(cell).replicas[ReplicaKey(first, 1, 0)]
    assert before.state is ReplicaState.STARTING
    async with cell.agent():
        (released,) = await cell.ended(first)
        assert released.never_started
        second = await cell.allocate(sh('echo "$(id -u)"'))
        await cell.ended(second)
        assert await cell.output(second) == f"{user_of_running(cell, second)}\n"
    assert user_of(cell, first) == before.user
    assert user_of(cell, second).uid != user_of(cell, first).uid


def user_of_running(cell: AgentCell, task: str) -> int:
    """Return the owner of the working folder of a replica."""
    return (cell.data_dir / "replicas" / f"{task}.1.0" / "work").stat().st_uid
