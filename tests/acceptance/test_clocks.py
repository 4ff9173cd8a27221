"""Hosts whose clocks are wrong by a day or a year: no decision, time or grace period changes.

The brokers' clock is right. Every other host's is wrong, and some are set while their process runs.
"""

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_takeover import leader, other
from tests.support.cluster import Cluster
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.events.decisions import NodeLostV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.node_events import TaskExitedV1

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.xdist_group("clocks")]

DAY_S = 86_400
YEAR_S = 365 * DAY_S
CLOCKS = {
    "gateway-1": YEAR_S,
    "gateway-2": -DAY_S,
    "quota-1": -YEAR_S,
    "quota-2": DAY_S,
    "scheduler-1": DAY_S,
    "scheduler-2": -YEAR_S,
    "views-1": YEAR_S,
    "views-2": -DAY_S,
    "agent-n1": -DAY_S,
    "agent-n2": YEAR_S,
}
#: A wrong clock costs hours; a busy machine costs seconds.
SOON_S = 60.0
GRACE_S = 4
#: Fails once, and then succeeds.
FAILS_ONCE = "test -e $0/failed && exit 0; touch $0/failed; exit 1"
SAVES = f"trap 'sleep {GRACE_S - 2}; exit 0' TERM; touch $0/up; while :; do sleep 0.05 || :; done"
STAYS = "trap '' TERM; touch $0/up; while :; do sleep 0.05 || :; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("clocks")
    with Cluster(folder, gateways=2, agents=2, clocks=CLOCKS) as cluster:
        yield cluster


def cycle_lateness_ms(cluster: Cluster, topic: str) -> list[int]:
    """By how much the broker appended each cycle after the time that the cycle names."""

    async def read(log: EventLog) -> list[int]:
        found, offset = [], 0
        while stored := await log.read(Partition(topic), offset, max_records=5000):
            for each in stored:
                event = decode(each.record).data
                if isinstance(event, CycleCommittedV1):
                    found.append(each.appended_ms - event.now_ms)
            offset = stored[-1].offset + 1
        return found

    return cluster.on_log(read)


def work_as_always(cluster: Cluster, folder: Path) -> None:
    """Jobs run, fail, back off, save at a stop, or are killed after it: each in its usual time."""
    kinds = {"fails": FAILS_ONCE, "saves": SAVES, "stays": STAYS}
    tasks: dict[str, str] = {}
    for kind, code in kinds.items():
        for gateway in ("gateway-1", "gateway-2"):
            place = folder / f"{kind}-{gateway}"
            place.mkdir(parents=True)
            stop = {"grace": f"{GRACE_S}s"}
            command = ["sh", "-c", code, str(place)]
            (task,) = cluster.submit(command, gateway=gateway, max_restarts=1, stop=stop)
            tasks[task] = kind
            if kind != "fails":
                cluster.until((place / "up").exists, f"{kind} runs", SOON_S)
    for task, kind in tasks.items():
        if kind != "fails":
            cluster.client("gateway-2").cancel(task)
    ended = cluster.until_ended(tasks, SOON_S)
    outcomes = {"fails": "succeeded", "saves": "cancelled", "stays": "cancelled"}
    assert {kind: ended[task].outcome for task, kind in tasks.items()} == outcomes
    for event in cluster.events("node-events"):
        if isinstance(event, TaskExitedV1) and tasks.get(event.task_id) == "saves":
            assert event.exit_code == 0, "its grace was cut"
        if isinstance(event, TaskExitedV1) and tasks.get(event.task_id) == "stays":
            assert event.signal == signal.SIGKILL


def test_wrong_clocks_change_no_decision_no_time_and_no_grace(
    cluster: Cluster, tmp_path: Path
) -> None:
    work_as_always(cluster, tmp_path / "first")

    # The other candidates, whose clocks are wrong the other way, take over.
    first = leader(cluster)
    for name in (first, "quota-1", "gateway-1", "agent-n1"):
        cluster.kill9(name)
    assert leader(cluster) == other(first)
    for name in (first, "quota-1", "gateway-1", "agent-n1"):
        cluster.start(name)
    work_as_always(cluster, tmp_path / "takeover")

    # All clocks are set while the processes run, and then show the opposite.
    for name, ahead_s in CLOCKS.items():
        cluster.set_clock(name, -ahead_s)
    work_as_always(cluster, tmp_path / "step")

    for topic in ("admissions", "decisions"):
        late_ms = cycle_lateness_ms(cluster, topic)
        assert max(map(abs, late_ms)) < 30_000, "a cycle's time is the brokers'"
    losses = [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
    assert losses == [], "no clock makes a node silent"
    cluster.prove()


def test_a_gateway_shows_the_usage_up_to_now_whatever_its_clock_says(cluster: Cluster) -> None:
    task = cluster.submit(["sleep", "2"], gateway="gateway-1")
    cluster.until_ended(task, SOON_S)

    def shown() -> bool:
        sums = [
            sum(one.gpu_milli_seconds for one in cluster.client(gateway).usage().items)
            for gateway in ("gateway-1", "gateway-2")
        ]
        return sums[0] == sums[1] >= 2_000

    cluster.until(shown, "both gateways show the same usage", SOON_S)


def test_a_wrong_clock_is_reported_by_its_service(cluster: Cluster) -> None:
    cluster.set_clock("gateway-1", DAY_S)
    cluster.until_ended(cluster.submit(["true"], gateway="gateway-1"), SOON_S)
    with urllib.request.urlopen(f"{cluster.health_url('gateway-1')}/metrics") as answer:
        (ahead,) = [
            float(line.split()[1])
            for line in answer.read().decode().splitlines()
            if line.startswith('yard_gateway_clock_ahead_seconds{topic="requests"}')
        ]
    assert abs(ahead - DAY_S) < 30
    assert '"clock_differs"' in cluster.log("gateway-1")
