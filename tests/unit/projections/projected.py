"""A cell of one node whose events the tests write, and the rows that they look at."""

from typing import Any

from tests.support import logs
from tests.support.logs import LogBuilder
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import (
    CountersRow,
    NodeRow,
    TaskRow,
)

JOB = "a" * 12
TASK = f"{JOB}.0"


def spec() -> dict[str, Any]:
    return {"resources": logs.admitted(JOB).spec.resources}


def submit(log: LogBuilder, job: str = JOB, **more: Any) -> str:
    return log.request(logs.submitted(job, **(spec() | more)))


def admit(log: LogBuilder, job: str = JOB, **more: Any) -> None:
    log.judged(logs.submitted(job, **(spec() | more)), logs.admitted(job, **more))


def cell() -> LogBuilder:
    """A cell with a pool, a project and node n1, whose joining the scheduler has taken."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    return log


def running(log: LogBuilder) -> None:
    """A task that runs on slot 0 of n1."""
    admit(log)
    log.scheduler.cycle(logs.allocated(TASK, logs.placed("n1", 0)))
    log.claim(logs.started(TASK, "n1"))
    log.scheduler.cycle()


async def task(store: MemoryViewStore, task_id: str = TASK) -> TaskRow:
    row = await store.get(TaskRow, task_id)
    assert row is not None, f"no task {task_id}"
    return row


async def node(store: MemoryViewStore, name: str = "n1") -> NodeRow:
    row = await store.get(NodeRow, name)
    assert row is not None, f"no node {name}"
    return row


async def counters(store: MemoryViewStore, name: str) -> CountersRow:
    return await store.get(CountersRow, name) or CountersRow(name=name)
