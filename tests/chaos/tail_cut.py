"""A broker that loses the newest records of topics, and the operator who repairs the log.

What the loss and the repair removed is known exactly, and only that is exempt from the verdict. The
loss of soft state, and of copies of decisions, needs no repair and exempts nothing.
"""

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.plan import SOFT_TOPICS, Fault
from tests.support.cluster import KAFKA, REDIS, Cluster
from tests.support.cut_tail import cut_tail
from tests.support.promises import events
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_localcluster.orphans import end_tasks
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
    start_services(cluster)
    return Removed(
        {e.job_id for e in asked if isinstance(e, TaskSubmittedV1)},
        {(e.task_id, e.attempt) for e in decided if isinstance(e, SlotsAllocatedV1)},
    )


def lose_power(cluster: Cluster, fault: Fault) -> None:
    """Everything ends at once, and what the broker does not sync loses its end; start it again."""
    partitions = [Partition(topic) for topic in SOFT_TOPICS]
    ends = cluster.on_log(partial(_ends, partitions=partitions))
    for name in reversed(cluster.names):
        cluster.kill9(name)
    end_tasks(cluster.data.agents)
    for partition, end in ends.items():
        cut_tail(cluster.fleet.broker.directory, partition, max(0, end - fault.records))
    for name in (KAFKA, REDIS):
        cluster.start(name)
    start_services(cluster)


def lose_soft_topic(cluster: Cluster, fault: Fault) -> None:
    """The broker is killed and loses the end of a topic that no machine decides by."""
    at = Partition(fault.topic)
    end = cluster.on_log(lambda log: log.end(at))
    cluster.kill9(KAFKA)
    first = cut_tail(cluster.fleet.broker.directory, at, max(0, end - fault.records))
    cluster.start(KAFKA)
    print(f"    {fault.topic} lost the records from {first} to {end - 1}", flush=True)


def start_services(cluster: Cluster) -> None:
    """Start all services, agents first, and wait until all are ready."""
    services = list(cluster.fleet.services)
    agents = [name for name in services if name.startswith("agent-")]
    for group in (agents, [name for name in services if name not in agents]):
        for name in group:
            cluster.start(name, wait=False)
        for name in group:
            cluster.until_ready(name)


async def _ends(log: EventLog, partitions: list[Partition]) -> dict[Partition, int]:
    return {partition: await log.end(partition) for partition in partitions}


async def _written(copy: Path, topic: str, offset: int) -> list[Event]:
    """The events of a topic from `offset` on, in the copy of the log before its repair."""
    log = await SqliteLog.open(copy, SystemClock())
    try:
        return (await events(log, topic))[offset:]
    finally:
        await log.close()
