"""The witness notices attempts that start twice and slots that are held twice."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.watch import FILE, main
from tests.support.witness import assert_witness_clean, command, read_witness

TASK = "aaaaaaaaaaaa.0"


def environ(
    attempt: int = 1, task: str = TASK, node: str = "n1", slots: str = "0", **more: str
) -> dict[str, str]:
    yard = {"YARD_TASK_ID": task, "YARD_ATTEMPT": str(attempt), "YARD_NODE": node}
    return {**os.environ, **yard, "CUDA_VISIBLE_DEVICES": slots, **more}


def run(folder: Path, *cmd: str, **env: str) -> int:
    done = subprocess.run(command(folder, *cmd), env=environ() | env, timeout=30, check=False)
    return done.returncode


def test_starts_ends_and_slots_are_read_back(tmp_path: Path) -> None:
    assert run(tmp_path, "true", YARD_ATTEMPT="1", CUDA_VISIBLE_DEVICES="0,3") == 0
    assert run(tmp_path, "false", YARD_ATTEMPT="2") == 1
    first, second = assert_witness_clean(tmp_path).starts
    assert (first.task, first.attempt, first.replica, first.slots) == (TASK, 1, 0, (0, 3))
    assert first.end_ns is not None
    assert first.end_ns > first.start_ns
    assert second.attempt == 2


def test_a_folder_where_nothing_ran_is_clean(tmp_path: Path) -> None:
    assert assert_witness_clean(tmp_path).starts == []


def test_an_attempt_that_starts_twice_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, "true")
    run(tmp_path, "true")
    with pytest.raises(AssertionError, match="attempt 1 replica 0 started twice"):
        assert_witness_clean(tmp_path)


def test_replicas_of_an_attempt_start_once_each(tmp_path: Path) -> None:
    run(tmp_path, "true", YARD_REPLICA="0")
    run(tmp_path, "true", YARD_REPLICA="1")
    assert_witness_clean(tmp_path)


@pytest.mark.parametrize(
    ("second", "word"),
    [
        ({"YARD_TASK_ID": "bbbbbbbbbbbb.0"}, "slot held twice: slot.n1.0"),
        ({"YARD_ATTEMPT": "2", "CUDA_VISIBLE_DEVICES": ""}, "runs twice at once: replica."),
        ({"YARD_TASK_ID": "bbbbbbbbbbbb.0", "YARD_NODE": "n2"}, None),
        ({"YARD_TASK_ID": "bbbbbbbbbbbb.0", "YARD_GPU_MILLI": "500"}, None),
    ],
)
def test_what_is_held_while_another_comes(
    tmp_path: Path, second: dict[str, str], word: str | None
) -> None:
    folder = tmp_path / "w"
    with holding(folder):
        run(folder, "true", **second)
    problems = read_witness(folder).problems()
    assert [word in p for p in problems] == [True] if word else problems == []


def test_a_child_that_outlives_its_killed_parent_still_holds_the_slot(tmp_path: Path) -> None:
    with holding(tmp_path) as parent:
        os.kill(parent, signal.SIGKILL)
        run(tmp_path, "true", YARD_ATTEMPT="2")
    assert {p.partition(":")[0] for p in read_witness(tmp_path).problems()} == {
        "slot held twice",
        "runs twice at once",
    }


def test_lines_that_are_no_testimony_are_problems(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"what": "st\n')
    assert read_witness(tmp_path).problems() == ['unreadable line: \'{"what": "st\'']


def test_the_command_is_needed() -> None:
    assert main(["folder", "--"]) == 2


def test_a_stop_signal_is_for_the_command(tmp_path: Path) -> None:
    script = "trap 'exit 7' TERM; kill -TERM $PPID; kill -TERM $$; sleep 30"
    assert run(tmp_path, "sh", "-c", script) == 7
    (start,) = assert_witness_clean(tmp_path).starts
    assert start.end_ns is not None


@contextmanager
def holding(folder: Path) -> Iterator[int]:
    """The pid of a witness whose command runs, and so holds slot 0 of n1, until the end."""
    there = folder.parent / "there"
    script = f"touch {there}; exec sleep 30"
    with subprocess.Popen(
        command(folder, "sh", "-c", script), env=environ(), start_new_session=True
    ) as group:
        try:
            deadline = time.monotonic() + 10
            while not there.exists():
                assert time.monotonic() < deadline, "the command never ran"
                time.sleep(0.01)
            yield group.pid
        finally:
            os.killpg(group.pid, signal.SIGKILL)
