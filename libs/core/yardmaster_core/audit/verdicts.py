"""Quota's guarantees: every consumed request gets exactly one verdict, and a job is admitted only
with what the allow-lists contain (S8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_core.audit.allow_lists import AllowLists
from yardmaster_core.audit.findings import FedRecord, Report
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
    CellConfiguredV1,
    DetailsErasedV1,
    EntitlementsChangedV1,
    MaxSlotsChangedV1,
    NodeCordonedV1,
    NodeDrainingV1,
    NodeEnrolledV1,
    NodeRevokedV1,
    NodeSlotsChangedV1,
    NodeUncordonedV1,
    PoolConfiguredV1,
    PoolDeletedV1,
    PriorityChangedV1,
    RequestRefusedV1,
    TaskAdmittedV1,
    TaskPausedV1,
    TaskRejectedV1,
    TaskResumedV1,
    WeightChangedV1,
)
from yardmaster_schemas.events.machine import RulesEnabledV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    CellChangeRequestedV1,
    DepartmentChangeRequestedV1,
    DepartmentDeletionRequestedV1,
    EraseRequestedV1,
    MaxSlotsChangeRequestedV1,
    NodeCordonRequestedV1,
    NodeDrainRequestedV1,
    NodeEnrolRequestedV1,
    NodeRevokeRequestedV1,
    NodeSlotsChangeRequestedV1,
    NodeUncordonRequestedV1,
    PauseRequestedV1,
    PoolChangeRequestedV1,
    PoolDeletionRequestedV1,
    PriorityChangeRequestedV1,
    ProjectChangeRequestedV1,
    ProjectDeletionRequestedV1,
    ResumeRequestedV1,
    RulesRequestedV1,
    TaskSubmittedV1,
    WeightChangeRequestedV1,
)
from yardmaster_schemas.events.users import (
    AccessRevokedV1,
    AccessRevokeRequestedV1,
    RoleGrantedV1,
    RoleGrantRequestedV1,
    RoleRevokedV1,
    RoleRevokeRequestedV1,
    TokenIssuedV1,
    TokenIssueRequestedV1,
    TokenRevokedV1,
    TokenRevokeRequestedV1,
)
from yardmaster_schemas.reasons import AdmissionCode

#: Request -> the verdict that grants it. The refusal of a submitted job is TaskRejected, of any
#: other request RequestRefused.
GRANTS: Final[Mapping[str, str]] = {
    request.TYPE: granted.TYPE
    for request, granted in (
        (TaskSubmittedV1, TaskAdmittedV1),
        (CancelRequestedV1, CancelAcceptedV1),
        (PauseRequestedV1, TaskPausedV1),
        (ResumeRequestedV1, TaskResumedV1),
        (PriorityChangeRequestedV1, PriorityChangedV1),
        (WeightChangeRequestedV1, WeightChangedV1),
        (MaxSlotsChangeRequestedV1, MaxSlotsChangedV1),
        (CellChangeRequestedV1, CellConfiguredV1),
        (PoolChangeRequestedV1, PoolConfiguredV1),
        (PoolDeletionRequestedV1, PoolDeletedV1),
        (DepartmentChangeRequestedV1, EntitlementsChangedV1),
        (DepartmentDeletionRequestedV1, EntitlementsChangedV1),
        (ProjectChangeRequestedV1, EntitlementsChangedV1),
        (ProjectDeletionRequestedV1, EntitlementsChangedV1),
        (NodeCordonRequestedV1, NodeCordonedV1),
        (NodeUncordonRequestedV1, NodeUncordonedV1),
        (NodeDrainRequestedV1, NodeDrainingV1),
        (NodeSlotsChangeRequestedV1, NodeSlotsChangedV1),
        (NodeEnrolRequestedV1, NodeEnrolledV1),
        (NodeRevokeRequestedV1, NodeRevokedV1),
        (EraseRequestedV1, DetailsErasedV1),
        (RulesRequestedV1, RulesEnabledV1),
        (RoleGrantRequestedV1, RoleGrantedV1),
        (RoleRevokeRequestedV1, RoleRevokedV1),
        (TokenIssueRequestedV1, TokenIssuedV1),
        (TokenRevokeRequestedV1, TokenRevokedV1),
        (AccessRevokeRequestedV1, AccessRevokedV1),
    )
}
_VERDICTS: Final = frozenset(GRANTS.values()) | {TaskRejectedV1.TYPE, RequestRefusedV1.TYPE}


@dataclass(slots=True)
class _Request:
    type: str
    fed: FedRecord
    #: The job of a submission without a verdict.
    submitted: TaskSubmittedV1 | None = None
    verdict: str | None = None


class Verdicts:
    """Consumed requests and their verdicts."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._lists = AllowLists()
        self.requests: dict[str, _Request] = {}
        #: Requests without a verdict, by id.
        self.waiting: dict[str, _Request] = {}
        #: Job id -> the id of the request that submitted the job.
        self.admitted: dict[str, str] = {}

    def consume(self, fed: FedRecord, envelope: Envelope[Any]) -> None:
        """Note a request that was consumed and not refused."""
        if envelope.type not in GRANTS or envelope.id in self.requests:
            return  # LogCreated gets no verdict; a repeated request changes nothing
        job = envelope.data if isinstance(envelope.data, TaskSubmittedV1) else None
        request = _Request(envelope.type, fed, job)
        self.requests[envelope.id] = self.waiting[envelope.id] = request

    def decide(self, fed: FedRecord, envelope: Envelope[Any]) -> None:
        """Check one record of a counted cycle of quota."""
        self._lists.decide(envelope.data)
        if envelope.type not in _VERDICTS:
            return
        request = self.requests.get(envelope.cause or "")
        if request is None:
            if isinstance(envelope.data, TaskAdmittedV1 | TaskRejectedV1 | RequestRefusedV1):
                self.report.add(
                    "S8",
                    fed,
                    f"{envelope.type} {envelope.subject}: expected a consumed request as cause, "
                    f"found {envelope.cause}",
                )
            return
        if request.verdict is not None:
            self.report.add(
                "S8",
                fed,
                f"request {envelope.cause}: expected one verdict, "
                f"found {request.verdict} and {envelope.type}",
            )
        elif not _is_verdict(request.type, envelope.data):
            self.report.add(
                "S8", fed, f"{envelope.type} is not a verdict on {request.type} {envelope.cause}"
            )
        if isinstance(envelope.data, TaskAdmittedV1) and request.submitted is not None:
            for fault in self._lists.faults(request.submitted.spec, envelope.data):
                self.report.add("S8", fed, f"job {envelope.data.job_id} was admitted: {fault}")
        request.verdict, request.submitted = envelope.type, None
        self.waiting.pop(envelope.cause or "", None)
        match envelope.data:
            case RequestRefusedV1(request_type=named) if named != request.type:
                self.report.add(
                    "S8", fed, f"refuses a {named}, but {envelope.cause} is a {request.type}"
                )
            case TaskAdmittedV1(job_id=job_id):
                if job_id in self.admitted:
                    self.report.add(
                        "S8",
                        fed,
                        f"job {job_id}: expected one TaskAdmitted, found a second after "
                        f"that for {self.admitted[job_id]}",
                    )
                self.admitted[job_id] = envelope.cause or ""
            case _:
                pass

    def end(self, commit: FedRecord) -> None:
        """Check after a complete cycle that every consumed request has a verdict."""
        for id_, request in self.waiting.items():
            self.report.add(
                "S8",
                commit,
                f"request {id_} ({request.type}, requests/{request.fed.offset}): "
                "expected one verdict, found none",
            )
        self.waiting.clear()


def _is_verdict(request_type: str, event: Event) -> bool:
    """Whether `event` may be the verdict on a request of this type."""
    if isinstance(event, RequestRefusedV1):
        # A job is refused by TaskRejected, except if its id was used before.
        repeat = event.code is AdmissionCode.DUPLICATE_ID
        return request_type != TaskSubmittedV1.TYPE or repeat
    if isinstance(event, TaskRejectedV1):
        return request_type == TaskSubmittedV1.TYPE
    return GRANTS[request_type] == event.TYPE
