"""A decision that is larger than a record may be ends its task; the cell continues."""

from dataclasses import replace
from pathlib import Path

from tests.support.cell_world import World, job, of, submission
from tests.support.logs import joined, submitted
from yardmaster_runtime.settings import CycleLimits
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    AllocationUnwritableV1,
    SlotsAllocatedV1,
    TaskEndedV1,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import DECISIONS, KIB, TOPICS


async def tight_world(tmp_path: Path) -> World:
    """A broker that takes less than the catalogue says, so that quota admits what does not fit."""
    world = World(tmp_path)
    topics = [
        replace(t, max_batch_bytes=64 * KIB) if t is DECISIONS else t for t in TOPICS.values()
    ]
    await world.log.create_topics(topics)
    await world.create(node_timeout_s=3600)
    return world


def too_large() -> Event:
    return submitted(job(0), resources=Resources(), replicas_min=500, replicas_max=500)


async def test_a_job_whose_allocation_cannot_be_written_ends_and_other_jobs_run(
    tmp_path: Path,
) -> None:
    world = await tight_world(tmp_path)
    async with world.running():
        await world.claim(joined("n1", 1))
        await world.request(too_large(), submission(1))
        events = await world.happens(
            lambda e: bool(of(SlotsAllocatedV1, e)) and bool(of(TaskEndedV1, e))
        )
    assert [one.task_id for one in of(AllocationUnwritableV1, events)] == [f"{job(0)}.0"]
    (ended,) = of(TaskEndedV1, events)
    assert (ended.task_id, ended.code) == (f"{job(0)}.0", "decision_too_large")
    assert [one.task_id for one in of(SlotsAllocatedV1, events)] == [f"{job(1)}.0"]
    assert "machine_stopped" not in world.lines.getvalue()
    await world.prove()


async def test_an_unwritable_allocation_late_in_a_split_cycle_ends_its_task(
    tmp_path: Path,
) -> None:
    world = await tight_world(tmp_path)
    async with world.running(cycle=CycleLimits(max_decisions=1)):
        await world.claim(joined("n1", 4))
        await world.request(submission(1), submission(2), too_large(), submission(3))
        events = await world.happens(lambda e: bool(of(TaskEndedV1, e)))
    assert [one.task_id for one in of(AllocationUnwritableV1, events)] == [f"{job(0)}.0"]
    assert "machine_stopped" not in world.lines.getvalue()
    await world.prove()
