"""Compaction of `details`, the one compacted topic, on a real broker."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.gateway import GatewayCell, through_both
from tests.support.kafka_broker import KafkaBroker
from tests.support.views import telemetry
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.errors import DetailsUnreadable
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.reader import read_details
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.topics import DETAILS
from yardmaster_views.follower import Follower, Metrics, Views

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

PLACE = Partition(DETAILS.name)
LIMIT_S = 90.0
#: Of the topic in this test; in production, a record is compacted after a day at the latest.
AT_ONCE = {
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
}


async def compact(broker: KafkaBroker, log: KafkaLog) -> None:
    """Have the broker compact all records that `details` has now; return when it has done so."""
    end = await log.end(PLACE)
    # The first of them is removed when everything before it was compacted.
    for _ in range(2):
        await log.append(PLACE, [Record(b"shows-compaction", b"x")])
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, PLACE.topic, AT_ONCE)])
    finally:
        await admin.close()
    async with asyncio.timeout(LIMIT_S):
        while True:
            # A new record closes the segment before it, and only closed segments are compacted.
            await log.append(PLACE, [Record(b"tick", None)])
            found = await log.read(PLACE, end, max_records=1)
            if found[0].offset > end:
                return
            await asyncio.sleep(0.5)


async def offsets(log: KafkaLog) -> set[int]:
    found: set[int] = set()
    offset, end = 0, await log.end(PLACE)
    while offset < end and (records := await log.read(PLACE, offset)):
        found |= {one.offset for one in records}
        offset = records[-1].offset + 1
    return found


async def commands(cell: GatewayCell, log: KafkaLog) -> dict[str, list[str]]:
    """The command of each admitted job, as an agent reads it."""
    found: dict[str, list[str]] = {}
    for admitted in await cell.events("admissions"):
        if isinstance(admitted, TaskAdmittedV1):
            try:
                details = (await read_details(log, admitted.details)).data
            except DetailsUnreadable:
                found[admitted.job_id] = []
                continue
            assert isinstance(details, JobDetailedV1)
            assert details.run is not None
            found[admitted.job_id] = list(details.run.command)
    return found


async def rebuilt(cell: GatewayCell, log: KafkaLog) -> MemoryViewStore:
    """New views of the compacted log."""
    store = MemoryViewStore("main", cell.clock)
    follower = Follower(log, Views(store, store), "main", 0, Metrics(telemetry("views")))
    await follower.start()
    await follower.catch_up()
    return store


async def test_compaction_keeps_the_command_of_every_job_and_removes_what_was_erased(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    settings = {"log.cleaner.backoff.ms": "500"}
    with KafkaBroker(tmp_path, settings=settings) as broker:
        log = await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), clock)
        try:
            cell = await GatewayCell(log=log, clock=clock).start()
            first = await cell.submit(run={"command": ["first"]})
            body: dict[str, Any] = {"project": "nlp", "run": {"command": ["of both gateways"]}}
            answers = await through_both(cell, body, body)
            both = str(answers[0].json()["job_id"])
            erased = await cell.submit(run={"command": ["erased"]}, resources={"gpus": 8})
            await cell.call("POST", f"/v1/jobs/{erased}/cancel", token="nlp", status=202, json={})
            await cell.run_until_idle()
            await cell.call("POST", f"/v1/jobs/{erased}/erase", token="admin", status=202)
            requests = [e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)]
            assert len(requests) == 4, "both gateways must record the job for this test"
            before = await offsets(log)

            await compact(broker, log)
            assert await offsets(log) < before | set(range(max(before) + 1, await log.end(PLACE)))
            assert await commands(cell, log) == {
                first: ["first"],
                both: ["of both gateways"],
                erased: [],
            }
            machines: list[Machine[Any]] = [QuotaMachine(check), SchedulerMachine()]
            report = await verify(log, machines, "main")
            assert report.findings == ()

            cell.store = await rebuilt(cell, log)
            cell.ports = replace(cell.ports, views=cell.store, telemetry=telemetry("gateway"))
            again = await through_both(cell, body, body)
            assert [answer.json()["job_id"] for answer in again] == [both, both], "one key, one job"
            shown = await cell.call("GET", f"/v1/jobs/{both}")
            assert shown["run"]["command"] == body["run"]["command"]
        finally:
            await log.close()
