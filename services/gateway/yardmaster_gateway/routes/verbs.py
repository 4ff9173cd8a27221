"""Cancel, pause and resume: the verbs that jobs and tasks share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, Depends

from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import Repeatable, Write
from yardmaster_schemas.api import Accepted, CancelBody, PauseBody, ResumeBody
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    DetailsRef,
    PauseRequestedV1,
    ResumeRequestedV1,
)

B = TypeVar("B", CancelBody, PauseBody, ResumeBody)


@dataclass(frozen=True, slots=True)
class Target:
    """The job or the task that a request changes, after the check that the caller may change it."""

    job_id: str
    #: The index of the task; None: all tasks of the job.
    index: int | None = None

    @property
    def subject(self) -> str:
        """The id of the job or of the task."""
        return self.job_id if self.index is None else f"{self.job_id}.{self.index}"


@dataclass(frozen=True, slots=True)
class Verb(Generic[B]):
    """One verb of jobs and tasks."""

    name: str
    body: type[B]
    #: Returns the request that the verb records. Its last argument refers to the user's reason.
    request: Callable[[Target, B, DetailsRef | None], Event]
    #: Whether the body has the user's reason, which is recorded.
    noted: bool = True


CANCEL: Final = Verb(
    "cancel",
    CancelBody,
    lambda target, body, note: CancelRequestedV1(
        job_id=target.job_id, index=target.index, immediate=body.immediate, note=note
    ),
)
PAUSE: Final = Verb(
    "pause",
    PauseBody,
    lambda target, _, note: PauseRequestedV1(job_id=target.job_id, index=target.index, note=note),
)
RESUME: Final = Verb(
    "resume",
    ResumeBody,
    lambda target, *_: ResumeRequestedV1(job_id=target.job_id, index=target.index),
    noted=False,
)


def add_verb(
    router: APIRouter,
    verb: Verb[B],
    kind: str,
    find: Callable[..., Awaitable[Target]],
    description: str,
) -> None:
    """Add the route of a verb for a kind of target, `job` or `task`.

    `find` is the dependency that finds the target by the id in the path (`job_id`, `task_id`).
    """
    operation = f"{verb.name}_{kind}"

    @router.post(
        f"/{kind}s/{{{kind}_id}}/{verb.name}",
        name=operation,
        operation_id=operation,
        description=description,
        status_code=202,
        response_model=Accepted,
        openapi_extra=request_body(verb.body),
        responses=problem_responses(
            *("forbidden", "not_found", "wrong_phase", "too_large", "unsupported_media_type"),
            *("invalid_spec", "busy", "outcome_unknown"),
        ),
    )
    async def act(
        read: Repeatable,
        write: Write,
        body: Annotated[Any, Depends(body_of(verb.body))],
        target: Annotated[Target, Depends(find)],
    ) -> Accepted:
        reason = body.reason if verb.noted else None
        note = await write.note(target.subject, reason)
        event = verb.request(target, body, note)
        return await write.record(target.subject, event)
