"""Lists, large jobs, failures and job files: the real command on a real embedded process."""

import csv
import signal
from collections.abc import Iterator

import pytest

from tests.support.yard_cli import STEP_S, Dev, next_line, running_dev, until

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("jobs"), nodes=2, slots=2) as dev:
        yield dev


def table(text: str) -> list[dict[str, str]]:
    """Rows of a printed table, by title."""
    titles, *lines = (line.split() for line in text.splitlines())
    return [dict(zip(titles, line, strict=False)) for line in lines]


def test_a_list_has_active_tasks_first_and_groups_pending_tasks_of_an_array(dev: Dev) -> None:
    running = dev.submit("--name", "list", "--gpus", "1", "--", "sleep", "600")
    array = dev.submit(
        *("--name", "list", "--gpus", "1", "--tasks", "30", "--max-concurrent", "1"),
        *("--", "sleep", "600"),
    )
    done = dev.submit("--name", "list", "--tasks", "12", "--wait", "--", "true")
    dev.reach(f"{running}.0", "running")
    dev.reach(f"{array}.0", "running")
    listed = dev.yard("ls", "--name", "list")
    found = [(row["ID"], row["PHASE"], row["TASKS"]) for row in table(listed.out)]
    assert found == [
        (f"{array}.0", "running", "1"),
        (f"{running}.0", "running", "1"),
        (f"{array}.[1-29]", "pending", "29"),
        (f"{done}.[0-11]", "succeeded", "12"),
    ]
    assert "43 tasks: 2 running, 29 pending, 12 succeeded" in listed.err
    every = dev.yard("ls", "--name", "list", "--all", "--columns", "id", "--no-headers").lines
    assert len(every) == 43
    assert every[-1].startswith(done)
    short = dev.yard("ls", "--name", "list", "--limit", "1")
    assert [row["ID"] for row in table(short.out)] == [f"{array}.0"]
    assert "1 row shown; --all lists every task" in short.err
    on_node = dev.yard("ls", "--name", "list", "--pool", "default")
    assert f"{array}.[1-29]" in on_node.out
    jobs = dev.yard("ls", "--jobs", "--name", "list")
    assert [(row["ID"], row["TASKS"]) for row in table(jobs.out)] == [
        (array, "30"),
        (running, "1"),
        (done, "12"),
    ]
    assert "1 running, 29 pending" in jobs.out
    assert not dev.yard("ls", "--name", "list", "--kind", "inference").lines[1:]
    assert "unknown kind" in dev.yard("ls", "--kind", "batch", code=2).err
    shown = dev.yard("show", array)
    assert f"{array}.[1-29]" in shown.out
    assert len(dev.yard("show", array, "--all").lines) == 2 + 1 + 30
    dev.yard("cancel", running, array, "--now")
    said = dev.yard("wait", array, "--timeout", "45s", code=107)
    assert f"{array}: 30 tasks: 30 cancelled" in said.err
    assert "and 20 more that did not succeed" in said.err


def test_an_empty_list_says_so_and_unknown_names_are_errors(dev: Dev) -> None:
    dev.submit("--wait", "--", "true")
    for flag, code in (("--phase=stopping", 0), ("--name=absent", 0), ("--user=absent", 0)):
        said = dev.yard("ls", flag, code=code)
        assert "no task matches" in said.err
        assert "submit one" not in said.err
    for kind in ("node", "pool", "project"):
        assert f"there is no {kind} nope" in dev.yard("ls", f"--{kind}", "nope", code=101).err
    assert "no task matches" in dev.yard("ls", "--node", "node-2", "--phase", "stopping").err


def test_sorting_by_age_puts_the_youngest_task_first(dev: Dev) -> None:
    ids = [dev.submit("--name", "aged", "--wait", "--", "true") for _ in range(3)]
    for sort, wanted in (("age", ids[::-1]), ("-age", ids), ("submitted", ids)):
        rows = dev.yard("ls", "--name", "aged", "--sort", sort, "-o", "name").lines
        assert rows == [f"{job}.0" for job in wanted], sort
    oldest = dev.yard("ls", "--name", "aged", "--sort", "-age", "--limit", "1", "-o", "name")
    assert oldest.lines == [f"{ids[0]}.0"]
    row = next(csv.DictReader(dev.yard("ls", "--name", "aged", "-o", "csv").lines))
    assert row["submitted"].endswith("Z")
    assert "age" not in row
    assert float(row["ran_s"]) >= 0
    assert row["reason"] == row["progress_percent"] == row["checkpoint"] == ""


def test_a_failed_task_is_shown_with_its_exit_code_and_its_last_lines(dev: Dev) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; exit 3"
    job = dev.yard(
        "submit", "--max-restarts", "1", "--wait", "--script", script, code=3
    ).out.strip()
    lines = dev.yard("show", job).lines
    assert "failed, restarts_exhausted, exit 3" in lines[2]
    assert lines[-12].split() == ["Failed", "restarts_exhausted,", "exit", "3"]
    assert f"yard logs {job}.0" in lines[-11]
    assert lines[-10:] == [f"  line {number}" for number in range(3, 13)]
    quiet = dev.yard("submit", "--wait", "--script", "exit 4", code=4).out.strip()
    assert dev.yard("show", quiet).lines[-2:] == ["Failed      exit 4", "Output      none"]


def test_lines_of_a_gang_begin_with_their_replica(dev: Dev) -> None:
    script = "echo hello; echo from $RANK; exit $RANK"
    args = ("--gpus", "1", "--replicas", "2", "--script", script)
    followed = dev.yard("submit", "--follow", *args, code=1)
    job = followed.lines[0]
    wanted = {"[0] hello", "[0] from 0", "[1] hello", "[1] from 1"}
    assert set(followed.lines[1:]) == wanted
    assert set(dev.yard("logs", job).lines) == wanted
    assert dev.yard("logs", job, "--replica", "1").lines == ["hello", "from 1"]
    assert {line.strip() for line in dev.yard("show", job).lines} >= wanted
    for flag, has in (("--attempt", "attempt 1 only"), ("--replica", "replicas 0 to 1")):
        for follow in ((), ("-f",)):
            assert has in dev.yard("logs", job, flag, "9", *follow, code=101).err


def test_following_ends_at_its_timeout_and_leaves_the_task_running(dev: Dev) -> None:
    said = dev.yard("submit", "--follow", "--timeout", "2s", "--", "sleep", "600", code=124)
    job = said.out.strip()
    assert f"continue with: yard logs -f {job}" in said.err
    assert dev.reach(f"{job}.0", "running")
    dev.yard("cancel", job, "--now")
    dev.yard("submit", "--timeout", "2s", "--", "true", code=2)


def test_following_a_job_that_can_never_fit_ends_at_once(dev: Dev) -> None:
    said = dev.yard("submit", "--follow", "--gpus", "64", "--", "true", code=105)
    assert "exceeds_every_node" in said.err
    dev.yard("cancel", said.out.strip())


def test_ctrl_c_while_following_prints_the_command_to_continue(dev: Dev) -> None:
    process = dev.begin("submit", "--follow", "--script", "echo here; sleep 600")
    job = next_line(process).strip()
    assert next_line(process) == "here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=STEP_S)
    assert process.returncode == 130
    assert f"continue with: yard logs -f {job}" in err
    dev.yard("cancel", job, "--now")


def test_ctrl_c_in_a_watch_prints_the_same_command(dev: Dev) -> None:
    process = dev.begin("ls", "--queue", "default", "--label", "a=b c", "-w", "-o", "csv")
    job = dev.submit("--gpus", "64", "--label", "a=b c", "--", "true")
    while not next_line(process).startswith(job):
        continue
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=STEP_S)
    assert "continue with: yard ls --queue default --label 'a=b c' -w -o csv" in err
    dev.yard("cancel", job)


def test_nothing_is_erased_without_a_confirmation(dev: Dev) -> None:
    job = dev.submit("--name", "secret", "--wait", "--", "true")
    refused = dev.yard("erase", job, code=2)
    assert "--yes" in refused.err
    assert f"{job}.0 secret" in dev.yard("show", job).out
    dev.yard("erase", job, "--yes")
    until(lambda: "secret" not in dev.yard("show", job).out, "the name is gone")
    assert "was erased" in dev.yard("show", job, "--spec", code=101).err


def test_a_shown_job_file_can_be_submitted_again(dev: Dev) -> None:
    job = dev.submit(
        *("--name", "again", "--matrix", "lr=[0.1,1]", "--matrix", "on=[true,1]", "--gpus", "0.5"),
        *("--memory", "1.5Gi", "--label", "year=2026", "--env", "A=1", "--grace", "3s"),
        *("--max-concurrent", "2", "--time-limit", "1h", "--", "python3", "-c", "pass"),
    )
    spec = dev.yard("show", job, "--spec").out
    assert "matrix" in spec
    other = dev.yard("submit", "-", "--wait", stdin=spec).out.strip()
    assert other != job
    assert dev.yard("show", other, "--spec").out == spec
    for index in range(4):
        first, second = (dev.task(f"{one}.{index}")["params"] for one in (job, other))
        assert first == second


def test_jobs_are_named_after_their_programs(dev: Dev) -> None:
    (dev.folder / "train.py").write_text("print('ok')\n")
    job = dev.submit("--wait", "--", "python3", "train.py")
    assert f"{job}.0 train.py" in dev.yard("show", job).out


def test_a_program_instead_of_a_job_file_gets_a_hint_with_two_dashes(dev: Dev) -> None:
    (dev.folder / "t.py").write_text("import os\nprint(os.getpid())\n")
    (dev.folder / "t.sh").write_text("echo hi\n")
    for words, hint in (
        (("t.py",), "yard submit -- python3 t.py"),
        (("t.sh",), "yard submit -- sh t.sh"),
        (("echo", "hi there"), "yard submit -- echo 'hi there'"),
        (("hostname",), "yard submit -- hostname"),
        (("echo", "-n", "hi"), "yard submit -- COMMAND"),
    ):
        said = dev.yard("submit", *words, code=2)
        assert hint in said.err, words


FAILS_AFTER = """
import os
line = b"%07d " + b"x" * 191 + b"\\n"
for number in range(int(os.environ["MIB"]) * 2**20 // 200):
    os.write(1, line % number)
raise RuntimeError("the loss is not a number")
"""


@pytest.mark.parametrize("mib", ["33", "100"])
def test_a_failed_task_shows_its_error_after_much_output(dev: Dev, mib: str) -> None:
    words = ["--name", "much", "--env", f"MIB={mib}", "--wait", "--", "python3", "-c", FAILS_AFTER]
    job = dev.yard("submit", *words, code=None).out.split()[0]
    dev.reach(f"{job}.0", "failed")
    assert "RuntimeError: the loss is not a number" in dev.yard("show", f"{job}.0").out
    tail = dev.yard("logs", f"{job}.0", "--tail", "3").lines
    assert tail[-1] == "RuntimeError: the loss is not a number"
    lines = dev.yard("logs", f"{job}.0").lines
    assert lines[0].startswith("0000000 ")
    cut = [line for line in lines if line.startswith("output is cut here: 12 MiB of it")]
    assert len(cut) == 1
    assert "at most 16 MiB of an attempt (YARD_AGENT_OUTPUT_LIMIT_BYTES" in cut[0]
    assert lines[lines.index(cut[0]) + 1].endswith("the newest output follows")


def test_a_task_that_ignores_its_stop_shows_that_it_was_killed(dev: Dev) -> None:
    script = "trap '' TERM; while :; do sleep 0.1; done"
    job = dev.submit("--name", "stubborn", "--grace", "2s", "--", "sh", "-c", script)
    dev.reach(f"{job}.0", "running")
    dev.yard("cancel", job)
    dev.reach(f"{job}.0", "cancelled")
    assert "killed after its grace period of 2 s" in dev.yard("show", f"{job}.0").out
    assert "signal 9 (SIGKILL)" in dev.yard("show", f"{job}.0", "--attempts").out
    obedient = dev.submit("--name", "stubborn", "--grace", "20s", "--", "sleep", "600")
    dev.reach(f"{obedient}.0", "running")
    dev.yard("cancel", obedient)
    dev.reach(f"{obedient}.0", "cancelled")
    assert "killed after" not in dev.yard("show", f"{obedient}.0").out


def test_the_signal_that_ended_a_task_has_its_name(dev: Dev) -> None:
    job = dev.yard("submit", "--wait", "--", "sh", "-c", "kill -SEGV $$", code=None).out.split()[0]
    dev.reach(f"{job}.0", "failed")
    assert "failed, signal 11 (SIGSEGV)" in dev.yard("show", f"{job}.0").out
