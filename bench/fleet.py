"""Many simulated nodes in one process: they join, send heartbeats, and report starts and exits.

Thousands of agent processes do not fit on the measuring machine. This process writes their records
in batches and reads allocations from `decisions` instead of the nodes' topics. The scheduler's part
(one topic per node, the relay's copies) is the same as with real agents.
"""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.clock import Clock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.decisions import Placement, SlotsAllocatedV1
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.events.node_events import (
    NodeJoinedV1,
    RunIdentity,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import DECISIONS, HEARTBEATS, NODE_EVENTS

CELL: Final = "main"
BOOT: Final = "0" * 8
LIFE: Final = "0" * 12
#: Records per append.
BATCH: Final = 100
#: Seconds between two appends of reports: about an agent's time from assignment to process.
TICK_S: Final = 0.005
BEAT_S: Final = 10.0
ALLOCATED: Final = SlotsAllocatedV1.TYPE.encode()


class Fleet:
    """`count` nodes of `gpus` slots, of the pool `default`; tasks run for `run_s` seconds."""

    def __init__(self, log: EventLog, clock: Clock, count: int, gpus: int, run_s: float) -> None:
        self.nodes = [f"n{number}" for number in range(count)]
        #: When each task was first seen placed; `placements` is set at each new placement.
        self.placed: dict[str, float] = {}
        self.placements = asyncio.Event()
        self._log = log
        #: Where `run` begins to read the decisions.
        self._offset = 0
        self._clock = clock
        self._gpus = gpus
        self._run_s = run_s
        self._seq: dict[str, int] = defaultdict(int)
        self._epoch = clock.now_ms()
        self._reports: list[Record] = []
        self._ends: list[tuple[float, int, str, int, Sequence[Placement]]] = []
        self._count = 0

    def run_for(self, run_s: float) -> None:
        """Set the duration of tasks that are placed from now on."""
        self._run_s = run_s

    async def join(self) -> None:
        """Join all nodes and send one heartbeat of each; `run` sees all decisions from here on."""
        self._offset = await self._log.end(Partition(DECISIONS.name))
        for node in self.nodes:
            self._report(node, self._joined(node))
        await self._write()
        await self._beat()

    async def run(self) -> None:
        """Simulate the nodes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._end())
            group.create_task(self._beats())

    async def _follow(self) -> None:
        where = Partition(DECISIONS.name)
        offset = self._offset
        while True:
            found = await self._log.read(where, offset, max_records=5_000, buffered_only=True)
            now = self._clock.monotonic_s()
            for stored in found:
                offset = stored.offset + 1
                if dict(stored.record.headers)["ce_type"] == ALLOCATED:
                    data = decode(stored.record).data
                    assert isinstance(data, SlotsAllocatedV1)
                    self._start(data, now)
            if found:
                self.placements.set()
                await self._write()
            else:
                await self._log.wait({where: offset}, 5.0)

    def _start(self, data: SlotsAllocatedV1, now: float) -> None:
        self.placed.setdefault(data.task_id, now)
        for placement in data.placements:
            self._report(
                placement.node,
                TaskStartedV1(
                    **_replica(data.task_id, data.attempt, placement),
                    run=RunIdentity.of_process(1, self._count, BOOT),
                ),
            )
        self._count += 1
        end = now + self._run_s
        heapq.heappush(self._ends, (end, self._count, data.task_id, data.attempt, data.placements))

    async def _end(self) -> None:
        while True:
            now = self._clock.monotonic_s()
            while self._ends and self._ends[0][0] <= now:
                _, _, task_id, attempt, placements = heapq.heappop(self._ends)
                for placement in placements:
                    ref = _replica(task_id, attempt, placement)
                    self._report(placement.node, TaskExitedV1(**ref, exit_code=0))
                    self._report(placement.node, SlotsReleasedV1(**ref, never_started=False))
            await self._write()
            await self._clock.sleep(TICK_S)

    async def _beats(self) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        records = [self._record(node, self._heartbeat(node), key=node) for node in self.nodes]
        for at in range(0, len(records), BATCH):
            await self._log.append(Partition(HEARTBEATS.name), records[at : at + BATCH])

    def _report(self, node: str, event: Event) -> None:
        self._reports.append(self._record(node, event, key=CELL))

    async def _write(self) -> None:
        while self._reports:
            batch, self._reports = self._reports[:BATCH], self._reports[BATCH:]
            await self._log.append(Partition(NODE_EVENTS.name), batch)

    def _record(self, node: str, event: Event, *, key: str) -> Record:
        seq = self._seq[node]
        self._seq[node] += 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=agent_source(node, LIFE),
            epoch=self._epoch,
            seq=seq,
            subject=getattr(event, "task_id", node),
            time_ms=self._clock.now_ms(),
            actor=Actor(kind=ActorKind.NODE, id=node),
            data=event,
        )
        return encode(envelope, key)

    def _heartbeat(self, node: str) -> NodeHeartbeatV1:
        return NodeHeartbeatV1(
            node=node,
            incarnation=LIFE,
            sent_at_ms=self._clock.now_ms(),
            running=0,
            gpu_milli_used=0,
        )

    def _joined(self, node: str) -> NodeJoinedV1:
        return NodeJoinedV1(
            node=node,
            incarnation=LIFE,
            boot_id=BOOT,
            schema_version=1,
            pool="default",
            node_type="any",
            gpus=self._gpus,
            cpu_milli=256_000,
            memory_mib=2 * 1024 * 1024,
            address="127.0.0.1",
            port_first=20_000,
            port_last=20_099,
        )


def _replica(task_id: str, attempt: int, placement: Placement) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "attempt": attempt,
        "replica": placement.replica,
        "node": placement.node,
        "incarnation": placement.incarnation,
    }
