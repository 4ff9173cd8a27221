"""The change of the views by each event, with a follower on a log that the test writes."""

import dataclasses

import pytest

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell, viewed
from tests.unit.projections.projected import (
    JOB,
    TASK,
    admit,
    cell,
    counters,
    node,
    running,
    submit,
    task,
)
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.projection.step import IGNORED, PROJECTED, project
from yardmaster_projections.rows import (
    AttemptRow,
    CycleRow,
    DepartmentRow,
    HistoryRow,
    JobRow,
    LogRow,
    PoolRow,
    ProjectRow,
    Refused,
    RequestRow,
    SharesRow,
    TaskRow,
    WaitRow,
)
from yardmaster_projections.store import Put, Query
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.api import Phase, RequestState
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.events import node_events as n
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.reasons import (
    AdmissionCode,
    EndCode,
    PolicyStop,
    RefusalCode,
    Stop,
    StopCode,
    Wait,
    WaitCode,
)


def test_every_published_event_is_projected_or_named_as_ignored() -> None:
    not_projected = {
        "JobDetailed",
        "RequestNoted",
        "NodeHeartbeat",
        "TaskOutput",
        "RecordQuarantined",
        "LogCut",
    }
    known = PROJECTED.keys() | IGNORED
    missing = [
        cls.__name__
        for (name, _), cls in EVENTS.items()
        if cls not in known and name not in not_projected
    ]
    assert missing == []
    assert not PROJECTED.keys() & IGNORED


async def test_a_request_shows_at_once_as_submitted() -> None:
    log = cell()
    submit(log)
    store = await viewed(log)
    assert (await task(store)).phase is Phase.SUBMITTED
    request = await store.get(RequestRow, "1")
    assert request is not None
    assert request.state is RequestState.RECORDED


async def test_an_admitted_job_waits_and_counts_in_its_pools() -> None:
    log = cell()
    admit(log)
    store = await viewed(log)
    row = await task(store)
    assert row.phase is Phase.PENDING
    assert row.job.department == "research"
    assert row.job.spec is not None
    counted = await counters(store, "project/nlp")
    assert (counted.waiting, counted.waiting_milli) == (1, 1000)
    assert counted.pending_milli == {"default": 1000}
    request = await store.get(RequestRow, "1")
    assert request is not None
    assert request.state is RequestState.ACCEPTED


async def test_a_rejected_job_says_why() -> None:
    log = cell()
    log.judged(
        logs.submitted(JOB),
        a.TaskRejectedV1(job_id=JOB, code=AdmissionCode.POOL_NOT_ALLOWED, about="h100"),
    )
    store = await viewed(log)
    assert (await task(store)).phase is Phase.REJECTED
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert job.refusal is not None
    assert (job.refusal.code, job.refusal.about) == ("pool_not_allowed", "h100")
    assert job.phases == {Phase.REJECTED: 1}


async def test_a_second_submission_under_an_id_leaves_the_first_as_it_is() -> None:
    log = cell()
    admit(log)
    again = logs.submitted(JOB, tasks=3)
    log.judged(again, a.TaskRejectedV1(job_id=JOB, code=AdmissionCode.DUPLICATE_ID))
    store = await viewed(log)
    assert (await task(store)).phase is Phase.PENDING
    assert await store.get(TaskRow, f"{JOB}.1") is None
    second = await store.get(RequestRow, "2")
    assert second is not None
    assert second.state is RequestState.REFUSED


async def test_a_submission_that_was_no_valid_record_makes_room_for_the_next() -> None:
    log = cell()
    submit(log, tasks=2)
    submit(log)
    log.quota.cycle(
        (logs.admitted(JOB), log.of("requests")[2].envelope.id),  # type: ignore[union-attr]
        refused=[("requests", 1, RefusalCode.REPEATED)],
    )
    store = await viewed(log)
    first = await store.get(RequestRow, "1")
    assert first is not None
    assert first.state is RequestState.REFUSED
    assert (await task(store)).phase is Phase.PENDING
    assert await store.get(TaskRow, f"{JOB}.1") is None, "the first submission had two tasks"
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert (job.offset, job.phases) == (2, {Phase.PENDING: 1})


async def test_of_many_submissions_under_an_id_the_first_valid_record_shows() -> None:
    log = cell()
    for tasks in (3, 2, 1, 4):
        submit(log, tasks=tasks)
    log.quota.cycle(
        (logs.admitted(JOB), log.of("requests")[3].envelope.id),  # type: ignore[union-attr]
        refused=[("requests", offset, RefusalCode.REPEATED) for offset in (1, 2)],
    )
    store = await viewed(log)
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert (job.offset, job.again, job.phases) == (3, None, {Phase.PENDING: 1})
    assert await store.get(TaskRow, f"{JOB}.1") is None


async def test_a_submission_that_was_no_valid_record_is_a_rejected_job_until_one_follows() -> None:
    log = cell()
    submit(log)
    log.quota.cycle(refused=[("requests", 1, RefusalCode.REPEATED)])
    store = await viewed(log)
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert job.refusal == Refused(code="repeated")
    assert (job.phases, job.run, job.facts.name) == ({Phase.REJECTED: 1}, None, JOB)
    assert (await task(store)).phase is Phase.REJECTED
    submit(log)
    store = await viewed(log)
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert (job.offset, job.refusal, job.phases) == (2, None, {Phase.SUBMITTED: 1})
    assert (await task(store)).phase is Phase.SUBMITTED


async def test_records_of_a_fenced_leader_are_not_projected() -> None:
    log = cell()
    submit(log)
    stale = log.quota.writer
    log.quota.start_term("bbbbbbbbbbbb")
    late = stale.envelope(logs.admitted(JOB), JOB)
    log.append("admissions", late)
    store = await viewed(log)
    assert (await task(store)).phase is Phase.SUBMITTED


async def test_decisions_without_their_commit_are_not_projected() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)), keep=[0])
    store = await viewed(log)
    assert (await task(store)).phase is Phase.PENDING
    assert (await node(store)).held == {}


async def test_a_claim_shows_only_when_a_cycle_takes_it() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(logs.started(TASK, "n1"))
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert (await task(store)).phase is Phase.STARTING
    log.scheduler.cycle()
    await followed.catch_up()
    row = await task(store)
    assert row.phase is Phase.RUNNING
    assert row.started_at_ms == log.now_ms


async def test_a_refused_claim_is_never_projected() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    claim = log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle(refused=[("node-events", claim.offset, RefusalCode.CONTRADICTION)])
    store = await viewed(log)
    assert (await task(store)).phase is Phase.STARTING


async def test_an_allocation_holds_slots_until_they_are_released() -> None:
    log = cell()
    running(log)
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert list((await node(store)).held) == [(TASK, 0)]
    assert (await counters(store, "project/nlp")).used_milli == {"default": 1000}
    assert (await counters(store, "pool/default")).used_milli == {"default": 1000}
    assert (await task(store)).nodes == ("n1",)
    log.claim(logs.exited(TASK, "n1"))
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(
        d.TaskEndedV1(
            task_id=TASK, attempt=1, outcome=d.Outcome.SUCCEEDED, code=EndCode.EXIT, exit_code=0
        )
    )
    await followed.catch_up()
    row = await task(store)
    assert row.phase is Phase.SUCCEEDED
    assert row.end is not None
    assert row.end.exit_code == 0
    assert (await node(store)).held == {}
    assert (await counters(store, "project/nlp")).used_milli == {}
    attempt = await store.get(AttemptRow, f"{TASK}/1")
    assert attempt is not None
    assert attempt.end == EndCode.EXIT
    assert attempt.replicas[0].released_at_ms == log.now_ms


async def test_a_gang_runs_when_its_last_replica_started() -> None:
    log = cell()
    log.claim(logs.joined("n2"))
    admit(log, replicas_min=2, replicas_max=2)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0), logs.placed("n2", 0, replica=1)))
    log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle()
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert (await task(store)).phase is Phase.STARTING
    log.claim(logs.started(TASK, "n2", replica=1))
    log.scheduler.cycle()
    await followed.catch_up()
    assert (await task(store)).phase is Phase.RUNNING
    assert (await task(store)).nodes == ("n1", "n2")


async def test_a_preempted_task_is_pending_again_with_its_checkpoint() -> None:
    log = cell()
    running(log)
    stop = PolicyStop(policy="priority", rule="lower_priority", for_task=f"{'b' * 12}.0")
    log.scheduler.cycle(
        d.PreemptionRequestedV1(
            task_id=TASK, attempt=1, nodes=("n1",), stop=stop, grace_s=60, deadline_at_ms=99
        )
    )
    followed = ViewsCell(log)
    store = await followed.catch_up()
    row = await task(store)
    assert row.phase is Phase.STOPPING
    assert row.stopping is not None
    assert row.stopping.deadline_at_ms == 99
    assert row.stopping.overdue_at_ms is None
    log.scheduler.cycle(
        d.StopOverdueV1(task_id=TASK, attempt=1, pool="default", nodes=("n1",), deadline_at_ms=99)
    )
    await followed.catch_up()
    row = await task(store)
    assert row.stopping is not None
    assert row.stopping.overdue_at_ms == log.now_ms
    log.claim(
        n.CheckpointDoneV1(
            task_id=TASK,
            attempt=1,
            replica=0,
            node="n1",
            incarnation=logs.incarnation(),
            uri="file:///ckpt/7",
            step=7,
        )
    )
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(d.TaskRequeuedV1(task_id=TASK, attempt=1, code="priority", restarts=0))
    await followed.catch_up()
    row = await task(store)
    assert (row.phase, row.attempt, row.nodes, row.stopping) == (Phase.PENDING, 1, (), None)
    assert row.checkpoint is not None
    assert row.checkpoint.step == 7
    attempt = await store.get(AttemptRow, f"{TASK}/1")
    assert attempt is not None
    assert attempt.stopping is not None
    assert attempt.stopping.stop.for_task == f"{'b' * 12}.0"


async def test_changes_of_a_job_show_on_all_its_tasks() -> None:
    log = cell()
    admit(log, tasks=2)
    followed = ViewsCell(log)
    store = await followed.catch_up()
    shape = (await task(store)).job.shape
    log.judged(
        r.PriorityChangeRequestedV1(job_id=JOB, priority=7),
        a.PriorityChangedV1(job_id=JOB, priority=7, revision=2),
    )
    log.judged(
        r.WeightChangeRequestedV1(job_id=JOB, weight=3),
        a.WeightChangedV1(job_id=JOB, weight=3, revision=3),
    )
    log.judged(
        r.MaxSlotsChangeRequestedV1(job_id=JOB, max_slots_milli=1000),
        a.MaxSlotsChangedV1(job_id=JOB, max_slots_milli=1000, revision=4),
    )
    await followed.catch_up()
    job = await store.get(JobRow, JOB)
    assert job is not None
    assert job.revision == 4
    for index in range(2):
        facts = (await task(store, f"{JOB}.{index}")).job
        assert facts.spec is not None
        assert (facts.spec.priority, facts.spec.weight) == (7, 3)
        assert facts.spec.max_slots_milli == 1000
        assert facts.shape != shape, "a job with a bound of its own waits by itself"


async def test_a_pause_of_a_task_and_of_a_job() -> None:
    log = cell()
    admit(log, tasks=2)
    followed = ViewsCell(log)
    log.judged(r.PauseRequestedV1(job_id=JOB, index=1), a.TaskPausedV1(job_id=JOB, index=1))
    store = await followed.catch_up()
    assert [(await task(store, f"{JOB}.{i}")).paused for i in range(2)] == [False, True]
    log.judged(r.PauseRequestedV1(job_id=JOB), a.TaskPausedV1(job_id=JOB))
    log.judged(r.ResumeRequestedV1(job_id=JOB), a.TaskResumedV1(job_id=JOB))
    await followed.catch_up()
    assert [(await task(store, f"{JOB}.{i}")).paused for i in range(2)] == [False, False]


async def test_a_refused_request_says_why() -> None:
    log = cell()
    log.judged(
        r.PoolDeletionRequestedV1(pool="default"),
        a.RequestRefusedV1(request_type="PoolDeletionRequested", code=AdmissionCode.IN_USE),
    )
    row = await (await viewed(log)).get(RequestRow, "1")
    assert row is not None
    assert row.state is RequestState.REFUSED
    assert row.refusal is not None
    assert row.refusal.code == "in_use"


async def test_pools_projects_and_departments_come_and_go() -> None:
    log = cell()
    followed = ViewsCell(log)
    store = await followed.catch_up()
    assert await store.get(PoolRow, "default") is not None
    assert await store.get(ProjectRow, "nlp") is not None
    assert await store.get(DepartmentRow, "research") is not None
    log.quota.cycle(
        a.PoolDeletedV1(pool="default"),
        a.EntitlementsChangedV1(level=a.Level.PROJECT, name="nlp", revision=2),
        a.EntitlementsChangedV1(level=a.Level.DEPARTMENT, name="research", revision=2),
    )
    await followed.catch_up()
    assert await store.get(PoolRow, "default") is None
    assert await store.get(ProjectRow, "nlp") is None
    assert await store.get(DepartmentRow, "research") is None


def share(name: str) -> d.QueueShare:
    nothing = d.Amounts(gpu_milli=0, cpu_milli=0, memory_mib=0)
    unlimited = d.Bounds(gpu_milli=None, cpu_milli=None, memory_mib=None)
    return d.QueueShare(
        name=name,
        level=a.Level.PROJECT,
        parent="research",
        deserved=unlimited,
        limit=unlimited,
        fair_share=nothing,
        held=nothing,
        reserved=nothing,
        requested=nothing,
    )


async def test_a_division_replaces_all_parts_of_the_former_one() -> None:
    log = cell()
    followed = ViewsCell(log, cached=2)
    store = await followed.catch_up()

    async def found() -> list[tuple[str, int, tuple[str, ...]]]:
        await followed.catch_up()
        rows = (await store.page(SharesRow, Query(facets={"pool": frozenset({"default"})}))).rows
        return [(row.key, row.cycle, tuple(each.name for each in row.queues)) for row in rows]

    def part(number: int, *names: str, pool: str = "default") -> d.SharesDividedV1:
        return d.SharesDividedV1(pool=pool, part=number, queues=tuple(map(share, names)))

    log.scheduler.cycle(part(0, "a", "b"), part(1, "c"), part(0, "x", pool="other"))
    assert await found() == [("default/000000", 2, ("a", "b")), ("default/000001", 2, ("c",))]
    # Both cycles are projected in one step.
    log.scheduler.cycle(part(0, "a"), part(1, "b"))
    log.scheduler.cycle(part(0, "b"))
    assert await found() == [("default/000000", 4, ("b",))]
    pool = await store.get(PoolRow, "default")
    assert pool is not None
    log.quota.cycle(a.PoolConfiguredV1(pool="default", revision=2, config=pool.config))
    assert len(await found()) == 1
    other = dataclasses.replace(pool.config, policy=r.PolicyRef(name="fifo"))
    log.quota.cycle(a.PoolConfiguredV1(pool="default", revision=3, config=other))
    assert await found() == []
    assert await store.get(SharesRow, "other/000000") is not None


async def test_a_wait_is_kept_until_another_takes_its_place() -> None:
    log = cell()
    admit(log)
    followed = ViewsCell(log)
    store = await followed.catch_up()
    shape = (await task(store)).job.shape
    assert shape is not None
    wait = d.TaskUnschedulableV1(
        task_id=TASK,
        shape=shape,
        priority=42,
        pool="default",
        wait=Wait(code=WaitCode.INSUFFICIENT_FREE, numbers={"asked_milli": 1000}),
    )
    log.scheduler.cycle(wait)
    await followed.catch_up()
    key = f"default/{shape}/42"
    row = await store.get(WaitRow, key)
    assert row is not None
    assert (row.wait.code, row.cycle) == (WaitCode.INSUFFICIENT_FREE, 2)
    log.scheduler.cycle(dataclasses.replace(wait, wait=Wait(code=WaitCode.FRAGMENTED)))
    await followed.catch_up()
    row = await store.get(WaitRow, key)
    assert row is not None
    assert row.wait.code is WaitCode.FRAGMENTED


async def test_a_revoked_allocation_waits_again_but_keeps_its_slots() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.scheduler.cycle(
        d.AllocationRevokedV1(
            task_id=TASK, attempt=1, nodes=("n1",), stop=Stop(code=StopCode.START_TIMEOUT)
        )
    )
    store = await viewed(log)
    assert (await task(store)).phase is Phase.PENDING
    assert list((await node(store)).held) == [(TASK, 0)]


async def test_the_pull_of_an_image_is_shown_for_its_task() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(
        n.TaskPreparingV1(
            task_id=TASK,
            attempt=1,
            replica=0,
            node="n1",
            incarnation=logs.incarnation(),
            layers=7,
            layers_done=2,
            bytes_done=41,
            bytes_total=100,
        )
    )
    log.scheduler.cycle()
    row = await task(await viewed(log))
    assert row.preparing is not None
    assert (row.preparing.layers_done, row.preparing.bytes_done) == (2, 41)


async def test_the_starts_before_a_task_on_its_node_are_shown() -> None:
    log = cell()
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    waits = n.TaskPreparingV1(
        task_id=TASK,
        attempt=1,
        replica=0,
        node="n1",
        incarnation=logs.incarnation(),
        starts_ahead=12,
    )
    log.claim(waits)
    log.scheduler.cycle()
    row = await task(await viewed(log))
    assert row.preparing is not None
    assert row.preparing.starts_ahead == 12


async def test_the_digest_of_the_first_replica_is_that_of_its_task() -> None:
    log = cell()
    log.claim(logs.joined("n2"))
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0), logs.placed("n2", 0, replica=1)))
    images = [f"sha256:{number:064x}" for number in (1, 2)]
    for replica, image in enumerate(images):
        begun = logs.started(TASK, f"n{replica + 1}", replica=replica)
        log.claim(dataclasses.replace(begun, image=image))
    log.scheduler.cycle()
    store = await viewed(log)
    assert (await task(store)).image == images[0]
    row = await store.get(AttemptRow, f"{TASK}/1")
    assert row is not None
    assert [replica.image for replica in row.replicas] == images


async def test_progress_shows_and_leaves_no_trail() -> None:
    log = cell()
    running(log)
    log.claim(
        n.TaskProgressedV1(
            task_id=TASK,
            attempt=1,
            replica=0,
            node="n1",
            incarnation=logs.incarnation(),
            permille=500,
        )
    )
    log.scheduler.cycle()
    store = await viewed(log)
    assert (await task(store)).progress_permille == 500
    history = await store.get(HistoryRow, TASK)
    assert history is not None
    assert [topic for topic, _ in history.records] == ["decisions", "node-events"]


async def test_erased_details_take_name_and_labels_with_them() -> None:
    log = cell()
    admit(log)
    log.quota.cycle(a.DetailsErasedV1(job_id=JOB))
    job = await (await viewed(log)).get(JobRow, JOB)
    assert job is not None
    assert (job.facts.name, job.facts.labels, job.run) == (JOB, {}, None)


async def test_a_cycle_and_the_logs_time_are_kept() -> None:
    log = cell()
    store = await viewed(log)
    cycle = await store.get(CycleRow, "1")
    assert cycle is not None
    assert cycle.offset == 1
    row = await store.get(LogRow, "main")
    assert row is not None
    assert (row.cycle, row.now_ms) == (1, log.now_ms)


async def test_an_event_about_what_is_not_there_stops_the_projection() -> None:
    log = cell()
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    with pytest.raises(ImpossibleEvent, match=TASK):
        await viewed(log)


def test_one_event_is_projected_by_itself_as_a_pure_function() -> None:
    store = MemoryViewStore("main", ManualClock())
    log = LogBuilder()
    event = a.PoolConfiguredV1(pool="h100", revision=1, config=logs.pool_configured("h100").config)
    envelope = log.quota.writer.envelope(event, "h100")
    changes = project(store, "admissions", 0, envelope)
    assert changes == [Put(PoolRow(name="h100", revision=1, config=event.config))]
    assert store.find(PoolRow, "h100") is None, "the view is only read"
