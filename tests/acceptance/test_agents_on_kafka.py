"""Agents as processes on a real broker: broker outages, killed agents and lost ledgers.

SAFETY: S1 to S11 over the log; at most one start of an attempt; no slot held twice.
"""

import asyncio
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.support.cluster import Cluster
from tests.support.log_gateway import LogGateway
from tests.support.witness import assert_witness_clean, read_witness
from tests.support.witness import command as witnessed
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import Partition
from yardmaster_localcluster.layout import DataLayout
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import LossCause, NodeLostV1, Outcome, TaskRequeuedV1
from yardmaster_schemas.events.expiring import Stream, TaskOutputV1
from yardmaster_schemas.events.node_events import NodeJoinedV1, TaskStartedV1
from yardmaster_schemas.events.requests import Fence
from yardmaster_schemas.topics import assignments

#: How long the broker is away: longer than a request to it may take.
AWAY_S = 30.0
#: Prints a number every 0.2 s until the file of its argument exists.
COUNT = 'at=0; while [ ! -e "$1" ]; do echo $((at += 1)); sleep 0.2; done; echo end'

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("kafka")]


def cluster_of(folder: Path, **n2: str) -> Cluster:
    """Two nodes of four slots; no gateway and no views. `n2`: settings of agent-n2 alone."""
    return Cluster(
        folder,
        gateways=0,
        views=0,
        quotas=1,
        schedulers=1,
        agents=2,
        env={"agent": {"YARD_AGENT_HEARTBEAT_S": "1"}, "agent-n2": n2},
    )


def incarnations(cluster: Cluster, node: str) -> list[str]:
    joins = [e for e in cluster.events("node-events") if isinstance(e, NodeJoinedV1)]
    return list(dict.fromkeys(e.incarnation for e in joins if e.node == node))


def test_tasks_keep_running_while_the_broker_is_away_for_longer_than_the_node_timeout(
    tmp_path: Path,
) -> None:
    go, seen = tmp_path / "go", tmp_path / "witness"
    with cluster_of(tmp_path, YARD_AGENT_POOL="fenced") as cluster:
        gateway = LogGateway(cluster)
        gateway.pool("default", node_timeout_s=20)
        gateway.pool("fenced", node_timeout_s=120, fence=Fence.KILL)
        counting = witnessed(seen, "sh", "-c", COUNT, "count", str(go))
        running = gateway.submit(counting, tasks=2)
        running += gateway.submit(counting, pool="fenced", tasks=2)
        waiting = gateway.submit(witnessed(seen, "sleep", "0.5"), tasks=8)
        cluster.until(
            lambda: {s.task for s in read_witness(seen).starts} >= set(running), "all tasks run"
        )
        cluster.kill9("kafka")
        gone = time.monotonic()
        cluster.until(lambda: cluster.why_not("agent-n1"), "its agent reports that it is not ready")
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
        assert not [s for s in read_witness(seen).starts if s.task in running and s.end_ns]
        cluster.start("kafka")
        back = time.monotonic()
        for name in ("agent-n1", "agent-n2"):
            cluster.until_ready(name)
        ready_s = time.monotonic() - back
        go.touch()
        ends = cluster.until_ended([*running, *waiting])
        assert {(e.outcome, e.attempt) for e in ends.values()} == {(Outcome.SUCCEEDED, 1)}
        assert not [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        cluster.prove()
        assert_witness_clean(seen)
        assert_output_complete(cluster, running)
    print(f"agents ready {ready_s:.1f} s after the broker was back")


def assert_output_complete(cluster: Cluster, tasks: list[str]) -> None:
    """The output of `tasks` during the outage reached the log complete, in order and once."""
    pieces: dict[str, dict[int, str]] = {task: {} for task in tasks}

    def output_arrived() -> bool:
        for event in cluster.events("task-logs"):
            if isinstance(event, TaskOutputV1) and event.task_id in pieces:
                assert event.stream is Stream.STDOUT, event
                assert pieces[event.task_id].setdefault(event.seq, event.text) == event.text
        return all(whole(task).endswith("end") for task in tasks)

    def whole(task: str) -> str:
        return "".join(pieces[task][seq] for seq in sorted(pieces[task])).strip()

    cluster.until(output_arrived, "all of the output is in the log", look_s=0.5)
    for task in tasks:
        *numbers, _ = whole(task).split()
        assert len(numbers) > AWAY_S, "it continued while the broker was away"
        assert numbers == [str(n + 1) for n in range(len(numbers))]


def test_killed_agents_start_no_attempt_twice(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    seen = tmp_path / "witness"
    with cluster_of(tmp_path) as cluster:
        gateway = LogGateway(cluster)
        tasks = gateway.submit(witnessed(seen, "sleep", "0.5"), tasks=24)
        tasks += gateway.submit(witnessed(seen, "sleep", "5"), tasks=6)
        for _ in range(6):
            name = chance.choice(["agent-n1", "agent-n2"])
            time.sleep(chance.uniform(0.2, 1.5))  # at any moment of the work
            if chance.random() < 0.3:
                cluster.until_ready(name)
                assert cluster.terminate(name) == 0, (
                    "SIGTERM ends the agent; its tasks keep running"
                )
            else:
                cluster.kill9(name)
            cluster.start(name, wait=chance.random() < 0.5)
        cluster.until_ready("agent-n1")
        cluster.until_ready("agent-n2")
        ends = cluster.until_ended(tasks)
        # An agent killed before a start releases the task; killed after it, it finds the process.
        assert {e.outcome for e in ends.values()} == {Outcome.SUCCEEDED}
        assert len(incarnations(cluster, "n1")) == len(incarnations(cluster, "n2")) == 1
        cluster.prove()
        testimony = assert_witness_clean(seen)
        decided, reported = cluster.events("decisions"), cluster.events("node-events")
    seen_starts = {(start.task, start.attempt) for start in testimony.starts}
    started = {(e.task_id, e.attempt) for e in reported if isinstance(e, TaskStartedV1)}
    requeued = [e for e in decided if isinstance(e, TaskRequeuedV1)]
    # A released task keeps its place in the queue: later submissions may be preempted for it.
    stopped = {(e.task_id, e.attempt) for e in requeued if e.code == "priority"}
    assert seen_starts <= started, "every start is in the log"
    assert started - seen_starts <= stopped, (
        "a reported start without a process was preempted at once"
    )
    last = {(task, end.attempt) for task, end in ends.items()}
    assert seen_starts - stopped == last, "each task that was not preempted started once"


def test_a_node_that_lost_its_ledger_or_its_assignments_joins_again_empty(tmp_path: Path) -> None:
    go, seen = tmp_path / "go", tmp_path / "witness"
    with cluster_of(tmp_path) as cluster:
        gateway = LogGateway(cluster)
        gateway.pool("default", node_timeout_s=20)
        until_go = witnessed(seen, "sh", "-c", 'while [ ! -e "$1" ]; do sleep 0.1; done', "x")
        tasks = gateway.submit([*until_go, str(go)], tasks=6)
        cluster.until(lambda: len(read_witness(seen).starts) == 6, "all tasks run")
        running = Counter(start.node for start in read_witness(seen).starts)
        (full, _), (half, held) = running.most_common()
        assert (running[full], held) == (4, 2), "the fullest node is taken first"

        # Retention deletes assignments that a node has not read; a stop may be among them.
        cluster.kill9(f"agent-{half}")
        unread = gateway.submit(["true"], tasks=2)
        place = Partition(assignments(half).name)
        cluster.on_log(lambda log: log.wait({place: held}, 60))
        asyncio.run(delete_all(cluster.kafka(), place.topic))
        cluster.start(f"agent-{half}")
        cluster.until(lambda: len(incarnations(cluster, half)) == 2, "it joins again")

        # A ledger is wiped: the node's tasks are killed, and earlier assignments are ignored.
        cluster.kill9(f"agent-{full}")
        (cluster.data.agents / full / "ledger").unlink()
        cluster.start(f"agent-{full}")
        cluster.until(lambda: len(incarnations(cluster, full)) == 2, "it joins again")

        go.touch()
        ends = cluster.until_ended([*tasks, *unread])
        assert {e.outcome for e in ends.values()} == {Outcome.SUCCEEDED}
        decided = cluster.events("decisions")
        lost = {(e.node, e.cause) for e in decided if isinstance(e, NodeLostV1)}
        assert lost == {(full, LossCause.SILENT), (half, LossCause.REPLACED)}
        started = [e for e in cluster.events("node-events") if isinstance(e, TaskStartedV1)]
        assert {e.attempt for e in started if e.task_id in unread} == {2}
        cluster.prove()
        assert_witness_clean(seen)


def as_n1(folder: Path) -> dict[str, str]:
    """The configuration of node n1's agent, as copied to another host."""
    credentials = DataLayout(folder / "data").kafka_credentials
    return {
        "YARD_AGENT_NODE": "n1",
        "YARD_KAFKA__SASL_USERNAME": "agent-n1",
        "YARD_KAFKA__SASL_PASSWORD_FILE": str(credentials / "agent-n1"),
    }


def test_a_second_agent_with_the_name_of_a_running_one_ends_and_disturbs_nothing(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, agents=2, env={"agent-n2": as_n1(tmp_path)}) as cluster:
        # Either of the two may be the first to join.
        second = cluster.until(
            lambda: next((n for n in ("agent-n1", "agent-n2") if cluster.why_not(n)), None),
            "one of them is refused",
        )
        assert "node_taken" in (cluster.why_not(second) or "")
        tasks = cluster.submit_many(4, lambda _: ["sleep", "1"], resources={"gpus": 2})
        assert cluster.exit_code(second, 90) == 100
        assert "error: node_taken: Another agent runs as node n1" in cluster.log(second)
        ended = cluster.until_ended(tasks)
        assert {(e.outcome, e.attempt) for e in ended.values()} == {(Outcome.SUCCEEDED, 1)}
        assert not [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        assert len(incarnations(cluster, "n1")) == 2, "each has joined once"
        # A supervisor starts it again, and the first dies: the second has the name after a timeout.
        first = {"agent-n1": "agent-n2", "agent-n2": "agent-n1"}[second]
        cluster.kill9(first)
        cluster.start(second, wait=False)
        (task,) = cluster.submit(["true"])
        assert cluster.until_ended([task])[task].outcome is Outcome.SUCCEEDED
        lost = [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        assert [(e.node, e.cause) for e in lost] == [("n1", LossCause.SILENT)]
        cluster.prove()


def test_a_copied_data_directory_takes_nothing_over_however_often_it_starts(tmp_path: Path) -> None:
    with Cluster(tmp_path, agents=2, env={"agent-n2": as_n1(tmp_path)}) as cluster:
        second = cluster.until(
            lambda: next((n for n in ("agent-n1", "agent-n2") if cluster.why_not(n)), None),
            "one of them is refused",
        )
        first = {"agent-n1": "agent-n2", "agent-n2": "agent-n1"}[second]
        cluster.kill9(second)
        (task,) = cluster.submit(["sleep", "600"])
        cluster.until_phases([task], Phase.RUNNING)
        folders = {
            name: cluster.data.agents / name.removeprefix("agent-") for name in (first, second)
        }
        shutil.rmtree(folders[second])
        shutil.copytree(
            folders[first], folders[second], ignore=shutil.ignore_patterns("bell", "*.sock")
        )
        for _ in range(2):
            cluster.start(second, wait=False)
            assert cluster.exit_code(second, 90) == 100
        assert cluster.log(second).count('"event": "ledger_copied"') == 1
        assert cluster.why_not(first) is None
        assert cluster.tasks()[task].attempt == 1
        assert cluster.tasks()[task].phase == Phase.RUNNING
        assert not [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        assert len(incarnations(cluster, "n1")) == 3, "the copy has joined as one more"
        cluster.prove()


async def delete_all(kafka: KafkaSettings, topic: str) -> None:
    """Delete all present records of `topic`, as retention does later."""
    admin = AIOKafkaAdminClient(**kafka.client())
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=-1)})
    finally:
        await admin.close()
