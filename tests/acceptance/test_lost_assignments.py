"""A broker that lost copies of decisions in the topic of one node, while `decisions` is whole.

Pools have the default `fence: none`. Every task runs under a witness, which would see an attempt
that starts twice and two attempts of a task that run at once.
"""

from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.support.cluster import KAFKA, REDIS, Cluster
from tests.support.cut_tail import cut_tail
from tests.support.witness import assert_witness_clean, command, read_witness
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_localcluster.orphans import end_tasks
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import NodeLostV1, SlotsAllocatedV1
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.topics import HEARTBEATS, QUARANTINE, TASK_LOGS, assignments

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("lost_assignments"),
]

OFTEN = {"scheduler": {"YARD_SCHEDULER_SHELL__RELAY_CHECK_S": "1"}}
UNTIL_GO = 'while [ ! -e "$1" ]; do sleep 0.1; done'


def topic_of(node: str) -> Partition:
    return Partition(assignments(node).name)


def end_of(cluster: Cluster, partition: Partition) -> int:
    return cluster.on_log(lambda log: log.end(partition))


def joins(cluster: Cluster, node: str) -> int:
    found = cluster.events("node-events")
    return len({e.incarnation for e in found if isinstance(e, NodeJoinedV1) and e.node == node})


def waiting(folder: Path) -> list[str]:
    """The command of a task that ends when the file `go` exists."""
    return command(folder / "seen", "sh", "-c", UNTIL_GO, "x", str(folder / "go"))


def until_attempt(cluster: Cluster, folder: Path, task: str, attempt: int) -> None:
    """Wait until the witness has seen the attempt, which is the only one that runs."""

    def started() -> bool:
        starts = read_witness(folder / "seen").starts
        return [s.attempt for s in starts if s.task == task][-1:] == [attempt]

    cluster.until(started, f"attempt {attempt} of {task} starts", 90.0)


def run_on_each(cluster: Cluster, folder: Path, nodes: int) -> dict[str, str]:
    """Start one task on each node, one after another; return the task of each node."""
    for _ in range(nodes):
        (task,) = cluster.submit(waiting(folder), resources={"gpus": 2, "cpus": 0})
        until_attempt(cluster, folder, task, 1)
    return {start.node: start.task for start in read_witness(folder / "seen").starts}


def end_all(cluster: Cluster, folder: Path, tasks: list[str]) -> None:
    """Let all tasks end; no attempt ran twice, and every promise holds over the log."""
    (folder / "go").touch()
    cluster.until_ended(tasks)
    assert_witness_clean(folder / "seen")
    cluster.prove()


def test_a_node_whose_assignments_lost_what_its_agent_had_read_joins_again_once(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, agents=2, slots=2) as cluster:
        tasks = run_on_each(cluster, tmp_path, 2)
        cluster.cut_log(topic_of("n1"), end_of(cluster, topic_of("n1")) - 1)
        until_attempt(cluster, tmp_path, tasks["n1"], 2)
        cluster.until_ready("agent-n1")
        starts = read_witness(tmp_path / "seen").starts
        assert sorted(s.attempt for s in starts if s.task == tasks["n1"]) == [1, 2]
        # A restart finds the ledger of the new incarnation, and its task.
        cluster.restart("agent-n1")
        end_all(cluster, tmp_path, list(tasks.values()))
        assert (joins(cluster, "n1"), joins(cluster, "n2")) == (2, 1)
        lost = [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        assert [e.node for e in lost] == ["n1"]


def test_a_node_whose_agent_was_down_when_its_assignments_lost_records_joins_again_once(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, agents=1, slots=2) as cluster:
        tasks = run_on_each(cluster, tmp_path, 1)
        cluster.kill9("agent-n1")
        cluster.cut_log(topic_of("n1"), end_of(cluster, topic_of("n1")) - 1)
        cluster.start("agent-n1")
        until_attempt(cluster, tmp_path, tasks["n1"], 2)
        end_all(cluster, tmp_path, list(tasks.values()))
        assert joins(cluster, "n1") == 2


def test_assignments_lost_before_their_agent_read_them_are_copied_again(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=1, slots=2, env=OFTEN) as cluster:
        cluster.until_ended(cluster.submit())
        kept = end_of(cluster, topic_of("n1"))
        cluster.stop("agent-n1")
        tasks = cluster.submit(waiting(tmp_path), resources={"gpus": 2, "cpus": 0})
        cluster.until(lambda: end_of(cluster, topic_of("n1")) > kept, "the relay has copied it")
        cluster.cut_log(topic_of("n1"), kept)
        cluster.until(lambda: end_of(cluster, topic_of("n1")) > kept, "it is copied again")
        cluster.cont("agent-n1")
        cluster.until_phases(tasks, Phase.RUNNING)
        assert cluster.tasks()[tasks[0]].attempt == 1, "it did not wait for the start timeout"
        end_all(cluster, tmp_path, tasks)
        assert joins(cluster, "n1") == 1


def test_a_node_whose_topic_was_deleted_gets_it_again_with_its_assignments(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, agents=1, slots=2, env=OFTEN) as cluster:
        tasks = run_on_each(cluster, tmp_path, 1)

        async def delete(_: EventLog) -> None:
            admin = AIOKafkaAdminClient(**cluster.kafka().client())
            await admin.start()
            try:
                await admin.delete_topics([topic_of("n1").topic])
            finally:
                await admin.close()

        cluster.on_log(delete)
        # If the agent finds the topic empty, it joins again; if the copy is there, nothing is lost.
        cluster.until_ended(cluster.submit(resources={"gpus": 0, "cpus": 0}))
        end_all(cluster, tmp_path, list(tasks.values()))
        assert joins(cluster, "n1") <= 2


def test_after_a_power_loss_of_the_machine_every_node_is_back_and_no_attempt_ran_twice(
    tmp_path: Path,
) -> None:
    """Every process ends at once, and the topics that expire lose their newest records."""
    with Cluster(tmp_path, agents=2, slots=2) as cluster:
        tasks = run_on_each(cluster, tmp_path, 2)
        soft = [HEARTBEATS.name, TASK_LOGS.name, QUARANTINE.name]
        ends = {topic: end_of(cluster, Partition(topic)) for topic in soft}
        read = end_of(cluster, topic_of("n1"))
        for name in reversed(cluster.names):
            cluster.kill9(name)
        end_tasks(cluster.data.agents)
        for topic, end in ends.items():
            if end:
                cut_tail(cluster.fleet.broker.directory, Partition(topic), end // 2)
        cut_tail(cluster.fleet.broker.directory, topic_of("n1"), read - 1)
        for name in cluster.names:
            cluster.start(name, wait=name in (KAFKA, REDIS))
        for name in cluster.fleet.services:
            cluster.until_ready(name, 120.0)
        for task in tasks.values():
            until_attempt(cluster, tmp_path, task, 2)
        end_all(cluster, tmp_path, list(tasks.values()))
        starts = [e for e in cluster.events("decisions") if isinstance(e, SlotsAllocatedV1)]
        assert sorted(e.attempt for e in starts) == [1, 1, 2, 2]
