"""The whole path on Kafka: one process of each service, a real broker and Redis.

This process simulates the nodes (`fleet.py`). A measurement begins with a POST at the gateway and
ends when the allocation has been read from `decisions` at the broker. Broker, Redis, services,
nodes and client share the machine and compete for its cores, so the figures include the processor
time of each process.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from bench.fleet import Fleet
from bench.http import PlainClient
from bench.timing import Row, quantile
from tests.support.cluster import Cluster
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import DECISIONS, Topic

CELL: Final = "main"
GPUS: Final = 8
RUN_S: Final = 1.0
UNTIL_CHANGED_S: Final = 1e9
LIMIT_S: Final = 300.0
LOOK_S: Final = 0.05
#: Seconds between the starts of two measured submits.
PACE_S: Final = 0.2
#: The most tasks of one job.
MAX_TASKS: Final = 10_000
#: Connections of the client.
CONNECTIONS: Final = 64
SERVICES: Final = ("kafka", "redis", "gateway-1", "quota-1", "scheduler-1", "views-1")

Client = httpx.AsyncClient


class Bench:
    """A running cluster, its simulated nodes, and a client."""

    def __init__(self, cluster: Cluster, log: KafkaLog, fleet: Fleet, client: PlainClient) -> None:
        self.cluster = cluster
        self.log = log
        self.fleet = fleet
        self.client = client
        self._key = 0

    async def submit(self, tasks: int = 1, **spec: object) -> list[str]:
        """Submit a job of one-GPU tasks; return the task ids."""
        self._key += 1
        body: dict[str, object] = {
            "project": "default",
            "resources": {"gpus": 1},
            "run": {"command": ["true"]},
            **spec,
        }
        if tasks > 1:
            body["tasks"] = {"count": tasks}
        key = {"Idempotency-Key": f"bench-{os.getpid()}-{self._key:08d}"}
        answer = await self.client.post("/v1/jobs", body, key)
        found: list[str] = answer["task_ids"]
        return found

    async def placed(self, tasks: Sequence[str]) -> float:
        """Wait until all these tasks are placed; return when the last one was seen."""
        async with asyncio.timeout(LIMIT_S):
            waiting = list(tasks)
            while waiting := [task for task in waiting if task not in self.fleet.placed]:
                self.fleet.placements.clear()
                await self.fleet.placements.wait()
        return max(self.fleet.placed[task] for task in tasks)

    async def wait_until_idle(self, nodes: int) -> None:
        """Wait until every node has its topic and the relay has no lag."""
        async with asyncio.timeout(LIMIT_S), Client(trust_env=False) as client:
            while True:
                answer = await client.get(f"{self.cluster.health_url('scheduler-1')}/metrics")
                found = {
                    line.partition("{")[0].partition(" ")[0]: float(line.rpartition(" ")[2])
                    for line in answer.text.splitlines()
                    if line.startswith("yard_scheduler_")
                }
                topics = found["yard_scheduler_assignment_topics"]
                if topics >= nodes and found["yard_scheduler_relay_lag"] == 0:
                    break
                await asyncio.sleep(1.0)
        await asyncio.sleep(2.0)

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each process in seconds."""
        ticks = os.sysconf("SC_CLK_TCK")
        found = {}
        for name in SERVICES:
            fields = Path(f"/proc/{self.cluster.pid(name)}/stat").read_text().rpartition(")")[2]
            user, system = fields.split()[11:13]
            found[name] = (int(user) + int(system)) / ticks
        found["nodes and client"] = time.process_time()
        return found


@asynccontextmanager
async def running(nodes: int, *, schedulers: int = 1) -> AsyncIterator[Bench]:
    """Run a cluster with `nodes` simulated nodes."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        made = Cluster(Path(folder), agents=0, quotas=1, schedulers=schedulers, views=1)
        with made as cluster:
            log, theirs = await cluster.open_log(), await cluster.open_log()
            fleet = Fleet(theirs, clock, nodes, GPUS, RUN_S)
            await fleet.join()
            client = PlainClient(cluster.server, cluster.token(), connections=CONNECTIONS)
            async with asyncio.TaskGroup() as group:
                working = group.create_task(fleet.run())
                bench = Bench(cluster, log, fleet, client)
                await bench.placed(await bench.submit())  # warm up
                yield bench
                working.cancel()
            client.close()
            await log.close()
            await theirs.close()


async def latency(nodes: int, submits: int) -> list[Row]:
    """Latency from submit to SlotsAllocated with half of the slots allocated."""
    async with running(nodes) as bench:
        half = nodes * GPUS // 2
        bench.fleet.run_for(UNTIL_CHANGED_S)
        for first in range(0, half, MAX_TASKS):
            await bench.placed(await bench.submit(min(MAX_TASKS, half - first)))
        bench.fleet.run_for(RUN_S)
        await bench.wait_until_idle(nodes)

        async def one() -> tuple[float, float]:
            start = time.monotonic()
            tasks = await bench.submit()
            answered = time.monotonic()
            return answered - start, await bench.placed(tasks) - start

        async def paced() -> tuple[float, float]:
            began = time.monotonic()
            took = await one()
            await asyncio.sleep(began + PACE_S - time.monotonic())
            return took

        for _ in range(10):
            await paced()
        hops = await _hops(bench, submits)
        before = bench.cpu_s()
        lone = [await paced() for _ in range(submits)]
        took = {name: (at - before[name]) / submits for name, at in bench.cpu_s().items()}
        views = RedisViewStore(bench.cluster.redis(), CELL, SystemClock())
        lags = [await _lag(bench, views) for _ in range(submits // 4)]
        await views.close()
    name = f"{nodes:,} nodes, half full: "
    answers, places = ([pair[i] * 1000 for pair in lone] for i in (0, 1))
    return [
        Row(f"{name}one hop of a record in the same run, p50", quantile(hops, 0.5), "ms"),
        Row(f"{name}one hop of a record in the same run, p99", quantile(hops, 0.99), "ms"),
        Row(f"{name}submit -> answer, p50", quantile(answers, 0.5), "ms"),
        Row(f"{name}submit -> answer, p99", quantile(answers, 0.99), "ms"),
        Row(f"{name}submit -> SlotsAllocated, p50", quantile(places, 0.5), "ms", "15"),
        Row(f"{name}submit -> SlotsAllocated, p99", quantile(places, 0.99), "ms", "100"),
        Row(f"{name}SlotsAllocated -> view, p50", quantile(lags, 0.5), "ms"),
        Row(f"{name}SlotsAllocated -> view, p99", quantile(lags, 0.99), "ms"),
        *(Row(f"{name}processor per submit, {of}", s * 1000, "ms") for of, s in took.items()),
    ]


async def _hops(bench: Bench, count: int) -> list[float]:
    """Milliseconds from the append of a record until another handle has read it, at the same pace.

    A submit takes three hops, one after another: request, admission, decision.
    """
    topic = Topic(name="bench-hops", key="cell", writers=(), readers=())
    await bench.log.create_topics([topic])
    where, other = Partition(topic.name), await bench.cluster.open_log()
    record = Record(key=b"main", value=b"x" * 400)
    took: list[float] = []
    for offset in range(count + 1):
        waiting = asyncio.create_task(other.wait({where: offset}, LIMIT_S))
        await asyncio.sleep(PACE_S / 2)
        start = time.monotonic()
        await bench.log.append(where, [record])
        await waiting
        assert await other.read(where, offset, buffered_only=True)
        took.append((time.monotonic() - start) * 1000)
        await asyncio.sleep(PACE_S / 2)
    await other.close()
    return took[1:]


async def _lag(bench: Bench, views: RedisViewStore) -> float:
    """Milliseconds from seeing a placement until the views have reached it."""
    at = await bench.placed(await bench.submit())
    end = await bench.log.end(Partition(DECISIONS.name))
    covered = await views.reach(Position.start(CELL).at(DECISIONS.name, end), LIMIT_S)
    assert covered, "the views did not reach the decision"
    return (time.monotonic() - at) * 1000


async def saturation(tasks: int, each: int, at_once: int) -> list[Row]:
    """Tasks per second from many clients, until all are placed; jobs have `each` tasks."""
    async with running(1_000) as bench:
        raw = await _raw_rate(bench.log)
        left = iter(range(tasks // each))
        ids: list[str] = []

        async def some() -> None:
            for _ in left:
                ids.extend(await bench.submit(each))

        before, start = bench.cpu_s(), time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(some())
        answered = time.monotonic()
        last = await bench.placed(ids)
        took = {name: at - before[name] for name, at in bench.cpu_s().items()}
        views = RedisViewStore(bench.cluster.redis(), CELL, SystemClock())
        end = await bench.log.end(Partition(DECISIONS.name))
        await views.reach(Position.start(CELL).at(DECISIONS.name, end), LIMIT_S)
        lag = time.monotonic() - last
        await views.close()
    name = f"{tasks:,} tasks, {each} a job: "
    return [
        Row(f"{name}jobs answered", tasks / each / (answered - start), "jobs/s"),
        Row(f"{name}placed", tasks / (last - start), "tasks/s", "2,000"),
        Row(f"{name}views complete after the last", lag, "s"),
        Row("raw client in the same run, batches of 100", raw, "records/s"),
        *(Row(f"{name}processor per task, {of}", s / tasks * 1000, "ms") for of, s in took.items()),
    ]


async def _raw_rate(log: KafkaLog) -> float:
    """Records per second of one client that appends batches of 100, one after another."""
    topic = Topic(name="bench", key="cell", writers=(), readers=())
    await log.create_topics([topic])
    batch = [Record(key=b"main", value=b"x" * 400)] * 100
    start = time.monotonic()
    for _ in range(100):
        await log.append(Partition(topic.name), batch)
    return 100 * len(batch) / (time.monotonic() - start)


async def takeover(rounds: int) -> list[Row]:
    """Time from a leader's end until the next leader has committed a cycle."""
    killed: list[float] = []
    stopped: list[float] = []
    async with running(10, schedulers=2) as bench:
        for number in range(2 * rounds):
            gracefully = number % 2 == 1
            leader = await _leader(bench, "scheduler-1", "scheduler-2")
            seen = await bench.log.end(Partition(DECISIONS.name))
            start = time.monotonic()
            end = bench.cluster.terminate if gracefully else bench.cluster.kill9
            await asyncio.to_thread(end, leader)
            tasks = await bench.submit()
            await _decided(bench.log, seen)
            (stopped if gracefully else killed).append(time.monotonic() - start)
            await bench.placed(tasks)
            await asyncio.to_thread(bench.cluster.start, leader)
    return [
        Row("takeover after kill -9, worst of " + str(rounds), max(killed), "s", "10"),
        Row("takeover after SIGTERM, worst of " + str(rounds), max(stopped), "s", "1"),
    ]


async def _leader(bench: Bench, *names: str) -> str:
    """Wait until one of these schedulers leads; return its name."""
    async with Client(trust_env=False) as client:
        while True:
            for name in names:
                answer = await client.get(f"{bench.cluster.health_url(name)}/metrics")
                if any(
                    line.startswith("yard_scheduler_leading") and line.endswith(" 1.0")
                    for line in answer.text.splitlines()
                ):
                    return name
            await asyncio.sleep(LOOK_S)


async def _decided(log: KafkaLog, offset: int) -> None:
    """Wait for a commit of a term that started at or after `offset`."""
    where = Partition(DECISIONS.name)
    began = False
    async with asyncio.timeout(LIMIT_S):
        while True:
            for stored in await log.read(where, offset):
                offset = stored.offset + 1
                data = decode(stored.record).data
                began = began or isinstance(data, TermStartedV1)
                if began and isinstance(data, CycleCommittedV1):
                    return
            await log.wait({where: offset}, 5.0)


async def restart(tasks: int) -> list[Row]:
    """Restart of a killed scheduler with `tasks` tasks: time until it leads, and of the fold."""
    async with running(100) as bench:
        for first in range(0, tasks, MAX_TASKS):
            await bench.submit(min(MAX_TASKS, tasks - first))
        await asyncio.sleep(20.0)
        found = []
        for _ in range(2):
            await asyncio.to_thread(bench.cluster.kill9, "scheduler-1")
            said = len(bench.cluster.log("scheduler-1"))
            start = time.monotonic()
            await asyncio.to_thread(bench.cluster.start, "scheduler-1")
            await _leader(bench, "scheduler-1")
            found.append((time.monotonic() - start, _restored(bench.cluster, said)))
    name = f"restart with {tasks:,} tasks, "
    return [
        Row(f"{name}until it leads", min(whole for whole, _ in found), "s"),
        Row(f"{name}of that the fold", min(fold for _, fold in found), "s"),
    ]


def _restored(cluster: Cluster, since: int) -> float:
    """Seconds of the last restore, from the scheduler's log output."""
    lines = [json.loads(line) for line in cluster.log("scheduler-1")[since:].splitlines()]
    found: list[float] = [line["seconds"] for line in lines if line.get("event") == "restored"]
    return found[-1]
