"""One verdict for each request that waits, in the order in which the log has them.

Requests are judged one after the other on a draft, each on what the ones before it made of the
state, so it does not matter how they were spread over cycles. The draft is written by the appliers
that fold the log, so the digest decided on is the one that every reader gets.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from yardmaster_core.admission import changes
from yardmaster_core.admission.apply import apply_verdict
from yardmaster_core.admission.changes import PolicyCheck
from yardmaster_core.admission.state import AdmissionState, Pending
from yardmaster_core.admission.submission import judge_submission
from yardmaster_core.machine import Decision, Verdict
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import requests as r

#: Request -> what judges it from the state alone.
JUDGES: Final[Mapping[type[Event], Callable[[AdmissionState, Any], Event]]] = {
    r.CancelRequestedV1: changes.judge_cancel,
    r.PauseRequestedV1: changes.judge_pause,
    r.ResumeRequestedV1: changes.judge_resume,
    r.PriorityChangeRequestedV1: changes.judge_priority,
    r.WeightChangeRequestedV1: changes.judge_weight,
    r.MaxSlotsChangeRequestedV1: changes.judge_max_slots,
    r.PoolDeletionRequestedV1: changes.judge_pool_deletion,
    r.DepartmentChangeRequestedV1: changes.judge_department,
    r.DepartmentDeletionRequestedV1: changes.judge_department_deletion,
    r.ProjectChangeRequestedV1: changes.judge_project,
    r.ProjectDeletionRequestedV1: changes.judge_project_deletion,
    r.NodeCordonRequestedV1: changes.judge_cordon,
    r.NodeUncordonRequestedV1: changes.judge_uncordon,
    r.NodeDrainRequestedV1: changes.judge_drain,
    r.NodeSlotsChangeRequestedV1: changes.judge_slots,
    r.NodeEnrolRequestedV1: changes.judge_enrolment,
    r.NodeRevokeRequestedV1: changes.judge_revocation,
    r.EraseRequestedV1: changes.judge_erasure,
}
#: In which field a request names what it is about.
_SUBJECTS: Final = ("pool", "department", "project", "node")


def judge(state: AdmissionState, pending: Pending, check: PolicyCheck) -> Event:
    """The verdict on one request in this state."""
    request = pending.event
    if isinstance(request, r.TaskSubmittedV1):
        return judge_submission(state, request, pending)
    if isinstance(request, r.PoolChangeRequestedV1):
        return changes.judge_pool(state, request, check)
    return JUDGES[type(request)](state, request)


def decide(state: AdmissionState, limit: int, check: PolicyCheck) -> Verdict:
    """Verdicts on the first `limit` requests that wait; the state is left as it was."""
    draft = state.draft(max(0, limit))
    decisions, complete = advance(draft, limit, check)
    return Verdict(decisions, draft.digest(), complete)


def advance(state: AdmissionState, limit: int, check: PolicyCheck) -> tuple[list[Decision], bool]:
    """The same decisions, and whether they are all; the state is left as they make it."""
    decisions: list[Decision] = []
    while state.work and len(decisions) < limit:
        pending = state.work[0]
        event = judge(state, pending, check)
        apply_verdict(state, event)
        decisions.append(Decision(event, subject(pending.event), pending.record_id))
    return decisions, state.judged == state.taken


def subject(request: Event) -> str:
    """What a request is about: a task, a job, or the name of what it configures."""
    job_id: str | None = getattr(request, "job_id", None)
    if job_id is not None:
        index: int | None = getattr(request, "index", None)
        return job_id if index is None else f"{job_id}.{index}"
    name: str = next(getattr(request, field) for field in _SUBJECTS if hasattr(request, field))
    return name
