"""Processes that a cluster left are found by their environment; others are not touched."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from yardmaster_localcluster import orphans
from yardmaster_localcluster.orphans import MARK, end, end_tasks, of_cluster, of_tasks

#: A stand-in for a node agent's runner: it has the attempt's folder as its argument, starts the
#: task in a session of its own, and writes an exit when it is asked to stop in order.
RUNNER = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
env = {"PATH": os.environ["PATH"], "YARD_STOP_FILE": folder + "/stop"}
task = ["sh", "-c", "setsid env -i sleep 77 & exec sleep 77"]
child = subprocess.Popen(task, env=env, start_new_session=True)
print(child.pid, flush=True)
child.wait()
open(folder + "/exit", "w").write("over")
"""


@contextmanager
def running(*words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def say_and_sleep() -> list[str]:
    return ["-c", "import time; print('ready', flush=True); time.sleep(77)"]


def test_a_clusters_processes_are_those_that_carry_its_folder(tmp_path: Path) -> None:
    with (
        running(*say_and_sleep(), **{MARK: str(tmp_path / "a")}) as mine,
        running(*say_and_sleep(), **{MARK: str(tmp_path / "ab")}) as other,
    ):
        assert [each.pid for each in of_cluster(tmp_path / "a")] == [mine.pid]
        end(of_cluster(tmp_path / "a"), 5.0)
        assert mine.wait(5) != 0
        assert other.poll() is None


def test_tasks_end_with_their_children_and_no_exit_is_written(tmp_path: Path) -> None:
    attempt = tmp_path / "agents" / "n1" / "4kq7w2mz9c1f.0"
    attempt.mkdir(parents=True)
    program = tmp_path / "runner.py"
    program.write_text(RUNNER)
    with running(str(program), str(attempt)) as runner:
        deadline = time.monotonic() + 10
        while len(of_tasks(tmp_path / "agents")) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(of_tasks(tmp_path / "agents")) == 3
        assert of_tasks(tmp_path / "agents" / "n2") == []
        assert end_tasks(tmp_path / "agents" / "n2") == 0
        assert end_tasks(tmp_path / "agents") == 3
        assert runner.wait(5) < 0
    assert of_tasks(tmp_path / "agents") == []
    assert not (attempt / "exit").exists()


def test_what_cannot_be_killed_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []

    def send(_: orphans.LivingProcess, number: int) -> bool:
        said.append(number)
        return True

    monkeypatch.setattr(orphans, "send", send)
    with running(*say_and_sleep(), **{MARK: str(tmp_path)}) as mine:
        end(of_cluster(tmp_path), 0.2)
        assert said == [signal.SIGTERM, signal.SIGKILL]
        assert [each.pid for each in of_cluster(tmp_path)] == [mine.pid], "who asks next sees it"
