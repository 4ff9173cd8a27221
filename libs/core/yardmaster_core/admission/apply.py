"""The appliers of quota's state, one per event type; no other code changes the state.

An applied request joins the end of the worklist (`AdmissionState.work`). An applied verdict removes
the first request of the worklist, which the verdict must answer, and changes rows. Only the order
links a verdict to its request: the envelope's `cause` names the request, but appliers do not see
the envelope. The machine writes one verdict per request, in the order of the requests.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from sys import intern
from typing import Any, Final

from yardmaster_core.access import user_after
from yardmaster_core.admission.state import (
    AdmissionState,
    Cell,
    Department,
    Enrolled,
    Job,
    LastRecord,
    Log,
    Node,
    Pending,
    Pool,
    Project,
)
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events import users as u
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    RulesEnabledV1,
    SnapshotTakenV1,
    TermStartedV1,
)
from yardmaster_schemas.topics import DECISIONS

VerdictApplier = Callable[[AdmissionState, Any, Any], None]

#: Records of quota's own topic that only the runtime uses; they change no row.
IGNORED: Final[frozenset[type[Event]]] = frozenset(
    {TermStartedV1, CycleCommittedV1, SnapshotTakenV1}
)
#: Requests that quota judges.
JUDGED: Final[frozenset[type[Event]]] = frozenset(
    {
        *(r.TaskSubmittedV1, r.CancelRequestedV1, r.PauseRequestedV1, r.ResumeRequestedV1),
        *(r.PriorityChangeRequestedV1, r.WeightChangeRequestedV1, r.MaxSlotsChangeRequestedV1),
        *(r.PoolChangeRequestedV1, r.PoolDeletionRequestedV1),
        *(r.DepartmentChangeRequestedV1, r.DepartmentDeletionRequestedV1),
        *(r.ProjectChangeRequestedV1, r.ProjectDeletionRequestedV1),
        *(r.NodeCordonRequestedV1, r.NodeUncordonRequestedV1, r.NodeDrainRequestedV1),
        *(r.NodeEnrolRequestedV1, r.NodeRevokeRequestedV1, r.EraseRequestedV1),
        *(r.NodeSlotsChangeRequestedV1, r.RulesRequestedV1, r.CellChangeRequestedV1),
        *(u.RoleGrantRequestedV1, u.RoleRevokeRequestedV1, u.TokenIssueRequestedV1),
        *(u.TokenRevokeRequestedV1, u.AccessRevokeRequestedV1),
    }
)


def parse_record_id(record_id: str) -> tuple[str, int, int]:
    """The source, epoch and seq in a record id."""
    source, epoch, seq = record_id.rsplit("/", 2)
    return source, int(epoch), int(seq)


def apply_event(state: AdmissionState, event: Event, record_id: str, actor: str) -> None:
    """Apply a record to the state; a repeated record changes nothing.

    Of the scheduler's decisions, only TaskEnded changes the state.

    Raises:
        ImpossibleEvent: log and state disagree; only for records of quota's own topic.
    """
    kind = type(event)
    if kind in JUDGED or kind is r.LogCreatedV1:
        _apply_request(state, event, record_id, actor)
        return
    if DECISIONS.name in kind.TOPICS and kind not in IGNORED and kind not in VERDICTS:
        if isinstance(event, TaskEndedV1):
            _apply_end(state, event)
        return
    if kind not in VERDICTS and kind not in IGNORED:
        raise ImpossibleEvent(event=event.TYPE, found="quota never writes it in this version")
    _, epoch, seq = parse_record_id(record_id)
    if state.own is not None and not state.own.precedes(epoch, seq):
        return
    # A RulesEnabled of the leader itself names the rules with which the cycle began, and answers no
    # request.
    observed = isinstance(event, RulesEnabledV1) and event.rules == state.rules
    if kind in VERDICTS and not observed:
        apply_verdict(state, event)
    state.own = LastRecord(epoch, seq)


def _apply_request(state: AdmissionState, event: Event, record_id: str, actor: str) -> None:
    """Add a request to the worklist, or set the identity of the log; a repeat changes nothing."""
    source, epoch, seq = parse_record_id(record_id)
    last = state.sources.get(source)
    if last is not None and not last.precedes(epoch, seq):
        return
    state.put_last_record(source, epoch, seq)
    if isinstance(event, r.LogCreatedV1):
        if state.logs.get(state.cell) is None:
            state.logs.put(state.cell, Log(event.log_id, event.mode.value))
        return
    state.work.append(Pending(event, record_id, state.now_ms, actor))
    state.taken += 1


def _apply_end(state: AdmissionState, event: TaskEndedV1) -> None:
    """Mark a task as ended in the row of its job, if quota still has the row."""
    job_id, _, index = event.task_id.partition(".")
    job = state.jobs.get(job_id)
    if job is not None:
        bit = job.bits(int(index))
        state.put_job(job_id, replace(job, ended=job.ended | bit, paused=job.paused & ~bit))


def apply_verdict(state: AdmissionState, verdict: Event) -> None:
    """Remove the first request from the worklist and apply its verdict.

    Raises:
        ImpossibleEvent: the verdict does not answer that request, or contradicts the state.
    """
    request_type, subject, applier = VERDICTS[type(verdict)]
    pending: Pending | None = state.work[0] if state.work else None
    if pending is None:
        raise ImpossibleEvent(event=verdict.TYPE, found="no request is pending")
    request = pending.event
    if request_type is None:
        fits = getattr(verdict, "request_type", None) == request.TYPE
    else:
        fits = isinstance(request, request_type) and all(
            getattr(request, name) == getattr(verdict, name) for name in subject
        )
    if not fits:
        found = f"the request to judge next is {request.TYPE} {pending.record_id}"
        raise ImpossibleEvent(event=verdict.TYPE, found=found)
    applier(state, verdict, request)
    state.work.popleft()
    state.judged += 1


def _require(holds: bool, verdict: Event, found: str) -> None:
    """Raise ImpossibleEvent unless the condition holds."""
    if not holds:
        raise ImpossibleEvent(event=verdict.TYPE, found=found)


def _job(state: AdmissionState, verdict: Any) -> Job:
    """Return the job of a verdict; raise ImpossibleEvent if it is unknown or cancelled."""
    job = state.jobs.get(verdict.job_id)
    if job is None or not job.live:
        raise ImpossibleEvent(
            event=verdict.TYPE, found=f"job {verdict.job_id} is unknown or cancelled"
        )
    return job


def _task_admitted_v1(
    state: AdmissionState, verdict: a.TaskAdmittedV1, request: r.TaskSubmittedV1
) -> None:
    name = verdict.job_id
    known = state.jobs.get(name) is not None or state.judged_ids.get(name) is not None
    _require(not known, verdict, f"job {name} was judged before")
    spec = verdict.spec
    body = bytes.fromhex(request.body_digest)
    pools = state.interned(spec.pools)
    user = intern(state.work[0].actor)
    project = intern(verdict.project)
    state.put_job(name, Job(project, pools, spec.tasks, spec.priority, 1, body, user=user))


def _task_rejected_v1(
    state: AdmissionState, verdict: a.TaskRejectedV1, request: r.TaskSubmittedV1
) -> None:
    name = verdict.job_id
    known = state.jobs.get(name) is not None or state.judged_ids.get(name) is not None
    _require(not known, verdict, f"job {name} was judged before")
    state.judged_ids.add(name, bytes.fromhex(request.body_digest))


def _request_refused_v1(state: AdmissionState, verdict: a.RequestRefusedV1, request: Event) -> None:
    """A refusal changes only the worklist."""


def _cancel_accepted_v1(
    state: AdmissionState, verdict: a.CancelAcceptedV1, request: r.CancelRequestedV1
) -> None:
    job = state.jobs.get(verdict.job_id)
    if job is None:
        raise ImpossibleEvent(event=verdict.TYPE, found=f"job {verdict.job_id} is unknown")
    gone = job.bits(verdict.index)
    changed = replace(job, cancelled=job.cancelled | gone, paused=job.paused & ~gone)
    state.put_job(verdict.job_id, changed)


def _task_paused_v1(
    state: AdmissionState, verdict: a.TaskPausedV1, request: r.PauseRequestedV1
) -> None:
    job = _job(state, verdict)
    held = job.bits(verdict.index) & ~job.cancelled & ~job.ended
    state.put_job(verdict.job_id, replace(job, paused=job.paused | held))


def _task_resumed_v1(
    state: AdmissionState, verdict: a.TaskResumedV1, request: r.ResumeRequestedV1
) -> None:
    job = _job(state, verdict)
    state.put_job(verdict.job_id, replace(job, paused=job.paused & ~job.bits(verdict.index)))


def _job_changed_v1(
    state: AdmissionState,
    verdict: a.PriorityChangedV1 | a.WeightChangedV1 | a.MaxSlotsChangedV1,
    request: Event,
) -> None:
    """Apply a change of a job; the row keeps only the priority and the revision."""
    job = _job(state, verdict)
    _require(verdict.revision == job.revision + 1, verdict, f"the job's revision is {job.revision}")
    priority = verdict.priority if isinstance(verdict, a.PriorityChangedV1) else job.priority
    state.put_job(verdict.job_id, replace(job, priority=priority, revision=verdict.revision))


def _cell_configured_v1(
    state: AdmissionState, verdict: a.CellConfiguredV1, request: r.CellChangeRequestedV1
) -> None:
    _follows(verdict, verdict.revision, state.cells.get(state.cell))
    state.put_cell(Cell(verdict.config, verdict.revision))


def _pool_configured_v1(
    state: AdmissionState, verdict: a.PoolConfiguredV1, request: r.PoolChangeRequestedV1
) -> None:
    pool = state.pools.get(verdict.pool)
    _follows(verdict, verdict.revision, pool)
    state.put_pool(verdict.pool, Pool(verdict.config, verdict.revision))


def _pool_deleted_v1(
    state: AdmissionState, verdict: a.PoolDeletedV1, request: r.PoolDeletionRequestedV1
) -> None:
    gone = state.pools.get(verdict.pool) is not None and not state.in_use("pool", verdict.pool)
    _require(gone, verdict, f"pool {verdict.pool} is unknown or in use")
    state.put_pool(verdict.pool, None)


def _entitlements_changed_v1(
    state: AdmissionState, verdict: a.EntitlementsChangedV1, request: Any
) -> None:
    """Set or remove a project or department, after a check that request and verdict agree."""
    name = verdict.name
    is_project = isinstance(request, r.ProjectChangeRequestedV1 | r.ProjectDeletionRequestedV1)
    requested = request.project if is_project else request.department
    level = a.Level.PROJECT if is_project else a.Level.DEPARTMENT
    right = (verdict.level, verdict.name) == (level, requested)
    _require(right, verdict, f"the request is about {level.value} {requested}")
    deletion = verdict.department is None and verdict.project is None
    deletion_requested = isinstance(
        request, r.ProjectDeletionRequestedV1 | r.DepartmentDeletionRequestedV1
    )
    _require(
        deletion == deletion_requested,
        verdict,
        "the request and it are not both deletions",
    )
    used = deletion and state.in_use(level.value, name) > 0
    _require(not used, verdict, f"{level.value} {name} is in use")
    if is_project:
        _require(verdict.department is None, verdict, "a project has a department's configuration")
        _follows(verdict, verdict.revision, state.projects.get(name))
        project = verdict.project
        state.put_project(name, None if project is None else Project(project, verdict.revision))
    else:
        _require(verdict.project is None, verdict, "a department has a project's configuration")
        _follows(verdict, verdict.revision, state.departments.get(name))
        config = verdict.department
        state.put_department(name, None if config is None else Department(config, verdict.revision))


def _follows(
    verdict: Event, revision: int, row: Cell | Pool | Department | Project | Enrolled | None
) -> None:
    """Raise ImpossibleEvent unless `revision` is the one after the row's revision."""
    before = 0 if row is None else row.revision
    _require(revision == before + 1, verdict, f"the revision before is {before}")


def _node_cordoned_v1(
    state: AdmissionState, verdict: a.NodeCordonedV1, request: r.NodeCordonRequestedV1
) -> None:
    state.nodes.put(verdict.node, Node())


def _node_uncordoned_v1(
    state: AdmissionState, verdict: a.NodeUncordonedV1, request: r.NodeUncordonRequestedV1
) -> None:
    _require(
        state.nodes.get(verdict.node) is not None,
        verdict,
        "the node is not cordoned",
    )
    state.nodes.put(verdict.node, None)


def _node_draining_v1(
    state: AdmissionState, verdict: a.NodeDrainingV1, request: r.NodeDrainRequestedV1
) -> None:
    state.nodes.put(verdict.node, Node(verdict.deadline_at_ms))


def _node_enrolled_v1(
    state: AdmissionState, verdict: a.NodeEnrolledV1, request: r.NodeEnrolRequestedV1
) -> None:
    _follows(verdict, verdict.revision, state.enrolled.get(verdict.node))
    state.put_enrolled(verdict.node, Enrolled(verdict.enrollment, verdict.revision))


def _node_revoked_v1(
    state: AdmissionState, verdict: a.NodeRevokedV1, request: r.NodeRevokeRequestedV1
) -> None:
    row = state.enrolled.get(verdict.node)
    if row is None or row.revoked:
        raise ImpossibleEvent(event=verdict.TYPE, found=f"node {verdict.node} is not enrolled")
    state.put_enrolled(verdict.node, replace(row, revoked=True))


def _details_erased_v1(
    state: AdmissionState, verdict: a.DetailsErasedV1, request: r.EraseRequestedV1
) -> None:
    """Quota keeps only a keyed digest of the erased details."""


def _node_slots_changed_v1(
    state: AdmissionState, verdict: a.NodeSlotsChangedV1, request: r.NodeSlotsChangeRequestedV1
) -> None:
    """No verdict depends on the slots of a node."""


def _access_changed_v1(state: AdmissionState, verdict: u.AccessChange, request: Any) -> None:
    user = state.users.get(verdict.principal)
    live = user is not None and not user.removed
    new = isinstance(verdict, u.RoleGrantedV1) and (request.new or request.imported)
    _require(live != new, verdict, f"user {verdict.principal} {'exists' if live else 'is unknown'}")
    state.put_user(verdict.principal, user_after(user, verdict, state.now_ms))


_ENTITLEMENTS = (
    r.DepartmentChangeRequestedV1
    | r.DepartmentDeletionRequestedV1
    | r.ProjectChangeRequestedV1
    | r.ProjectDeletionRequestedV1
)


def _rules_enabled_v1(
    state: AdmissionState, verdict: RulesEnabledV1, request: r.RulesRequestedV1
) -> None:
    state.rules = verdict.rules


_TASK = ("job_id", "index")

#: Verdict -> the request type it answers (None: the verdict names it), the fields in which both
#: must agree, and the applier.
VERDICTS: Final[Mapping[type[Event], tuple[Any, tuple[str, ...], VerdictApplier]]] = {
    a.TaskAdmittedV1: (r.TaskSubmittedV1, ("job_id", "project"), _task_admitted_v1),
    a.TaskRejectedV1: (r.TaskSubmittedV1, ("job_id",), _task_rejected_v1),
    a.RequestRefusedV1: (None, (), _request_refused_v1),
    a.CancelAcceptedV1: (r.CancelRequestedV1, (*_TASK, "immediate"), _cancel_accepted_v1),
    a.TaskPausedV1: (r.PauseRequestedV1, _TASK, _task_paused_v1),
    a.TaskResumedV1: (r.ResumeRequestedV1, _TASK, _task_resumed_v1),
    a.PriorityChangedV1: (r.PriorityChangeRequestedV1, ("job_id", "priority"), _job_changed_v1),
    a.WeightChangedV1: (r.WeightChangeRequestedV1, ("job_id", "weight"), _job_changed_v1),
    a.MaxSlotsChangedV1: (
        r.MaxSlotsChangeRequestedV1,
        ("job_id", "max_slots_milli"),
        _job_changed_v1,
    ),
    a.CellConfiguredV1: (r.CellChangeRequestedV1, ("config",), _cell_configured_v1),
    a.PoolConfiguredV1: (r.PoolChangeRequestedV1, ("pool", "config"), _pool_configured_v1),
    a.PoolDeletedV1: (r.PoolDeletionRequestedV1, ("pool",), _pool_deleted_v1),
    a.EntitlementsChangedV1: (_ENTITLEMENTS, (), _entitlements_changed_v1),
    a.NodeCordonedV1: (r.NodeCordonRequestedV1, ("node",), _node_cordoned_v1),
    a.NodeUncordonedV1: (r.NodeUncordonRequestedV1, ("node",), _node_uncordoned_v1),
    a.NodeDrainingV1: (r.NodeDrainRequestedV1, ("node", "deadline_at_ms"), _node_draining_v1),
    a.NodeSlotsChangedV1: (
        r.NodeSlotsChangeRequestedV1,
        ("node", "disabled", "stop"),
        _node_slots_changed_v1,
    ),
    a.NodeEnrolledV1: (r.NodeEnrolRequestedV1, ("node", "enrollment"), _node_enrolled_v1),
    a.NodeRevokedV1: (r.NodeRevokeRequestedV1, ("node",), _node_revoked_v1),
    a.DetailsErasedV1: (r.EraseRequestedV1, ("job_id",), _details_erased_v1),
    u.RoleGrantedV1: (u.RoleGrantRequestedV1, ("principal",), _access_changed_v1),
    u.RoleRevokedV1: (u.RoleRevokeRequestedV1, ("principal",), _access_changed_v1),
    u.TokenIssuedV1: (u.TokenIssueRequestedV1, ("principal",), _access_changed_v1),
    u.TokenRevokedV1: (u.TokenRevokeRequestedV1, ("principal", "token_id"), _access_changed_v1),
    u.AccessRevokedV1: (u.AccessRevokeRequestedV1, ("principal",), _access_changed_v1),
    RulesEnabledV1: (r.RulesRequestedV1, ("rules",), _rules_enabled_v1),
}
