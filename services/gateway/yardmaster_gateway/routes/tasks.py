"""`/v1/tasks`: list, show, wait for, explain, cancel, pause, resume."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext
from yardmaster_gateway.http.filters import group_filters, task_filters
from yardmaster_gateway.http.pages import page_of
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import Repeatable
from yardmaster_gateway.routes.history import records_at
from yardmaster_gateway.routes.jobs import authorize_change, find_job
from yardmaster_gateway.routes.verbs import (
    CANCEL,
    PAUSE,
    RESUME,
    Target,
    add_verb,
)
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import HistoryRow, TaskRow
from yardmaster_schemas.api import (
    Attempt,
    EventRecord,
    Explain,
    List,
    Phase,
    Task,
    TaskGroup,
    TaskGroups,
)

router = APIRouter(tags=["tasks"])

#: The values of `wait_for`: quota's verdict, the end of the task, or a phase.
WAIT_FOR: Final = ("admitted", "ended", *Phase)
WaitFor = Annotated[str | None, Query(pattern=f"^({'|'.join(WAIT_FOR)})$")]
Timeout = Annotated[int, Query(ge=0, le=3600)]


@router.get(
    "/tasks",
    operation_id="list_tasks",
    response_model=List[Task],
    openapi_extra={"x-label-filters": True},
    responses=problem_responses("bad_cursor"),
)
async def list_tasks(read: Read, filters: Annotated[Filters, Depends(task_filters)]) -> List[Task]:
    """List tasks, the newest first. `label.team=x` filters by label."""
    return await page_of(read, TaskRow, filters, read.presenter.task)


@router.get(
    "/task-groups",
    operation_id="list_task_groups",
    response_model=TaskGroups,
    openapi_extra={"x-label-filters": True},
    responses=problem_responses("bad_cursor"),
)
async def list_task_groups(
    read: Read, filters: Annotated[Filters, Depends(group_filters)]
) -> TaskGroups:
    """List tasks grouped by job and phase, and count all matching tasks by phase.

    Failed tasks are also grouped by how they ended.
    `limit` is the number of jobs. `phase` filters the groups, not the counts.
    """
    try:
        found = await queries.task_groups(read.store, filters, read.visibility)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    presenter = read.presenter
    return TaskGroups(
        items=[
            TaskGroup(
                first=await presenter.task(one.first), last_index=one.last_index, count=one.count
            )
            for one in found.groups
        ],
        next_cursor=queries.cursor_of(found.next),
        phases=await queries.task_counts(read.store, filters, read.visibility),
        counted_most=queries.MAX_COUNTED,
        position=str(read.position),
    )


async def find_task(read: ReadContext, task_id: str) -> TaskRow:
    """The task, if it exists and the caller may see it.

    Raises:
        NotFound.
    """
    row = await queries.task(read.store, task_id, read.visibility)
    if row is None:
        raise errors.NotFound(what=f"task {task_id[:64]}")
    return row


def _has_reached(row: TaskRow, wanted: str) -> bool:
    if wanted == "admitted":
        return row.phase is not Phase.SUBMITTED
    return row.phase.final or (wanted != "ended" and row.phase == wanted)


@router.get(
    "/tasks/{task_id}",
    operation_id="read_task",
    response_model=Task,
    responses=problem_responses("not_found"),
)
async def read_task(
    read: Read,
    response: Response,
    task_id: str,
    wait_for: WaitFor = None,
    timeout_s: Timeout = 30,
) -> Task:
    """Show a task. With `wait_for`, the answer comes when the task reaches that state.

    It comes earlier if the task ends, and after `timeout_s` at the latest.
    """
    row = await find_task(read, task_id)
    gateway = read.gateway
    if wait_for is not None:
        clock = gateway.ports.clock
        until = clock.monotonic_s() + min(timeout_s, gateway.settings.max_wait_s)
        while not _has_reached(row, wait_for):
            position = await read.store.position()
            row = await find_task(read, task_id)
            left = until - clock.monotonic_s()
            if _has_reached(row, wait_for) or left <= 0:
                break
            await read.store.changed(position, left)
            row = await find_task(read, task_id)
        response.headers["Yard-Position"] = str(await read.store.position())
    return await read.presenter.task(row)


@router.get(
    "/tasks/{task_id}/attempts",
    operation_id="list_attempts",
    response_model=List[Attempt],
    responses=problem_responses("not_found"),
)
async def list_attempts(read: Read, task_id: str) -> List[Attempt]:
    """List the attempts of a task, the newest first."""
    row = await find_task(read, task_id)
    page = await queries.attempts(read.store, row.task_id)
    return List(
        items=[await read.presenter.attempt(attempt) for attempt in page.rows],
        next_cursor=None,
        position=str(read.position),
    )


@router.get(
    "/tasks/{task_id}/events",
    operation_id="list_task_events",
    response_model=List[EventRecord],
    responses=problem_responses("not_found"),
)
async def list_task_events(read: Read, task_id: str) -> List[EventRecord]:
    """List the log records about a task and its job, in the order in which they took effect."""
    row = await find_task(read, task_id)
    found: list[tuple[str, int]] = []
    for subject in (row.job.job_id, row.task_id):
        history = await read.store.get(HistoryRow, subject)
        found += history.records if history is not None else ()
    gateway = read.gateway
    return List(
        items=await records_at(gateway.ports.log, gateway.cell, gateway.settings.partition, found),
        next_cursor=None,
        position=str(read.position),
    )


@router.get(
    "/tasks/{task_id}/explain",
    operation_id="explain_task",
    response_model=Explain,
    responses=problem_responses("not_found"),
)
async def explain_task(read: Read, task_id: str) -> Explain:
    """Explain why a task is pending, was stopped or ended, from the recorded reasons."""
    row = await find_task(read, task_id)
    return await read.presenter.explain(row, read.gateway.cell)


async def _changeable_task(read: Repeatable, task_id: str) -> Target:
    row = await find_task(read, task_id)
    authorize_change(read.caller, await find_job(read, row.job.job_id))
    if row.phase.final:
        raise errors.WrongPhase(what=f"task {task_id}", phase=row.phase)
    return Target(row.job.job_id, row.index)


add_verb(
    *(router, CANCEL, "task", _changeable_task),
    "Cancel a task. Repeating the request changes nothing.",
)
add_verb(
    *(router, PAUSE, "task", _changeable_task),
    "Pause a task: it saves a checkpoint and stops, and does not start until it is resumed.",
)
add_verb(router, RESUME, "task", _changeable_task, "Resume a paused task.")
