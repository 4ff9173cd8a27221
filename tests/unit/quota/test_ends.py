"""Quota reads the scheduler's topic, and the scheduler reads quota's, on one log."""

import asyncio
from contextlib import suppress

from pydantic_core import to_json

from tests.support.audit import assert_audit_clean
from tests.support.cell_world import World, job, of, submission
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Partition
from yardmaster_quota import main as quota
from yardmaster_runtime.machine.snapshotting import SLICE, encoded
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_schemas.events.admissions import (
    EntitlementsChangedV1,
    RequestRefusedV1,
    TaskRejectedV1,
)
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    CellChangeRequestedV1,
    CellConfig,
    ProjectDeletionRequestedV1,
)
from yardmaster_schemas.reasons import AdmissionCode

DELETION = ProjectDeletionRequestedV1(project="nlp")


async def verdicts(world):
    stored = await world.log.read(Partition("admissions"), 0, max_records=100_000)
    return [decode(each.record).data for each in stored]


async def test_a_project_can_be_deleted_after_its_last_job_has_ended(tmp_path):
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.request(submission(1), DELETION)
        await world.run_for_half_a_second()
        (refused,) = of(RequestRefusedV1, await verdicts(world))
        assert (refused.code, refused.numbers) == (AdmissionCode.IN_USE, {"uses": 1})
        await world.request(CancelRequestedV1(job_id=job(1)))
        await world.happens(lambda seen: bool(of(TaskEndedV1, seen)))
        await world.run_for_half_a_second()
        await world.request(DELETION)
        await world.run_for_half_a_second()
        deleted = of(EntitlementsChangedV1, await verdicts(world))[-1]
        assert (deleted.name, deleted.project) == ("nlp", None)
    await world.prove()


async def test_the_leader_exposes_unfinished_tasks_kept_ids_and_rejections(tmp_path):
    world = World(tmp_path)
    await world.create()
    ports = world.ports("quota")
    leading = asyncio.create_task(quota.admit(ports, RuntimeSettings()))
    limit = CellChangeRequestedV1(config=CellConfig(user_tasks=1), if_revision=0)
    await world.request(limit, submission(1), submission(2))
    while not of(TaskRejectedV1, await verdicts(world)):
        # The leader looks for snapshots in a thread, so real time passes too.
        world.clock.advance(0.02)
        await asyncio.sleep(0.002)
    await world.run_for_half_a_second()
    shown = ports.telemetry.exposition().decode()
    assert 'yard_quota_tasks_unfinished{project="nlp"} 1.0' in shown
    assert "yard_quota_jobs 1.0" in shown
    assert "yard_quota_job_ids_kept 1.0" in shown
    assert 'yard_quota_jobs_rejected_total{code="user_full"} 1.0' in shown
    leading.cancel()
    with suppress(asyncio.CancelledError):
        await leading
    await assert_audit_clean(world.log)


async def test_two_machines_that_read_each_other_run_no_cycle_without_work(tmp_path):
    world = World(tmp_path)
    await world.create()
    topics = (Partition("admissions"), Partition("decisions"))
    async with world.running():
        await world.request(submission(1), CancelRequestedV1(job_id=job(1)))
        await world.happens(lambda seen: bool(of(TaskEndedV1, seen)))
        await world.run_for_half_a_second()
        before = [await world.log.end(topic) for topic in topics]
        for _ in range(20):
            await world.run_for_half_a_second()
        assert [await world.log.end(topic) for topic in topics] == before
    await world.prove()


async def test_a_snapshot_is_encoded_in_slices_and_equals_one_encoded_at_once():
    jobs = {f"job{n}": ["nlp", n] for n in range(2 * SLICE + 1)}
    state = {"form": 4, "jobs": jobs, "judged_ids": ["AA=="] * 4096, "work": []}
    dump = {"format": 1, "cell": "main", "state": state}
    turns = 0

    async def another_task():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(another_task())
    assert await encoded(dump) == to_json(dump, bytes_mode="base64")
    assert turns >= 3 + 4096 // SLICE
    other.cancel()
    for small in ({"state": [1]}, {"format": 1, "state": {}}, {"a": 1, "state": {"x": None}}):
        assert await encoded(small) == to_json(small)
