"""The whole path in the embedded mode: from a POST to SlotsAllocated in the log, over SQLite.

`yard dev` runs in its own process, as for a user; this process is the client and polls `decisions`
through its own handle every two milliseconds. Each job starts at once on the slots of a node that
only joins. So no task process is started, and the figures contain gateway, quota, scheduler and log
only. Then `replay verify` verifies the log.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

import httpx

from bench.cells import joined
from bench.timing import Row, collector_off, quantile
from tests.support.yard_cli import Dev
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_eventlog import codec
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.replay.chain import check_chain
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import DECISIONS, NODE_EVENTS

CELL = "main"
SLOTS = 1024
AT_ONCE = 8
LOOK_S = 0.002
#: Far above the longest latency ever measured.
LIMIT_S = 30.0


class Started:
    """Follows `decisions` and records when each job was first seen placed."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._seen: dict[str, float] = {}

    async def follow(self) -> None:
        """Poll until cancelled."""
        where = Partition(DECISIONS.name)
        offset = await self._log.end(where)
        while True:
            found = await self._log.read(where, offset)
            now = time.perf_counter()
            for stored in found:
                offset = stored.offset + 1
                envelope = codec.decode(stored.record)
                if envelope.type == "SlotsAllocated":
                    self._note(envelope.subject.partition(".")[0], now)
            if not found:
                await asyncio.sleep(LOOK_S)

    def _note(self, job_id: str, now: float) -> None:
        waiting = self._waiting.pop(job_id, None)
        if waiting is not None:
            waiting.set_result(now)
        else:
            self._seen[job_id] = now

    async def when(self, job_id: str) -> float:
        """Wait until the job's task is placed; return the time."""
        if job_id in self._seen:
            return self._seen.pop(job_id)
        future = self._waiting[job_id] = asyncio.get_running_loop().create_future()
        return await asyncio.wait_for(future, LIMIT_S)


async def _submit(client: httpx.AsyncClient, started: Started) -> tuple[float, float]:
    """Seconds from the POST to its answer, and to the placement."""
    body = {"project": "default", "resources": {"gpus": 1}, "run": {"command": ["true"]}}
    start = time.perf_counter()
    answer = await client.post("/v1/jobs", json=body)
    answered = time.perf_counter()
    answer.raise_for_status()
    placed = await started.when(answer.json()["job_id"])
    return answered - start, placed - start


async def _offer_slots(log: EventLog) -> None:
    """Join a node without an agent."""
    event = joined(0, SLOTS, pool="default")
    envelope = Envelope(
        type="NodeJoined",
        version=1,
        source=agent_source("n0", event.incarnation),
        epoch=1,
        seq=0,
        subject="n0",
        time_ms=SystemClock().now_ms(),
        actor=Actor(kind=ActorKind.NODE, id="n0"),
        data=event,
    )
    await log.append(Partition(NODE_EVENTS.name), [codec.encode(envelope, CELL)])


async def _measure(dev: Dev, submits: int) -> list[Row]:
    found = json.loads((dev.data / "dev.json").read_text())
    log = await SqliteLog.open(dev.log, SystemClock())
    await _offer_slots(log)
    started = Started(log)
    following = asyncio.create_task(started.follow())
    client = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{found['port']}",
        headers={"Authorization": f"Bearer {found['token']}"},
        trust_env=False,
        timeout=LIMIT_S,
    )
    rows = []
    async with client:
        for _ in range(5):  # warm up connections and code
            await _submit(client, started)
        with collector_off():
            one = [await _submit(client, started) for _ in range(submits)]
            start = time.perf_counter()
            left = iter(range(submits * 2))

            async def some() -> list[tuple[float, float]]:
                return [await _submit(client, started) for _ in left]

            many = [
                pair
                for of in await asyncio.gather(*(some() for _ in range(AT_ONCE)))
                for pair in of
            ]
            took = time.perf_counter() - start
    following.cancel()
    for name, pairs in (("one at a time", one), (f"{AT_ONCE} at once", many)):
        for label, index in (("submit -> answer", 0), ("submit -> SlotsAllocated", 1)):
            values = [pair[index] * 1000 for pair in pairs]
            rows.append(Row(f"{label}, {name}, p50", quantile(values, 0.5), "ms"))
            rows.append(Row(f"{label}, {name}, p99", quantile(values, 0.99), "ms"))
    rows.append(Row(f"jobs placed, {AT_ONCE} at once", len(many) / took, "jobs/s"))
    await log.close()
    return rows


async def _verified(path: Path) -> list[Row]:
    log = await SqliteLog.open(path, SystemClock())
    with collector_off():
        start = time.perf_counter()
        report = await verify(log, (QuotaMachine(), SchedulerMachine()), CELL)
        took = time.perf_counter() - start
        chains = [await check_chain(log, m, CELL) for m in (QuotaMachine(), SchedulerMachine())]
        of_chain = time.perf_counter() - start - took
    await log.close()
    assert report.ok, report
    assert all(one.finding is None for one in chains), chains
    records = sum(m.inputs + m.decisions + m.cycles for m in report.proved)
    return [
        Row(f"replay verify, {records:,} records", records / took, "records/s"),
        Row(f"replay verify --chain, {records:,} records", records / of_chain, "records/s"),
    ]


def rows(quick: bool) -> list[Row]:
    """Latency of the embedded mode, then the verification of its log."""
    with tempfile.TemporaryDirectory() as folder:
        dev = Dev(Path(folder), nodes=1, slots=0)
        dev.start()
        try:
            found = asyncio.run(_measure(dev, 50 if quick else 200))
        finally:
            dev.stop()
        return found + asyncio.run(_verified(dev.log))
