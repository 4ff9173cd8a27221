"""Tasks that plant files for the agent to read, or hide processes from it."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.node_agent import AgentCell, alive, python, sh
from tests.support.task_users import settings_of, users_of_test
from yardmaster_schemas.events.node_events import CheckpointDoneV1, TaskExitedV1

#: Planted content that the agent would report if it read through a link.
STOLEN = '{"uri": "s3://of-another/secret", "step": 99}'
#: Puts each of NAMES in the place of the checkpoint file, long enough for the agent to look at it.
PLANT = """
import json, os, shutil, sys, time
target = os.environ["YARD_CHECKPOINT_FILE"]
def clear():
    if os.path.isdir(target) and not os.path.islink(target): os.rmdir(target)
    elif os.path.lexists(target): os.unlink(target)
def put(content):
    with open(target + ".new", "wb") as file: file.write(content)
    os.rename(target + ".new", target)
def plant(act, *given):
    clear(); act(*given); time.sleep(0.3); clear()
"""


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through; they cannot pass through those of pytest."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


async def test_what_is_no_file_of_the_task_is_neither_read_nor_reported_as_its_checkpoint(
    cell: AgentCell, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(STOLEN)
    code = f"""{PLANT}
plant(os.symlink, {str(secret)!r}, target)
plant(os.link, {str(secret)!r}, target)
plant(os.mkfifo, target)
plant(os.mkdir, target)
plant(os.symlink, "/dev/zero", target)
put(b'{{"uri": "s3://own/1", "step": 1}}')
time.sleep(0.3)
"""
    async with cell.agent():
        task = await cell.allocate(python(code))
        await cell.ended(task)
        assert (await cell.exit_of(task)).exit_code == 0
        said = (await cell.output(task, stream="agent")).splitlines()
    reported = await cell.of_type(CheckpointDoneV1, task)
    assert [(each.uri, each.step) for each in reported] == [("s3://own/1", 1)]
    ignored = "the checkpoint file is ignored: "
    assert [line.removeprefix(ignored) for line in said] == [
        "it is a symbolic link",
        "it is a hard link: the same file has another name",
        "it is not a regular file",
        "it is a symbolic link",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to switch users")
async def test_a_file_of_another_user_is_no_checkpoint_of_an_isolated_task(
    folder: Path,
) -> None:
    cell = await AgentCell(folder / "data").open()
    cell.configure(**settings_of(users_of_test()))
    # A task with write access to a shared folder can move files of others, without a link.
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    stolen = shared / "checkpoint"
    stolen.write_text(STOLEN)
    stolen.chmod(0o600)
    script = f"""
    mv {stolen} "$YARD_CHECKPOINT_FILE"; sleep 0.3
    printf '{{"uri": "s3://own/1", "step": 1}}' > "$YARD_CHECKPOINT_FILE.new"
    mv -f "$YARD_CHECKPOINT_FILE.new" "$YARD_CHECKPOINT_FILE"
    """
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.ended(task)
        said = await cell.output(task, stream="agent")
    assert said == "the checkpoint file is ignored: it belongs to another user\n"
    assert [each.step for each in await cell.of_type(CheckpointDoneV1, task)] == [1]


async def test_garbage_in_the_checkpoint_file_is_named_and_ends_no_task(cell: AgentCell) -> None:
    code = f"""{PLANT}
plant(put, b"x" * 2_000_000)
plant(put, os.urandom(2_000_000))
plant(put, b'{{"uri": "s3://own/1", "step": 1e999}}')
plant(put, b'{{"uri": "s3://own/1", "step": NaN}}')
plant(put, b'{{"uri": "s3://own/1", "step": -1}}')
plant(put, b'{{"uri": "s3://own/1", "step": ' + b"9" * 4000 + b"}}")
plant(put, b'{{"uri": "' + b"a" * 100_000 + b'", "step": 5}}')
plant(put, b'{{"uri": "\\\\ud800", "step": 5}}')
plant(put, b"[" * 100_000)
plant(put, b"[]")
plant(put, b"")
put(b'{{"uri": "s3://own/7", "step": 7}}')
time.sleep(0.3)
"""
    async with cell.agent():
        task = await cell.allocate(python(code))
        await cell.ended(task)
        exited = await cell.exit_of(task)
        assert (exited.exit_code, exited.signal) == (0, None)
        said = (await cell.output(task, stream="agent")).splitlines()
        # The agent serves its other tasks as before.
        other = await cell.allocate(sh("echo fine"))
        await cell.ended(other)
        assert await cell.output(other) == "fine\n"
    assert [each.step for each in await cell.of_type(CheckpointDoneV1, task)] == [7]
    assert len(said) >= 8
    assert all(line.startswith("the checkpoint file is ignored: ") for line in said), said
    assert max(map(len, said)) <= 500


#: Starts children that a signal to group or session does not reach, and prints their pids.
HIDING = """
import os, signal, sys, time
def child(kind):
    if os.fork(): return
    if kind != "plain": os.setsid()
    if kind == "double" and os.fork(): os._exit(0)
    if kind == "thrice":
        for _ in range(2):
            if os.fork(): os._exit(0)
            os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, f"{kind} {os.getpid()}\\n".encode())
    if kind == "closed":
        os.closerange(0, 1024)
    if kind == "cleared":
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"], {})
    time.sleep(1000)
kinds = ("plain", "session", "double", "thrice", "closed", "cleared")
for kind in kinds:
    child(kind)
"""


@pytest.mark.parametrize("end", ["stopped", "of its own"])
async def test_children_that_left_group_and_session_end_before_the_slots_are_released(
    cell: AgentCell, end: str
) -> None:
    wait = "time.sleep(1000)" if end == "stopped" else "time.sleep(1)"
    async with cell.agent():
        task = await cell.allocate(python(HIDING + wait))
        said = ""
        for kind in ("plain", "session", "double", "thrice", "closed", "cleared"):
            said = await cell.until_output(task, f"{kind} ")
        if end == "stopped":
            await cell.stop(task, grace_s=1)
        await cell.ended(task)
        (exited,) = await cell.of_type(TaskExitedV1, task)
        assert (exited.exit_code, exited.signal) == (
            (None, signal.SIGTERM) if end == "stopped" else (0, None)
        )
    left = [line for line in said.splitlines() if alive(int(line.split()[1]))]
    assert left == []
