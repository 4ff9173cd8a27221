"""Schedulers that are killed, stopped and continued, on real Kafka: leadership and fencing.

SAFETY: S1 to S11 over the log; no reader counts a fenced leader's records, no agent gets them.
LIVENESS L3: a standby decides within 10 s of a kill, within 1 s of a graceful stop.
"""

import asyncio
import json
import os
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import Cluster
from tests.support.groups import until_joined
from yardmaster_core.commit import CommitReader
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_runtime.cycle_reader import decode_own, digest_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import SlotsAllocatedV1
from yardmaster_schemas.events.machine import TermStartedV1
from yardmaster_schemas.relayed import OFFSET_HEADER, relayed_from
from yardmaster_schemas.topics import assignments

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.xdist_group("takeover")]

SCHEDULERS = ("scheduler-1", "scheduler-2")
GROUP = "yardmaster-scheduler"
STOPPING = '"event": "stopping"'
#: Tasks that only take time and use no CPU of the machine.
SIMULATED = {"YARD_AGENT_EXECUTOR": "simulated"}
SHORT = {"command": ["true"], "env": {"SIM_SECONDS": "0.05"}}
ROUNDS = 10
#: More rounds run until a stop happens by chance between a decision and its record.
MOST_ROUNDS = 30
#: A short session timeout, for short rounds.
SESSION_S = 3.0


def leads(cluster: Cluster, name: str, cell: str = "main") -> bool:
    """Whether a scheduler reports that it leads a cell; False when it does not answer."""
    try:
        # A long timeout: a late answer is better than none.
        with urllib.request.urlopen(f"{cluster.health_url(name)}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return False
    # Called many times a second; parsing all metrics would take too long.
    text = "\n".join(line for line in lines if "yard_scheduler_leading" in line)
    return any(
        sample.value == 1
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "yard_scheduler_leading" and sample.labels == {"cell": cell}
    )


def leader(cluster: Cluster, cell: str = "main") -> str:
    """Wait for a leader of the cell and return its name."""

    def found() -> str | None:
        return next((name for name in SCHEDULERS if leads(cluster, name, cell)), None)

    return cluster.until(found, f"a scheduler leads {cell}", 60)


def other(name: str) -> str:
    (found,) = {*SCHEDULERS} - {name}
    return found


@dataclass
class Decided:
    """One cell's decisions as every reader sees them."""

    records: list[StoredRecord] = field(default_factory=list)
    #: Offset -> event, of the counted decisions.
    counted: dict[int, Envelope[Event]] = field(default_factory=dict)
    terms: list[TermStartedV1] = field(default_factory=list)
    dropped: int = 0

    @classmethod
    async def read(cls, log: EventLog, cell: str = "main", number: int = 0) -> Self:
        found = cls()
        reader = CommitReader("scheduler", cell, "decisions")
        at = Partition("decisions", number)
        while stored := await log.read(at, len(found.records), max_records=5000):
            for each in stored:
                envelope = decode_own(each.record, cell)
                if isinstance(envelope.data, TermStartedV1):
                    found.terms.append(envelope.data)
                counted = reader.feed(each.offset, digest_of(each.record), envelope)
                if counted is not None:
                    found.counted |= dict(counted.decisions)
            found.records += stored
        found.dropped = reader.dropped
        return found

    def allocated_ms(self, task: str) -> int | None:
        """The append time of a task's first counted allocation."""
        for offset, envelope in self.counted.items():
            if isinstance(envelope.data, SlotsAllocatedV1) and envelope.data.task_id == task:
                return self.records[offset].appended_ms
        return None


@dataclass(frozen=True)
class Takeover:
    """The end of a leader, and the standby's first decision on a later submission."""

    cluster: Cluster
    ended: str
    #: Unix time, in seconds.
    ended_s: float
    task: str
    took_s: float

    def timeline(self) -> str:
        """The steps of the takeover in seconds after the leader's end, for failure messages."""
        steps = [
            (json.loads(line)["at_ms"], f"{self.ended} receives SIGTERM")
            for line in self.cluster.log(self.ended).splitlines()
            if STOPPING in line
        ]
        for each in self.cluster.on_log(Decided.read).records:
            event = decode_own(each.record, "main").data
            allocated = isinstance(event, SlotsAllocatedV1) and event.task_id == self.task
            if allocated or isinstance(event, TermStartedV1):
                steps.append((each.appended_ms, event.TYPE))
        lines = [f"{at_ms / 1000 - self.ended_s:+.3f} s {what}" for at_ms, what in sorted(steps)]
        return "\n".join([*lines, self.cluster.tails()])


def ask_to_stop(cluster: Cluster, name: str) -> None:
    """Send SIGTERM; return when the process logs it, possibly before it ends."""
    before = cluster.log(name).count(STOPPING)
    cluster.service(name).ask()
    cluster.until(
        lambda: cluster.log(name).count(STOPPING) > before, "it receives SIGTERM", look_s=0.005
    )


def replace_leader(cluster: Cluster, end: Callable[[str], object]) -> Takeover:
    """End the leader, submit a job and wait for the standby's decision on it."""
    # A standby is ready before it has joined the group.
    asyncio.run(until_joined(cluster.kafka(), GROUP, len(SCHEDULERS)))
    first = leader(cluster)
    ended_s = time.time()
    end(first)
    (task,) = cluster.submit()

    def decided_ms() -> int | None:
        return cluster.on_log(Decided.read).allocated_ms(task)

    # Rare looks: each loads the machine, and the time is taken from the log anyway.
    took_s = cluster.until(decided_ms, f"{task} has slots", 60, look_s=0.5) / 1000 - ended_s
    assert leads(cluster, other(first))
    cluster.service(first).wait()
    cluster.start(first)
    cluster.until_ended([task])
    return Takeover(cluster, first, ended_s, task, took_s)


def test_a_standby_decides_within_ten_seconds_of_a_kill_and_one_of_a_graceful_stop(
    tmp_path: Path,
) -> None:
    env = {"agent": SIMULATED}
    with Cluster(tmp_path, views=1, quotas=1, agents=1, env=env) as cluster:
        for _ in range(2):
            killed = replace_leader(cluster, cluster.kill9)
            stopped = replace_leader(cluster, partial(ask_to_stop, cluster))
            print(f"takeover: kill -9 {killed.took_s:.2f} s, SIGTERM {stopped.took_s:.2f} s")
            assert killed.took_s < 10, killed.timeline()
            assert stopped.took_s < 1, stopped.timeline()
        cluster.prove()


class Load:
    """Submits short jobs, one after another, until the block ends."""

    def __init__(self, cluster: Cluster) -> None:
        self.tasks: list[str] = []
        self._cluster = cluster
        self._failures: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._failures

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.tasks += self._cluster.submit(run=SHORT)
                self._over.wait(0.01)
        except BaseException as error:
            self._failures.append(error)
            raise


@contextmanager
def stopped(cluster: Cluster, name: str) -> Iterator[None]:
    """Suspend a service (SIGSTOP) until the block ends."""
    cluster.stop(name)
    try:
        yield
    finally:
        cluster.cont(name)


def test_a_suspended_and_continued_leader_changes_nothing_and_reports_that_it_is_fenced(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("YARDMASTER_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    chance = random.Random(seed)
    env = {
        "agent": SIMULATED,
        "scheduler": {"YARD_SCHEDULER_SESSION_TIMEOUT_S": str(SESSION_S)},
    }
    late = rounds = 0
    with Cluster(tmp_path, views=1, quotas=1, agents=2, env=env) as cluster:
        with Load(cluster) as load:
            while rounds < ROUNDS or (not late and rounds < MOST_ROUNDS):
                rounds += 1
                old = leader(cluster)
                terms = len(cluster.on_log(Decided.read).terms)
                fenced = fenced_count(cluster, old)
                before = cluster.on_log(Decided.read).dropped
                time.sleep(chance.uniform(0.2, 0.7))  # a stop at any moment of a cycle
                with stopped(cluster, old):
                    cluster.until(lambda: leads(cluster, other(old)), "standby leads", 30)  # noqa: B023
                    time.sleep(chance.uniform(0, 0.5))  # any number of cycles of its term
                cluster.until(lambda: fenced_count(cluster, old) > fenced, f"{old} is fenced", 30)  # noqa: B023
                assert leads(cluster, other(old)), f"round {rounds}: the new leader still leads"
                found = cluster.on_log(Decided.read)
                assert len(found.terms) == terms + 1, "exactly one takeover"
                late += found.dropped > before
        cluster.until_ended(load.tasks)
        print(f"{rounds} rounds, {len(load.tasks)} tasks, {late} with late records (seed {seed})")
        cluster.prove()
        assert relayed(cluster) > 0
    assert late, "no stop came between a decision and its record: nothing was tested"


def fenced_count(cluster: Cluster, name: str) -> int:
    """How often a scheduler has logged that it is fenced."""
    return cluster.log(name).count('"code": "fenced"')


def relayed(cluster: Cluster) -> int:
    """Check that each relayed record is a counted decision, unchanged; return their number."""

    async def check(log: EventLog) -> int:
        decided = await Decided.read(log)
        count = 0
        for node in ("n1", "n2"):
            at, offset = Partition(assignments(node).name), 0
            while stored := await log.read(at, offset, max_records=5000):
                offset = stored[-1].offset + 1
                for each in stored:
                    source = relayed_from(dict(each.record.headers)[OFFSET_HEADER]).offset
                    assert source in decided.counted, f"{at} {each.offset} is no counted decision"
                    assert each.record.value == decided.records[source].record.value
                    count += 1
        return count

    return cluster.on_log(check)


def test_two_cells_spread_over_the_running_schedulers(tmp_path: Path) -> None:
    cells = ("main", "east")
    env = {"agent": SIMULATED}
    with Cluster(tmp_path, views=1, quotas=1, agents=1, cells=cells, env=env) as cluster:

        def led(by: dict[str, int]) -> Callable[[], bool]:
            def there() -> bool:
                have = {name: sum(leads(cluster, name, cell) for cell in cells) for name in by}
                return have == by

            return there

        def both_decide() -> None:
            for number, gateway in enumerate(("gateway-1", "gateway-east-1")):
                cluster.until_ended(cluster.submit(gateway=gateway), number=number)

        apart = led(dict.fromkeys(SCHEDULERS, 1))
        cluster.until(apart, "each leads one cell", 60)
        both_decide()
        began_s = time.monotonic()
        cluster.kill9("scheduler-1")
        cluster.until(led({"scheduler-2": 2}), "the other scheduler leads both", 30)
        print(f"both cells after {time.monotonic() - began_s:.1f} s")
        both_decide()
        cluster.start("scheduler-1")
        cluster.until(apart, "they spread again", 30)
        both_decide()
        cluster.prove()
