"""The runner by itself: at most one start, an exit that lasts, nothing left unseen."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from yardmaster_node_agent import runner
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.directory import ReplicaDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ReplicaDirectory:
    made = ReplicaDirectory(tmp_path / "4kq7w2mz9c1f.0.1.0")
    made.create(None)
    return made


def run(directory: ReplicaDirectory, *command: str, spec: str | None = None) -> int:
    """Run a runner to its end."""
    if spec is None:
        cwd = str(directory.path / "work")
        spec = json.dumps({"command": list(command), "env": {"PATH": os.defpath}, "cwd": cwd})
    arguments = [sys.executable, "-I", "-S", runner.__file__, str(directory.path)]
    done = subprocess.run(
        arguments, input=spec.encode(), capture_output=True, timeout=60, check=False
    )
    return done.returncode


def test_the_exit_is_stored_with_the_identity_of_the_process(directory: ReplicaDirectory) -> None:
    assert run(directory, "sh", "-c", "echo $$; exit 9") == 0
    process = directory.read_json("process")
    assert process is not None
    assert process["pid"] == int((directory.path / "stdout").read_text())
    assert process["started"] > 0
    assert directory.read_json("exit") == {"exit_code": 9}
    assert directory.has("gone")


def test_a_signal_is_stored_as_a_signal(directory: ReplicaDirectory) -> None:
    run(directory, "sh", "-c", "kill -15 $$")
    assert directory.read_json("exit") == {"signal": 15}


def test_of_two_runners_one_starts(directory: ReplicaDirectory) -> None:
    count = str(directory.path / "count")
    assert run(directory, "sh", "-c", f"echo >> {count}") == 0
    assert run(directory, "sh", "-c", f"echo >> {count}") == runner.ALREADY_STARTED
    assert Path(count).read_text() == "\n"


def test_of_many_runners_at_once_one_starts(directory: ReplicaDirectory) -> None:
    count = directory.path / "count"
    command = ["sh", "-c", f"echo >> {count}"]
    spec = json.dumps({"command": command, "env": {"PATH": os.defpath}, "cwd": "/"}).encode()
    arguments = [sys.executable, "-I", "-S", runner.__file__, str(directory.path)]
    started = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(6)
    ]
    for each in started:
        assert each.stdin is not None
        each.stdin.write(spec)
        each.stdin.close()
    codes = sorted(each.wait(60) for each in started)
    assert codes == [0] + [runner.ALREADY_STARTED] * 5
    assert count.read_text() == "\n"


def test_a_prevented_start_never_happens(directory: ReplicaDirectory) -> None:
    assert directory.prevent_start()
    assert not directory.prevent_start()
    assert run(directory, "sh", "-c", "echo started") == runner.ALREADY_STARTED
    assert not directory.has("process")
    assert not directory.has("stdout")


@pytest.mark.parametrize("spec", ["", '{"command": ["sh"', "nonsense"])
def test_an_incomplete_spec_starts_nothing(directory: ReplicaDirectory, spec: str) -> None:
    assert run(directory, spec=spec) == runner.BAD_SPEC
    assert directory.prevent_start(), "nothing took the start"


def test_the_runner_stays_until_the_last_orphan_is_gone(directory: ReplicaDirectory) -> None:
    script = "(setsid sh -c 'sleep 0.5; echo orphan > ../orphan' &) ; exit 0"
    assert run(directory, "sh", "-c", script) == 0
    assert (directory.path / "orphan").read_text() == "orphan\n"


def test_the_command_starts_with_default_signals_and_no_inherited_descriptors(
    directory: ReplicaDirectory,
) -> None:
    code = """
import os, signal
print([s.name for s in signal.valid_signals() if isinstance(s, signal.Signals)
       and signal.getsignal(s) is signal.SIG_IGN and s.name not in ("SIGPIPE", "SIGXFSZ")])
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4])
print(os.getpid() == os.getsid(0) == os.getpgid(0))
"""
    assert run(directory, sys.executable, "-I", "-c", code) == 0
    assert (directory.path / "stdout").read_text() == "[]\n[0, 1, 2, 3]\nTrue\n"


def test_the_runner_imports_only_the_standard_library() -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['runner', '/nowhere']\n"
        f"runpy.run_path({runner.__file__!r}, run_name='imported')\n"
        "print([m for m in sys.modules if 'yardmaster' in m or 'pydantic' in m])\n"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


def fenced(directory: ReplicaDirectory, command: list[str], acknowledged_s: float) -> str:
    """A spec under a fence of a second, of an incarnation that was heard then."""
    renewed = directory.path.with_name("renewed")
    note = {"incarnation": "0" * 12, "acknowledged_s": acknowledged_s}
    renewed.write_text(json.dumps(note))
    fence = {"renewed": str(renewed), "incarnation": "0" * 12, "seconds": 1}
    env = {"PATH": os.defpath}
    return json.dumps({"command": command, "env": env, "cwd": "/", "fence": fence})


def test_nothing_starts_under_a_lease_that_has_ended(directory: ReplicaDirectory) -> None:
    spec = fenced(directory, ["sh", "-c", "echo started"], time.monotonic() - 5)
    assert run(directory, spec=spec) == runner.FENCED
    assert not directory.has("process")
    assert not directory.has("stdout")
    assert not directory.prevent_start(), "and nothing will"


def test_all_processes_are_killed_when_the_lease_ends(directory: ReplicaDirectory) -> None:
    began = time.monotonic()
    hidden = "trap '' TERM; (setsid setsid sh -c 'sleep 100; :' &); sleep 100; :"
    assert run(directory, spec=fenced(directory, ["sh", "-c", hidden], began)) == 0
    took_s = time.monotonic() - began
    assert 1 + runner.LATER_S <= took_s < 10
    assert directory.read_json("exit") == {"signal": 9}
    assert directory.has("fenced")
    assert directory.has("gone"), "nothing of it is left"


def test_a_lease_that_is_renewed_kills_nothing(directory: ReplicaDirectory) -> None:
    spec = fenced(directory, ["sh", "-c", "sleep 3"], time.monotonic())
    renewed = directory.path.with_name("renewed")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", runner.__file__, str(directory.path)], stdin=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        running.stdin.write(spec.encode())
        running.stdin.close()
        while running.poll() is None:
            note = {"incarnation": "0" * 12, "acknowledged_s": time.monotonic()}
            renewed.with_name("new").write_text(json.dumps(note))
            renewed.with_name("new").rename(renewed)
            time.sleep(0.2)
    assert directory.read_json("exit") == {"exit_code": 0}
    assert not directory.has("fenced")


@pytest.mark.parametrize("user", [None, {"uid": 10_002, "gid": 10_002}])
def test_the_command_dies_with_a_runner_that_is_killed(
    directory: ReplicaDirectory, user: dict[str, int] | None
) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("needs root")
    spec = fenced(directory, ["sleep", "100"], time.monotonic() + 100)
    spec = json.dumps({**json.loads(spec), "user": user})
    with subprocess.Popen(
        [sys.executable, "-I", "-S", runner.__file__, str(directory.path)], stdin=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        running.stdin.write(spec.encode())
        running.stdin.close()
        deadline = time.monotonic() + 20
        while (process := directory.read_json("process")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.kill()
    while (seen := procfs.look(process["pid"])) is not None and not seen.ended:
        assert time.monotonic() < deadline, "it runs on without its runner"
        time.sleep(0.02)
