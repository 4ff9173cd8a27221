"""Limits of what a program with the credentials of one agent can do, in a whole cell.

docs/explanation/guarantees.md lists what it can do. Nothing in a record says which user of the
brokers wrote it.
"""

import math
from collections.abc import Sequence
from typing import Any

from tests.support import logs
from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.settings import CycleLimits
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.decisions import SlotsAllocatedV1
from yardmaster_schemas.events.expiring import NodeHeartbeatV1, RecordQuarantinedV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.node_events import TaskProgressedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import agent_source

#: Records of a flood, and records per append.
FLOOD = 6_000
BATCH = 200


def forged(event: Any, seq: int) -> Record:
    envelope: Envelope[Event] = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=agent_source(event.node, event.incarnation),
        epoch=1,
        seq=seq,
        subject=event.node,
        time_ms=0,
        actor=Actor(kind=ActorKind.NODE, id=event.node),
        data=event,
    )
    return encode(envelope, event.node if event.TYPE == NodeHeartbeatV1.TYPE else CELL)


def report(number: int) -> Record:
    """A report of progress in the name of one of many agents; each third record is noise."""
    if number % 3 == 0:
        return Record(CELL.encode(), b"\0" * 100)
    event = TaskProgressedV1(
        task_id=f"{'x' * 12}.0",
        attempt=1,
        replica=0,
        node=f"n{number % 300}",
        incarnation=logs.incarnation(number % 977),
        permille=5,
    )
    return forged(event, number)


def heartbeat(number: int) -> Record:
    """A heartbeat in the name of one of many agents."""
    event = NodeHeartbeatV1(
        node=f"n{number % 300}",
        incarnation=logs.incarnation(number % 977),
        sent_at_ms=1,
        running=0,
        gpu_milli_used=0,
    )
    return forged(event, number)


async def append(cell: GatewayCell, topic: str, records: Sequence[Record]) -> None:
    for first in range(0, len(records), BATCH):
        await cell.log.append(Partition(topic), records[first : first + BATCH])


async def test_a_flood_of_hostile_records_delays_no_placement_and_reports_only_by_its_own_reading(
    cell: GatewayCell,
) -> None:
    await append(cell, "node-events", [report(number) for number in range(FLOOD)])
    await append(cell, "heartbeats", [heartbeat(number) for number in range(FLOOD)])
    body = {"project": "nlp", "resources": {"gpus": 1}, "run": {"command": ["true"]}}
    answer = await cell.call("POST", "/v1/jobs", token="nlp", status=202, run=False, json=body)
    task = f"{answer['job_id']}.0"
    quota, scheduler = cell.leaders
    await cell._step(quota)
    await cell._step(scheduler)
    decided = await cell.events("decisions")
    assert [e.task_id for e in decided if isinstance(e, SlotsAllocatedV1)] == [task]
    (read,) = [one.next for one in commits_of(decided)[-1].inputs if one.topic == "node-events"]
    assert read < FLOOD, "otherwise the first cycle has read the whole flood"
    # The report of the start is behind the flood, which takes cycles as its refusals fill them.
    await cell.claim(logs.started(task, "n1"))
    ranges = math.ceil(FLOOD * 2 / 3)
    for _ in range(math.ceil(ranges / CycleLimits().max_refused) + 1):
        await cell._step(scheduler)
    assert not await cell._step(scheduler)
    await cell.run_until_idle()
    assert (await cell.call("GET", f"/v1/tasks/{task}"))["phase"] == "running"


def commits_of(events: Sequence[Event]) -> list[CycleCommittedV1]:
    return [event for event in events if isinstance(event, CycleCommittedV1)]


async def test_a_forged_join_of_a_node_that_is_up_changes_nothing(cell: GatewayCell) -> None:
    task = f"{await cell.submit()}.0"
    await cell.starts(task)
    before = await cell.call("GET", "/v1/nodes/n1"), await cell.call("GET", f"/v1/tasks/{task}")
    decided = len(await cell.events("decisions"))
    await cell.claim(logs.joined("n1", 64, life=7, pool="h100"))
    await cell.run_until_idle()
    after = await cell.call("GET", "/v1/nodes/n1"), await cell.call("GET", f"/v1/tasks/{task}")
    assert after == before
    new = (await cell.events("decisions"))[decided:]
    assert [type(event) for event in new] == [CycleCommittedV1]
    (refused,) = await cell.events("quarantine")
    assert isinstance(refused, RecordQuarantinedV1)
    assert refused.code is RefusalCode.NODE_TAKEN
    # The agent of the node continues to report.
    await cell.finishes(task)
    assert (await cell.call("GET", f"/v1/tasks/{task}"))["phase"] == "succeeded"
