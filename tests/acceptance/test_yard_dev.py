"""`yard dev` as a user starts it: without flags, by its path, and repeatedly."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.netns import Network, own_network
from tests.support.yard_cli import EXAMPLES, STEP_S, CommandResult
from yardmaster_localcluster.orphans import end_tasks

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("up")]

#: The program of this environment; no folder on PATH has one.
YARD = str(Path(sys.executable).with_name("yard"))
READY = re.compile(r"^yard dev: (http://127\.0\.0\.1:\d+), data in (.+)$", re.MULTILINE)

TAKE_6379 = """
import socket, sys
with socket.create_server(("127.0.0.1", 6379)):
    print("taken", flush=True)
    sys.stdin.read()
"""


@dataclass
class User:
    """A user with a home folder, on an empty network, without an activated venv."""

    home: Path
    network: Network
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        return {**kept, "HOME": str(self.home), "PATH": os.defpath, "NO_COLOR": "1"}

    def shell(self, line: str, cwd: Path | None = None) -> CommandResult:
        """Run a line in a shell."""
        done = subprocess.run(
            [*self.network.prefix, "sh", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=cwd or self.home,
            timeout=STEP_S,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def yard(self, *words: str, code: int = 0, cwd: Path | None = None) -> CommandResult:
        """Run a `yard` command to its end."""
        said = self.shell(shlex.join([YARD, *words]), cwd)
        assert said.code == code, f"yard {words}: exit {said.code}\n{said.out}\n{said.err}"
        return said

    def dev(self, *words: str) -> tuple[subprocess.Popen[str], CommandResult]:
        """Start `yard dev`; return the process and its output up to the hint."""
        process = subprocess.Popen(
            [*self.network.prefix, YARD, "dev", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            cwd=self.home,
        )
        self.running.append(process)
        assert process.stdout is not None
        said: list[str] = []
        alarm = threading.Timer(STEP_S, process.kill)
        alarm.start()
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ctrl-C"):
                break
        alarm.cancel()
        assert "".join(said[-1:]).startswith("Ctrl-C"), f"yard dev {words}: {said}"
        return process, CommandResult(0, "".join(said), "")

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STEP_S)
        assert process.returncode == 0
        self.running.remove(process)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with own_network() as network:
        found = User(tmp_path, network)
        try:
            yield found
        finally:
            for process in found.running:
                process.kill()
                process.communicate(timeout=STEP_S)
            end_tasks(tmp_path)


def server(said: CommandResult) -> str:
    found = READY.search(said.out)
    assert found is not None, said.out
    return found[1]


def hint(said: CommandResult) -> str:
    """The command that `yard dev` suggests for another terminal."""
    found = re.search(r"^hint: in another terminal: (.+) submit -- COMMAND$", said.out, re.M)
    assert found is not None, said.out
    return found[1]


def test_the_gateway_listens_on_port_7450_or_the_next_and_keeps_it_over_a_restart(
    user: User,
) -> None:
    first, said = user.dev()
    assert server(said) == "http://127.0.0.1:7450"
    second, said = user.dev("--data", "other")
    assert server(said) == "http://127.0.0.1:7451"
    user.stop(first)
    user.stop(second)
    # The first port is free again, but this folder keeps its address.
    second, said = user.dev("--data", "other")
    assert server(said) == "http://127.0.0.1:7451"
    user.stop(second)

    taken = user.dev("--port", "7460")[0]
    said = user.yard("dev", "--data", "other", "--port", "7460", code=103)
    assert "cannot listen on 127.0.0.1: port 7460 already in use" in said.err
    user.stop(taken)


def test_the_copied_hint_of_each_cluster_reaches_that_cluster(user: User, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    _, usual = user.dev()
    _, other = user.dev("--data", "with space")
    for said in (usual, other):
        found = user.shell(f"{hint(said)} config -o json", elsewhere)
        assert found.code == 0, found.err
        assert server(said) in found.out
    # No folder of PATH has the program, so the hint names it by its path.
    assert hint(usual) == YARD
    assert hint(other) == f"YARD_DATA={shlex.quote(str(tmp_path / 'with space'))} {YARD}"


def test_an_example_runs_from_any_folder_without_an_activated_venv(
    user: User, tmp_path: Path
) -> None:
    user.dev("--slots", "4")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    short = "tasks.matrix={rate: [1.0]}"
    said = user.yard(
        *("submit", str(EXAMPLES / "sweep.yaml"), "--set", short),
        *("--set", "run.command=[python3, train.py, --steps, '2']", "--wait"),
        cwd=elsewhere,
    )
    wrote = user.yard("logs", said.out.strip())
    assert "finished after 2 steps" in wrote.out


def test_doctor_names_the_users_of_the_default_ports_and_whether_clusters_answer(
    user: User,
) -> None:
    def states(code: int = 0) -> dict[str, tuple[str, str]]:
        rows = user.yard("doctor", "-o", "json", code=code).json["items"]
        return {row["what"]: (row["state"], row["found"]) for row in rows}

    before = states()
    assert before["port 7450 (gateway)"] == ("ok", "free")
    assert before["port 9092 (Kafka)"] == ("ok", "free")
    assert before["cluster"][0] == "absent"

    process, said = user.dev()
    taking = subprocess.Popen(
        [*user.network.prefix, sys.executable, "-c", TAKE_6379],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    user.running.append(taking)
    assert taking.stdout is not None
    assert taking.stdout.readline() == "taken\n"
    found = states()
    folder = user.home / ".local/share/yardmaster/dev"
    assert found["port 7450 (gateway)"] == ("ok", f"yard dev, data in {folder}")
    assert found["port 6379 (Redis)"] == ("taken", "another program listens there")
    assert found["cluster"] == ("ok", f"yard dev at {server(said)}: ready; data in {folder}")

    process.send_signal(signal.SIGSTOP)
    assert states(1)["cluster"][0] == "not ready"
    process.send_signal(signal.SIGCONT)
    user.stop(process)


def nothing_written(user: User, data: Path, words: Sequence[str], found: str) -> None:
    said = user.yard("dev", "--data", str(data), *words, code=2)
    assert found in said.err
    assert not data.exists()


def test_a_policy_is_checked_before_anything_is_written(user: User, tmp_path: Path) -> None:
    data = tmp_path / "data"
    nothing_written(user, data, ["--policy", "nope"], "there is no policy nope")
    nothing_written(user, data, ["--policy", "sjf"], "policy sjf is for yard simulate only")
    nothing_written(user, data, ["--policy-option", "nope=1"], "does not accept these options")
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: n1}]\npolicy: {name: nope}\n")
    nothing_written(user, data, ["--cluster", str(file)], "there is no policy nope")
    said = user.yard("dev", "--data", str(data), "--policy", "nope", code=2)
    assert "policies: priority, fair_share" in said.err

    process, _ = user.dev("--data", str(data), "--policy", "fair_share")
    assert user.yard("pools", "show", "default", "--data", str(data)).out.count("fair_share") == 1
    user.stop(process)


def test_a_policy_other_than_that_of_the_log_is_refused_with_a_hint(
    user: User, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "data"))
    process, _ = user.dev(*data, "--policy-option", "preemption=false")
    user.stop(process)
    said = user.yard("dev", *data, "--policy", "fair_share", code=103)
    assert "pool default of this log has policy priority" in said.err
    assert "yard pools set default policy=fair_share" in said.err
    said = user.yard("dev", *data, "--policy-option", "preemption=true", code=103)
    assert "has preemption=false" in said.err

    # The policy of the log may be given again, also after a change.
    process, _ = user.dev(*data, "--policy", "priority", "--policy-option", "preemption=false")
    user.yard("pools", "set", "default", "policy=fair_share", *data)
    user.stop(process)
    process, _ = user.dev(*data, "--policy", "fair_share")
    user.stop(process)
