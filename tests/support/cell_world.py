"""Quota, scheduler and relay on a log in memory; the test plays gateway and agents."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.support.audit import assert_audit_clean
from tests.support.logs import (
    LogBuilder,
    log_created,
    subject_of,
    submitted,
)
from tests.support.memory_cell import MemoryCell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.verify import verify
from yardmaster_runtime.service import Ports, candidate
from yardmaster_runtime.settings import RuntimeSettings, SnapshotLimits
from yardmaster_scheduler import main as scheduler
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import assignments


def job(number: int) -> str:
    return f"job{number:09d}"


class SynchronousExecutor(ThreadPoolExecutor):
    """Runs what a service gives to a thread right away: no test depends on a thread's speed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            done.set_exception(error)
        return done


class World(MemoryCell):
    """Both machines on a log in memory; the test plays gateway and agents."""

    clock: ManualClock
    log: MemoryLog

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.chance = SeededChance(3)
        self.writers = LogBuilder(now_ms=self.clock.now_ms())
        self.snapshots = SnapshotStore(str(folder), executor=SynchronousExecutor())

    async def create(self, **pool: Any) -> Self:
        await super().create()
        config = PoolConfig(policy=PolicyRef(name="priority"), **pool)
        await self.request(
            log_created(),
            PoolChangeRequestedV1(pool="default", config=config),
            DepartmentChangeRequestedV1(department="research", config=DepartmentConfig()),
            ProjectChangeRequestedV1(project="nlp", config=ProjectConfig(department="research")),
        )
        return self

    def ports(self, service: str) -> Ports:
        return Ports(
            log=self.log,
            clock=self.clock,
            chance=self.chance,
            telemetry=self.telemetry(service),
            snapshots=self.snapshots,
        )

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(SynchronousExecutor())
        limits = RuntimeSettings(snapshot=SnapshotLimits(every_cycles=3), **settings)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    candidate(QuotaMachine(check), self.ports("quota"), limits).run()
                ),
                group.create_task(scheduler.run(self.ports("scheduler"), limits)),
            ]
            yield
            for task in tasks:
                task.cancel()

    async def request(self, *events: Event) -> None:
        await self._put(
            "requests", [self.writers.gateway.envelope(e, subject_of(e)) for e in events]
        )

    async def claim(self, *events: Any) -> None:
        await self._put("node-events", [self.writers.claim(e).envelope for e in events])

    async def _put(self, topic: str, envelopes: Sequence[Any]) -> None:
        now_ms = self.clock.now_ms()
        records = [encode(replace(e, time_ms=now_ms), "main") for e in envelopes]
        await self.log.append(Partition(topic), records)

    async def decisions(self) -> list[Event]:
        return await self.events("decisions")

    async def happens(self, true: Callable[[list[Event]], bool]) -> list[Event]:
        """Wait until `true` accepts the decisions; return them."""
        seen: list[Event] = []
        for _ in range(400):
            seen = await self.decisions()
            if true(seen):
                return seen
            await self.pass_time(0.02)
        raise AssertionError(
            f"the expected decisions did not appear; the last decisions are {seen[-5:]}"
        )

    async def run_for_half_a_second(self) -> None:
        """Advance the clock by half a second and let every task run."""
        for _ in range(25):
            await self.pass_time(0.02)

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock at once, and let every task run."""
        self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)

    async def relayed(self, node: str, count: int) -> list[Event]:
        """Wait for `count` decisions that the relay sent to a node."""
        for _ in range(400):
            with suppress(UnknownTopic):
                if len(found := await self.assigned(node)) >= count:
                    return found
            await self.pass_time(0.02)
        raise AssertionError(f"{node} did not receive {count} decisions")

    async def assigned(self, node: str) -> list[Event]:
        """The events that the relay sent to a node."""
        records = await self.log.read(Partition(assignments(node).name), 0)
        return [
            decode(Record(r.key, r.value, r.headers[:-1])).data for r in (s.record for s in records)
        ]

    async def prove(self) -> None:
        report = await verify(self.log, [QuotaMachine(check), SchedulerMachine()], "main")
        # The test writes no details, so findings about them are expected.
        assert [f for f in report.findings if f.topic != "details"] == []
        assert report.promises == ()
        await assert_audit_clean(self.log)


def of(kind: type[Event], events: list[Event]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def submission(number: int, gpus: int = 1) -> Event:
    return submitted(job(number), resources=Resources(gpus=gpus, gpu_milli=1000))
