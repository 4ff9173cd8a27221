"""`yard up --local`: every service as a process on a real broker and Redis; `down` ends all."""

import os
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.support.containers import CONTAINER_IMAGE, is_there
from tests.support.half_open import collect_half_open
from tests.support.packages import write_tree
from tests.support.up import Up
from tests.support.yard_cli import until
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.orphans import of_cluster, of_tasks
from yardmaster_runtime.distribution import CLIENT_PATH, wheel_file
from yardmaster_runtime.engine_api import OWNER_LABEL

pytestmark = [pytest.mark.timeout(600), pytest.mark.kafka, pytest.mark.xdist_group("up")]

#: Longest wait for one thing to happen.
STEP_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Up]:
    """A cluster that is not started; at the end nothing of it runs."""
    found = Up(tmp_path, "--local")
    try:
        yield found
    finally:
        found.yard("down", code=None)
        found.assert_nothing_left()


def running_containers(cluster: Up) -> int:
    """The number of containers of the agents of a cluster."""
    client = docker.from_env()
    try:
        return sum(
            len(client.containers.list(filters={"label": f"{OWNER_LABEL}={path.read_text()}"}))
            for path in (cluster.data / "agents").glob("*/containers.owner")
        )
    finally:
        client.close()
        collect_half_open()


def test_tasks_run_and_down_leaves_nothing_behind(cluster: Up, tmp_path: Path) -> None:
    said = cluster.up()
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [
        *("kafka", "redis", "quota-1", "quota-2", "scheduler-1", "scheduler-2", "views-1"),
        *("views-2", "agent-n1", "agent-n2", "agent-n3", "gateway-1"),
    ]

    nodes = cluster.yard("nodes", "-o", "json").json["items"]
    as_root = os.geteuid() == 0 and {node["isolation"] for node in nodes} == {"none"}
    warning = "warning: tasks on n1, n2, n3 run as root: a job of any user can read "
    assert said.err.splitlines()[-1].startswith(warning) == as_root
    assert ("tasks on n1, n2, n3 run as root" in cluster.yard("doctor", code=None).out) == as_root

    src = write_tree(tmp_path / "src", {"words.txt": b"from the folder"})
    words = ("--", "sh", "-c", "touch new && cat words.txt")
    followed = cluster.yard("submit", "--follow", "--context", str(src), *words)
    assert followed.lines[1:] == ["from the folder"]
    assert len(list((cluster.data / "packages").rglob("*.tar.gz"))) == 1

    job = cluster.yard("submit", "--", "sh", "-c", "trap '' TERM; sleep 300").out.strip()
    cluster.yard("wait", job, "--for", "running", "--timeout", "30s")
    assert of_tasks(cluster.data / "agents") != []
    contained = is_there(CONTAINER_IMAGE)
    if contained:
        command = ("--image", CONTAINER_IMAGE, "--", "sh", "-c", "trap '' TERM; sleep 300")
        job = cluster.yard("submit", *command).out.strip()
        cluster.yard("wait", job, "--for", "running", "--timeout", "30s")
        assert running_containers(cluster) == 1
    cluster.yard("down")
    cluster.assert_nothing_left()
    assert not contained or running_containers(cluster) == 0
    assert (cluster.data / "kafka").is_dir()
    assert cluster.yard("ls", code=None).code == 106

    cluster.yard("down", "--purge")
    assert not cluster.data.exists()


def check_doctor(cluster: Up) -> None:
    """`yard doctor` names a broker or Redis that hangs, restarts, and the state of each process."""

    def rows(code: int | None) -> dict[str, Any]:
        found = cluster.yard("doctor", "-o", "json", code=code).json["items"]
        return {row["what"]: row for row in found}

    until(
        lambda: cluster.yard("doctor", code=None).code == 0,
        "all processes are ready",
        cluster.words,
        limit_s=STEP_S,
    )
    found = rows(0)
    assert found["scheduler-1"]["found"].endswith(", restarted 1 time")
    assert {name for name in found if name.endswith(("-1", "-n1"))} >= {
        name for name in cluster.pids() if name not in ("kafka", "redis", "gateway-2")
    }
    for name, what in (("redis", "Redis of yard up"), ("kafka", "Kafka of yard up")):
        assert found[what]["state"] == "ok"
        pid = cluster.pids()[name]
        os.kill(pid, signal.SIGSTOP)
        hung = rows(1)[what]
        os.kill(pid, signal.SIGCONT)
        assert hung["state"] == "not ready"
        assert "no answer within 3 s" in hung["found"]


def test_up_scales_without_port_flags_and_restarts_a_dead_service(cluster: Up) -> None:
    # `yard up` removes the access of other users to an existing folder.
    cluster.data.mkdir()
    cluster.data.chmod(0o755)
    small = ["--quotas", "1", "--schedulers", "1", "--views", "1", "--agents", "1"]
    cluster.up(*small)
    assert cluster.data.stat().st_mode & 0o066 == 0
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

    until(again, "the scheduler was started again", cluster.words, limit_s=STEP_S)
    assert (
        '"event": "ended", "process": "scheduler-1"'
        in (cluster.data / "logs" / "supervisor.log").read_text()
    )

    check_doctor(cluster)

    cluster.up("--gateways", "1")
    assert "gateway-2" not in cluster.pids()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", cluster.ports["gateway"] + 1)) != 0
    job = cluster.yard("submit", "--wait", "--timeout", "60s", "--", "true").out.strip()

    # The next start ends the orphans of a killed supervisor and continues the log.
    owner = int((cluster.data / "lock").read_text())
    os.kill(owner, signal.SIGKILL)
    cluster.up()
    assert cluster.yard("show", job, "-o", "json").json["job_id"] == job
    # The command finds the Redis of this cluster, like its log.
    redis = f"redis://127.0.0.1:{cluster.ports['redis']}/0"
    verified = cluster.yard("replay", "verify", "--views", "-o", "json")
    assert verified.json["redis"] == redis
    # Nothing but which log it is: no library has something to report.
    named = rf"reading kafka://127\.0\.0\.1:{cluster.ports['kafka']}: log \w{{32}}, cell main\n"
    assert re.fullmatch(named, verified.err)
    planned = cluster.yard("log", "cut", "--to", "last", "--dry-run")
    assert re.search(r"^requests: \d+ records kept, none removed$", planned.out, re.MULTILINE)
    assert re.match(named, planned.err)
    cluster.yard("views", "rebuild")


def test_only_users_of_the_cluster_reach_its_broker_and_redis(cluster: Up) -> None:
    cluster.up("--quotas", "1", "--schedulers", "1", "--views", "1", "--agents", "1")
    for path in DataLayout(cluster.data).credentials.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    url = f"kafka://127.0.0.1:{cluster.ports['kafka']}"
    assert cluster.yard("setup", "--log", url, "--wait", "1s", code=None).code != 0
    with socket.create_connection(("127.0.0.1", cluster.ports["redis"])) as client:
        client.sendall(b"DBSIZE\r\n")
        assert client.recv(4096).startswith(b"-NOAUTH")

    # The client needs no token.
    wheel = f"http://127.0.0.1:{cluster.ports['gateway']}{CLIENT_PATH}/{wheel_file()}"
    with urllib.request.urlopen(wheel, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/zip"

    # A new node gets a user of its own while the cluster runs.
    cluster.up("--agents", "2")
    nodes = cluster.yard("nodes", "-o", "json").json["items"]
    assert [node["name"] for node in nodes] == ["n1", "n2"]


def test_a_taken_port_is_reported_before_anything_starts(cluster: Up) -> None:
    with socket.create_server(("127.0.0.1", cluster.ports["redis"])):
        said = cluster.up(code=103)
    assert f"port {cluster.ports['redis']} of 127.0.0.1 is already in use" in said.err
    assert of_cluster(cluster.data) == []
