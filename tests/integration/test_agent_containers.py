"""An agent with the executor `auto`: jobs with an image in containers of a real engine."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from tests.support.containers import CONTAINER_IMAGE, ENGINE_SOCKET, is_there
from tests.support.engine_proxy import refusing
from tests.support.half_open import collect_half_open
from tests.support.node_agent import AgentCell, sh
from tests.support.task_users import foreign_program, settings_of, users_of_test
from yardmaster_node_agent.agent import Ports
from yardmaster_node_agent.agent_state import Exit, ReplicaKey, ReplicaState
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.docker import ORPHANS_S
from yardmaster_node_agent.executors.host_folders import HostFolder
from yardmaster_node_agent.executors.port import Launch, Phase
from yardmaster_node_agent.ledger import FileLedger
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.details import FolderMount, Run
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    ExecutorKind,
    NodeJoinedV1,
    RunKind,
    SlotsReleasedV1,
    TaskStartedV1,
)
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.run_as import RunAs

pytestmark = pytest.mark.timeout(120)
ENGINE = ENGINE_SOCKET


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", engine_socket=ENGINE)
    yield cell
    await cell.ports().executor.sweep()
    await cell.assert_honest()
    await cell.log.close()


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()
    collect_half_open()


def point(path: Path, socket: Path) -> None:
    """Let a path lead to another socket from now on."""
    draft = path.with_name("draft.sock")
    draft.symlink_to(socket)
    draft.rename(path)


class LaterClock(SystemClock):
    """The clock of the system, and some seconds more."""

    later_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


def forget_start(cell: AgentCell) -> None:
    """Remove from the ledger that the only replica has started, as if the agent had been killed."""
    ledger = FileLedger(cell.data_dir / "ledger")
    state = ledger.load()
    assert state is not None
    (replica,) = state.replicas.values()
    replica.state, replica.identity = ReplicaState.STARTING, None
    replica.started_logged = False
    ledger.write([replica])
    ledger.close()


def refusals(ports: Ports, request: str) -> float | None:
    """Return how many requests of that kind the engine refused."""
    name = "yard_node_agent_engine_refused_total"
    return ports.telemetry.registry.get_sample_value(name, {"request": request})


def in_image(script: str, **run: Any) -> Run:
    return Run(script=script, image=CONTAINER_IMAGE, **run)


async def ended(cell: AgentCell, task: str) -> SlotsReleasedV1:
    released: SlotsReleasedV1 = (await cell.ended(task))[-1]
    return released


async def test_a_job_with_an_image_runs_in_a_container(cell: AgentCell) -> None:
    async with cell.agent() as joined:
        assert joined.executors == (ExecutorKind.PROCESS, ExecutorKind.CONTAINER)
        task = await cell.allocate(in_image("echo out; echo err >&2; pwd; exit 3"))
        assert (await cell.exit_of(task)).exit_code == 3
        await ended(cell, task)
    (started,) = await cell.of_type(TaskStartedV1, task)
    assert (started.run.kind, len(started.run.id)) == (RunKind.CONTAINER, 64)
    assert await cell.output(task) == "out\n/\n"
    assert await cell.output(task, stream="stderr") == "err\n"


async def test_an_agent_of_a_copied_data_directory_leaves_the_containers_of_the_original(
    cell: AgentCell, tmp_path: Path
) -> None:
    async with cell.agent():
        task = await cell.allocate(
            in_image("trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
        )
        await cell.until_output(task, "up\n")
        copy = AgentCell(tmp_path / "n2")
        copy.configure(executor="auto")
        shutil.copytree(
            cell.data_dir, copy.data_dir, ignore=shutil.ignore_patterns("bell", "*.sock")
        )
        assert await copy.ports().executor.sweep() == 0
        await cell.stop(task)
        assert (await cell.exit_of(task)).exit_code == 7
        await ended(cell, task)


async def test_a_container_gets_the_folders_of_the_list_and_its_shared_memory(
    cell: AgentCell, tmp_path: Path
) -> None:
    for name in ("sets", "scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "sets" / "words").write_text("from the node\n")
    cell.configure(
        mounts={
            "datasets": HostFolder(path=tmp_path / "sets"),
            "scratch": HostFolder(path=tmp_path / "scratch", read_only=False),
        }
    )
    mounts = (
        FolderMount(source="datasets", target="/data"),
        FolderMount(source="scratch", target="/scratch", read_only=False),
    )
    script = (
        "cat /data/words; touch /data/new || echo refused; echo kept > /scratch/new; "
        "df -k /dev/shm | tail -1 | awk '{print $2}'"
    )
    async with cell.agent():
        task = await cell.allocate(in_image(script, mounts=mounts, shm_mib=96))
        await ended(cell, task)
        assert await cell.output(task) == f"from the node\nrefused\n{96 * 1024}\n"
        assert (await cell.of_type(NodeJoinedV1))[0].mounts == ("datasets", "scratch:rw")
        other = (FolderMount(source="home", target="/home"),)
        task = await cell.allocate(in_image("true", mounts=other))
        assert (await ended(cell, task)).never_started
        await cell.until_output(task, "this node has no mount home", stream=None)
    assert (tmp_path / "scratch" / "new").read_text() == "kept\n"


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users may pass through; they cannot pass through those of pytest."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to switch users")
async def test_a_container_runs_as_the_user_that_its_job_names(
    cell: AgentCell, reachable: Path
) -> None:
    other = users_of_test()
    ada = RunAs(uid=other.first, gid=other.last)
    scratch = reachable / "scratch"
    scratch.mkdir()
    os.chown(scratch, ada.uid, ada.gid)
    cell.data_dir = reachable / "n1"
    cell.configure(
        data_dir=cell.data_dir,
        mounts={"scratch": HostFolder(path=scratch, read_only=False)},
        **settings_of(users_of_test()),
    )
    mounts = (FolderMount(source="scratch", target="/scratch", read_only=False),)
    script = """
    trap 'cat "$YARD_STOP_FILE" > /scratch/stop; exit 0' TERM
    printf '{"uri": "s3://a/b", "step": 3}' > "$YARD_CHECKPOINT_FILE.new"
    mv "$YARD_CHECKPOINT_FILE.new" "$YARD_CHECKPOINT_FILE"
    echo 1 > "$HOME/own"
    echo "$(id -u):$(id -G)"
    while :; do sleep 0.1; done
    """
    with foreign_program(ada):
        async with cell.agent():
            task = await cell.allocate(in_image(script, mounts=mounts), run_as=ada)
            await cell.until_output(task, f"{ada}\n")
            (done,) = await cell.until(CheckpointDoneV1)
            assert done.step == 3
            replica = cell.data_dir / "containers" / f"{task}.1.0"
            for path in (replica / "work", replica / "task", replica / "work" / "own"):
                found = path.stat()
                assert (found.st_uid, found.st_gid) == (ada.uid, ada.gid)
            await cell.stop(task)
            assert (await cell.exit_of(task)).exit_code == 0
            await ended(cell, task)
            assert await cell.output(task) == f"{ada}\n"
        # What the task wrote into the mounted folder stays, and belongs to the user.
        found = (scratch / "stop").stat()
        assert (found.st_uid, found.st_gid) == (ada.uid, ada.gid)
        assert await cell.ports().executor.sweep() == 0
        assert not replica.exists()


async def test_a_command_is_given_to_the_image(cell: AgentCell) -> None:
    async with cell.agent():
        run = Run(command=("sh", "-c", "cat /etc/hostname > host; pwd"), image=CONTAINER_IMAGE)
        task = await cell.allocate(
            Run(command=run.command, image=run.image, working_dir=".", env={"A": "b"})
        )
        assert (await cell.exit_of(task)).exit_code == 0
        await ended(cell, task)
    assert (await cell.output(task)) == "/yard/work\n"


async def test_the_context_of_a_job_is_its_working_folder(cell: AgentCell, tmp_path: Path) -> None:
    executor, code = cell.ports().executor, tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "train.py").write_text("print('trains')")
    script = "python3 ../train.py; echo made > made"
    launch = Launch(
        ReplicaKey("4kq7w2mz9c1f.0", 1, 0),
        in_image(script, working_dir=str(code / "sub")),
        {},
        code=code,
    )
    await executor.prepare(launch)
    execution = await executor.start(launch)
    assert await execution.exited() == Exit(exit_code=0)
    assert execution.files.read_output("stdout", 0, 100) == b"trains\n"
    assert (code / "sub" / "made").read_text() == "made\n"


async def test_a_container_outlives_its_agent_and_its_output_is_whole(cell: AgentCell) -> None:
    script = """
    n=0
    while [ ! -e /yard/work/go ]; do n=$((n + 1)); echo "line $n"; sleep 0.01; done
    echo "end $n"
    """
    async with cell.agent():
        task = await cell.allocate(in_image(script))
        await cell.until_output(task, "line 20\n")
    async with cell.agent() as joined:
        assert [each.task_id for each in joined.running] == [task]
        await cell.until_output(task, "line 60\n")
    (cell.data_dir / "containers" / f"{task}.1.0" / "work" / "go").touch()
    async with cell.agent():
        assert (await cell.exit_of(task)).exit_code == 0
        await ended(cell, task)
    *lines, last = (await cell.output(task)).splitlines()
    assert lines == [f"line {number + 1}" for number in range(len(lines))]
    assert last == f"end {len(lines)}"


async def test_a_task_in_a_container_saves_when_it_must_stop(cell: AgentCell) -> None:
    script = """
    trap 'cat "$YARD_STOP_FILE"; echo "$NOTE" > "$YARD_CHECKPOINT_FILE"; exit 0' TERM
    echo ready
    while :; do sleep 0.05 || :; done
    """
    note = json.dumps({"uri": "s3://runs/a", "step": 7})
    async with cell.agent():
        task = await cell.allocate(in_image(script, env={"NOTE": note}))
        await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=30)
        assert (await cell.exit_of(task)).exit_code == 0
        await ended(cell, task)
    (saved,) = await cell.of_type(CheckpointDoneV1, task)
    assert saved.step == 7
    assert '"code"' in await cell.output(task)


async def test_a_task_that_ignores_its_stop_is_killed(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(in_image("trap '' TERM; echo ready; sleep 1000 & wait; wait"))
        await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=0)
        assert (await cell.exit_of(task)).signal == 9
        await ended(cell, task)


@pytest.mark.parametrize("child", [True, False])
async def test_a_task_that_exceeds_its_memory_ends_out_of_memory(
    cell: AgentCell, child: bool
) -> None:
    fill = "python3 -c 'x = bytearray(200 * 2**20)'"
    async with cell.agent():
        run = in_image(f"{fill}; exit $?" if child else f"exec {fill}")
        task = await cell.allocate(run, memory_mib=50)
        exited = await cell.exit_of(task)
        await ended(cell, task)
    assert (exited.out_of_memory, exited.signal) == (True, 9)


async def test_a_container_has_no_gpu_and_no_rights_that_it_did_not_request(
    cell: AgentCell,
) -> None:
    script = """
    echo "gpus $NVIDIA_VISIBLE_DEVICES"
    grep -E 'CapEff|NoNewPrivs' /proc/self/status
    touch /yard/stop.json 2>/dev/null || echo "read-only"
    touch /yard/work/mine && echo "work"
    """
    async with cell.agent():
        task = await cell.allocate(in_image(script))
        await ended(cell, task)
    assert (await cell.output(task)).split("\n") == [
        "gpus void",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "read-only",
        "work",
        "",
    ]


#: Reports checkpoints 1 and 2 to the agent's API, the second one when the file `again` exists.
REPORTING = """
import http.client, json, os, socket, time
def call(method, path, body=None):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.environ["YARD_AGENT_SOCKET"])
    head = {"Authorization": "Bearer " + os.environ["YARD_AGENT_TOKEN"]}
    connection.request(method, path, body and json.dumps(body), head)
    return connection.getresponse().status
try:
    os.unlink(os.environ["YARD_AGENT_SOCKET"])
except OSError as error:
    print("unlink", error.strerror)
for step in (1, 2):
    while step == 2 and not os.path.exists("/yard/work/again"): time.sleep(0.05)
    print(call("POST", "/v1/checkpoints", {"uri": "s3://runs/a", "step": step}), flush=True)
"""


async def test_a_container_reaches_the_api_of_the_agent_also_after_its_restart(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        run = Run(image=CONTAINER_IMAGE, command=("python3", "-c", REPORTING))
        task = await cell.allocate(run)
        await cell.until_output(task, "200")
    async with cell.agent():
        (cell.data_dir / "containers" / f"{task}.1.0" / "work" / "again").touch()
        await ended(cell, task)
        assert (await cell.exit_of(task)).exit_code == 0
    assert await cell.output(task) == "unlink Read-only file system\n200\n200\n"
    assert (await cell.of_type(CheckpointDoneV1, task))[-1].step == 2


async def test_a_gang_alone_is_in_the_network_of_the_node_where_gangs_may(
    cell: AgentCell, engine: docker.DockerClient
) -> None:
    cell.configure(container_network="host_for_gangs")
    networks = {1: "bridge", 2: "host"}
    async with cell.agent():
        for replicas, network in networks.items():
            task = await cell.allocate(in_image("echo ready; sleep 1000"), replicas=replicas)
            for replica in range(replicas):
                await cell.until_output(task, "ready", replica=replica)
            label = f"dev.yardmaster.key={task}.1.0"
            (container,) = engine.containers.list(filters={"label": label})
            assert container.attrs["HostConfig"]["NetworkMode"] == network
            await cell.stop(task, grace_s=0)
            await cell.ended(task, count=replicas)


async def test_a_container_without_the_api_has_its_files(cell: AgentCell) -> None:
    cell.configure(api=False)
    async with cell.agent():
        task = await cell.allocate(in_image('echo "[$YARD_AGENT_URL$YARD_AGENT_SOCKET]"; ls /run'))
        await ended(cell, task)
    assert "[]" in await cell.output(task)
    assert "yardmaster" not in await cell.output(task)


async def test_what_a_container_cannot_run_is_a_failed_start_with_its_reason(
    cell: AgentCell,
) -> None:
    nowhere = "127.0.0.1:1/team/train:1"
    async with cell.agent():
        cases = {
            "connection refused": await cell.allocate(Run(script="x", image=nowhere)),
            "a gang needs the network": await cell.allocate(in_image("x"), replicas=2),
        }
        for reason, task in cases.items():
            assert (await ended(cell, task)).never_started, reason
            assert reason in await cell.output(task, stream="agent")


async def test_containers_of_others_are_left_alone(
    cell: AgentCell, engine: docker.DockerClient
) -> None:
    async with cell.agent():
        first = await cell.allocate(in_image("exit 0"))
        await ended(cell, first)
    owner = (cell.data_dir / "containers.owner").read_text()
    task = f"{cell.jobs + 1:012d}.0"
    foreign: Container = engine.containers.create(
        CONTAINER_IMAGE, ["sleep", "1000"], name=f"yard-{owner}-{task}.1.0"
    )
    try:
        async with cell.agent():
            assert await cell.allocate(in_image("echo ran")) == task
            assert (await ended(cell, task)).never_started
            assert "of someone else" in await cell.output(task, stream="agent")
        await cell.ports().executor.sweep()
        foreign.reload()
        assert foreign.status == "created"
    finally:
        foreign.remove(force=True)


async def test_a_container_that_was_created_for_a_killed_agent_is_removed(cell: AgentCell) -> None:
    """The engine had not created it when the next agent looked for it, and removed its folder."""
    first, second = (ReplicaKey(f"4kq7w2mz9c1f.{index}", 1, 0) for index in (0, 1))
    await cell.ports().executor.prepare(Launch(first, in_image("true"), {}))
    folder = cell.data_dir / "containers" / str(first)
    folder.rename(tmp := cell.data_dir / "draft")
    later = cell.ports().executor
    await later.prepare(Launch(second, in_image("true"), {}))
    tmp.rename(folder)
    assert (await later.find(first)).phase is Phase.ABSENT
    assert (await later.find(second)).phase is Phase.PREPARED
    assert (await cell.ports().executor.find(second)).phase is Phase.PREPARED


async def test_a_container_that_was_created_after_the_first_look_is_removed_later(
    cell: AgentCell,
) -> None:
    first, second = (ReplicaKey(f"4kq7w2mz9c1f.{index}", 1, 0) for index in (0, 1))
    clock = LaterClock()
    cell.clock = clock
    later = cell.ports().executor
    await later.prepare(Launch(second, in_image("true"), {}))
    await cell.ports().executor.prepare(Launch(first, in_image("true"), {}))
    folder = cell.data_dir / "containers" / str(first)
    folder.rename(draft := cell.data_dir / "draft")
    assert await later.forget(second)
    draft.rename(folder)
    assert (await later.find(first)).phase is Phase.PREPARED
    folder.rename(draft)
    clock.later_s = ORPHANS_S
    assert await later.forget(second)
    draft.rename(folder)
    assert (await later.find(first)).phase is Phase.ABSENT


async def test_an_engine_that_is_away_ends_no_task(
    cell: AgentCell, engine: docker.DockerClient, tmp_path: Path
) -> None:
    socket, broken = tmp_path / "engine.sock", tmp_path / "broken.sock"
    asked = asyncio.Event()

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    point(socket, ENGINE)
    cell.configure(engine_socket=socket)
    script = "echo one; while [ ! -e /yard/work/go ]; do sleep 0.05; done; echo two"
    async with await asyncio.start_unix_server(refuse, broken), cell.agent():
        task = await cell.allocate(in_image(script))
        await cell.until_output(task, "one")
        (started,) = await cell.of_type(TaskStartedV1, task)
        point(socket, broken)
        (cell.data_dir / "containers" / f"{task}.1.0" / "work" / "go").touch()
        await asyncio.to_thread(engine.containers.get(started.run.id).wait)
        await asked.wait()
        assert not await cell.of_type(SlotsReleasedV1, task)
        point(socket, ENGINE)
        assert (await cell.exit_of(task)).exit_code == 0
        await ended(cell, task)
    assert await cell.output(task) == "one\ntwo\n"


async def test_a_node_takes_images_while_its_engine_answers(
    cell: AgentCell, tmp_path: Path
) -> None:
    socket = tmp_path / "engine.sock"
    cell.configure(engine_socket=socket, engine_check_s=0.05)
    processes = (ExecutorKind.PROCESS,)
    async with cell.agent() as joined:
        assert joined.executors == processes
        point(socket, ENGINE)
        (later, *_) = await cell.until(NodeJoinedV1, where=lambda each: each.executors != processes)
        assert later.executors == (ExecutorKind.PROCESS, ExecutorKind.CONTAINER)
        task = await cell.allocate(in_image("exit 3"))
        assert (await cell.exit_of(task)).exit_code == 3
        await ended(cell, task)
        point(socket, tmp_path / "nowhere.sock")
        await cell.until(NodeJoinedV1, count=2, where=lambda each: each.executors == processes)
    point(socket, ENGINE)


async def test_an_agent_that_starts_without_its_engine_keeps_the_slots_of_containers(
    cell: AgentCell, engine: docker.DockerClient, tmp_path: Path
) -> None:
    socket = tmp_path / "engine.sock"
    point(socket, ENGINE)
    cell.configure(engine_socket=socket)
    async with cell.agent():
        task = await cell.allocate(in_image("echo one; sleep 1000"), slots=[(0,)])
        await cell.until_output(task, "one")
    point(socket, tmp_path / "nowhere.sock")
    async with cell.agent():
        other = await cell.allocate(sh("exit 0"))
        await ended(cell, other)
        (beat, *_) = await cell.until(NodeHeartbeatV1, where=lambda each: each.running == 1)
        assert beat.gpu_milli_used == 1000
        assert not await cell.of_type(SlotsReleasedV1, task)
        point(socket, ENGINE)
        await cell.stop(task, grace_s=0)
        assert (await cell.exit_of(task)).signal in (9, 15)
        await ended(cell, task)


@pytest.mark.parametrize("started", [True, False])
async def test_an_agent_that_runs_processes_only_finds_the_containers_of_an_earlier_one(
    cell: AgentCell, started: bool
) -> None:
    """`started`: the earlier agent knew the identity of the container before it was killed."""
    async with cell.agent():
        task = await cell.allocate(in_image("echo one; sleep 1000"))
        await cell.until_output(task, "one")
    if not started:
        forget_start(cell)
    cell.configure(executor="process")
    async with cell.agent() as joined:
        assert joined.executors == (ExecutorKind.PROCESS,)
        assert [each.task_id for each in joined.running] == [task]
        await cell.stop(task, grace_s=0)
        assert (await cell.exit_of(task)).signal in (9, 15)
        await ended(cell, task)
        refused = await cell.allocate(in_image("echo ran"))
        assert (await ended(cell, refused)).failure is StartFailure.NO_EXECUTOR


async def test_a_new_incarnation_that_runs_processes_only_removes_the_containers_of_an_earlier_one(
    cell: AgentCell, engine: docker.DockerClient
) -> None:
    async with cell.agent():
        task = await cell.allocate(in_image("echo one; sleep 1000"))
        await cell.until_output(task, "one")
        (started,) = await cell.of_type(TaskStartedV1, task)
    cell.configure(executor="process")
    async with cell.agent() as joined:
        await cell.lose(joined.incarnation)
        await cell.until(NodeJoinedV1, count=3)
    with pytest.raises(docker.errors.NotFound):
        engine.containers.get(started.run.id)


async def test_a_container_that_the_engine_does_not_remove_never_starts(
    cell: AgentCell, tmp_path: Path
) -> None:
    key, socket = ReplicaKey("4kq7w2mz9c1f.0", 1, 0), tmp_path / "refusing.sock"
    launch = Launch(key, in_image("echo ran"), {})
    await cell.ports().executor.prepare(launch)
    cell.configure(engine_socket=socket)
    ports = cell.ports()
    async with refusing("DELETE .*", ENGINE, socket):
        assert await ports.executor.withdraw(key) is None
        await ports.executor.forget(key)
    cell.configure(engine_socket=ENGINE)
    assert refusals(ports, "remove") == 2
    with pytest.raises(ExecutorFailed):
        await cell.ports().executor.start(launch)
    await cell.ports().executor.sweep()
    assert (await cell.ports().executor.find(key)).phase is Phase.ABSENT


async def test_a_signal_that_the_engine_refuses_is_counted(cell: AgentCell, tmp_path: Path) -> None:
    key, socket = ReplicaKey("4kq7w2mz9c1f.0", 1, 0), tmp_path / "refusing.sock"
    launch = Launch(key, in_image("sleep 1000"), {})
    cell.configure(engine_socket=socket)
    ports = cell.ports()
    async with refusing("POST .*/kill", ENGINE, socket):
        await ports.executor.prepare(launch)
        execution = await ports.executor.start(launch)
        await execution.kill()
        assert (await ports.executor.find(key)).phase is Phase.RUNNING
    cell.configure(engine_socket=ENGINE)
    assert refusals(ports, "signal") == 1


async def test_a_start_whose_answer_is_lost_is_not_repeated_after_the_container_has_ended(
    cell: AgentCell, engine: docker.DockerClient, tmp_path: Path
) -> None:
    """A request to start reaches the engine, and the connection breaks once the program ended."""
    socket, between, lost = tmp_path / "engine.sock", tmp_path / "between.sock", 0
    opened: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lost
        opened.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(size[1])) if size else b""
        from_engine, to_engine = await asyncio.open_unix_connection(ENGINE)
        opened.append(to_engine)
        to_engine.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
        started = re.match(rb"POST \S+/containers/(\w+)/start ", head)
        if started is None:
            while data := await from_engine.read(65_536):
                writer.write(data)
        else:
            await from_engine.readline()
            await asyncio.to_thread(engine.containers.get(started[1].decode()).wait)
            lost += 1
        writer.close()

    point(socket, ENGINE)
    cell.configure(engine_socket=socket)
    async with await asyncio.start_unix_server(pass_on, between), cell.agent():
        point(socket, between)
        task = await cell.allocate(in_image("echo started >> /yard/work/starts"))
        assert (await cell.exit_of(task)).exit_code == 0
        await ended(cell, task)
    for writer in opened:
        writer.close()
    point(socket, ENGINE)
    starts = cell.data_dir / "containers" / f"{task}.1.0" / "work" / "starts"
    assert (lost, starts.read_text()) == (1, "started\n")
