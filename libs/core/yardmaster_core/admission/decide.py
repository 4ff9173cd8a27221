"""One verdict for each pending request, in log order.

The requests are judged one after the other on a draft of the state. Each request sees the verdicts
on all earlier requests, so the division of requests into cycles does not matter. The appliers that
fold the log also change the draft, so every reader of the log gets the digest of the draft.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from yardmaster_core.admission import changes, users
from yardmaster_core.admission.apply import apply_verdict
from yardmaster_core.admission.changes import PolicyCheck
from yardmaster_core.admission.state import AdmissionState, Pending
from yardmaster_core.admission.submission import judge_submission
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import requests as r

#: Request -> its judge, for requests that are judged from the state alone.
JUDGES: Final[Mapping[type[Event], Callable[[AdmissionState, Any], Event]]] = {
    r.CancelRequestedV1: changes.judge_cancel,
    r.PauseRequestedV1: changes.judge_pause,
    r.ResumeRequestedV1: changes.judge_resume,
    r.PriorityChangeRequestedV1: changes.judge_priority,
    r.WeightChangeRequestedV1: changes.judge_weight,
    r.MaxSlotsChangeRequestedV1: changes.judge_max_slots,
    r.CellChangeRequestedV1: changes.judge_cell,
    r.PoolDeletionRequestedV1: changes.judge_pool_deletion,
    r.DepartmentChangeRequestedV1: changes.judge_department,
    r.DepartmentDeletionRequestedV1: changes.judge_department_deletion,
    r.ProjectChangeRequestedV1: changes.judge_project,
    r.ProjectDeletionRequestedV1: changes.judge_project_deletion,
    r.NodeCordonRequestedV1: changes.judge_cordon,
    r.NodeUncordonRequestedV1: changes.judge_uncordon,
    r.NodeDrainRequestedV1: changes.judge_drain,
    r.NodeSlotsChangeRequestedV1: changes.judge_slots,
    r.NodeEnrolRequestedV1: changes.judge_enrollment,
    r.NodeRevokeRequestedV1: changes.judge_revocation,
    r.EraseRequestedV1: changes.judge_erasure,
    r.RulesRequestedV1: changes.judge_rules,
}
#: The fields in which a request names its subject.
_SUBJECTS: Final = ("pool", "department", "project", "node")


def judge(state: AdmissionState, pending: Pending, check: PolicyCheck) -> Event:
    """The verdict on one request."""
    request = pending.event
    if isinstance(request, r.TaskSubmittedV1):
        return judge_submission(state, request, pending)
    if isinstance(request, users.REQUESTS):
        return users.judge_access(state, pending)
    if isinstance(request, r.PoolChangeRequestedV1):
        return changes.judge_pool(state, request, check)
    return JUDGES[type(request)](state, request)


def decide(state: AdmissionState, limit: int, check: PolicyCheck) -> CycleResult:
    """Verdicts on the first `limit` pending requests; changes no state."""
    draft = state.draft(max(0, limit))
    decisions, complete = decide_in_place(draft, limit, check)
    return CycleResult(decisions, draft.digest(), complete)


def decide_in_place(
    state: AdmissionState, limit: int, check: PolicyCheck
) -> tuple[list[Decision], bool]:
    """Judge the first `limit` pending requests, and apply each verdict to `state`.

    Returns the verdicts, and whether no request is pending after them.
    """
    decisions: list[Decision] = []
    while state.work and len(decisions) < limit:
        pending = state.work[0]
        event = judge(state, pending, check)
        apply_verdict(state, event)
        decisions.append(Decision(event, subject(state, pending.event), pending.record_id))
    return decisions, state.judged == state.taken


def subject(state: AdmissionState, request: Event) -> str:
    """The subject of a request: a task, a job, the name of the configured entity, or the cell."""
    job_id: str | None = getattr(request, "job_id", None)
    if job_id is not None:
        index: int | None = getattr(request, "index", None)
        return job_id if index is None else f"{job_id}.{index}"
    names = (getattr(request, field) for field in _SUBJECTS if hasattr(request, field))
    return next(names, state.cell)
