"""A broker that lost the end of a topic: every service that has read more of it stops, by name.

The broker is killed, and its segment is cut at a batch, as by a power loss without a flush.
"""

import os
from pathlib import Path

import pytest

from tests.support.cluster import KAFKA, REDIS, Cluster
from tests.support.yard_cli import run_yard
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import SlotsAllocatedV1

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("cut")]

REQUESTS, ADMISSIONS = Partition("requests"), Partition("admissions")
NODE_EVENTS, DECISIONS = Partition("node-events"), Partition("decisions")
ASSIGNED = Partition("assignments.n1")


def end_of(cluster: Cluster, partition: Partition) -> int:
    return cluster.on_log(lambda log: log.end(partition))


def grow_again(cluster: Cluster, partition: Partition, count: int) -> None:
    """Append records from the start of the topic: other records than the lost ones."""

    async def append(log: EventLog) -> None:
        for stored in await log.read(partition, 0, max_records=count):
            await log.append(partition, [stored.record])

    cluster.on_log(append)


def until_stopped(cluster: Cluster, names: list[str]) -> None:
    """Wait until each process reports that it stopped because of the log; none may end."""
    for name in names:

        def stopped(name: str = name) -> bool:
            assert cluster.lives(name), f"{name} ended\n{cluster.tails([name])}"
            return "log_truncated" in (cluster.why_not(name) or "")

        cluster.until(stopped, f"{name} reports log_truncated", 90.0, look_s=0.3)


def start_again(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        cluster.kill9(name)
    for name in names:
        cluster.start(name, wait=False)


def test_lost_requests_stop_all_that_read_them_also_when_others_took_their_place(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, agents=1) as cluster:
        cluster.until_ended(cluster.submit())
        kept = end_of(cluster, REQUESTS)
        lost = [task for _ in range(3) for task in cluster.submit()]
        cluster.until_phases(lost, Phase.SUCCEEDED)
        readers = ["quota-1", "quota-2", "gateway-1"]
        cluster.cut_log(REQUESTS, kept)
        grow_again(cluster, REQUESTS, 4)
        until_stopped(cluster, readers)
        judged = end_of(cluster, ADMISSIONS)
        machines = ["quota-1", "quota-2"]
        start_again(cluster, machines)
        until_stopped(cluster, machines)
        assert end_of(cluster, ADMISSIONS) == judged, "quota has written nothing"


@pytest.mark.parametrize("topic", [DECISIONS, NODE_EVENTS], ids=str)
def test_a_scheduler_does_not_decide_again_what_the_log_lost(
    tmp_path: Path, topic: Partition
) -> None:
    """If nodes are cordoned meanwhile, the attempts would run on two nodes at once."""
    with Cluster(tmp_path, agents=2, slots=2) as cluster:
        cluster.until_ended(cluster.submit())
        kept = end_of(cluster, topic)
        tasks = cluster.submit_many(2, lambda _: ["sleep", "600"])
        cluster.until_phases(tasks, Phase.RUNNING)
        schedulers = ["scheduler-1", "scheduler-2"]
        cluster.cut_log(topic, kept)
        until_stopped(cluster, schedulers)
        decided = end_of(cluster, DECISIONS)
        start_again(cluster, schedulers)
        until_stopped(cluster, schedulers)
        grow_again(cluster, topic, 5)
        start_again(cluster, schedulers)
        until_stopped(cluster, schedulers)
        written = cluster.events_from(DECISIONS, decided)[0]
        assert not [e for e in written if isinstance(e, SlotsAllocatedV1) and e.task_id in tasks]


def test_after_a_cut_all_services_continue_on_the_shorter_log(tmp_path: Path) -> None:
    """The steps of docs/how-to/recover.md, after the loss of decisions and of assignments."""
    with Cluster(tmp_path, agents=2, slots=2) as cluster:
        cluster.until_ended(cluster.submit())
        tasks = cluster.submit_many(2, lambda _: ["sleep", "600"], resources={"gpus": 2})
        cluster.until_phases(tasks, Phase.RUNNING)
        kept, assigned = end_of(cluster, DECISIONS), end_of(cluster, ASSIGNED)
        lost = cluster.submit(resources={"gpus": 0})
        cluster.until_phases(lost, Phase.SUCCEEDED)
        cluster.kill9("agent-n1")
        cluster.cut_log(DECISIONS, kept)
        cluster.cut_log(ASSIGNED, assigned - 1)
        cluster.start("agent-n1", wait=False)
        until_stopped(cluster, ["scheduler-1", "scheduler-2"])
        cluster.until_ready("agent-n1")

        services = list(cluster.fleet.services)
        for name in services:
            cluster.kill9(name)
        copy = tmp_path / "copy.db"
        planned = cluster.yard("log", "cut", "--to", "last", "--dry-run")
        assert "decisions" in planned
        cluster.yard("log", "cut", "--to", "last", "--yes", "--copy", str(copy))
        cluster.yard("views", "rebuild", "--redis", cluster.redis().url)
        agents = [name for name in services if name.startswith("agent")]
        for group in (agents, [name for name in services if name not in agents]):
            for name in group:
                cluster.start(name, wait=False)
            for name in group:
                cluster.until_ready(name, 120.0)

        cluster.until_ended([*lost, *cluster.submit(resources={"gpus": 0})])

        def started_again() -> bool:
            found = cluster.until_phases(tasks, Phase.RUNNING)
            return [found[task].attempt for task in tasks] == [2, 2]

        cluster.until(started_again, "the first attempts are killed, and the second ones run")
        cluster.prove()


def test_the_log_of_a_local_cluster_that_is_down_is_cut_and_used_again(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=1) as cluster:
        cluster.until_ended(cluster.submit())
        kept = end_of(cluster, DECISIONS)
        cluster.until_ended(cluster.submit())
        cluster.cut_log(DECISIONS, kept)
        until_stopped(cluster, ["scheduler-1", "scheduler-2"])
        for name in reversed(cluster.names):
            cluster.kill9(name)
        words = ["log", "cut", "--to", "last", "--yes", "--copy", str(tmp_path / "copy.db")]
        said = run_yard(words, {**os.environ, "YARD_DATA": str(cluster.data.path)}, tmp_path)
        assert said.code == 0, said.err
        for name in cluster.names:
            cluster.start(name, wait=name in (KAFKA, REDIS))
        for name in cluster.fleet.services:
            cluster.until_ready(name, 120.0)
        cluster.until_ended(cluster.submit())
        cluster.prove()
