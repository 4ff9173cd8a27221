"""Waiting commands and clients while only the gateway is stopped or killed and restarted."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.yard_cli import STEP_S, YARD, next_line
from yardmaster.client import Change, Client
from yardmaster_schemas.api import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.xdist_group("takeover")]

LINES = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("gateway-restart")
    with Cluster(folder, quotas=1, schedulers=1, views=1, agents=1) as cluster:
        yield cluster
        cluster.prove()


def begin(cluster: Cluster, *args: str) -> "subprocess.Popen[str]":
    """Start a `yard` command against the gateway."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
    env |= {"YARD_SERVER": cluster.server, "YARD_TOKEN": cluster.token(), "NO_COLOR": "1"}
    return subprocess.Popen(
        [*YARD, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env | {"XDG_CONFIG_HOME": str(cluster.folder)},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_output_and_end_of_a_task_reach_commands_across_a_restart_of_the_gateway(
    cluster: Cluster, tmp_path: Path, number: int
) -> None:
    go = tmp_path / "go"
    script = (
        f"for i in $(seq {LINES}); do echo line $i; "
        f"[ $i -ne 50 ] || until [ -e {go} ]; do sleep 0.1; done; done; exit 7"
    )
    (task,) = cluster.submit(["sh", "-c", script])
    (ended,) = cluster.submit(["true"])
    # Until the views have a task, the gateway knows none of that id.
    cluster.until_phases([task], Phase.RUNNING)
    cluster.until_phases([ended], Phase.SUCCEEDED)
    followed = begin(cluster, "logs", "-f", task)
    waiting = begin(cluster, "wait", ended, task, "--timeout", "3m")
    assert waiting.stderr is not None
    # The command has reached the gateway once it prints the task that has ended.
    assert f"{ended} succeeded" in waiting.stderr.readline()
    lines = [next_line(followed) for _ in range(50)]
    if number == signal.SIGTERM:
        cluster.terminate("gateway-1")
    else:
        cluster.kill9("gateway-1")
    assert followed.stderr is not None
    assert "reconnecting" in followed.stderr.readline()
    # Output written during the outage, and the end, arrive too.
    go.touch()
    cluster.start("gateway-1")
    rest, err = followed.communicate(timeout=STEP_S)
    lines += rest.splitlines(keepends=True)
    assert lines == [f"line {i}\n" for i in range(1, LINES + 1)], err
    _, err = waiting.communicate(timeout=STEP_S)
    assert waiting.returncode == 7, err
    assert f"{task} failed: exit 7" in err


def test_a_wait_and_a_watch_of_the_client_continue_after_the_gateway_was_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    begun: list[Change] = []

    def watch(task_id: str) -> list[str]:
        """The phases of a task as a watch shows them, until its end."""
        phases: list[str] = []
        with Client(cluster.server, cluster.token()) as watcher:
            for change in watcher.watch(["task"], timeout_s=STEP_S):
                begun.append(change)
                if change.event == "upsert" and change.data["item"]["task_id"] == task_id:
                    phases.append(change.data["item"]["phase"])
                    if phases[-1] == "failed":
                        break
        return phases

    with Client(cluster.server, cluster.token()) as user, ThreadPoolExecutor(2) as threads:
        submitted = user.submit(
            {
                "project": "default",
                "resources": {"gpus": 1},
                "run": {"script": f"until [ -e {go} ]; do sleep 0.1; done; exit 7"},
            }
        )
        (task,) = user.wait(submitted, for_="running", timeout_s=STEP_S)
        watching = threads.submit(watch, task.task_id)
        waiting = threads.submit(user.wait, submitted, timeout_s=STEP_S)
        cluster.until(lambda: bool(begun), "the watch has begun")
        cluster.kill9("gateway-1")
        go.touch()  # the task ends during the outage
        cluster.until_ended([task.task_id])
        cluster.start("gateway-1")
        (ended,) = waiting.result()
        assert (ended.phase, ended.end and ended.end.exit_code) == ("failed", 7)
        phases = watching.result()
    assert phases.count("failed") == 1, phases
    assert set(phases) <= {"running", "stopping", "failed"}, phases
    assert all(change.event != "snapshot" for change in begun[1:]), "no change was lost"
