"""Heartbeats and output: whose note counts, and what stays erased."""

from dataclasses import replace

import pytest

from tests.support import logs
from tests.support.events import sample
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition
from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.rows import JobRow, OutputRow
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events.expiring import TaskOutputV1
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import TASK_LOGS
from yardmaster_views.follower import Follower

JOB = "a" * 12
TASK = f"{JOB}.0"
KEY = f"{TASK}/1"


class OutputCell(ViewsCell):
    """A cell with a job, whose node writes output."""

    def __init__(self) -> None:
        super().__init__(LogBuilder())
        self.builder.request(logs.log_created())
        self.builder.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
        self.builder.claim(logs.joined("n1"))
        self.builder.scheduler.cycle()
        self.builder.judged(logs.submitted(JOB), logs.admitted(JOB))
        self.builder.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
        self.seq = 0

    async def append_output(self) -> int:
        """Append a piece of output; return its offset."""
        self.seq += 1
        data = replace(sample(TaskOutputV1).data, task_id=TASK, attempt=1, node="n1")
        source = agent_source("n1", logs.incarnation())
        envelope = replace(sample(TaskOutputV1), data=data, source=source, seq=self.seq)
        return await self.log.append(Partition(TASK_LOGS.name), [encode(envelope, TASK)])

    async def late_worker(self) -> Follower:
        """A worker that knows what there is now."""
        follower = self.another()
        await follower.start()
        return follower

    def output(self) -> OutputRow | None:
        return self.store.find(OutputRow, KEY)


@pytest.fixture
async def cell() -> OutputCell:
    cell = OutputCell()
    await cell.catch_up()
    return cell


async def test_a_worker_that_is_late_does_not_set_back_where_output_ends(cell: OutputCell) -> None:
    late = await cell.late_worker()
    first = await cell.append_output()
    get_all = cell.store.get_all

    async def overtaken(wanted):
        """Another worker notes all there is after the late one has looked."""
        cell.store.get_all = get_all  # type: ignore[method-assign]
        found = await get_all(wanted)
        await cell.catch_up()
        await cell.append_output()
        await cell.catch_up()
        return found

    cell.store.get_all = overtaken  # type: ignore[method-assign]
    with pytest.raises(ViewsMoved):
        await late.catch_up()
    assert cell.output() == OutputRow(task_id=TASK, attempt=1, first=first, last=first + 1)
    assert (await cell.store.notes())[TASK_LOGS.name] == first + 2
    await late.start()
    last = await cell.append_output()
    await late.catch_up()
    assert cell.output() == OutputRow(task_id=TASK, attempt=1, first=first, last=last)


async def test_output_of_a_job_that_is_erased_does_not_come_back(cell: OutputCell) -> None:
    await cell.append_output()
    await cell.catch_up()
    assert isinstance(cell.output(), OutputRow)
    cell.builder.quota.cycle(a.DetailsErasedV1(job_id=JOB))
    await cell.catch_up()
    assert cell.output() is None
    last = await cell.append_output()
    await cell.catch_up()
    assert cell.output() is None
    assert (await cell.store.notes())[TASK_LOGS.name] == last + 1

    # Also in a new fold, where the output is read after its erasure.
    refolded = ViewsCell(cell.builder)
    refolded.log = cell.log
    follower = refolded.another()
    await follower.start()
    await follower.catch_up()
    job = refolded.store.find(JobRow, JOB)
    assert job is not None
    assert job.facts.erased
    assert refolded.store.find(OutputRow, KEY) is None


async def test_a_worker_that_is_late_brings_no_erased_output_back(cell: OutputCell) -> None:
    await cell.append_output()
    late = await cell.late_worker()
    get_all = cell.store.get_all

    async def overtaken(wanted):
        cell.store.get_all = get_all  # type: ignore[method-assign]
        found = await get_all(wanted)
        cell.builder.quota.cycle(a.DetailsErasedV1(job_id=JOB))
        await cell.catch_up()
        return found

    cell.store.get_all = overtaken  # type: ignore[method-assign]
    with pytest.raises(ViewsMoved):
        await late.catch_up()
    assert cell.output() is None
