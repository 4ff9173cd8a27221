"""The start of a gateway on logs of several lengths: reading the users of the cell.

With a snapshot of quota, only the records after it are read; without one, all of `admissions`. The
log is a SQLite file of rejected jobs, of which quota keeps as much as of ended ones.
"""

import asyncio
import tempfile
import time
from io import StringIO
from pathlib import Path

from bench.timing import Row, collector_off
from tests.support.logs import LogBuilder, log_created, subject_of, submitted
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_gateway.identity.access import Access
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import MachineInput
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.machine.snapshotting import take
from yardmaster_runtime.settings import CycleLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS, TOPICS

CELL = "main"
#: Requests in a cycle, and the cycles after the snapshot.
BATCH, AFTER = 500, 10
CLOCK = SystemClock()


def start(records: int) -> list[Row]:
    """Read the users of a log with `records` records of quota, without and with a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_start(Path(folder), records))


async def _start(folder: Path, records: int) -> list[Row]:
    snapshots = SnapshotStore(str(folder / "snapshots"))
    log = await SqliteLog.open(folder / "log.db", CLOCK)
    try:
        await _write(log, snapshots, records)
        name = f"gateway start, {records:,} records"
        return [
            await _measured(log, None, f"{name}, no snapshot"),
            await _measured(log, snapshots, f"{name}, snapshot"),
        ]
    finally:
        await log.close()


async def _write(log: SqliteLog, snapshots: SnapshotStore, records: int) -> None:
    """Write a log of rejected jobs, and a snapshot `AFTER` cycles before its end."""
    metrics = RuntimeMetrics(_telemetry("quota"))
    leader = Leader(
        Fold(log, QuotaMachine(), CELL),
        clock=CLOCK,
        chance=SeededChance(3),
        limits=CycleLimits(),
        metrics=metrics,
        observations=Observations(100, metrics),
    )
    await log.create_topics(tuple(TOPICS.values()))
    gateway = LogBuilder(now_ms=CLOCK.now_ms()).gateway
    await log.append(
        Partition(REQUESTS.name), [encode(gateway.envelope(log_created(), CELL), CELL)]
    )
    await leader.fold.catch_up()
    await leader.take_term()
    batches = records // BATCH
    for batch in range(batches):
        jobs = [submitted(f"{number:012d}") for number in range(batch * BATCH, (batch + 1) * BATCH)]
        envelopes = [gateway.envelope(job, subject_of(job)) for job in jobs]
        await log.append(Partition(REQUESTS.name), [encode(one, CELL) for one in envelopes])
        for source in leader.fold.inputs.values():
            cursor = source.cursor if isinstance(source, MachineInput) else source
            await cursor.fill(BATCH)
        assert await leader.step()
        if batch == batches - 1 - AFTER:
            await snapshots.save(take(leader.fold))
    assert await log.end(Partition(ADMISSIONS.name)) > records


async def _measured(log: SqliteLog, snapshots: SnapshotStore | None, name: str) -> Row:
    access = Access(
        log, CLOCK, _telemetry("gateway"), cell=CELL, partition=0, max_age_s=60, snapshots=snapshots
    )
    with collector_off():
        wall, cpu = time.perf_counter(), time.process_time()
        await access.catch_up()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Row(name, wall, "s", cpu=cpu)


def _telemetry(service: str) -> Telemetry:
    return Telemetry(service, now_ms=CLOCK.now_ms, stream=StringIO(), level="error")
