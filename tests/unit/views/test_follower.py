"""Following a log into views: order, restarts, damage, a log that fails now and then."""

import asyncio
import itertools
from typing import Any

import pytest

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell, telemetry
from yardmaster_core.errors import ChainBroken, ForeignRecord
from yardmaster_eventlog.errors import LogTruncated, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import JobRow, NodeRow, RequestRow, TaskRow
from yardmaster_projections.store import Query
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.admissions import TaskRejectedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.reasons import AdmissionCode
from yardmaster_schemas.topics import TOPICS
from yardmaster_views.follower import MAX_TASKS, Follower, Metrics, Views
from yardmaster_views.main import ViewsPorts, ViewsSettings, run

JOB = "a" * 12
TASK = f"{JOB}.0"


def story() -> LogBuilder:
    """A job from its submission to the release of its slots."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    resources = logs.admitted(JOB).spec.resources
    log.judged(logs.submitted(JOB, resources=resources), logs.admitted(JOB))
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle()
    log.claim(logs.exited(TASK, "n1"))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle()
    return log


async def rows(store: MemoryViewStore) -> list[Any]:
    found: list[Any] = []
    for kind in (JobRow, TaskRow, NodeRow, RequestRow):
        found += (await store.page(kind, Query(limit=1000))).rows
    return found


async def test_the_position_covers_what_the_rows_show() -> None:
    followed = ViewsCell(story())
    store = await followed.catch_up()
    assert await store.position() == Position(
        cell="main", requests=2, admissions=7, node_events=4, decisions=6
    )


async def test_any_split_of_the_log_over_steps_gives_the_same_views() -> None:
    whole = await ViewsCell(story()).catch_up()
    entries = story().entries
    for step in (1, 2, 3, 5):
        builder = LogBuilder()
        followed = ViewsCell(builder)
        for index in range(0, len(entries), step):
            builder.entries = entries[: index + step]
            await followed.catch_up()
        store = followed.store
        assert await rows(store) == await rows(whole)
        assert await store.position() == await whole.position()


async def test_a_follower_that_starts_again_goes_on_where_the_store_is() -> None:
    whole = await ViewsCell(story()).catch_up()
    entries = story().entries
    for cut in range(len(entries)):
        builder = LogBuilder()
        builder.entries = entries[:cut]
        followed = ViewsCell(builder)
        await followed.catch_up()
        again = followed.another()
        await again.start()
        followed.follower = again
        builder.entries = entries
        store = await followed.catch_up()
        assert await rows(store) == await rows(whole), f"cut after record {cut}"


async def test_an_effect_never_shows_before_its_cause() -> None:
    builder = story()
    followed = ViewsCell(builder)
    positions: list[Position] = []
    phases: list[Phase] = []
    apply = followed.store.apply

    async def noting(changes: Any, position: Position, notes: Any, **known: Any) -> None:
        await apply(changes, position, notes, **known)
        positions.append(position)
        row = followed.store.find(TaskRow, TASK)
        if row is not None and (not phases or phases[-1] is not row.phase):
            phases.append(row.phase)

    followed.store.apply = noting  # type: ignore[method-assign]
    await followed.catch_up()
    assert phases == [Phase.SUBMITTED, Phase.PENDING, Phase.STARTING, Phase.RUNNING]
    for before, after in itertools.pairwise(positions):
        assert after.covers(before)
        assert after != before


async def test_what_is_no_request_is_passed_over() -> None:
    log = story()
    log.raw("requests")
    log.append("requests", log.gateway.envelope(logs.joined("n9"), "n9"))
    store = await ViewsCell(log).catch_up()
    assert (await store.position()).requests == 4
    assert await store.get(NodeRow, "n9") is None


async def test_what_cannot_be_read_in_a_machines_topic_stops_the_views() -> None:
    log = story()
    log.raw("decisions")
    with pytest.raises(ForeignRecord, match="decisions offset 6"):
        await ViewsCell(log).catch_up()


async def test_a_broken_chain_stops_the_views() -> None:
    log = story()
    log.scheduler.cycle(commit={"prev": "0" * 64})
    with pytest.raises(ChainBroken):
        await ViewsCell(log).catch_up()


async def test_a_log_that_lost_what_a_cycle_took_stops_the_views() -> None:
    builder = story()
    builder.entries = [e for e in builder.entries if (e.topic, e.offset) != ("node-events", 3)]
    with pytest.raises(LogTruncated, match="node-events"):
        await ViewsCell(builder).catch_up()


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("cached", [0, 100])
@pytest.mark.parametrize("topic", ["requests", "admissions", "node-events", "decisions"])
async def test_views_do_not_start_on_a_log_that_lost_what_they_contain(
    topic: str, cached: int, grown: bool
) -> None:
    followed = ViewsCell(story(), cached=cached)
    store = await followed.catch_up()
    position, partition = await store.position(), Partition(topic)
    followed.log.cut(partition, await followed.log.end(partition) - 1)
    # A handle that has read nothing, as after a restart.
    followed.log = followed.log.handle()
    if grown:
        (first,) = await followed.log.read(partition, 0, max_records=1)
        await followed.log.append(partition, [first.record] * 2)
    with pytest.raises(LogTruncated, match=topic):
        await followed.another().start()
    assert await store.position() == position, "the store is unchanged"


async def test_details_count_only_under_their_digest() -> None:
    from hashlib import sha256

    from yardmaster_eventlog.codec import encode
    from yardmaster_schemas.events.details import JobDetailedV1, Run
    from yardmaster_schemas.events.requests import DetailsRef, TaskSubmittedV1

    for honest in (True, False):
        log = LogBuilder()
        details = JobDetailedV1(
            job_id=JOB, salt="0" * 32, name="sft", user="Nina", run=Run(command=("a",))
        )
        record = encode(log.gateway.envelope(details, JOB), JOB)
        followed = ViewsCell(log)
        await followed.catch_up()
        offset = await followed.log.append(Partition("details"), [record])
        digest = sha256(record.value or b"").hexdigest() if honest else "f" * 64
        request = logs.submitted(JOB)
        log.request(
            TaskSubmittedV1(
                job_id=JOB,
                project="nlp",
                spec=request.spec,
                body_digest="b" * 64,
                details=DetailsRef(offset=offset, digest=digest),
            )
        )
        store = await followed.catch_up()
        job = await store.get(JobRow, JOB)
        assert job is not None
        assert (job.facts.name, job.facts.user) == (("sft", "Nina") if honest else (JOB, "gw-1"))


class FlakyLog(MemoryLog):
    """Reads of `decisions` fail every second time."""

    reads = 0

    async def read(self, partition, offset, **how):
        if partition.topic == "decisions":
            self.reads += 1
            if self.reads % 2:
                raise LogUnavailable(found="a broker restarts")
        return await super().read(partition, offset, **how)


async def test_the_service_survives_a_log_that_is_away_for_a_while() -> None:
    clock = ManualClock()
    log = FlakyLog(clock)
    await log.create_topics(tuple(TOPICS.values()))
    await story().write_to(log)
    store = MemoryViewStore("main", clock)
    ports = ViewsPorts(log=log, views=Views(store, store), clock=clock, telemetry=telemetry())
    whole = await ViewsCell(story()).catch_up()
    async with asyncio.TaskGroup() as group:
        service = group.create_task(run(ports, ViewsSettings()))
        for _ in range(200):
            await asyncio.sleep(0)
            clock.advance(1)
            if await store.position() == await whole.position():
                break
        service.cancel()
    assert await rows(store) == await rows(whole)


async def test_the_service_stops_loudly_at_damage() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    await log.create_topics(tuple(TOPICS.values()))
    await log.append(Partition("admissions"), [Record(key=b"main", value=b"junk")])
    store = MemoryViewStore("main", clock)
    ports = ViewsPorts(log=log, views=Views(store, store), clock=clock, telemetry=telemetry())
    with pytest.raises(ForeignRecord):
        await run(ports, ViewsSettings())


async def test_lag_is_measured() -> None:
    builder = story()
    followed = ViewsCell(builder)
    await followed.catch_up()
    await followed.log.append(Partition("decisions"), [builder.of("decisions")[0].record])
    assert followed.follower is not None
    assert await followed.follower.measure() == 1
    exposition = followed.follower._metrics.telemetry.exposition().decode()
    assert 'yard_views_lag_records{topic="decisions",view="views"} 1.0' in exposition


async def test_what_is_far_behind_is_caught_up_in_rounds() -> None:
    whole = await ViewsCell(story()).catch_up()
    followed = ViewsCell(LogBuilder())
    await followed.catch_up()
    await story().write_to(followed.log)
    follower = followed.follower
    assert follower is not None
    reached = [await follower.catch_up(steps=1)]
    while await followed.log.wait(follower.ends(), 0):
        reached.append(await follower.catch_up(steps=1))
        assert reached[-1].covers(reached[-2])
        assert len(reached) < 100
    assert len(reached) > 2
    assert reached[-1] == await whole.position()
    assert await rows(followed.store) == await rows(whole)


async def test_a_step_of_requests_ends_after_so_many_tasks() -> None:
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    jobs = [f"{number:012d}" for number in range(5)]
    causes = [log.request(logs.submitted(job, tasks=MAX_TASKS // 2)) for job in jobs]
    followed = ViewsCell(log)
    steps: list[tuple[int, int]] = []
    apply = followed.store.apply

    async def noting(changes: Any, position: Position, notes: Any, **known: Any) -> None:
        tasks = sum(isinstance(change.row, TaskRow) for change in changes)
        steps.append((position.requests or 0, tasks))
        await apply(changes, position, notes, **known)

    followed.store.apply = noting  # type: ignore[method-assign]
    await followed.catch_up()
    halves = [(3, MAX_TASKS), (5, MAX_TASKS), (6, MAX_TASKS // 2)]
    assert [each for each in steps if each[1]] == halves

    # Also where a cycle of quota's takes them all.
    rejected = TaskRejectedV1(job_id=jobs[0], code=AdmissionCode.PROJECT_UNKNOWN)
    log.quota.cycle((rejected, causes[0]))
    again = ViewsCell(log)
    await again.catch_up()
    assert await again.store.position() == Position(
        cell="main", requests=6, admissions=7, node_events=0, decisions=0
    )


async def test_views_that_lack_records_which_have_expired_name_them() -> None:
    followed = ViewsCell(story())
    store = await followed.catch_up()
    whole = await rows(store)
    followed.log.lose_before(Partition("node-events"), 2)
    assert await rows(await followed.catch_up()) == whole, "those that have projected them continue"
    empty = MemoryViewStore(followed.builder.cell, followed.clock)
    follower = Follower(
        *(followed.log, Views(empty, empty), followed.builder.cell, 0, Metrics(telemetry()))
    )
    await follower.start()
    with pytest.raises(
        LogBeginsLater, match=r"records 0 to 1 of node-events/0 have expired.*views"
    ):
        await follower.catch_up()
