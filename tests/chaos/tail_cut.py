"""A broker that loses the newest records of a topic, and the operator who repairs the log.

What the loss and the repair removed is known exactly, and only that is exempt from the verdict.
"""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.plan import Fault
from tests.support.cluster import KAFKA, Cluster
from tests.support.cut_tail import cut_tail
from tests.support.killed_cell import events
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import SlotsAllocatedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.topics import DECISIONS, REQUESTS

#: The time before the operator comes, in seconds: the processes meet the shorter log.
UNREPAIRED_S: Final = 15.0


@dataclass(slots=True)
class Removed:
    """The contents of the removed records.

    Attributes:
        jobs: whose submission was removed.
        attempts: whose allocation was removed, as (task, attempt).
    """

    jobs: set[str] = field(default_factory=set)
    attempts: set[tuple[str, int]] = field(default_factory=set)


def lose_and_repair(cluster: Cluster, fault: Fault) -> Removed:
    """Cut a topic's end while nothing else happens; recover as docs/how-to/recover.md tells."""
    services = list(cluster.fleet.services)
    for name in services:
        cluster.stop(name)
    requests, decisions = Partition(REQUESTS.name), Partition(DECISIONS.name)
    asked, _ = cluster.events_from(requests, 0)
    decided, _ = cluster.events_from(decisions, 0)
    at = Partition(fault.topic)
    end = cluster.on_log(lambda log: log.end(at))
    cluster.kill9(KAFKA)
    # A topic that lost most of its records is a restored backup, not a power loss.
    keep = end - min(fault.records, end // 3)
    first = cut_tail(cluster.fleet.broker.directory, at, keep)
    cluster.start(KAFKA)
    print(f"    {fault.topic} lost the records from {first} to {end - 1}", flush=True)
    for name in services:
        cluster.cont(name)
    time.sleep(UNREPAIRED_S)
    for name in services:
        cluster.kill9(name)
    kept_requests = first if fault.topic == REQUESTS.name else len(asked)
    copy = cluster.folder / f"before-cut-{fault.number}.db"
    print(cluster.yard("log", "cut", "--to", "last", "--yes", "--copy", str(copy)), flush=True)
    kept_decisions = cluster.on_log(lambda log: log.end(decisions))
    # Until they meet the loss, processes write on; the repair removes that too.
    repaired = cluster.on_log(lambda log: log.end(requests))
    asked = asked[kept_requests:] + asyncio.run(_written(copy, REQUESTS.name, repaired))
    decided = decided[kept_decisions:]
    decided += asyncio.run(_written(copy, DECISIONS.name, kept_decisions))
    cluster.yard("views", "rebuild", "--redis", cluster.redis().url)
    agents = [name for name in services if name.startswith("agent-")]
    for group in (agents, [name for name in services if name not in agents]):
        for name in group:
            cluster.start(name, wait=False)
        for name in group:
            cluster.until_ready(name)
    return Removed(
        {e.job_id for e in asked if isinstance(e, TaskSubmittedV1)},
        {(e.task_id, e.attempt) for e in decided if isinstance(e, SlotsAllocatedV1)},
    )


async def _written(copy: Path, topic: str, offset: int) -> list[Event]:
    """The events of a topic from `offset` on, in the copy of the log before its repair."""
    log = await SqliteLog.open(copy, SystemClock())
    try:
        return (await events(log, topic))[offset:]
    finally:
        await log.close()
