"""Lost heartbeats and output stop nothing: no service, no task, no node."""

from pathlib import Path

import pytest

from tests.support.cluster import KAFKA, Cluster
from tests.support.cut_tail import cut_tail
from yardmaster_eventlog.port import Partition
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import NodeLostV1

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("cut")]

HEARTBEATS, TASK_LOGS = Partition("heartbeats"), Partition("task-logs")
SCHEDULERS = ("scheduler-1", "scheduler-2")
OFTEN = {"YARD_VIEWS_MEASURE_S": "0.05"}


def end_of(cluster: Cluster, partition: Partition) -> int:
    return cluster.on_log(lambda log: log.end(partition))


def lost(cluster: Cluster) -> int:
    """How often the watches of both schedulers have noticed a loss."""
    return sum(cluster.log(name).count("heartbeats_lost") for name in SCHEDULERS)


def lose_reports(cluster: Cluster) -> None:
    """Lose heartbeats and output that were read, and wait until that is noticed."""
    noticed, beats = lost(cluster), end_of(cluster, HEARTBEATS)
    cluster.until(lambda: end_of(cluster, HEARTBEATS) >= beats + 6, "heartbeats", look_s=1)
    cluster.until(lambda: end_of(cluster, TASK_LOGS) > 3, "output", look_s=1)
    cluster.kill9(KAFKA)
    first = cut_tail(cluster.fleet.broker.directory, HEARTBEATS, beats + 2)
    cut_tail(cluster.fleet.broker.directory, TASK_LOGS, 2)
    cluster.start(KAFKA)
    cluster.until(lambda: lost(cluster) > noticed, "the loss is noticed")
    cluster.until(lambda: end_of(cluster, HEARTBEATS) > first, "new heartbeats", look_s=1)


def test_a_power_loss_that_takes_heartbeats_and_output_stops_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=2, env={"views": OFTEN}) as cluster:
        talks = ["sh", "-c", "while :; do echo more; sleep 0.2; done"]
        tasks = cluster.submit_many(2, lambda _: talks)
        cluster.until_phases(tasks, Phase.RUNNING)
        for _ in range(2):
            lose_reports(cluster)
            cluster.until_phases(cluster.submit(resources={"gpus": 0}), Phase.SUCCEEDED)
            for name in cluster.fleet.services:
                cluster.until_ready(name)
        assert any("reports_lost" in cluster.log(name) for name in ("views-1", "views-2"))
        for name in cluster.fleet.services:
            assert "log_truncated" not in cluster.log(name), cluster.tails([name])
        cluster.until_phases(tasks, Phase.RUNNING)
        assert not [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        cluster.prove()
