"""Read the details of a replica's job by offset, and check them against the decision's digest."""

from yardmaster_eventlog.errors import DetailsUnreadable
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.reader import read_details
from yardmaster_node_agent.agent_state import Assignment
from yardmaster_node_agent.errors import RunRefused, SecretMissing
from yardmaster_node_agent.executors.secrets import Secrets, read_for
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.reasons import StartFailure


async def details_of(log: EventLog, assignment: Assignment) -> tuple[JobDetailedV1, str | None]:
    """Return the job's details, and the trace context of the request that created them.

    Raises:
        RunRefused: the details were erased, belong to another job, or cannot be read.
        LogError: the log failed.
    """
    try:
        envelope = await read_details(log, assignment.details)
    except DetailsUnreadable as error:
        raise _unreadable(assignment, f"its details: {error.fields['found']}") from None
    details = envelope.data
    job_id = assignment.key.task_id.partition(".")[0]
    if not isinstance(details, JobDetailedV1) or details.job_id != job_id:
        raise _unreadable(assignment, "its details are not its job's")
    return details, envelope.traceparent


def _unreadable(assignment: Assignment, found: str) -> RunRefused:
    return RunRefused(replica=assignment.key, found=found, failure=StartFailure.DETAILS_MISSING)


def resolve_secrets(
    secrets: Secrets, assignment: Assignment, details: JobDetailedV1
) -> dict[str, str]:
    """Return the values of the job's secrets by variable name.

    Raises:
        RunRefused: a secret is missing, or belongs to another project. Messages never contain
            values.
    """
    values: dict[str, str] = {}
    for name, reference in sorted(details.run.secrets.items()):
        try:
            values[name] = read_for(assignment.project, secrets, reference)
        except SecretMissing as error:
            raise RunRefused(
                replica=assignment.key,
                found=error.fields["found"],
                failure=StartFailure.SECRET_MISSING,
            ) from None
    return values
