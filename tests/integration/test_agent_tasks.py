"""Real processes under an agent: run, output, exits, environment, stops."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.events import sample
from tests.support.node_agent import DEADLINE_S, OTHER_INCARNATION, AgentCell, alive, python, sh
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.port import Partition, Record
from yardmaster_node_agent.settings import PASSED
from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.details import CodeContext, Run, StopSignal
from yardmaster_schemas.events.expiring import RecordQuarantinedV1, TaskOutputV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    SlotsReleasedV1,
    TaskProgressedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.reasons import RefusalCode, StopCode
from yardmaster_schemas.topics import DETAILS, NODE_EVENTS, QUARANTINE

#: A context that is not stored anywhere.
CONTEXT = CodeContext(digest="0" * 64, packed_bytes=1)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


def environment(said: str) -> dict[str, str]:
    """The variables that `env` printed."""
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


async def test_a_command_runs_its_output_is_shipped_and_its_slots_are_released(
    cell: AgentCell,
) -> None:
    async with cell.agent() as joined:
        assert (joined.gpus, joined.running, joined.node) == (4, (), "n1")
        task = await cell.allocate(sh("echo out; echo err >&2; pwd; exit 3"), slots=[(0,)])
        released = await cell.ended(task)
        assert not released[0].never_started
        exited = await cell.exit_of(task)
        assert (exited.exit_code, exited.signal, exited.done) == (3, None, False)
        assert "out\n" in await cell.output(task)
        assert "err\n" in await cell.output(task, stream="stderr")
        assert str(cell.data_dir / "replicas") in await cell.output(task)
    kinds = [e.type for e in await cell.envelopes() if e.subject == task]
    assert kinds == ["TaskStarted", "TaskExited", "SlotsReleased"]


async def test_facts_name_the_decision_they_follow_from(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("sleep 60"))
        await cell.until(TaskStartedV1, task)
        await cell.stop(task)
        await cell.ended(task)
    causes = {e.type: e.cause for e in await cell.envelopes() if e.subject == task}
    assert causes["TaskStarted"] != causes["TaskExited"] == causes["SlotsReleased"]
    assert all(str(cause).startswith("scheduler/main.") for cause in causes.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_a_process_that_dies_of_a_signal_is_reported_with_it(
    cell: AgentCell, number: int
) -> None:
    async with cell.agent():
        task = await cell.allocate(sh(f"kill -{int(number)} $$; sleep 60"))
        exited = await cell.exit_of(task)
        assert (exited.exit_code, exited.signal) == (None, number)
        await cell.ended(task)


@pytest.mark.parametrize(
    ("run", "code", "said"),
    [
        (Run(command=("/no/such/program",)), 127, ["cannot run /no/such/program", "correct the"]),
        (Run(command=("./train.py",)), 127, ["no such file (the working directory is /"]),
        (
            Run(command=("no-such-program",), env={"PATH": "/usr/bin:/opt/bin"}),
            127,
            ["no such program in PATH (/usr/bin:/opt/bin)", "Install it on the nodes"],
        ),
        (Run(command=("/",)), 126, ["cannot run /: Permission denied"]),
        (Run(command=("/etc/passwd",)), 126, ["cannot run /etc/passwd", "chmod +x"]),
        (Run(script="echo $UNSET_NAME"), 2, ["UNSET_NAME"]),
    ],
)
async def test_a_command_that_cannot_run_ends_with_the_code_of_a_shell_and_a_hint(
    cell: AgentCell, run: Run, code: int, said: list[str]
) -> None:
    async with cell.agent():
        task = await cell.allocate(run)
        assert (await cell.exit_of(task)).exit_code == code
        await cell.ended(task)
        output = await cell.output(task, stream="stderr")
        assert [part for part in said if part not in output] == []


async def test_a_script_without_its_interpreter_says_so(cell: AgentCell) -> None:
    script = cell.data_dir.parent / "train.py"
    script.write_text("#!/no/such/python3\n")
    script.chmod(0o700)
    async with cell.agent():
        task = await cell.allocate(Run(command=(str(script),)))
        assert (await cell.exit_of(task)).exit_code == 127
        await cell.ended(task)
        assert "lacks the interpreter" in await cell.output(task, stream="stderr")


async def test_the_kernel_prefers_a_task_over_its_runner_when_memory_is_short(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj"))
        await cell.until(SlotsReleasedV1)
        own, runners = map(int, (await cell.output(task)).split())
    assert own == 500
    assert runners < 500, "the runner keeps the score of the agent"


async def test_every_line_of_a_gangs_output_is_recorded_with_its_replica(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh('echo "I am $RANK"'), replicas=2, slots=[(0,), (1,)])
        await cell.ended(task, count=2)
        said = await cell.of_type(TaskOutputV1, task)
    assert {(each.replica, each.text) for each in said} == {(0, "I am 0\n"), (1, "I am 1\n")}


async def test_the_environment_is_the_one_that_is_documented(
    cell: AgentCell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AGENT_ONLY_SECRET", "AWS_SECRET_ACCESS_KEY", "LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, "of the agent")
    monkeypatch.setenv("YARD_LOG", "kafka://user:password@broker")
    monkeypatch.setenv("LC_MEASUREMENT", "C")
    secrets = tmp_path / "secrets" / "nlp"
    secrets.mkdir(parents=True)
    (secrets / "hf").write_text("s3cret\n")
    cell.configure(secrets_dir=tmp_path / "secrets")
    async with cell.agent():
        task = await cell.allocate(
            sh("env", env={"NCCL_DEBUG": "WARN"}, secrets={"HF_TOKEN": "nlp/hf"}),
            task_id="4kq7w2mz9c1f.1",
            attempt=3,
            slots=[(1, 3)],
            gpu_milli=500,
            tasks=2,
            checkpoint=Checkpoint(uri="s3://runs/step-7", step=7),
            grace_s=120,
            params=({"lr": 0.1}, {"lr": 0.01, "name": "b"}),
        )
        await cell.ended(task)
        env = environment(await cell.output(task, attempt=3))
    directory = f"{cell.data_dir}/replicas/4kq7w2mz9c1f.1.3.0"
    expected = {
        "YARD_JOB_ID": "4kq7w2mz9c1f",
        "YARD_TASK_ID": "4kq7w2mz9c1f.1",
        "YARD_TASK_INDEX": "1",
        "YARD_TASK_COUNT": "2",
        "YARD_ATTEMPT": "3",
        "YARD_PROJECT": "nlp",
        "YARD_POOL": "default",
        "YARD_NODE": "n1",
        "YARD_REPLICA": "0",
        "YARD_REPLICAS": "1",
        "YARD_CHECKPOINT_URI": "s3://runs/step-7",
        "YARD_CHECKPOINT_STEP": "7",
        "YARD_CHECKPOINT_FILE": f"{directory}/checkpoint.json",
        "YARD_STOP_FILE": f"{directory}/stop.json",
        "YARD_GRACE_S": "120",
        "YARD_GPU_MILLI": "500",
        "YARD_GPU_MEMORY_MIB": "500",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "MASTER_ADDR": "127.0.0.1",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "YARD_JOB_NAME": "a job",
        "YARD_USER": "ada",
        "NCCL_DEBUG": "WARN",
        "HF_TOKEN": "s3cret",
        "PWD": f"{directory}/work",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert json.loads(env["YARD_PARAMS"]) == {"lr": 0.01, "name": "b"}
    assert env["YARD_AGENT_URL"].startswith("http://127.0.0.1:")
    assert len(env["YARD_AGENT_TOKEN"]) == 64
    assert int(env["PET_MASTER_PORT"]) > 0
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"]
    # Variables that the shell sets itself.
    given = {"YARD_PARAMS", "YARD_AGENT_URL", "YARD_AGENT_SOCKET", "YARD_AGENT_TOKEN"}
    given |= {"MASTER_PORT", "PET_MASTER_PORT", "OLDPWD", "SHLVL", "_"}
    passed = env.keys() - expected.keys() - given
    assert all(any(fnmatchcase(name, known) for known in PASSED) for name in passed), passed
    assert env["LC_MEASUREMENT"] == "C"
    assert not holding(Path(directory), b"s3cret"), "a secret is on disk"
    assert b"s3cret" not in (cell.data_dir / "ledger").read_bytes()


async def test_a_task_without_gpus_sees_none(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh('echo "<$CUDA_VISIBLE_DEVICES>"'))
        await cell.ended(task)
        assert await cell.output(task) == "<>\n"


async def test_gangs_find_each_other_and_know_their_rank(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("env"), slots=[(0,), (1,)], master_port=29_777, replicas=2)
        await cell.ended(task, count=2)
        for replica in range(2):
            env = environment(await cell.output(task, replica=replica))
            assert env["RANK"] == env["PET_NODE_RANK"] == env["YARD_REPLICA"] == str(replica)
            assert env["WORLD_SIZE"] == env["PET_NNODES"] == env["YARD_REPLICAS"] == "2"
            assert env["MASTER_ADDR"] == env["PET_MASTER_ADDR"] == "127.0.0.1"
            assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == "29777"
            assert env["LOCAL_RANK"] == "0"
            assert env["CUDA_VISIBLE_DEVICES"] == str(replica)


async def test_ranks_within_a_replica_of_many_gpus_are_left_to_torchrun(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("env"), slots=[(0, 1), (2, 3)], master_port=29_777)
        await cell.ended(task, count=2)
        env = environment(await cell.output(task))
        assert "LOCAL_RANK" not in env
        assert env["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(
    "name", ["YARD_TASK_ID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD", "RANK"]
)
async def test_a_job_that_sets_a_reserved_name_is_not_started(cell: AgentCell, name: str) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("true", env={name: "x"}))
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, "reserved_variable")
        assert name in await cell.output(task, stream="agent")
    assert not await cell.of_type(TaskStartedV1)


async def test_a_secret_that_is_not_there_keeps_the_job_from_starting(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("true", secrets={"TOKEN": "nlp/none"}))
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, "secret_missing")
        assert "no secret" in await cell.output(task, stream="agent")


@pytest.mark.parametrize("reference", ["vision/hf", "../../etc/passwd", "hf", "nlp"])
async def test_an_agent_gives_a_job_no_secret_of_another_project(
    cell: AgentCell, tmp_path: Path, reference: str
) -> None:
    (tmp_path / "vision").mkdir()
    for name in ("vision/hf", "hf", "nlp"):
        (tmp_path / name).write_text("s3cret")
    cell.configure(secrets_dir=tmp_path)
    async with cell.agent():
        task = await cell.allocate(sh("true", secrets={"TOKEN": reference}))
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, "secret_missing")
        assert "may not read" in await cell.output(task, stream="agent")


@pytest.mark.parametrize(
    ("run", "failure", "why"),
    [
        (Run(script="true", working_dir="/no/such/folder"), "directory_missing", "/no/such/folder"),
        (Run(script="true", working_dir="/etc/passwd"), "directory_missing", "/etc/passwd"),
        (Run(script="true", image="busybox"), "no_executor", "container"),
        (Run(script="true", context=CONTEXT), "context_missing", "has no package"),
    ],
)
async def test_a_job_that_no_node_can_start_is_reported_with_its_cause(
    cell: AgentCell, tmp_path: Path, run: Run, failure: str, why: str
) -> None:
    (tmp_path / "packages").mkdir()
    cell.configure(packages=str(tmp_path / "packages"))
    async with cell.agent():
        task = await cell.allocate(run)
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, failure)
        assert why in await cell.output(task, stream="agent")


async def test_a_node_without_packages_leaves_a_job_with_a_context_to_other_nodes(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        task = await cell.allocate(Run(script="true", context=CONTEXT))
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, "other")
        assert "its YARD_PACKAGES is empty" in await cell.output(task, stream="agent")


async def test_a_node_says_which_executors_it_has(cell: AgentCell) -> None:
    async with cell.agent() as joined:
        assert joined.executors == ("process",)


async def test_erased_or_exchanged_details_are_reported_as_never_started(
    cell: AgentCell,
) -> None:
    async with cell.agent():
        first, second, third = cell.job(), cell.job(), cell.job()
        erased = await cell.details(first, sh("true"))
        await cell.log.append(Partition(DETAILS.name), [Record(first.encode(), None)])
        kept = await cell.details(second, sh("true"))
        missing = DetailsRef(offset=10_000, digest="0" * 64)
        changed = DetailsRef(offset=kept.offset, digest="0" * 64)
        for job, details, why in (
            (first, erased, "erased"),
            (second, changed, "digest"),
            (third, kept, "not its job's"),
            (cell.job(), missing, "erased"),
        ):
            task = await cell.allocate(details, task_id=f"{job}.0")
            released = (await cell.ended(task))[0]
            assert (released.never_started, released.failure) == (True, "details_missing")
            assert why in await cell.output(task, stream="agent")


async def test_a_stop_shows_in_the_stop_file_and_asks_the_process_group(
    cell: AgentCell,
) -> None:
    script = """
    trap 'cat "$YARD_STOP_FILE"; exit 0' TERM
    echo ready
    while :; do sleep 0.05; done
    """
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.until_output(task, "ready")
        await cell.stop(task)
        assert (await cell.exit_of(task)).exit_code == 0
        await cell.ended(task)
        notice = json.loads((await cell.output(task)).partition("ready\n")[2])
    assert notice["code"] == "priority"
    assert notice["deadline_at"].endswith("Z")


async def test_a_shell_task_saves_by_renaming_a_file_when_it_is_stopped(
    cell: AgentCell,
) -> None:
    script = """
    save() {
        echo '{"uri": "file:///data/step-5", "step": 5}' > "$YARD_CHECKPOINT_FILE.new"
        mv "$YARD_CHECKPOINT_FILE.new" "$YARD_CHECKPOINT_FILE"
        exit 0
    }
    trap save TERM
    echo ready
    while :; do sleep 0.05; done
    """
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.until_output(task, "ready")
        await cell.stop(task)
        await cell.ended(task)
    saved = await cell.of_type(CheckpointDoneV1, task)
    assert [(each.uri, each.step) for each in saved] == [("file:///data/step-5", 5)]
    kinds = [e.type for e in await cell.envelopes() if e.subject == task]
    assert kinds.index("CheckpointDone") < kinds.index("SlotsReleased")


async def test_a_python_task_saves_through_the_sdk_when_it_is_stopped(cell: AgentCell) -> None:
    code = """
import time
from yardmaster import task
last = task.last_checkpoint()
step = last.step if last else 0
task.progress(250)
while True:
    step += 1
    if task.should_stop():
        task.report_checkpoint(f"s3://runs/step-{step}", step)
        print("saved", flush=True)
        raise SystemExit(0)
    if step == 8:
        print("ready", flush=True)
    time.sleep(0.01)
"""
    async with cell.agent():
        first = await cell.allocate(python(code), checkpoint=Checkpoint(uri="s3://a/b", step=7))
        await cell.until_output(first, "ready")
        await cell.stop(first)
        await cell.ended(first)
        exited = await cell.exit_of(first)
        assert (exited.exit_code, exited.done) == (0, False)
    saved = (await cell.of_type(CheckpointDoneV1, first))[0]
    assert saved.step >= 8
    assert saved.uri == f"s3://runs/step-{saved.step}"
    assert (await cell.of_type(TaskProgressedV1, first))[0].permille == 250


async def test_the_output_names_a_checkpoint_that_the_scheduler_refused(cell: AgentCell) -> None:
    cell.configure(ask_again_s=0.1)
    code = """
import time
from yardmaster import task
task.report_checkpoint("s3://other/1", 1)
while not task.should_stop():
    time.sleep(0.05)
"""
    async with cell.agent():
        name = await cell.allocate(python(code))
        await cell.until(CheckpointDoneV1)
        records = await cell.log.read(Partition(NODE_EVENTS.name), 0)
        (refused,) = (s for s in records if isinstance(decode(s.record).data, CheckpointDoneV1))
        event = RecordQuarantinedV1(
            topic=NODE_EVENTS.name,
            partition=0,
            offset=refused.offset,
            code=RefusalCode.CHECKPOINT_NOT_ALLOWED,
            found="",
            raw_key="",
            raw_value=base64.b64encode(refused.record.value or b"").decode(),
        )
        envelope = replace(sample(RecordQuarantinedV1), data=event)
        await cell.log.append(Partition(QUARANTINE.name), [encode(envelope, NODE_EVENTS.name)])
        await cell.until_output(name, "the checkpoint at s3://other/1 does not count", stream=None)
        await cell.stop(name)
        await cell.ended(name)


async def test_done_tells_finished_from_saved(cell: AgentCell) -> None:
    code = "from yardmaster import task; task.done()"
    async with cell.agent():
        task = await cell.allocate(python(code))
        assert (await cell.exit_of(task)).done
        await cell.ended(task)


async def test_without_the_api_the_sdk_uses_the_files(cell: AgentCell) -> None:
    cell.configure(api=False)
    code = """
from yardmaster import task
task.report_checkpoint("s3://runs/a", 4)
task.done()
"""
    async with cell.agent():
        task = await cell.allocate(python(code))
        assert (await cell.exit_of(task)).done
        await cell.ended(task)
    assert [c.step for c in await cell.of_type(CheckpointDoneV1, task)] == [4]


@pytest.mark.parametrize("number", [StopSignal.USR1, StopSignal.INT])
async def test_the_signal_is_the_one_the_job_chose(cell: AgentCell, number: StopSignal) -> None:
    script = f"trap 'echo got it; exit 7' {number.value}; echo ready; while :; do sleep 0.05; done"
    async with cell.agent():
        task = await cell.allocate(sh(script), stop_signal=number)
        await cell.until_output(task, "ready")
        await cell.stop(task, code=StopCode.CANCELLED)
        assert (await cell.exit_of(task)).exit_code == 7
        await cell.ended(task)


async def test_a_task_that_ignores_the_signal_is_killed_at_the_deadline_with_all_its_processes(
    cell: AgentCell,
) -> None:
    script = """
    trap '' TERM
    (trap '' TERM; while :; do sleep 0.05; done) &
    echo "child $!"
    setsid sh -c 'trap "" TERM; echo "escaped $$"; while :; do sleep 0.05; done' &
    sleep 0.3; echo ready
    while :; do sleep 0.05; done
    """
    async with cell.agent():
        task = await cell.allocate(sh(script))
        said = await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=1)
        exited = await cell.exit_of(task)
        assert exited.signal == signal.SIGKILL
        await cell.ended(task)
        await cell.until_output(task, "killed at the end of its grace", stream="agent")
    for line in said.splitlines()[:2]:
        pid = int(line.split()[1])
        assert not alive(pid), f"{line} is still there after SlotsReleased"


async def test_orphans_of_a_task_are_killed_before_its_slots_are_released(
    cell: AgentCell,
) -> None:
    script = "setsid sh -c 'while :; do sleep 0.05; done' & echo $!; exit 0"
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.ended(task)
        assert (await cell.exit_of(task)).exit_code == 0
        assert not alive(int((await cell.output(task)).strip()))


async def test_an_immediate_stop_and_a_revocation_kill_at_once(cell: AgentCell) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    async with cell.agent():
        stopped, revoked = await cell.allocate(sh(script)), await cell.allocate(sh(script))
        await cell.until_output(stopped, "ready")
        await cell.until_output(revoked, "ready")
        await cell.stop(stopped, grace_s=0, code=StopCode.CANCELLED)
        await cell.revoke(revoked)
        for task in (stopped, revoked):
            assert (await cell.exit_of(task)).signal == signal.SIGKILL
            assert not (await cell.ended(task))[0].never_started


@pytest.mark.parametrize("how", ["stopped", "revoked"])
async def test_a_task_that_is_stopped_before_its_start_never_starts(
    cell: AgentCell, how: str
) -> None:
    async with cell.agent() as joined:
        pass
    task = await cell.allocate(sh("echo started"), incarnation=joined.incarnation)
    if how == "stopped":
        await cell.stop(task)
    else:
        await cell.revoke(task)
    async with cell.agent():
        released = (await cell.ended(task))[0]
        assert (released.never_started, released.failure) == (True, None)
    assert not await cell.of_type(TaskStartedV1)


async def test_a_stop_of_an_attempt_that_is_not_here_changes_nothing(cell: AgentCell) -> None:
    async with cell.agent():
        await cell.stop("000000000009.0")
        await cell.revoke("000000000009.0")
        task = await cell.allocate(sh("true"), attempt=2)
        await cell.stop(task, attempt=1, grace_s=0)
        await cell.ended(task)
        assert (await cell.exit_of(task)).exit_code == 0


@pytest.mark.parametrize("how", ["stopped", "revoked"])
async def test_a_stop_releases_the_replicas_whose_assignment_was_lost(
    cell: AgentCell, how: str
) -> None:
    lost = "000000000009.0"
    order = cell.stop if how == "stopped" else cell.revoke
    async with cell.agent() as joined:
        await order(lost, attempt=3, unstarted=(OTHER_INCARNATION, (7,)))
        for _ in range(2):
            await order(lost, attempt=3, unstarted=(joined.incarnation, (0, 2)))
        released = await cell.ended(lost, count=2)
        assert [(r.attempt, r.replica, r.never_started) for r in released] == [
            (3, 0, True),
            (3, 2, True),
        ]
        said = await cell.until_output(lost, "\n", stream="agent", attempt=3)
        assert "its assignment did not reach the node" in said
        await cell.allocate(sh("echo started"), task_id=lost, attempt=3, replicas=3)
        await cell.ended(lost, count=3)
    async with cell.agent():
        after = await cell.allocate(sh("true"))
        await cell.ended(after)
    assert [r.replica for r in await cell.of_type(TaskStartedV1, lost)] == [1]
    assert len(await cell.of_type(SlotsReleasedV1, lost)) == 3


async def test_a_replica_that_the_agent_knows_is_stopped_whatever_the_stop_says_of_it(
    cell: AgentCell,
) -> None:
    async with cell.agent() as joined:
        task = await cell.allocate(sh("sleep 100"))
        await cell.until(TaskStartedV1, task)
        await cell.stop(task, grace_s=0, unstarted=(joined.incarnation, (0,)))
        assert [r.never_started for r in await cell.ended(task)] == [False]


async def test_a_later_stop_can_only_make_the_end_sooner(cell: AgentCell) -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05 || :; done"
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=600)
        await cell.until_output(task, "asked")
        await cell.stop(task, grace_s=900)
        await cell.stop(task, grace_s=1, code=StopCode.CANCELLED)
        assert (await cell.exit_of(task)).signal == signal.SIGKILL
        await cell.ended(task)
        assert (await cell.output(task)).count("asked") == 1, "the signal is sent once"


async def test_an_assignment_that_comes_twice_starts_once(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(sh("echo started >> ../../../count"))
        stored = await cell.log.read(Partition("assignments.n1"), 0)
        await cell.repeat(stored[0].record)
        await cell.ended(task)
        await cell.repeat(stored[0].record)
        after = await cell.allocate(sh("true"))
        await cell.ended(after)
    assert (cell.data_dir / "count").read_text() == "started\n"
    assert len(await cell.of_type(SlotsReleasedV1, task)) == 1


async def test_replicas_beyond_the_capacity_of_the_node_are_released(cell: AgentCell) -> None:
    async with cell.agent():
        holder = await cell.allocate(sh("sleep 60"), slots=[(0,)], gpu_milli=600)
        await cell.until(TaskStartedV1, holder)
        both = await cell.allocate(sh("true"), slots=[(0,)], gpu_milli=500)
        beyond = await cell.allocate(sh("true"), slots=[(4,)])
        fits = await cell.allocate(sh("true"), slots=[(0,)], gpu_milli=400)
        assert (await cell.ended(both))[0].failure == "other"
        assert (await cell.ended(beyond))[0].failure == "other"
        assert not (await cell.ended(fits))[0].never_started
        await cell.stop(holder, grace_s=0)
        await cell.ended(holder)


async def test_assignments_to_another_incarnation_are_void(cell: AgentCell) -> None:
    async with cell.agent():
        await cell.allocate(sh("true"), incarnation="0123456789ab")
        mine = await cell.allocate(sh("true"))
        await cell.ended(mine)
    assert {e.subject for e in await cell.envelopes()} == {"n1", mine}


#: A task that writes a number of MiB, without a last newline, and then fails with a traceback.
FAILS_AFTER = """
import os, sys
line = b"%07d " + b"x" * 191 + b"\\n"
for number in range(int(os.environ["MIB"]) * 2**20 // 200):
    os.write(1, line % number)
os.write(1, b"epoch 3: 97%")
raise RuntimeError("the loss is not a number")
"""


@pytest.mark.parametrize("mib", [33, 100])
async def test_of_long_output_the_first_and_the_newest_lines_are_kept(
    cell: AgentCell, mib: int
) -> None:
    async with cell.agent():
        task = await cell.allocate(python(FAILS_AFTER, env={"MIB": str(mib)}))
        await cell.ended(task)
        everything = await cell.output(task, stream=None)
        said = await cell.output(task)
    lines = everything.splitlines()
    assert lines[0].startswith("0000000 xxx")
    assert lines[-1] == "RuntimeError: the loss is not a number"
    assert any("epoch 3: 97%" in line for line in lines[-8:]), "the newest bytes of both streams"
    cut = [number for number, line in enumerate(lines) if line.startswith("output is cut here")]
    assert len(cut) == 1
    assert "12 MiB of it are shipped; of the rest, the newest 4 MiB follow" in lines[cut[0]]
    assert "16 MiB of an attempt (YARD_AGENT_OUTPUT_LIMIT_BYTES" in lines[cut[0]]
    gap = [number for number, line in enumerate(lines) if " of output are left out here" in line]
    assert gap == [cut[0] + 1]
    numbers = [int(line[:7]) for line in lines if line[7:9] == " x"]
    assert numbers[-1] == mib * 2**20 // 200 - 1
    before = numbers.index(cut[0] - 1)
    left_out = numbers[before + 1] - numbers[before] - 1
    assert lines[gap[0]].startswith(f"{round(left_out * 200 / 2**20, 1):g} MiB of output are left")
    assert numbers == [*range(numbers[before] + 1), *range(numbers[before + 1], numbers[-1] + 1)]
    assert 15.5 * 2**20 < len(said) <= 16 * 2**20


async def test_output_that_just_fits_its_limit_is_shipped_whole(cell: AgentCell) -> None:
    cell.configure(output_limit_bytes=50_000)
    line = "forty bytes of output, more or less .."
    script = f"i=0; while [ $i -lt 1200 ]; do echo '{line}'; i=$((i+1)); done"
    async with cell.agent():
        task = await cell.allocate(sh(script))
        await cell.ended(task)
        assert await cell.output(task) == f"{line}\n" * 1200
        assert "left out" not in await cell.output(task, stream="agent")


async def test_an_agent_that_restarts_ships_the_newest_output_of_its_tasks(
    cell: AgentCell,
) -> None:
    cell.configure(output_limit_bytes=400_000)
    go = cell.data_dir / "go"
    code = f"""
import os, time
for number in range(20_000):
    os.write(1, b"%07d " % number + b"x" * 191 + b"\\n")
while not os.path.exists("{go}"): time.sleep(0.05)
os.write(2, b"the end")
"""
    async with cell.agent():
        task = await cell.allocate(python(code))
        await cell.until_output(task, "output is cut here", stream="agent")
    async with cell.agent():
        go.touch()
        await cell.ended(task)
        lines = (await cell.output(task, stream=None)).splitlines()
    assert lines[-2:] == ["0019999 " + "x" * 191, "the end"]
    assert sum("output is cut here" in line for line in lines) == 1
    assert sum("left out here" in line for line in lines) == 1


async def test_what_python_prints_is_shipped_while_the_task_runs(cell: AgentCell) -> None:
    async with cell.agent():
        task = await cell.allocate(python("import time; print('hello'); time.sleep(600)"))
        await cell.until_output(task, "hello")
        await cell.stop(task, grace_s=0)
        await cell.ended(task)


async def test_output_of_any_bytes_arrives_whole(cell: AgentCell) -> None:
    code = """
import os, sys, time
text = "äöü€😀\\x00\\x1b[31m" * 20_000
data = text.encode()
for at in range(0, len(data), 50_001):
    os.write(1, data[at:at + 50_001]); time.sleep(0.02)
os.write(1, b"\\xff\\xfe cut \\xe2\\x82")
"""
    async with cell.agent():
        task = await cell.allocate(python(code))
        await cell.ended(task)
        said = await cell.output(task)
    assert said == "äöü€😀\x00\x1b[31m" * 20_000 + "\ufffd\ufffd cut \ufffd"


async def test_a_task_that_damages_its_directory_disturbs_no_other_task(cell: AgentCell) -> None:
    wreck = """
    cd ..
    rm -rf stdout stderr bell stop.json checkpoint.json
    mkfifo stdout stderr checkpoint.json .stop.json
    mkdir bell stop.json
    echo '[[[[' > exit
    trap 'exit 5' TERM
    while :; do sleep 0.05; done
    """
    async with cell.agent():
        task = await cell.allocate(sh(wreck))
        gone = await cell.allocate(sh('rm -rf "$(dirname "$YARD_STOP_FILE")"; sleep 60'))
        await cell.until(TaskStartedV1, task)
        await cell.until(TaskStartedV1, gone)
        deadline = cell.clock.monotonic_s() + DEADLINE_S
        while not (cell.data_dir / "replicas" / f"{task}.1.0" / "bell").is_dir():
            assert cell.clock.monotonic_s() < deadline
            await asyncio.sleep(0.02)
        for each in (task, gone):
            await cell.stop(each, grace_s=2)
            await cell.ended(each)
        fine = await cell.allocate(sh("echo fine"))
        await cell.ended(fine)
        assert await cell.output(fine) == "fine\n"


async def test_the_process_title_and_the_log_never_hold_a_secret(
    cell: AgentCell, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "key").write_text("s3cret-value")
    cell.configure(secrets_dir=tmp_path)
    async with cell.agent():
        task = await cell.allocate(sh("echo ready; sleep 60", secrets={"KEY": "shared/key"}))
        await cell.until_output(task, "ready")
        titles = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it ended meanwhile
                titles.append((Path("/proc") / pid / "cmdline").read_bytes())
        assert not [title for title in titles if b"s3cret-value" in title]
        await cell.stop(task, grace_s=0)
        await cell.ended(task)
    for topic in ("node-events", "task-logs", "heartbeats"):
        stored = await cell.log.read(Partition(topic), 0, max_records=10_000)
        assert not [s for s in stored if b"s3cret-value" in (s.record.value or b"")]


def holding(directory: Path, secret: bytes) -> list[Path]:
    """Files that hold a secret, the task's own output aside."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "stdout"]
    return [path for path in files if secret in path.read_bytes()]
