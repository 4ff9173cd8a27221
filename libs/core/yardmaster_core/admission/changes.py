"""Verdicts on requests to change a job, a pool, a department, a project or a node.

Each `judge_` function judges one type of request: it returns the event of acceptance, or
RequestRefused with the code of the first condition that is not met. The precondition `if_revision`
(the object still has this revision) is checked after existence. Of two requests that race, the
second one gets version_mismatch with both revisions. Revision 0 means that the object must not
exist.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from yardmaster_core import fencing
from yardmaster_core.admission.nesting import MAX_LEVELS, levels_of, path_of
from yardmaster_core.admission.state import (
    AdmissionState,
    Cell,
    Department,
    Enrolled,
    Job,
    Pool,
    Project,
)
from yardmaster_core.checkpoint_uris import segments
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.machine import RulesEnabledV1
from yardmaster_schemas.reasons import AdmissionCode


class PolicyCheck(Protocol):
    """Checks whether a pool can be scheduled with its configuration."""

    def __call__(self, config: r.PoolConfig, /) -> AdmissionCode | None:
        """Return why a pool with `config` cannot be scheduled, or None.

        The codes are policy_unknown, policy_options_invalid, policy_for_simulations. Never raises.
        """


def any_policy(config: r.PoolConfig, /) -> AdmissionCode | None:
    """Accept every policy; a `PolicyCheck`."""
    return None


def refused(
    request: Event,
    code: AdmissionCode,
    *,
    about: str | None = None,
    numbers: dict[str, int] | None = None,
) -> a.RequestRefusedV1:
    """Return the refusal of a request; `about` is the name of the object that is at fault."""
    return a.RequestRefusedV1(
        request_type=request.TYPE, code=code, numbers=numbers or {}, about=about
    )


def _stale(request: Event, if_revision: int | None, revision: int) -> a.RequestRefusedV1 | None:
    """Return the refusal of a request whose `if_revision` is not `revision`, or None."""
    if if_revision is None or if_revision == revision:
        return None
    numbers = {"revision": revision, "if_revision": if_revision}
    return refused(request, AdmissionCode.VERSION_MISMATCH, numbers=numbers)


def _revision(row: Cell | Pool | Department | Project | Enrolled | None) -> int:
    """Return the revision of a row; 0 if there is no row."""
    return 0 if row is None else row.revision


# Jobs ------------------------------------------------------------------------------------------


def _live(
    state: AdmissionState, request: Event, job_id: str, index: int | None = None
) -> Job | a.RequestRefusedV1:
    """Return the job if it (with `index`: that task) can still be changed, else the refusal."""
    job = state.jobs.get(job_id)
    if job is None:
        known = state.judged_ids.get(job_id) is not None
        code = AdmissionCode.WRONG_PHASE if known else AdmissionCode.JOB_UNKNOWN
        return refused(request, code, about=job_id)
    if index is not None and index >= job.tasks:
        numbers = {"index": index, "tasks": job.tasks}
        return refused(request, AdmissionCode.TASK_UNKNOWN, about=job_id, numbers=numbers)
    if not job.live or (index is not None and (job.cancelled | job.ended) & job.bits(index)):
        about = job_id if index is None else f"{job_id}.{index}"
        return refused(request, AdmissionCode.WRONG_PHASE, about=about)
    return job


def judge_cancel(state: AdmissionState, request: r.CancelRequestedV1) -> Event:
    """Accept if the job or the named task is neither cancelled nor ended.

    The cancellation of a cancelled job is accepted if it is `immediate`: it ends the grace period.
    """
    job = _live(state, request, request.job_id, request.index)
    known = state.jobs.get(request.job_id)
    cancelled = (
        isinstance(job, a.RequestRefusedV1)
        and job.code is AdmissionCode.WRONG_PHASE
        and known is not None
        and bool(known.cancelled & ~known.ended & known.bits(request.index))
    )
    if isinstance(job, a.RequestRefusedV1) and not (request.immediate and cancelled):
        return job
    return a.CancelAcceptedV1(
        job_id=request.job_id, index=request.index, immediate=request.immediate
    )


def judge_pause(state: AdmissionState, request: r.PauseRequestedV1) -> Event:
    """Accept if the named task is neither paused, cancelled nor ended.

    A request that names no task is accepted if at least one task of the job is such a task.
    """
    job = _live(state, request, request.job_id, request.index)
    if not isinstance(job, Job):
        return job
    if not job.bits(request.index) & ~job.cancelled & ~job.ended & ~job.paused:
        return refused(request, AdmissionCode.WRONG_PHASE, about=request.job_id)
    return a.TaskPausedV1(job_id=request.job_id, index=request.index)


def judge_resume(state: AdmissionState, request: r.ResumeRequestedV1) -> Event:
    """Accept if the named task, or without one at least one task of the job, is paused."""
    job = _live(state, request, request.job_id, request.index)
    if not isinstance(job, Job):
        return job
    if not job.bits(request.index) & job.paused:
        return refused(request, AdmissionCode.WRONG_PHASE, about=request.job_id)
    return a.TaskResumedV1(job_id=request.job_id, index=request.index)


def judge_priority(state: AdmissionState, request: r.PriorityChangeRequestedV1) -> Event:
    """Accept if the job has not ended and its project now allows the priority."""
    job = _live(state, request, request.job_id)
    if not isinstance(job, Job):
        return job
    project = state.projects.get(job.project)
    best = project.config.best_priority if project is not None else 1
    if stale := _stale(request, request.if_revision, job.revision):
        return stale
    if request.priority < best:
        numbers = {"priority": request.priority, "best_priority": best}
        code = AdmissionCode.PRIORITY_NOT_ALLOWED
        return refused(request, code, about=job.project, numbers=numbers)
    return a.PriorityChangedV1(
        job_id=request.job_id, priority=request.priority, revision=job.revision + 1
    )


def judge_weight(state: AdmissionState, request: r.WeightChangeRequestedV1) -> Event:
    """Accept if the job has not ended; any weight is allowed."""
    job = _live(state, request, request.job_id)
    if not isinstance(job, Job):
        return job
    return _stale(request, request.if_revision, job.revision) or a.WeightChangedV1(
        job_id=request.job_id, weight=request.weight, revision=job.revision + 1
    )


def judge_max_slots(state: AdmissionState, request: r.MaxSlotsChangeRequestedV1) -> Event:
    """Accept if the job has not ended; any number is allowed.

    The limits of project and department apply in addition.
    """
    job = _live(state, request, request.job_id)
    if not isinstance(job, Job):
        return job
    return _stale(request, request.if_revision, job.revision) or a.MaxSlotsChangedV1(
        job_id=request.job_id,
        max_slots_milli=request.max_slots_milli,
        revision=job.revision + 1,
    )


def judge_erasure(state: AdmissionState, request: r.EraseRequestedV1) -> Event:
    """Accept if the job was admitted or rejected; the request may be repeated.

    Quota does not check that the job has ended, because quota may read the end later than the
    gateway. The gateway has read the end in a view, and an end is final.
    """
    known = state.jobs.get(request.job_id) is not None
    if not known and state.judged_ids.get(request.job_id) is None:
        return refused(request, AdmissionCode.JOB_UNKNOWN, about=request.job_id)
    return a.DetailsErasedV1(job_id=request.job_id)


# The cell --------------------------------------------------------------------------------------


def judge_cell(state: AdmissionState, request: r.CellChangeRequestedV1) -> Event:
    """Accept if all default pools exist; tasks that were admitted stay when a limit falls.

    A project need not be allowed all default pools: its jobs get the default pools that the project
    may use.
    """
    revision = _revision(state.cells.get(state.cell))
    return (
        _stale(request, request.if_revision, revision)
        or _unknown_pool(state, request, request.config.default_pools)
        or a.CellConfiguredV1(revision=revision + 1, config=request.config)
    )


# Pools -----------------------------------------------------------------------------------------


def judge_pool(
    state: AdmissionState, request: r.PoolChangeRequestedV1, check: PolicyCheck
) -> Event:
    """Accept if policy and placement are known and allow the given options.

    A policy that is only for simulations is accepted only if the log is marked as simulated. With a
    fence, the node timeout must leave the agent time to kill its tasks before the node is lost.
    """
    revision = _revision(state.pools.get(request.pool))
    if stale := _stale(request, request.if_revision, revision):
        return stale
    config = request.config
    code = check(config)
    if code is AdmissionCode.POLICY_FOR_SIMULATIONS and state.simulated:
        code = None
    if code is not None:
        return refused(request, code, about=config.policy.name)
    if config.fence is r.Fence.KILL and config.node_timeout_s < fencing.LEAST_TIMEOUT_S:
        numbers = {"node_timeout_s": config.node_timeout_s, "least_s": fencing.LEAST_TIMEOUT_S}
        code = AdmissionCode.FENCE_IMPOSSIBLE
        return refused(request, code, about=request.pool, numbers=numbers)
    return a.PoolConfiguredV1(pool=request.pool, revision=revision + 1, config=request.config)


def judge_pool_deletion(state: AdmissionState, request: r.PoolDeletionRequestedV1) -> Event:
    """Accept if no project, quota, enrollment, unfinished job or default of the cell names it."""
    pool = state.pools.get(request.pool)
    return _undeletable(state, request, "pool", request.pool, pool) or a.PoolDeletedV1(
        pool=request.pool
    )


# Departments and projects ----------------------------------------------------------------------

_UNKNOWN = {
    "pool": AdmissionCode.POOL_UNKNOWN,
    "department": AdmissionCode.DEPARTMENT_UNKNOWN,
    "project": AdmissionCode.PROJECT_UNKNOWN,
}


def _undeletable(
    state: AdmissionState,
    request: r.PoolDeletionRequestedV1
    | r.DepartmentDeletionRequestedV1
    | r.ProjectDeletionRequestedV1,
    kind: str,
    name: str,
    row: Pool | Department | Project | None,
) -> a.RequestRefusedV1 | None:
    """Return the refusal to delete an object that is unknown or in use, or None."""
    if row is None:
        return refused(request, _UNKNOWN[kind], about=name)
    if stale := _stale(request, request.if_revision, row.revision):
        return stale
    if uses := state.in_use(kind, name):
        return refused(request, AdmissionCode.IN_USE, about=name, numbers={"uses": uses})
    return None


def _unknown_pool(
    state: AdmissionState, request: Event, pools: Iterable[str]
) -> a.RequestRefusedV1 | None:
    """Return the refusal of a request that names an unknown pool, or None."""
    for pool in pools:
        if state.pools.get(pool) is None:
            return refused(request, AdmissionCode.POOL_UNKNOWN, about=pool)
    return None


def _misplaced(
    state: AdmissionState, request: r.DepartmentChangeRequestedV1
) -> a.RequestRefusedV1 | None:
    """Return the refusal of a department whose parent is unknown, below it or too deep, or None."""
    name, parent = request.department, request.config.parent
    if parent is None:
        return None
    above = path_of(state, parent)
    if name in above:
        return refused(request, AdmissionCode.DEPARTMENT_CYCLE, about=parent)
    if state.departments.get(parent) is None:
        return refused(request, AdmissionCode.DEPARTMENT_UNKNOWN, about=parent)
    levels = len(above) + levels_of(state, name)
    if levels > MAX_LEVELS:
        numbers = {"levels": levels, "limit": MAX_LEVELS}
        return refused(request, AdmissionCode.DEPARTMENT_TOO_DEEP, about=parent, numbers=numbers)
    return None


def _invalid_quota(request: Event, quotas: Mapping[str, r.Quota]) -> a.RequestRefusedV1 | None:
    """Return the refusal of a quota that is unlimited and also sets GPUs, or None."""
    for pool, quota in sorted(quotas.items()):
        if quota.deserved_unlimited and quota.deserved_milli is not None:
            return refused(request, AdmissionCode.QUOTA_INVALID, about=pool)
    return None


def judge_department(state: AdmissionState, request: r.DepartmentChangeRequestedV1) -> Event:
    """Accept if the parent exists and is not below the department, the departments then have at
    most `MAX_LEVELS` levels, all pools in the quotas exist, and no quota contradicts itself.
    """
    revision = _revision(state.departments.get(request.department))
    return (
        _stale(request, request.if_revision, revision)
        or _misplaced(state, request)
        or _unknown_pool(state, request, sorted(request.config.quotas))
        or _invalid_quota(request, request.config.quotas)
        or a.EntitlementsChangedV1(
            level=a.Level.DEPARTMENT,
            name=request.department,
            revision=revision + 1,
            department=request.config,
        )
    )


def judge_department_deletion(
    state: AdmissionState, request: r.DepartmentDeletionRequestedV1
) -> Event:
    """Accept if the department has no project and is no parent."""
    row = state.departments.get(request.department)
    return _undeletable(
        state, request, "department", request.department, row
    ) or a.EntitlementsChangedV1(
        level=a.Level.DEPARTMENT, name=request.department, revision=_revision(row) + 1
    )


def judge_project(state: AdmissionState, request: r.ProjectChangeRequestedV1) -> Event:
    """Accept if the department and all pools exist, the project may use its default pools, no quota
    contradicts itself, no prefix of checkpoints has a segment `.` or `..`, and `best_priority`
    allows the default priority.
    """
    config = request.config
    revision = _revision(state.projects.get(request.project))
    if stale := _stale(request, request.if_revision, revision):
        return stale
    if state.departments.get(config.department) is None:
        return refused(request, AdmissionCode.DEPARTMENT_UNKNOWN, about=config.department)
    pools = (*config.pools, *config.default_pools, *sorted(config.quotas))
    if unknown := _unknown_pool(state, request, pools):
        return unknown
    for pool in config.default_pools:
        if config.pools and pool not in config.pools:
            return refused(request, AdmissionCode.POOL_NOT_ALLOWED, about=pool)
    if invalid := _invalid_quota(request, config.quotas):
        return invalid
    if any(segments(prefix) is None for prefix in config.checkpoint_prefixes):
        return refused(request, AdmissionCode.CHECKPOINT_NOT_ALLOWED, about=request.project)
    if config.default_priority is not None and config.default_priority < config.best_priority:
        numbers = {"priority": config.default_priority, "best_priority": config.best_priority}
        code = AdmissionCode.PRIORITY_NOT_ALLOWED
        return refused(request, code, about=request.project, numbers=numbers)
    return a.EntitlementsChangedV1(
        level=a.Level.PROJECT, name=request.project, revision=revision + 1, project=config
    )


def judge_project_deletion(state: AdmissionState, request: r.ProjectDeletionRequestedV1) -> Event:
    """Accept if the project has no unfinished job."""
    row = state.projects.get(request.project)
    return _undeletable(state, request, "project", request.project, row) or a.EntitlementsChangedV1(
        level=a.Level.PROJECT, name=request.project, revision=_revision(row) + 1
    )


# Nodes -----------------------------------------------------------------------------------------


def judge_cordon(state: AdmissionState, request: r.NodeCordonRequestedV1) -> Event:
    """Accept for any name, even before the node joins; a draining node stops draining."""
    return a.NodeCordonedV1(node=request.node)


def judge_uncordon(state: AdmissionState, request: r.NodeUncordonRequestedV1) -> Event:
    """Accept if the node is cordoned or draining."""
    if state.nodes.get(request.node) is None:
        return refused(request, AdmissionCode.WRONG_PHASE, about=request.node)
    return a.NodeUncordonedV1(node=request.node)


def judge_drain(state: AdmissionState, request: r.NodeDrainRequestedV1) -> Event:
    """Accept for any name, even before the node joins; a second drain replaces the deadline."""
    return a.NodeDrainingV1(node=request.node, deadline_at_ms=request.deadline_at_ms)


def judge_slots(state: AdmissionState, request: r.NodeSlotsChangeRequestedV1) -> Event:
    """Accept for any name and any slots.

    Quota does not know the slots of a node, and the node may join with more slots later.
    """
    return a.NodeSlotsChangedV1(node=request.node, disabled=request.disabled, stop=request.stop)


def judge_enrollment(state: AdmissionState, request: r.NodeEnrolRequestedV1) -> Event:
    """Accept if the pool exists.

    A revoked node counts as never enrolled, but its revisions continue.
    """
    row = state.enrolled.get(request.node)
    known = 0 if row is None or row.revoked else row.revision
    return (
        _stale(request, request.if_revision, known)
        or _unknown_pool(state, request, (request.enrollment.pool,))
        or a.NodeEnrolledV1(
            node=request.node, enrollment=request.enrollment, revision=_revision(row) + 1
        )
    )


def judge_revocation(state: AdmissionState, request: r.NodeRevokeRequestedV1) -> Event:
    """Accept if the node is enrolled."""
    row = state.enrolled.get(request.node)
    if row is None or row.revoked:
        return refused(request, AdmissionCode.NODE_UNKNOWN, about=request.node)
    return _stale(request, request.if_revision, row.revision) or a.NodeRevokedV1(node=request.node)


# Rules -----------------------------------------------------------------------------------------


def judge_rules(state: AdmissionState, request: r.RulesRequestedV1) -> Event:
    """Accept if the rules are newer than those in force.

    A new leader may have enabled the same rules since quota consumed the request.
    """
    if request.rules <= state.rules:
        numbers = {"rules": state.rules}
        return refused(request, AdmissionCode.VERSION_MISMATCH, numbers=numbers)
    return RulesEnabledV1(rules=request.rules)
