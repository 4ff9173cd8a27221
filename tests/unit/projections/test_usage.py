"""Metered usage: GPU time by user and hour; repeats and restarts change nothing."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import logs
from tests.support.logs import LogBuilder, Writer
from tests.support.views import ViewsCell
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.fold import USAGE
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.metered import MAX_TRIES, Metered, UsageQuery, bucket_of, metered
from yardmaster_projections.queries import ALL_PROJECTS, Visibility
from yardmaster_projections.rows import R
from yardmaster_projections.store import Found, Page, Query, RowKey
from yardmaster_projections.usage import HOUR_MS, HeldRow, OwnerRow, SubmissionRow, UsageRow, hours
from yardmaster_schemas.api import UsageBucket, UsageBy
from yardmaster_schemas.envelope import ActorKind
from yardmaster_schemas.events.admissions import TaskRejectedV1
from yardmaster_schemas.events.decisions import (
    LossCause,
    NodeLostV1,
    Outcome,
    SlotsAllocatedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.node_events import ReplicaRef, SlotsReleasedV1
from yardmaster_schemas.instants import parse_rfc3339
from yardmaster_schemas.reasons import AdmissionCode, EndCode, RefusalCode

START = logs.START_MS
JOB = "a" * 12
TASK = f"{JOB}.0"


def begun(*jobs: str) -> LogBuilder:
    """A cell with two nodes and jobs that were admitted."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project(), after_ms=0)
    log.claim(logs.joined("n1"))
    log.claim(logs.joined("n2"))
    log.scheduler.cycle(after_ms=0)
    for job in jobs:
        log.quota.cycle((logs.admitted(job), log.request(logs.submitted(job))), after_ms=0)
        log.scheduler.cycle(after_ms=0)
    return log


async def counted(log: LogBuilder, **how: Any) -> MemoryViewStore:
    return await ViewsCell(log, fold=USAGE, **how).catch_up()


def used(store: MemoryViewStore) -> dict[int, int]:
    """gpu_milli x ms by hours since the start."""
    rows = store.rows(UsageRow).values()
    return {(row.hour_ms - START) // HOUR_MS: row.gpu_milli_ms for row in rows}


async def test_slots_are_billed_from_the_allocation_to_the_cycle_that_takes_their_release() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0, 1)), after_ms=10_000)
    log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle(after_ms=60_000)
    log.claim(logs.exited(TASK, "n1"))
    log.claim(logs.released(TASK, "n1"))
    before = await counted(log)
    assert used(before) == {}  # a claim counts when a cycle takes it, and at that cycle's time
    assert [row.gpu_milli for row in before.rows(HeldRow).values()] == [2000]
    log.scheduler.cycle(after_ms=30_000)
    store = await counted(log)
    assert used(store) == {0: 2000 * 90_000}
    assert store.rows(HeldRow) == {}
    (row,) = store.rows(UsageRow).values()
    assert (row.project, row.user, row.pool) == ("nlp", "gw-1", "default")


async def test_time_is_split_at_the_hour() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)), after_ms=HOUR_MS - 1)
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(after_ms=HOUR_MS + 3)
    store = await counted(log)
    assert used(store) == {0: 1000, 1: 1000 * HOUR_MS, 2: 2000}


async def test_a_fraction_of_a_gpu_is_billed_as_one() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0, gpu_milli=250)))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(after_ms=4_000)
    assert used(await counted(log)) == {0: 250 * 4_000}


async def test_a_task_without_a_gpu_costs_no_gpu_time() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1")))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(after_ms=4_000)
    assert used(await counted(log)) == {}


async def test_each_replica_is_billed_until_its_own_slots_are_free() -> None:
    log = begun(JOB)
    placements = (logs.placed("n1", 0), logs.placed("n2", 0, 1, replica=1))
    log.scheduler.cycle(logs.allocated(TASK, *placements))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(after_ms=1_000)
    log.claim(logs.released(TASK, "n2", replica=1))
    log.scheduler.cycle(after_ms=1_000)
    assert used(await counted(log)) == {0: 1000 * 1_000 + 2000 * 2_000}


async def test_a_lost_node_ends_what_is_billed_on_it() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.scheduler.cycle(lost("n1", (TASK, 1, 0)), after_ms=7_000)
    assert used(await counted(log)) == {0: 1000 * 7_000}


async def test_what_is_released_twice_is_billed_once() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    for _ in range(3):
        log.claim(logs.released(TASK, "n1"))
        log.scheduler.cycle(after_ms=1_000)
    assert used(await counted(log)) == {0: 1_000_000}


def ended(task: str) -> TaskEndedV1:
    return TaskEndedV1(task_id=task, attempt=1, outcome=Outcome.SUCCEEDED, code=EndCode.EXIT)


async def test_a_job_is_forgotten_when_its_tasks_have_ended() -> None:
    log = begun(JOB)
    assert list((await counted(log)).rows(OwnerRow)) == [JOB]
    log.scheduler.cycle(ended(TASK))
    assert not (await counted(log)).rows(OwnerRow)


@pytest.mark.parametrize("cached", [0, 3])
@pytest.mark.parametrize("how", ["refused", "rejected"])
async def test_a_submission_that_did_not_count_says_nothing_of_the_one_that_did(
    how: str, cached: int
) -> None:
    log = begun()
    at = log.end("requests")
    cause = log.request(logs.submitted(JOB))
    if how == "rejected":
        verdict = TaskRejectedV1(job_id=JOB, code=AdmissionCode.PROJECT_UNKNOWN)
        log.quota.cycle((verdict, cause))
        refused = []
    else:
        log.request(logs.submitted(JOB))
        refused = [("requests", at + each, RefusalCode.CONTRADICTION) for each in (0, 1)]
    log.gateway = Writer(log, "gateway/gw-2", ActorKind.USER)
    second = log.request(logs.submitted(JOB, tasks=3))
    log.quota.cycle((logs.admitted(JOB, tasks=3), second), refused=refused)
    for index in range(3):
        task = f"{JOB}.{index}"
        log.scheduler.cycle(logs.allocated(task, logs.placed("n1", 0)))
        log.claim(logs.released(task, "n1"))
        log.scheduler.cycle(ended(task), after_ms=1_000)
    store = await counted(log, cached=cached)
    (row,) = store.rows(UsageRow).values()
    assert (row.user, row.gpu_milli_ms) == ("gw-2", 3 * 1000 * 1_000)
    assert not store.rows(OwnerRow)
    assert not store.rows(SubmissionRow)


async def test_a_record_that_was_written_twice_is_one_submission() -> None:
    log = begun()
    at = log.end("requests")
    cause = log.request(logs.submitted(JOB))
    log.append("requests", log.of("requests")[at].record)
    refused = [("requests", at + 1, RefusalCode.REPEATED)]
    log.quota.cycle((logs.admitted(JOB), cause), refused=refused)
    store = await counted(log)
    assert list(store.rows(OwnerRow)) == [JOB]
    assert not store.rows(SubmissionRow)


def lost(node: str, *closed: tuple[str, int, int]) -> NodeLostV1:
    return NodeLostV1(
        node=node,
        incarnation=logs.incarnation(),
        cause=LossCause.SILENT,
        last_heard_at_ms=START,
        closed=tuple(ReplicaRef(task_id=t, attempt=a, replica=r) for t, a, r in closed),
    )


@st.composite
def stories(draw: st.DrawFn) -> LogBuilder:
    """Jobs placed, released, lost, in any order, with repeats, over some hours."""
    jobs = [f"{number:012d}" for number in range(draw(st.integers(1, 4)))]
    log = begun(*jobs)
    held: list[tuple[str, int, str, int]] = []
    attempts = dict.fromkeys(jobs, 0)
    for _ in range(draw(st.integers(1, 20))):
        after_ms = draw(st.sampled_from([0, 1, 999, 60_000, HOUR_MS - 1, HOUR_MS, 2 * HOUR_MS + 7]))
        what = draw(st.sampled_from(["place", "release", "lose", "nothing"]))
        if what == "place":
            job = draw(st.sampled_from(jobs))
            attempts[job] += 1
            nodes = draw(st.sampled_from([("n1",), ("n2",), ("n1", "n2")]))
            milli = draw(st.sampled_from([1000, 500, 333]))
            where = [
                logs.placed(node, *range(draw(st.integers(0, 2))), replica=index, gpu_milli=milli)
                for index, node in enumerate(nodes)
            ]
            log.scheduler.cycle(
                logs.allocated(f"{job}.0", *where, attempt=attempts[job]), after_ms=after_ms
            )
            held += [(f"{job}.0", attempts[job], node, index) for index, node in enumerate(nodes)]
        elif what == "release" and held:
            task, attempt, node, index = draw(st.sampled_from(held))
            for _ in range(draw(st.integers(1, 2))):
                log.claim(logs.released(task, node, attempt=attempt, replica=index))
            log.scheduler.cycle(after_ms=after_ms)
        elif what == "lose" and held:
            task, attempt, node, index = draw(st.sampled_from(held))
            log.scheduler.cycle(lost(node, (task, attempt, index)), after_ms=after_ms)
        else:
            log.scheduler.cycle(after_ms=after_ms)
    return log


def naively(log: LogBuilder, until_ms: int) -> int:
    """gpu_milli x ms that were held according to the log, counted in the simplest way."""
    since: dict[tuple[str, int, int], tuple[int, int]] = {}
    taken = 0
    total = 0
    claims = log.of("node-events")
    batch: list[Any] = []
    for entry in log.of("decisions"):
        assert entry.envelope is not None
        data = entry.envelope.data
        if entry.envelope.type != "CycleCommitted":
            batch.append(data)
            continue
        ended: list[tuple[str, int, int]] = []
        for each in data.inputs:
            if each.topic == "node-events":
                for claim in claims[taken : each.next]:
                    assert claim.envelope is not None
                    said = claim.envelope.data
                    if isinstance(said, SlotsReleasedV1):
                        ended.append((said.task_id, said.attempt, said.replica))
                taken = each.next
        for decision in batch:
            if isinstance(decision, NodeLostV1):
                ended += [(one.task_id, one.attempt, one.replica) for one in decision.closed]
            elif isinstance(decision, SlotsAllocatedV1):
                for place in decision.placements:
                    key = (decision.task_id, decision.attempt, place.replica)
                    since[key] = (data.now_ms, place.gpu_milli * len(place.slots))
        for key in ended:
            if key in since:
                start, milli = since.pop(key)
                total += milli * (data.now_ms - start)
        batch = []
    return total + sum(milli * (until_ms - start) for start, milli in since.values())


@settings(max_examples=60, deadline=None)
@given(stories(), st.integers(0, 3 * HOUR_MS), st.sampled_from([0, 3]))
async def test_all_that_is_metered_is_all_that_was_held(
    log: LogBuilder, later_ms: int, cached: int
) -> None:
    store = await counted(log, cached=cached)
    now_ms = log.now_ms + later_ms
    query = UsageQuery.window(START, now_ms, UsageBy.PROJECT, UsageBucket.HOUR)
    found = await metered(store, query, ALL_PROJECTS, now_ms)
    assert sum(count for _, _, count in found.sums) == naively(log, now_ms)


@settings(max_examples=30, deadline=None)
@given(stories(), st.integers(0, 60))
async def test_a_meter_that_starts_again_bills_nothing_twice(log: LogBuilder, cut: int) -> None:
    whole = await counted(log)
    builder = LogBuilder()
    builder.entries = log.entries[:cut]
    followed = ViewsCell(builder, fold=USAGE, cached=5)
    await followed.catch_up()
    followed.follower = followed.another()
    await followed.follower.start()
    builder.entries = log.entries
    store = await followed.catch_up()
    for kind in USAGE.kinds:
        assert store.rows(kind) == whole.rows(kind)


# --- queries ------------------------------------------------------------------------------------


def total(found: Metered) -> dict[str, int]:
    sums: dict[str, int] = {}
    for _, name, count in found.gpu_milli_seconds():
        sums[name] = sums.get(name, 0) + count
    return sums


async def test_what_is_held_counts_up_to_now_or_to_the_end_of_the_window() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)), after_ms=HOUR_MS)
    store = await counted(log)
    now_ms = START + HOUR_MS + 30_000
    query = UsageQuery.window(START, now_ms, UsageBy.USER, None)
    assert total(await metered(store, query, ALL_PROJECTS, now_ms)) == {"gw-1": 30_000}
    later = now_ms + 10 * HOUR_MS
    two_hours = UsageQuery.window(START, START + 2 * HOUR_MS, UsageBy.POOL, None)
    found = await metered(store, two_hours, ALL_PROJECTS, later)
    assert total(found) == {"default": HOUR_MS}


class Busy(MemoryViewStore):
    """A store in which something happens before each look at rows."""

    happens: Iterator[Callable[[], Awaitable[object]]] = iter(())

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        if kind is UsageRow:
            await self.next()
        return await super().page(kind, query)

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        await self.next()
        return await super().get_all(wanted)

    async def next(self) -> None:
        """Run the next step, if one is left."""
        step = next(self.happens, None)
        if step is not None:
            await step()


async def busy(log: LogBuilder) -> tuple[ViewsCell, Busy]:
    followed = ViewsCell(log, fold=USAGE)
    followed.store = Busy(log.cell, followed.clock)
    await followed.catch_up()
    return followed, followed.store


@pytest.mark.parametrize("quiet", range(3))
async def test_what_is_given_back_while_it_is_counted_counts_once(quiet: int) -> None:
    jobs = [f"{number:012d}" for number in range(3)]
    log = begun(*jobs)
    for number, job in enumerate(jobs):
        log.scheduler.cycle(logs.allocated(f"{job}.0", logs.placed("n1", number)), after_ms=0)
    followed, store = await busy(log)
    now_ms = log.now_ms + HOUR_MS + 5

    async def release(job: str) -> None:
        log.claim(logs.released(f"{job}.0", "n1"))
        log.scheduler.cycle(after_ms=now_ms - log.now_ms)
        await followed.catch_up()

    async def nothing() -> None:
        """No slots are released."""

    store.happens = iter([nothing] * quiet + [partial(release, job) for job in jobs])
    query = UsageQuery.window(START, now_ms, UsageBy.PROJECT, None)
    found = await metered(store, query, ALL_PROJECTS, now_ms)
    assert total(found) == {"nlp": 3 * (HOUR_MS + 5)}
    assert (await store.position()).covers(found.position)


async def test_usage_that_never_holds_still_is_said_to_be_unavailable() -> None:
    jobs = [f"{number:012d}" for number in range(MAX_TRIES + 2)]
    log = begun(*jobs)
    for number, job in enumerate(jobs):
        log.scheduler.cycle(logs.allocated(f"{job}.0", logs.placed("n1", number)))
    followed, store = await busy(log)

    async def release(job: str) -> None:
        log.claim(logs.released(f"{job}.0", "n1"))
        log.scheduler.cycle()
        await followed.catch_up()

    store.happens = iter([partial(release, job) for job in jobs])
    query = UsageQuery.window(START, log.now_ms, UsageBy.PROJECT, None)
    with pytest.raises(ViewsUnavailable):
        await metered(store, query, ALL_PROJECTS, log.now_ms)


async def test_only_projects_that_may_be_seen_are_counted() -> None:
    log = begun(JOB)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle()
    store = await counted(log)
    query = UsageQuery.window(START, log.now_ms, UsageBy.PROJECT, None)
    assert total(await metered(store, query, Visibility(frozenset({"nlp"})), log.now_ms)) == {
        "nlp": 1_000
    }
    assert total(await metered(store, query, Visibility(frozenset({"vision"})), log.now_ms)) == {}


def test_buckets_start_where_people_expect() -> None:
    at = parse_rfc3339("2026-03-31T23:59:59Z")

    def start(bucket: UsageBucket | None) -> int:
        return bucket_of(at, bucket, 7)

    assert start(None) == 7
    assert start(UsageBucket.HOUR) == parse_rfc3339("2026-03-31T23:00:00Z")
    assert start(UsageBucket.DAY) == parse_rfc3339("2026-03-31T00:00:00Z")
    assert start(UsageBucket.MONTH) == parse_rfc3339("2026-03-01T00:00:00Z")


@given(st.integers(0, 10**13), st.integers(0, 10**8))
def test_hours_are_whole_and_in_order(since_ms: int, ms: int) -> None:
    found = list(hours(since_ms, since_ms + ms))
    assert sum(part for _, part in found) == ms
    assert all(hour % HOUR_MS == 0 and 0 < part <= HOUR_MS for hour, part in found)
    assert [hour for hour, _ in found] == sorted({hour for hour, _ in found})
