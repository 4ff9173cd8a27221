"""Views show the policy of a stop as its code."""

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import viewed
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.presenter import Presenter
from yardmaster_projections.rows import AttemptRow, TaskRow
from yardmaster_schemas import api
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.reasons import PolicyStop

JOB = "a" * 12
TASK = f"{JOB}.0"
OTHER = f"{'b' * 12}.0"


def preempted(policy: str) -> d.PreemptionRequestedV1:
    numbers = {"priority": 60, "for_priority": 10}
    return d.PreemptionRequestedV1(
        task_id=TASK,
        attempt=1,
        nodes=("n1",),
        stop=PolicyStop(policy=policy, rule="better_priority", for_task=OTHER, numbers=numbers),
        grace_s=60,
        deadline_at_ms=99,
    )


def requeued(policy: str) -> d.TaskRequeuedV1:
    return d.TaskRequeuedV1(task_id=TASK, attempt=1, code=policy, restarts=0)


def stopping(policy: str) -> LogBuilder:
    """A log in which a running task is preempted by a policy."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    admitted = logs.admitted(JOB)
    log.judged(logs.submitted(JOB, resources=admitted.spec.resources), admitted)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle(preempted(policy))
    return log


async def shown_task(store: MemoryViewStore) -> api.Task:
    row = await store.get(TaskRow, TASK)
    assert row is not None
    return await Presenter(store, 0).task(row)


async def shown_attempt(store: MemoryViewStore) -> api.Attempt:
    row = await store.get(AttemptRow, f"{TASK}/1")
    assert row is not None
    return await Presenter(store, 0).attempt(row)


async def test_rest_shows_a_policy_that_no_schema_knows_as_the_code_of_the_stop() -> None:
    log = stopping("toy")
    stop = (await shown_task(await viewed(log))).stop
    assert stop is not None
    assert (stop.code, stop.rule, stop.for_task) == ("toy", "better_priority", OTHER)
    log.claim(logs.released(TASK, "n1"))
    log.scheduler.cycle(requeued("toy"))
    attempt = await shown_attempt(await viewed(log))
    assert attempt.end == "toy"
    assert attempt.stop is not None
    assert attempt.stop.code == "toy"
