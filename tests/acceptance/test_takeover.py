"""Schedulers that are killed, stopped and brought back, on real Kafka: who leads, and what counts.

SAFETY: S1 to S11 over the log; a fenced leader's records count for nobody and reach no agent.
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
#: Tasks that only take time: many, and none of the machine's.
SIMULATED = {"YARD_AGENT_EXECUTOR": "simulated"}
SHORT = {"command": ["true"], "env": {"SIM_SECONDS": "0.05"}}
ROUNDS = 10
#: More are played until a stop came between a decision and its record, which is chance.
MOST_ROUNDS = 30
#: Of the rounds, to have them in short time.
SESSION_S = 3.0


def leads(cluster: Cluster, name: str, cell: str = "main") -> bool:
    """Whether a scheduler says that it leads a cell; one that is not there does not."""
    try:
        # Long: an answer that comes late says more than none.
        with urllib.request.urlopen(f"{cluster.health_url(name)}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return False
    # It is asked many times a second, and to read all metrics takes long.
    text = "\n".join(line for line in lines if "yard_scheduler_leading" in line)
    return any(
        sample.value == 1
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "yard_scheduler_leading" and sample.labels == {"cell": cell}
    )


def leader(cluster: Cluster, cell: str = "main") -> str:
    """The scheduler that leads a cell, once one does."""

    def found() -> str | None:
        return next((name for name in SCHEDULERS if leads(cluster, name, cell)), None)

    return cluster.until(found, f"somebody leads {cell}", 60)


def other(name: str) -> str:
    (found,) = {*SCHEDULERS} - {name}
    return found


@dataclass
class Decided:
    """One cell's decisions as every reader sees them."""

    records: list[StoredRecord] = field(default_factory=list)
    #: Offset -> event, of decisions that count.
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
        """When the log took a task's first allocation."""
        for offset, envelope in self.counted.items():
            if isinstance(envelope.data, SlotsAllocatedV1) and envelope.data.task_id == task:
                return self.records[offset].appended_ms
        return None


@dataclass(frozen=True)
class Takeover:
    """One leader's end, and the standby's first decision on what was asked after it."""

    cluster: Cluster
    ended: str
    #: By the clock of all logs, in seconds.
    ended_s: float
    task: str
    took_s: float

    def told(self) -> str:
        """What all logs have of it, in seconds from its beginning; for failures."""
        steps = [
            (json.loads(line)["at_ms"], f"{self.ended} hears that it shall stop")
            for line in self.cluster.log(self.ended).splitlines()
            if STOPPING in line
        ]
        for each in self.cluster.on_log(Decided.read).records:
            event = decode_own(each.record, "main").data
            asked = isinstance(event, SlotsAllocatedV1) and event.task_id == self.task
            if asked or isinstance(event, TermStartedV1):
                steps.append((each.appended_ms, event.TYPE))
        lines = [f"{at_ms / 1000 - self.ended_s:+.3f} s {what}" for at_ms, what in sorted(steps)]
        return "\n".join([*lines, self.cluster.tails()])


def ask_to_stop(cluster: Cluster, name: str) -> None:
    """SIGTERM; back when the process has heard it, which need not have ended by then."""
    heard = cluster.log(name).count(STOPPING)
    cluster.service(name).ask()
    cluster.until(lambda: cluster.log(name).count(STOPPING) > heard, "it hears", look_s=0.005)


def replace_leader(cluster: Cluster, end: Callable[[str], object]) -> Takeover:
    """End the leader, and have the standby decide on what is asked then."""
    # Who stands by is ready before it is in the group.
    asyncio.run(until_joined(cluster.bootstrap, GROUP, len(SCHEDULERS)))
    first = leader(cluster)
    ended_s = time.time()
    end(first)
    (task,) = cluster.submit()

    def decided_ms() -> int | None:
        return cluster.on_log(Decided.read).allocated_ms(task)

    # Looks are rare: each costs the machine something, and the log has the time.
    took_s = cluster.until(decided_ms, f"{task} has slots", 60, look_s=0.5) / 1000 - ended_s
    assert leads(cluster, other(first))
    cluster.service(first).wait()
    cluster.start(first)
    cluster.until_ended([task])
    return Takeover(cluster, first, ended_s, task, took_s)


def test_a_standby_decides_ten_seconds_after_a_kill_and_one_after_a_graceful_stop(
    tmp_path: Path,
) -> None:
    env = {"agent": SIMULATED}
    with Cluster(tmp_path, views=1, quotas=1, agents=1, env=env) as cluster:
        for _ in range(2):
            killed = replace_leader(cluster, cluster.kill9)
            stopped = replace_leader(cluster, partial(ask_to_stop, cluster))
            print(f"takeover: kill -9 {killed.took_s:.2f} s, SIGTERM {stopped.took_s:.2f} s")
            assert killed.took_s < 10, killed.told()
            assert stopped.took_s < 1, stopped.told()
        cluster.prove()


class Load:
    """Short jobs, one after another, as long as the block lasts."""

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
    """SIGSTOP for as long as the block lasts."""
    cluster.stop(name)
    try:
        yield
    finally:
        cluster.cont(name)


def test_a_leader_that_was_stopped_and_continued_changes_nothing_and_steps_down_by_name(
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
                fenced = named(cluster, old)
                before = cluster.on_log(Decided.read).dropped
                time.sleep(chance.uniform(0.2, 0.7))
                with stopped(cluster, old):
                    cluster.until(lambda: leads(cluster, other(old)), "the other leads", 30)  # noqa: B023
                    time.sleep(chance.uniform(0, 0.5))
                cluster.until(lambda: named(cluster, old) > fenced, f"{old} is fenced", 30)  # noqa: B023
                assert leads(cluster, other(old)), f"round {rounds}: who took over still leads"
                found = cluster.on_log(Decided.read)
                assert len(found.terms) == terms + 1, "one takeover, and no fight over it"
                late += found.dropped > before
        cluster.until_ended(load.tasks)
        print(f"{rounds} rounds, {len(load.tasks)} tasks, {late} with late records (seed {seed})")
        cluster.prove()
        assert relayed(cluster) > 0
    assert late, "no stop came between a decision and its record: nothing was tested"


def named(cluster: Cluster, name: str) -> int:
    """How often a scheduler said that it was fenced."""
    return cluster.log(name).count('"code": "fenced"')


def relayed(cluster: Cluster) -> int:
    """How many records agents were given; each is a decision that counts, as the log has it."""

    async def check(log: EventLog) -> int:
        decided = await Decided.read(log)
        count = 0
        for node in ("n1", "n2"):
            at, offset = Partition(assignments(node).name), 0
            while stored := await log.read(at, offset, max_records=5000):
                offset = stored[-1].offset + 1
                for each in stored:
                    source = relayed_from(dict(each.record.headers)[OFFSET_HEADER]).offset
                    assert source in decided.counted, f"{at} {each.offset} counts for nobody"
                    assert each.record.value == decided.records[source].record.value
                    count += 1
        return count

    return cluster.on_log(check)


def test_two_cells_spread_over_two_schedulers_and_follow_who_is_there(tmp_path: Path) -> None:
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
        cluster.until(led({"scheduler-2": 2}), "the other has both", 30)
        print(f"both cells after {time.monotonic() - began_s:.1f} s")
        both_decide()
        cluster.start("scheduler-1")
        cluster.until(apart, "they spread again", 30)
        both_decide()
        cluster.prove()
