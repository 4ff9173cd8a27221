"""Verdicts on submitted jobs; an admitted job has every default resolved.

A default comes from the first of these that sets it: the job, its project, its first pool, the
cell. The log has the resolved values, so a later change of a project or pool does not affect jobs
that were admitted before.

A job that names no pools gets the first of these lists that is not empty: the default pools of its
project, the default pools of the cell that the project may use, all pools that the project may use.

The allow-lists of images, mounts, users and git hosts belong to projects and pools, and both must
allow a job. Of the pools that a job gets by default, it uses those whose lists allow it.
"""

from collections.abc import Sequence
from typing import Final

from yardmaster_core.admission.allow_lists import not_listed
from yardmaster_core.admission.size import MAX_BYTES, allocation_bytes
from yardmaster_core.admission.state import AdmissionState, Pending
from yardmaster_core.checkpoint_uris import is_within
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import (
    AdmittedSpec,
    ListOwner,
    RequestRefusedV1,
    TaskAdmittedV1,
    TaskRejectedV1,
)
from yardmaster_schemas.events.requests import (
    ExitZero,
    Kind,
    ProjectConfig,
    SubmittedSpec,
    TaskSubmittedV1,
    Unschedulable,
)
from yardmaster_schemas.fields import MAX_NAMES
from yardmaster_schemas.reasons import AdmissionCode

#: The grace period of a job that sets none, in seconds.
DEFAULT_GRACE_S: Final = 120
DEFAULT_WEIGHT: Final = 1


def judge_submission(state: AdmissionState, request: TaskSubmittedV1, pending: Pending) -> Event:
    """Return TaskAdmitted, TaskRejected, or RequestRefused if the id was used before.

    The code is that of the first check that fails. A rejected job keeps its id: the same
    idempotency key gets the same answer as long as the log exists, so a second try needs a new key.
    """
    job_id = request.job_id
    job = state.jobs.get(job_id)
    body = job.body if job is not None else state.judged_ids.get(job_id)
    if body is not None:
        return RequestRefusedV1(
            request_type=TaskSubmittedV1.TYPE,
            code=AdmissionCode.DUPLICATE_ID,
            numbers={"same_body": int(body.hex() == request.body_digest)},
            about=job_id,
        )
    project = state.projects.get(request.project)
    if project is None:
        return _rejected(job_id, AdmissionCode.PROJECT_UNKNOWN, about=request.project)
    config = project.config
    pools = _pools(state, request.spec, config)
    refused = (
        _wrong_pools(state, job_id, pools, config)
        or _not_allowed(job_id, request.spec, config)
        or not_listed(request, ListOwner.PROJECT, request.project, config)
    )
    if refused is not None:
        return refused
    pools, refused = _pools_that_list(state, request, pools)
    refused = (
        refused
        or _over_limit(state, request, pools, config)
        or _full(state, request, config, pending.actor)
    )
    if refused is not None:
        return refused
    spec = _resolved(state, request.spec, pools, config)
    return _too_large(job_id, spec) or TaskAdmittedV1(
        job_id=job_id,
        project=request.project,
        department=config.department,
        spec=spec,
        submitted_at_ms=pending.taken_ms,
        details=request.details,
        user=pending.actor or None,
    )


def _rejected(
    job_id: str,
    code: AdmissionCode,
    *,
    about: str | None = None,
    numbers: dict[str, int] | None = None,
) -> TaskRejectedV1:
    return TaskRejectedV1(job_id=job_id, code=code, numbers=numbers or {}, about=about)


def _pools(state: AdmissionState, spec: SubmittedSpec, config: ProjectConfig) -> tuple[str, ...]:
    """Return the pools of a job without repeats, in its order of preference."""
    # rule: pools: default list of the project
    # rule: pools: default list of the cell
    named = spec.pools or config.default_pools or _of_cell(state, config) or config.pools
    if named:
        return tuple(dict.fromkeys(named))
    return state.pool_names[:MAX_NAMES]


def _of_cell(state: AdmissionState, config: ProjectConfig) -> tuple[str, ...]:
    """The default pools of the cell that a project may use."""
    pools = state.config.default_pools
    return tuple(pool for pool in pools if not config.pools or pool in config.pools)


def _pools_that_list(
    state: AdmissionState, request: TaskSubmittedV1, pools: Sequence[str]
) -> tuple[tuple[str, ...], TaskRejectedV1 | None]:
    """Return the pools whose allow-lists contain what the job uses, and the rejection if there is
    none, or if the job names a pool whose lists do not.
    """
    left, first = [], None
    for name in pools:
        pool = state.pools.get(name)
        refused = None if pool is None else not_listed(request, ListOwner.POOL, name, pool.config)
        first = first or refused
        if refused is None:
            left.append(name)
    return tuple(left), first if request.spec.pools or not left else None


def _node_types(kind: Kind, config: ProjectConfig) -> tuple[str, ...]:
    """The node types that jobs of this kind may use; empty: all."""
    # rule: node types: per kind
    return config.kind_node_types.get(kind, config.node_types)


def _wrong_pools(
    state: AdmissionState, job_id: str, pools: Sequence[str], config: ProjectConfig
) -> TaskRejectedV1 | None:
    """Return the rejection of a job without pools, or with a pool it may not use, or None."""
    if not pools:
        return _rejected(job_id, AdmissionCode.POOL_UNKNOWN)
    for pool in pools:
        if state.pools.get(pool) is None:
            return _rejected(job_id, AdmissionCode.POOL_UNKNOWN, about=pool)
        # rule: pools: allowed list
        if config.pools and pool not in config.pools:
            return _rejected(job_id, AdmissionCode.POOL_NOT_ALLOWED, about=pool)
    return None


def _not_allowed(job_id: str, spec: SubmittedSpec, config: ProjectConfig) -> TaskRejectedV1 | None:
    """Return the rejection of a job whose kind, node types, checkpoint or priority its project does
    not allow, or None.
    """
    if config.kinds and spec.kind not in config.kinds:
        return _rejected(job_id, AdmissionCode.KIND_NOT_ALLOWED, about=spec.kind.value)
    allowed = _node_types(spec.kind, config)
    for node_type in spec.node_types:
        # rule: node types: the job's are a subset
        if allowed and node_type not in allowed:
            return _rejected(job_id, AdmissionCode.NODE_TYPE_NOT_ALLOWED, about=node_type)
    uri = spec.checkpoint_uri
    if uri is not None and not is_within(uri, config.checkpoint_prefixes):
        return _rejected(job_id, AdmissionCode.CHECKPOINT_NOT_ALLOWED)
    if spec.priority is not None and spec.priority < config.best_priority:
        numbers = {"priority": spec.priority, "best_priority": config.best_priority}
        return _rejected(job_id, AdmissionCode.PRIORITY_NOT_ALLOWED, numbers=numbers)
    return None


def _over_limit(
    state: AdmissionState,
    request: TaskSubmittedV1,
    pools: Sequence[str],
    config: ProjectConfig,
) -> TaskRejectedV1 | None:
    """Return the rejection of a job that could never start, or that has too many tasks, or None.

    A job could never start if one task alone exceeds a limit of its project, or in each pool a
    limit of its project or department. Slots in use do not count here: the scheduler compares them
    with the limits (`at_limit`). `max_pending` limits the number of tasks of a single job.
    """
    spec = request.spec
    code = AdmissionCode.LIMIT_EXCEEDED
    if spec.tasks > config.max_pending:
        numbers = {"tasks": spec.tasks, "max_pending": config.max_pending}
        return _rejected(request.job_id, code, about=request.project, numbers=numbers)
    requested = spec.replicas_min * spec.resources.gpu_total_milli
    limit = config.limit_milli
    if limit is not None and requested > limit:
        numbers = {"asked_milli": requested, "limit_milli": limit}
        return _rejected(request.job_id, code, about=request.project, numbers=numbers)
    department = state.departments.get(config.department)
    widest: tuple[int, str] | None = None
    for pool in pools:
        bounds = []
        for name, row in (
            (request.project, config),
            (config.department, department.config if department else None),
        ):
            quota = row.quotas.get(pool) if row else None
            if quota is not None and quota.limit_milli is not None:
                bounds.append((quota.limit_milli, name))
        lowest = min(bounds, default=None)
        if lowest is None or requested <= lowest[0]:
            return None
        widest = max(widest or lowest, lowest)
    if widest is None:
        return None
    numbers = {"asked_milli": requested, "limit_milli": widest[0]}
    return _rejected(request.job_id, code, about=widest[1], numbers=numbers)


def _full(
    state: AdmissionState, request: TaskSubmittedV1, config: ProjectConfig, user: str
) -> TaskRejectedV1 | None:
    """Return the rejection of a job with which its project or user would have too many unfinished
    tasks, or None.

    The limit protects the stores from too many tasks. A simulation has no stores, and no limit.
    """
    if state.simulated:
        return None
    cell = state.config
    for code, kind, name, limit in (
        (
            AdmissionCode.PROJECT_FULL,
            *("project", request.project),
            config.max_unfinished or cell.project_tasks,
        ),
        (AdmissionCode.USER_FULL, "user", user, cell.tasks_of.get(user, cell.user_tasks)),
    ):
        unfinished, tasks = state.unfinished(kind, name), request.spec.tasks
        if unfinished + tasks > limit:
            numbers = {"tasks": tasks, "unfinished": unfinished, "limit": limit}
            about = request.project if kind == "project" else None
            return _rejected(request.job_id, code, about=about, numbers=numbers)
    return None


def _too_large(job_id: str, spec: AdmittedSpec) -> TaskRejectedV1 | None:
    """Return the rejection of a job if the allocation of one task may exceed a record, or None."""
    size = allocation_bytes(spec)
    if size <= MAX_BYTES:
        return None
    numbers = {"replicas": spec.replicas_max, "bytes": size, "limit_bytes": MAX_BYTES}
    return _rejected(job_id, AdmissionCode.ALLOCATION_TOO_LARGE, numbers=numbers)


def _resolved(
    state: AdmissionState, spec: SubmittedSpec, pools: tuple[str, ...], config: ProjectConfig
) -> AdmittedSpec:
    """Return the spec of a job with every default resolved and every maximum applied."""
    configs = [pool.config for name in pools if (pool := state.pools.get(name)) is not None]
    # A default of a higher priority than the project allows becomes the highest allowed priority.
    default = config.default_priority or configs[0].default_priority
    priority = spec.priority or max(default, config.best_priority)
    grace_s = DEFAULT_GRACE_S if spec.grace_s is None else spec.grace_s
    return AdmittedSpec(
        kind=spec.kind,
        role=spec.role,
        preemptible=spec.kind is Kind.TRAINING if spec.preemptible is None else spec.preemptible,
        priority=priority,
        weight=spec.weight or DEFAULT_WEIGHT,
        max_slots_milli=spec.max_slots_milli,
        pools=pools,
        # rule: node types: those of the project by default
        node_types=spec.node_types or _node_types(spec.kind, config),
        topology=spec.topology,
        resources=spec.resources,
        replicas_min=spec.replicas_min,
        # A maximum below the minimum means the minimum.
        replicas_max=max(spec.replicas_min, spec.replicas_max),
        tasks=spec.tasks,
        max_concurrent=spec.max_concurrent,
        min_runtime_s=min(spec.min_runtime_s or 0, config.max_min_runtime_s),
        time_limit_s=spec.time_limit_s,
        max_restarts=spec.max_restarts or 0,
        unschedulable=spec.unschedulable or Unschedulable.WAIT,
        # The job has one grace period for all its pools, so the lowest maximum applies.
        grace_s=min(grace_s, *(pool.max_grace_s for pool in configs)),
        exit_zero=spec.exit_zero or ExitZero.STOPPED,
        checkpoint_uri=spec.checkpoint_uri,
        layout=spec.layout,
        # Sorted, so that jobs that avoid the same nodes are equal.
        avoid_nodes=tuple(sorted(set(spec.avoid_nodes))),
        runtime_estimate_s=spec.runtime_estimate_s,
        image=spec.image is not None,
        run_as=spec.run_as,
    )
