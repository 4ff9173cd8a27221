"""Tasks of two projects on one node: the one reaches nothing of the other.

`tests/support/neighbor.py` is the hostile task.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pytest

from tests.support import neighbor
from tests.support.containers import CONTAINER_IMAGE, is_there
from tests.support.half_open import collect_half_open
from tests.support.node_agent import AgentCell, alive
from tests.support.task_users import settings_of, users_of_test
from yardmaster_node_agent.executors import procfs
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import CheckpointDoneV1, Isolation

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to switch users"),
]

SOURCE = Path(neighbor.__file__).read_text()
PYTHON = "/usr/bin/python3"
#: Only the environment, the files and the output of the victim hold it.
WORD = "of-project-b-alone"
LEFT = f"{gettempdir()}/left-by-a-victim"
#: It ends with code 7 when it gets a stop signal.
VICTIM = f"""
trap 'rm -f {LEFT}.$$; exit 7' TERM
printenv SECRET | tee "$HOME/secret" > {LEFT}.$$
echo "ready $SECRET"
while :; do sleep 0.1; done
"""


@pytest.fixture
async def cell() -> AsyncIterator[AgentCell]:
    # Other users cannot pass through the folders of pytest.
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        cell = await AgentCell(Path(folder) / "data").open()
        # On the network of the node, a container reaches the API of the agent.
        cell.configure(executor="auto", container_network="host", **settings_of(users_of_test()))
        yield cell
        await cell.ports().executor.sweep()
        await cell.assert_honest()
        await cell.log.close()
        collect_half_open()


def run_of(where: str, **run: Any) -> Run:
    return Run(image=CONTAINER_IMAGE if where == "container" else None, **run)


def hostile(cell: AgentCell, victim: str, where: str) -> Run:
    """The hostile task, with all folders that the agent makes for a replica."""
    key = f"{victim}.1.0"
    folders = [cell.data_dir / kind / key for kind in ("replicas", "containers", "code/replicas")]
    folders.append(cell.data_dir)
    return run_of(where, command=(PYTHON, "-c", SOURCE, WORD, *map(str, folders)))


@pytest.mark.parametrize("hostile_in", ["process", "container"])
@pytest.mark.parametrize("victim_in", ["process", "container"])
async def test_a_task_reaches_nothing_of_a_task_of_another_project(
    cell: AgentCell, victim_in: str, hostile_in: str
) -> None:
    if "container" in (victim_in, hostile_in) and not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    async with cell.agent() as joined:
        assert joined.isolation is Isolation.USER
        run = run_of(victim_in, script=VICTIM, env={"SECRET": WORD})
        victim = await cell.allocate(run, project="victims")
        await cell.until_output(victim, f"ready {WORD}")
        run = hostile(cell, victim, hostile_in)
        evil = await cell.allocate(run, project="attackers", memory_mib=100)
        await cell.ended(evil)
        said = json.loads(await cell.output(evil))
        assert said["reached"] == {}
        assert said["groups"] in ([], [said["uid"]])
        assert (await cell.exit_of(evil)).exit_code == 0
        assert await cell.of_type(CheckpointDoneV1) == []
        await cell.stop(victim)
        assert (await cell.exit_of(victim)).exit_code == 7
    assert await cell.output(victim) == f"ready {WORD}\n"


async def test_the_hostile_task_reaches_a_replica_of_its_own_attempt(cell: AgentCell) -> None:
    """The replicas of an attempt share a user, which shows that the hostile task does its work."""
    script = f"""
    if test "$YARD_REPLICA" = 0; then {VICTIM} fi
    until test -e "$(dirname "$YARD_STOP_FILE")/../$YARD_TASK_ID.1.0/work/secret"; do :; done
    exec {PYTHON} -c "$HOSTILE" {WORD} {cell.data_dir}/replicas/$YARD_TASK_ID.1.0
    """
    run = Run(script=script, env={"SECRET": WORD, "HOSTILE": SOURCE})
    async with cell.agent():
        task = await cell.allocate(run, replicas=2)
        await cell.until_output(task, "reached", replica=1)
        said = json.loads(await cell.output(task, replica=1))
        assert {"environment", "memory", "signal", "read", "append", "post"} <= set(said["reached"])
        await cell.stop(task)
        await cell.ended(task, count=2)


#: Leaves files and shared memory of System V where a user can.
LEAVING = """
import ctypes, os, time
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    os.makedirs(f"{folder}/left-{os.getpid()}/below")
    open(f"{folder}/left-{os.getpid()}/below/file", "w").close()
    os.symlink("/etc", f"{folder}/left-{os.getpid()}/link")
    open(f"{folder}/left-{os.getpid()}.file", "w").close()
shm = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
print("left", os.getpid(), shm, flush=True)
while not os.path.exists("end"): time.sleep(0.05)
"""


def shared_memory() -> list[str]:
    """Return the ids of all shared memory of System V."""
    return [row.split()[1] for row in Path("/proc/sysvipc/shm").read_text().splitlines()]


async def test_nothing_of_a_user_is_left_when_its_task_has_ended(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(Run(command=(PYTHON, "-c", LEAVING)))
        said = await cell.until_output(task, "\n")
        _, pid, shm = said.split()
        left = [Path(top) for top in ("/tmp", "/var/tmp", "/dev/shm")]
        assert all((top / f"left-{pid}/below/file").exists() for top in left)
        assert shm in shared_memory()
        uid = (Path("/proc") / pid).stat().st_uid
        # As cron would do it: a process of the user that is no descendant of its runner.
        late = await asyncio.create_subprocess_exec("sleep", "600", user=uid)
        (cell.data_dir / "replicas" / f"{task}.1.0" / "work" / "end").touch()
        await cell.ended(task)
        assert await late.wait() == -signal.SIGKILL
    assert not any(path for top in left for path in top.glob(f"left-{pid}*"))
    assert shm not in shared_memory()
    assert procfs.of_users(range(uid, uid + 1)) == []


async def test_a_program_without_its_variables_ends_although_its_runner_was_killed(
    cell: AgentCell,
) -> None:
    script = f"""
    {PYTHON} -c 'import os
os.setsid()
os.execve("/bin/sleep", ["sleep", "600"], {{}})' &
    echo "pid $!"
    sleep 600
    """
    async with cell.agent():
        task = await cell.allocate(Run(script=script))
        pid = int((await cell.until_output(task, "\n")).split()[1])
        start = cell.data_dir / "replicas" / f"{task}.1.0" / "start"
        os.kill(json.loads(start.read_text())["runner"]["pid"], 9)
        await cell.ended(task)
        assert not alive(pid)
