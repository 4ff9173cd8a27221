"""A job's own command speaks to the log: what the broker, quota and the file system refuse.

docs/explanation/guarantees.md lists what only signatures will prevent.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support import evil_task
from tests.support.cluster import Cluster
from tests.support.log_gateway import LogGateway
from tests.support.task_users import settings_of, users_of_test
from tests.support.yard_cli import Dev, until
from yardmaster_schemas.access import agent_user
from yardmaster_schemas.events.admissions import NodeCordonedV1
from yardmaster_schemas.events.decisions import Outcome, SlotsAllocatedV1
from yardmaster_schemas.events.node_events import Isolation, NodeJoinedV1, TaskExitedV1
from yardmaster_schemas.events.requests import NodeCordonRequestedV1

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

EVIL = Path(evil_task.__file__)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


def small(folder: Path, *, agents: int = 2, **env: Any) -> Cluster:
    kinds = {"agent": {name: str(value) for name, value in env.items()}}
    return Cluster(folder, quotas=1, schedulers=1, views=1, agents=agents, slots=1, env=kinds)


def running_on(cluster: Cluster, task: str) -> dict[str, Any]:
    """The replica of a task that has started."""

    def started() -> dict[str, Any] | None:
        for event in cluster.events("decisions"):
            if isinstance(event, SlotsAllocatedV1) and event.task_id == task:
                place = event.placements[0]
                return {
                    "task_id": task,
                    "attempt": event.attempt,
                    "node": place.node,
                    "incarnation": place.incarnation,
                }
        return None

    return cluster.until(started, "the task is placed")


@pytest.mark.xdist_group("evil")
def test_with_the_credentials_of_its_agent_a_task_is_no_operator_and_no_gateway(
    tmp_path: Path,
) -> None:
    with small(tmp_path, YARD_AGENT_TASK_USERS="same") as cluster:
        gateway = LogGateway(cluster)
        (victim,) = gateway.submit(["sleep", "600"])
        replica = running_on(cluster, victim)
        own = "n2" if replica["node"] == "n1" else "n1"
        user, said = agent_user(own), tmp_path / "said"
        script = 'exec "$@" > "$0"'
        command = [sys.executable, str(EVIL), cluster.log_url, user]
        command += [str(cluster.data.kafka_credentials / user), json.dumps(replica)]
        (evil,) = gateway.submit(["sh", "-c", script, str(said), *command])
        ends = cluster.until_ended([evil])
        assert ends[evil].outcome is Outcome.SUCCEEDED, cluster.tails()

        outcomes = json.loads(said.read_text())
        assert "TopicAuthorizationFailed" in outcomes["operator"]
        assert "TopicAuthorizationFailed" in outcomes["gateway"]
        requests = cluster.events("requests")
        assert not any(isinstance(each, NodeCordonRequestedV1) for each in requests)
        admissions = cluster.events("admissions")
        assert not any(isinstance(each, NodeCordonedV1) for each in admissions)
        joined = [e for e in cluster.events("node-events") if isinstance(e, NodeJoinedV1)]
        assert {each.isolation for each in joined} == {Isolation.NONE}
        # Only signatures will prevent this: one agent may report for another one.
        assert outcomes["node"] == "written"
        assert cluster.until_ended([victim])[victim].outcome is Outcome.SUCCEEDED


@pytest.mark.xdist_group("evil")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to switch users")
def test_as_another_user_a_task_has_no_credentials_and_cannot_report_its_end(folder: Path) -> None:
    users = settings_of(users_of_test())
    env = {f"YARD_AGENT_{name.upper()}": value for name, value in users.items()}
    with small(folder, agents=1, **env) as cluster:
        said = folder / "said"
        said.mkdir()
        said.chmod(0o777)
        files = [path for path in cluster.data.path.rglob("*") if path.is_file()]
        assert any(path.parent == cluster.data.kafka_credentials for path in files)
        script = """
        id -u > "$0/uid"
        for name; do cat "$name" > /dev/null 2>&1 && echo "$name" >> "$0/readable"; done
        cd "$(dirname "$YARD_STOP_FILE")"
        for name in exit gone process start; do
          (echo '{"exit_code": 0}' > $name) 2>/dev/null && echo "$name" >> "$0/written"
        done
        exit 42
        """
        gateway = LogGateway(cluster)
        (task,) = gateway.submit(["sh", "-c", script, str(said), *map(str, files)], max_restarts=0)
        end = cluster.until_ended([task])[task]
        assert end.outcome is Outcome.FAILED
        exits = [e for e in cluster.events("node-events") if isinstance(e, TaskExitedV1)]
        assert [each.exit_code for each in exits] == [42]
        first, last = map(int, str(users["task_users"]).split("-"))
        assert first < int((said / "uid").read_text()) <= last
        assert not (said / "readable").exists(), (said / "readable").read_text()
        assert not (said / "written").exists(), (said / "written").read_text()
        joined = [e for e in cluster.events("node-events") if isinstance(e, NodeJoinedV1)]
        assert {each.isolation for each in joined} == {Isolation.USER}
        cluster.prove()


def test_in_the_embedded_form_a_task_writes_the_log_but_shuts_out_no_gateway(
    tmp_path: Path,
) -> None:
    dev = Dev(tmp_path, nodes=2, slots=1)
    dev.start()
    try:
        nodes = dev.yard("nodes", "-o", "json").json["items"]
        assert [node["isolation"] for node in nodes] == ["none", "none"]
        victim = dev.yard("submit", "--gpus", "1", "--", "sleep", "600").out.strip()
        dev.yard("wait", victim, "--for", "running", "--timeout", "60s")
        dump = dev.yard("log", "dump", "--type", "SlotsAllocated").out.splitlines()
        data = json.loads(dump[-1])["data"]
        place = data["placements"][0]
        replica = {
            "task_id": data["task_id"],
            "attempt": data["attempt"],
            "node": place["node"],
            "incarnation": place["incarnation"],
        }
        url = f"sqlite:///{dev.log}"
        evil = [sys.executable, str(EVIL), url, "-", "-", json.dumps(replica)]
        said = dev.yard("submit", "--gpus", "1", "--wait", "--timeout", "60s", "--", *evil)
        assert said.code == 0

        def judged() -> list[str]:
            lines = dev.yard("log", "dump", "--type", "CycleCommitted").out.splitlines()
            return [one["code"] for line in lines for one in json.loads(line)["data"]["refused"]]

        until(lambda: "epoch_ahead" in judged(), "quota refuses the largest epoch", dev.words)
        # No broker and no signature prevents the others: the log is a file of the task's own user.
        cordoned = dev.yard("log", "dump", "--type", "NodeCordoned").out
        assert '"the-operator"' not in dev.yard("nodes", "-o", "json").out
        assert cordoned.count("NodeCordoned") == 1
        done = dev.yard("submit", "--gpus", "0", "--wait", "--timeout", "60s", "--", "true")
        assert done.code == 0
        assert dev.yard("replay", "verify").code == 0
    finally:
        dev.stop()
