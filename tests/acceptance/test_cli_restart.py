"""Waiting commands while the server is stopped or killed and restarted on its port."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.yard_cli import STEP_S, Dev, next_line, running_dev
from yardmaster_localcluster.ports import free_ports

pytestmark = pytest.mark.xdist_group("cli")

#: Writes a line, and another line once the file `go` exists.
SCRIPT = "echo one; until [ -e go ]; do sleep 0.1; done; echo two"


@pytest.fixture(params=[signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def restarted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Dev, int, int]]:
    """An embedded process, its port, and the signal that ends it."""
    (port,) = free_ports(1)
    with running_dev(tmp_path, nodes=1, slots=2, extra=("--port", str(port))) as dev:
        yield dev, port, request.param


def until_printed(process: "subprocess.Popen[str]", words: str) -> None:
    """Wait until a command prints `words` on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended with exit code {process.wait()} and never printed {words!r}")


def wait_for(dev: Dev, job: str, timeout: str) -> "subprocess.Popen[str]":
    """A `yard wait` that has reached the server: it has printed the end of an earlier job."""
    ended = dev.submit("--wait", "--", "true")
    waiting = dev.begin("wait", ended, job, "--timeout", timeout)
    until_printed(waiting, f"{ended}.0 succeeded")
    return waiting


def test_waiting_commands_survive_a_restart_and_lose_and_repeat_nothing(
    restarted: tuple[Dev, int, int],
) -> None:
    dev, port, number = restarted
    job = dev.submit("--script", SCRIPT)
    waiting = wait_for(dev, job, "2m")
    listed = dev.begin("ls", "-w", "--columns", "id,phase")
    followed = dev.begin("submit", "--follow", "--script", SCRIPT)
    other = next_line(followed).strip()
    output = dev.begin("logs", "-f", job)
    assert next_line(output) == next_line(followed) == "one\n"
    rows = [next_line(listed).split()]
    while [f"{other}.0", "running"] not in rows:
        rows.append(next_line(listed).split())
    dev.stop(number)
    for process in (listed, followed, output, waiting):
        until_printed(process, "reconnecting")
    (dev.folder / "go").touch()
    dev.start("--port", str(port))
    for process in (followed, output):
        rest, err = process.communicate(timeout=STEP_S)
        assert process.returncode == 0, err
        assert rest == "two\n"
        assert "reconnected" in err
    _, err = waiting.communicate(timeout=STEP_S)
    assert waiting.returncode == 0, err
    assert f"{job}.0 succeeded" in err
    while not {f"{job}.0", f"{other}.0"} <= {row[0] for row in rows if row[1] == "succeeded"}:
        rows.append(next_line(listed).split())
    assert len(rows) == len(set(map(tuple, rows))), "a row is repeated"
    listed.send_signal(signal.SIGINT)
    _, err = listed.communicate(timeout=STEP_S)
    assert listed.returncode == 130
    assert "continue with: yard ls -w --columns id,phase" in err


def test_a_command_that_waits_for_an_absent_server_ends_at_its_timeout(
    restarted: tuple[Dev, int, int],
) -> None:
    dev, port, number = restarted
    job = dev.submit("--script", "echo one; sleep 600")
    waiting = wait_for(dev, job, "5s")
    followed = dev.begin("logs", "-f", job, "--timeout", "5s")
    assert next_line(followed) == "one\n"
    dev.stop(number)
    for process, words in ((waiting, "yard wait"), (followed, f"yard logs -f {job}")):
        _, err = process.communicate(timeout=STEP_S)
        assert process.returncode == 124, err
        assert f"continue with: {words}" in err
    dev.start("--port", str(port))
