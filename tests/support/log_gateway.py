"""Append requests to a cluster's log as a gateway does, for tests without a gateway."""

import hashlib
from collections.abc import Sequence
from typing import Any

from tests.support.cluster import Cluster
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.details import JobDetailedV1, Run
from yardmaster_schemas.events.requests import (
    DetailsRef,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    SubmittedSpec,
    TaskSubmittedV1,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import DETAILS, REQUESTS

CELL = "main"


class LogGateway:
    """Writes the records of a gateway, without HTTP: one batch per call."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = SystemClock()
        self._epoch = self._clock.now_ms()
        self._seq = 0
        self._jobs = 0

    def pool(self, name: str, **config: Any) -> None:
        """Configure a pool."""
        made = PoolConfig(policy=PolicyRef(name="priority"), **config)
        self._ask(self._record(PoolChangeRequestedV1(pool=name, config=made), name, CELL))

    def submit(
        self, command: Sequence[str], *, pool: str = "default", tasks: int = 1, **spec: Any
    ) -> list[str]:
        """Submit a job with one GPU per replica; return the ids of its tasks."""
        self._jobs += 1
        job_id = f"gate{self._jobs:08d}"
        details = JobDetailedV1(
            job_id=job_id, salt="0" * 32, name="a job", user="us", run=Run(command=tuple(command))
        )
        record = self._record(details, job_id, job_id)
        assert record.value is not None

        async def submit(log: EventLog) -> None:
            offset = await log.append(Partition(DETAILS.name), [record])
            digest = hashlib.sha256(record.value or b"").hexdigest()
            event = TaskSubmittedV1(
                job_id=job_id,
                project="default",
                spec=SubmittedSpec(
                    pools=(pool,), tasks=tasks, resources=Resources(gpus=1, gpu_milli=1000), **spec
                ),
                body_digest="0" * 64,
                details=DetailsRef(offset=offset, digest=digest),
            )
            await log.append(Partition(REQUESTS.name), [self._record(event, job_id, CELL)])

        self._cluster.on_log(submit)
        return [f"{job_id}.{index}" for index in range(tasks)]

    def _ask(self, *records: Record) -> None:
        self._cluster.on_log(lambda log: log.append(Partition(REQUESTS.name), records))

    def _record(self, event: Event, subject: str, key: str) -> Record:
        self._seq += 1
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source="gateway/gateway",
            epoch=self._epoch,
            seq=self._seq,
            subject=subject,
            time_ms=self._clock.now_ms(),
            actor=Actor(kind=ActorKind.USER, id="us"),
            data=event,
        )
        return encode(envelope, key)
