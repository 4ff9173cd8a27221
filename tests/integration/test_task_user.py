"""Tasks as another user than the agent: what they may write, and what is closed to them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.node_agent import AgentCell, sh
from yardmaster_node_agent.errors import TaskUserUnusable
from yardmaster_node_agent.executors.task_user import DEFAULT_ID, TaskUser, choose_user
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    Isolation,
    SlotsReleasedV1,
    TaskExitedV1,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

USER = TaskUser(DEFAULT_ID, DEFAULT_ID)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through; they cannot pass through those of pytest."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


@pytest.fixture
def cell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AgentCell:
    """A node whose tasks are another user; the Python of the tests may be in a folder of root."""
    monkeypatch.setattr("yardmaster_node_agent.ports.choose_user", lambda *_: (USER, ""))
    return AgentCell(folder / "data")


async def test_a_task_writes_its_work_its_checkpoint_and_its_output(cell: AgentCell) -> None:
    await cell.open()
    script = (
        f'test "$(id -u)" = {DEFAULT_ID} && test "$(id -G)" = {DEFAULT_ID} && '
        'test "$HOME" = "$PWD" && test "$USER" = task && echo saved > state && '
        "echo out && echo err > /dev/stderr && echo again > /dev/stdout && "
        'printf \'{"uri": "s3://a/b", "step": 3}\' > "$YARD_CHECKPOINT_FILE.new" && '
        'mv "$YARD_CHECKPOINT_FILE.new" "$YARD_CHECKPOINT_FILE" && '
        'test ! -e "$YARD_STOP_FILE"'
    )
    async with cell.agent() as joined:
        assert joined.isolation is Isolation.USER
        await cell.allocate(sh(script))
        (done,) = await cell.until(CheckpointDoneV1)
        assert done.step == 3
        (exited,) = await cell.until(TaskExitedV1)
        assert (exited.exit_code, exited.signal) == (0, None)
        await cell.until(SlotsReleasedV1)


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
    for name in exit gone process start fenced bell .exit.1; do
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


def test_by_default_tasks_are_another_user_where_that_user_reaches_their_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    assert choose_user("auto", folder / "data") == (USER, "")
    assert choose_user("4711", folder / "data") == (TaskUser(4711, 4711), "")
    assert choose_user("same", folder / "data")[0] is None
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    user, reason = choose_user("auto", closed / "data")
    assert user is None
    assert str(closed) in reason


@pytest.mark.parametrize(
    ("setting", "found"),
    [("root", "never run as root"), ("no-such-user", "no such user"), ("4711", "closed to it")],
)
def test_a_named_user_that_cannot_be_used_is_an_error(
    folder: Path, setting: str, found: str
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(TaskUserUnusable, match=found):
        choose_user(setting, closed / "data")
