"""`make up` in containers: the images of the services, scaling, and a complete `down`."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import containers
from tests.support.packages import write_tree
from tests.support.up import Up
from yardmaster_localcluster import compose
from yardmaster_node_agent.executors.task_user import FIRST_ID
from yardmaster_runtime.distribution import CLIENT_PATH, wheel_file

pytestmark = [pytest.mark.timeout(900), pytest.mark.kafka, pytest.mark.xdist_group("up")]

STARTED = {
    *("kafka-1", "redis-1", "setup-1", "gateway-1", "quota-1", "quota-2", "scheduler-1"),
    *("scheduler-2", "views-1", "views-2", "agent-n1-1", "agent-n2-1", "agent-n3-1"),
}


class Containers(Up):
    """A cluster in containers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--compose")
        self.project = compose.project_name(self.data, self.data.parent)

    def docker(self, *words: str) -> str:
        """The output of a docker command."""
        done = subprocess.run(
            ["docker", *words], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def ours(self, kind: str, *words: str) -> list[str]:
        """Ids of the cluster's containers (`ps --all`), volumes or networks."""
        label = f"label=com.docker.compose.project={self.project}"
        return self.docker(kind, *words, "--quiet", "--filter", label).split()

    def inspected(self) -> dict[str, dict[str, Any]]:
        """Docker's description of each container, by service and number."""
        found = {}
        for one in json.loads(self.docker("inspect", *self.ours("ps", "--all"))):
            labels = one["Config"]["Labels"]
            service = labels["com.docker.compose.service"]
            found[f"{service}-{labels['com.docker.compose.container-number']}"] = one
        return found

    def words(self) -> str:
        """The last output of every container, for failure messages."""
        said = []
        for name, one in self.inspected().items() if self.ours("ps", "--all") else ():
            done = subprocess.run(
                ["docker", "logs", "--tail", "15", one["Id"]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            said.append(f"--- {name}\n{done.stdout}")
        return "\n".join(said)

    def assert_nothing_left(self) -> None:
        """No container, network or volume of the cluster exists, and no process listens."""
        super().assert_nothing_left()
        assert self.ours("ps", "--all") == []
        assert self.ours("network", "ls") == []
        assert self.ours("volume", "ls") == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Containers]:
    """A cluster that is not started; at the end nothing of it runs."""
    if not containers.is_there(containers.KAFKA_IMAGE) or compose.why_unavailable() is not None:
        pytest.skip("needs Docker, compose and the images")
    found = Containers(tmp_path)
    volumes = set(found.docker("volume", "ls", "--quiet").split())
    try:
        yield found
    finally:
        found.yard("down", code=None)
        found.assert_nothing_left()
    assert set(found.docker("volume", "ls", "--quiet").split()) <= volumes


def gateways(cluster: Containers) -> list[str]:
    """The address of each gateway, in order of its number."""
    found = []
    for name, one in sorted(cluster.inspected().items()):
        if name.startswith("gateway-"):
            (at,) = one["NetworkSettings"]["Ports"]["7450/tcp"]
            found.append(f"http://{at['HostIp']}:{at['HostPort']}")
    return found


def test_up_scales_without_port_flags_and_down_leaves_nothing_behind(cluster: Containers) -> None:
    cluster.up()
    started = cluster.inspected()
    assert started.keys() == STARTED
    for name, one in started.items():
        user = f"{os.getuid()}:{os.getgid()}"
        if not name.startswith("agent-") and os.getuid() == 0:
            user = "10001:10001"
        assert one["Config"]["User"] == user, name
        assert one["HostConfig"]["ReadonlyRootfs"], name
        assert one["HostConfig"]["CapDrop"] == ["ALL"], name

    # The image of the gateway serves the wheel of its version, without a token.
    wheel = f"{gateways(cluster)[0]}{CLIENT_PATH}/{wheel_file()}"
    with urllib.request.urlopen(wheel, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/zip"

    # Only the number of gateways changes; running containers are kept.
    cluster.up("--gateways", "3")
    scaled = cluster.inspected()
    assert scaled.keys() == STARTED | {"gateway-2", "gateway-3"}
    assert {name: scaled[name]["Id"] for name in STARTED - {"setup-1"}} == {
        name: started[name]["Id"] for name in STARTED - {"setup-1"}
    }
    token = (cluster.data / "token").read_text().strip()
    assert len(set(gateways(cluster))) == 3
    for server in gateways(cluster):
        request = urllib.request.Request(f"{server}/v1/nodes")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            nodes = json.load(answer)["items"]
        assert [node["name"] for node in nodes] == ["n1", "n2", "n3"]

    # The command finds the Redis of this cluster, like its log.
    cluster.yard("replay", "verify", "--views")

    # The image of the agents has another Python than this test.
    folder = write_tree(cluster.folder / "src", {"words.txt": b"from the folder"})
    followed = cluster.yard(
        "submit", "--follow", "--context", str(folder), "--", "cat", "words.txt"
    )
    assert followed.lines[1:] == ["from the folder"]

    # A task is another user than its agent, where root may say so, and finds no credentials.
    isolated = os.getuid() == 0
    nodes = cluster.yard("nodes", "-o", "json").json["items"]
    assert {node["isolation"] for node in nodes} == {"user" if isolated else "none"}
    script = """
    id -u
    for file in /run/secrets/* /var/lib/yardmaster/ledger*; do
      cat "$file" >/dev/null 2>&1 && echo "readable: $file"
    done
    cd "$(dirname "$YARD_STOP_FILE")"
    (echo '{"exit_code": 0}' > exit) 2>/dev/null && echo "written: exit"
    touch /shared/checkpoints/mine && echo saved
    exit 42
    """
    job = cluster.yard("submit", "--gpus", "0", "--", "sh", "-c", script).out.strip()
    cluster.yard("wait", job, "--timeout", "90s", code=42)
    said = cluster.yard("logs", job).out.split()
    if isolated:
        assert int(said[0]) >= FIRST_ID
        assert said[1:] == ["saved"]

    # A password is in no argument and no environment of any container.
    files = [path for path in (cluster.data / "credentials").rglob("*") if path.is_file()]
    assert len(files) == 11
    for secret in (token, *(path.read_text().strip() for path in files)):
        assert secret not in json.dumps(scaled)
        assert secret not in "".join(cluster.docker("top", one["Id"]) for one in running(scaled))

    cluster.yard("down")
    cluster.assert_nothing_left()
    assert (cluster.data / "kafka" / "data").is_dir()
    cluster.yard("down", "--purge")
    assert not cluster.data.exists()


def running(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found.values() if one["State"]["Running"]]
