"""`yard up --local`: every service by itself on a real broker and Redis, and nothing left of it."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up
from yardmaster_localcluster.orphans import of_cluster, of_tasks

pytestmark = [pytest.mark.timeout(600), pytest.mark.kafka, pytest.mark.xdist_group("up")]

STEP_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Up]:
    """Nothing runs yet; at the end nothing runs any more."""
    found = Up(tmp_path, "--local")
    try:
        yield found
    finally:
        found.yard("down", code=None)
        found.assert_nothing_left()


def until(there: Callable[[], Any], what: str, cluster: Up) -> Any:
    deadline = time.monotonic() + STEP_S
    while not (found := there()):
        assert time.monotonic() < deadline, f"waited {STEP_S:.0f} s for: {what}\n{cluster.words()}"
        time.sleep(0.1)
    return found


def test_tasks_run_on_it_and_down_leaves_nothing_behind(cluster: Up) -> None:
    said = cluster.up()
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [
        *("kafka", "redis", "quota-1", "quota-2", "scheduler-1", "scheduler-2", "views-1"),
        *("views-2", "agent-n1", "agent-n2", "agent-n3", "gateway-1"),
    ]

    job = cluster.yard("submit", "--", "sh", "-c", "trap '' TERM; sleep 300").out.strip()
    cluster.yard("wait", job, "--for", "running", "--timeout", "30s")
    assert of_tasks(cluster.data / "agents") != []
    cluster.yard("down")
    cluster.assert_nothing_left()
    assert (cluster.data / "kafka").is_dir()
    assert cluster.yard("ls", code=None).code == 106

    cluster.yard("down", "--purge")
    assert not cluster.data.exists()


def test_it_is_scaled_without_port_flags_and_starts_again_what_died(cluster: Up) -> None:
    # A folder that a user made is closed to others.
    cluster.data.mkdir()
    cluster.data.chmod(0o755)
    small = ["--quotas", "1", "--schedulers", "1", "--views", "1", "--agents", "1"]
    cluster.up(*small)
    assert cluster.data.stat().st_mode & 0o777 == 0o700
    before = cluster.pids()

    said = cluster.up("--gateways", "2")
    assert "gateway-2" in said.out
    after = cluster.pids()
    assert {name: after[name] for name in before} == before
    for number in range(2):
        server = f"http://127.0.0.1:{cluster.ports['gateway'] + number}"
        token = (cluster.data / "token").read_text().strip()
        cluster.env["YARD_TOKEN"] = token
        nodes = cluster.yard("nodes", "--server", server, "-o", "json").json["items"]
        assert [node["name"] for node in nodes] == ["n1"]
    del cluster.env["YARD_TOKEN"]

    os.kill(after["scheduler-1"], signal.SIGKILL)

    def again() -> bool:
        row = cluster.processes()["scheduler-1"]
        return bool(row["restarts"] == 1 and row["pid"] != after["scheduler-1"])

    until(again, "the scheduler was started again", cluster)
    assert (
        '"event": "ended", "process": "scheduler-1"'
        in (cluster.data / "logs" / "supervisor.log").read_text()
    )

    cluster.up("--gateways", "1")
    assert "gateway-2" not in cluster.pids()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", cluster.ports["gateway"] + 1)) != 0
    job = cluster.yard("submit", "--wait", "--timeout", "60s", "--", "true").out.strip()

    # What a supervisor that was killed leaves is ended by the next start, and the log goes on.
    owner = int((cluster.data / "lock").read_text())
    os.kill(owner, signal.SIGKILL)
    cluster.up()
    assert cluster.yard("show", job, "-o", "json").json["job_id"] == job
    # The Redis of this cluster is found, as its log is.
    redis = f"redis://127.0.0.1:{cluster.ports['redis']}/0"
    assert cluster.yard("replay", "verify", "--views", "-o", "json").json["redis"] == redis
    cluster.yard("views", "rebuild")


def test_a_port_that_is_taken_is_said_before_anything_starts(cluster: Up) -> None:
    with socket.create_server(("127.0.0.1", cluster.ports["redis"])):
        said = cluster.up(code=103)
    assert f"port {cluster.ports['redis']} of 127.0.0.1 is already in use" in said.err
    assert of_cluster(cluster.data) == []
