"""The brokers have deleted the first half of `node-events`, as a wrong retention does."""

import json
import shutil
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.support.cluster import Cluster
from yardmaster_eventlog.port import EventLog, Partition

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("cut")]

NODE_EVENTS = Partition("node-events")
SCHEDULERS = ("scheduler-1", "scheduler-2")


def covered(cluster: Cluster) -> int:
    """The node events that the newest snapshot of the scheduler covers."""
    from yardmaster_eventlog.snapshots import decode

    files = sorted((cluster.data.snapshots / "scheduler" / "main").glob("*.snapshot"))
    if not files:
        return 0
    reader = json.loads(decode(files[-1].name, files[-1].read_bytes()).payload)["reader"]
    ends: dict[str, int] = {topic: end for topic, _, end in reader["inputs"]}
    return ends.get(NODE_EVENTS.topic, 0)


def delete_before(cluster: Cluster, offset: int) -> None:
    async def delete(_: EventLog) -> None:
        admin = AIOKafkaAdminClient(**cluster.kafka().client())
        await admin.start()
        try:
            place = TopicPartition(NODE_EVENTS.topic, NODE_EVENTS.number)
            await admin.delete_records({place: RecordsToDelete(offset)})
        finally:
            await admin.close()

    cluster.on_log(delete)


def start_schedulers(cluster: Cluster) -> None:
    for name in SCHEDULERS:
        cluster.start(name, wait=False)


def test_a_log_without_its_first_records_is_used_from_a_snapshot(tmp_path: Path) -> None:
    env = {"scheduler": {"YARD_SNAPSHOT__EVERY_CYCLES": "4"}}
    with Cluster(tmp_path, agents=1, quotas=1, views=1, env=env) as cluster:
        for _ in range(4):
            cluster.until_ended(cluster.submit())
        half = cluster.on_log(lambda log: log.end(NODE_EVENTS)) // 2
        cluster.until(lambda: covered(cluster) >= half, "a snapshot covers the first half")
        delete_before(cluster, half)
        cluster.until_ended(cluster.submit())

        for name in SCHEDULERS:
            cluster.kill9(name)
        start_schedulers(cluster)
        cluster.until_ended(cluster.submit())

        for name in SCHEDULERS:
            cluster.kill9(name)
        snapshots, away = cluster.data.snapshots / "scheduler", tmp_path / "away"
        shutil.move(snapshots, away)
        start_schedulers(cluster)
        for name in SCHEDULERS:
            assert cluster.exit_code(name, 60.0) == 100
            said = cluster.log(name)
            assert "log_begins_later" in said
            assert f"records 0 to {half - 1} of node-events/0 have expired" in said
            assert f"{snapshots}/main has no usable one" in said

        shutil.rmtree(snapshots, ignore_errors=True)
        shutil.move(away, snapshots)
        start_schedulers(cluster)
        cluster.until_ended(cluster.submit())

        for name in list(cluster.fleet.services):
            cluster.kill9(name)
        named = ("--snapshots", str(cluster.data.snapshots))
        verified = json.loads(cluster.yard("replay", "verify", "-o", "json", *named))
        quota, scheduler = verified["machines"]
        assert (verified["ok"], verified["audited"], quota["from_cycle"]) == (True, False, 0)
        assert 0 < scheduler["from_cycle"] < scheduler["last_cycle"]
        assert verified["expired"] == [{"topic": "node-events", "partition": 0, "first": half}]

        to = f"cycle:{scheduler['last_cycle'] - 1}"
        copy = tmp_path / "copy.db"
        cluster.yard("log", "cut", "--to", to, "--yes", "--copy", str(copy), *named)
        again = json.loads(cluster.yard("replay", "verify", "-o", "json", *named))
        assert again["ok"]
        assert again["machines"][1]["last_cycle"] == scheduler["last_cycle"] - 1
        assert again["expired"] == verified["expired"], "offsets stay"
