"""The scheduler's state as a dump and back.

A snapshot has facts only; indexes are rebuilt from them.
"""

from collections.abc import Mapping
from typing import Any, Final

from yardmaster_core.errors import CoreError, SnapshotUnreadable
from yardmaster_core.scheduling.state.appliers.attempts import (
    reopen,
    watch_expiry,
    watch_start,
    watch_stop,
)
from yardmaster_core.scheduling.state.appliers.nodes import install_capacity
from yardmaster_core.scheduling.state.appliers.reservations import restore
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.decayed_usage import DecayedUsage
from yardmaster_core.scheduling.state.enrollment import Enrolled, is_barred
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import Due, NodeState, Phase
from yardmaster_core.scheduling.state.pools import IndexSource, Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.recorded_shares import RecordedShares
from yardmaster_core.scheduling.state.reserved_slots import update_ready
from yardmaster_core.scheduling.state.tasks import Attempt, Group, Job, Reservation, Task
from yardmaster_core.scheduling.state.wait_codes import UNTIL
from yardmaster_core.scheduling.state.workload import WorkloadCounter
from yardmaster_schemas import plain
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Checkpoint, Placement
from yardmaster_schemas.events.node_events import ExecutorKind, FractionLimits, NodeJoinedV1
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    DetailsRef,
    Enrollment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.reasons import PolicyStop, StartFailure, Stop, Wait

FORMAT: Final = 13
Plain = dict[str, Any]


def _or_none(value: object | None) -> Any:
    return None if value is None else plain.dump(value)


def dump(state: ClusterState) -> Plain:
    """The state's facts, for `plain.encode`.

    Immutable parts are included as objects; `plain.encode` converts them.
    """
    groups = {group.key: group for pool in state.pools.values() for group in pool.groups.values()}
    return {
        "format": FORMAT,
        "cell": state.cell,
        "cycle": state.cycle,
        "now_ms": state.now_ms,
        "rules": state.rules,
        "next_job": state.next_job,
        "next_node": state.next_node,
        "restless": state.cycle_due,
        "sources": {source: list(last) for source, last in state.sources.items()},
        "attention": sorted(state.attention),
        "node_attention": sorted(state.node_attention),
        "pools": [
            {
                "name": p.name,
                "revision": p.revision,
                "config": _or_none(p.config),
                "index": dict(p.index.dump()),
                "workload": p.workload.dump(),
                **_dump_shares(p),
                **_dump_user_ranks(p),
            }
            for p in state.pools.values()
        ],
        "departments": [
            {"name": d.name, "revision": d.revision, "config": _or_none(d.config)}
            for d in state.departments.values()
        ],
        "projects": [
            {
                "name": p.name,
                "department": p.department.name,
                "revision": p.revision,
                "config": _or_none(p.config),
                "ranks": _dump_ranks(p.ranks),
                **_dump_usage(p),
            }
            for p in state.projects.values()
        ],
        "enrolled": [
            {"name": e.name, "revision": e.revision, "config": _or_none(e.config)}
            for e in state.enrolled.values()
        ],
        "nodes": [_dump_node(node) for node in state.nodes.values()],
        "jobs": [_dump_job(job) for job in state.jobs.values()],
        "groups": [_dump_group(state, group) for _, group in sorted(groups.items())],
        "forgotten": [
            [list(key), _dump_waits(waits)] for key, waits in sorted(state.forgotten.items())
        ],
        "former_usage": [
            [project.name, pool, None if usage is None else list(usage.facts())]
            for (project, pool), usage in state.former_usage.items()
        ],
    }


def _dump_shares(pool: Pool) -> Plain:
    shares = pool.shares
    if shares is None:
        return {}
    return {"shares": [shares.at_ms, shares.cycle, shares.digest, shares.pause_ms]}


def _dump_user_ranks(pool: Pool) -> Plain:
    ranks = {claimant: list(rank) for claimant, rank in sorted(pool.user_ranks.items())}
    return {"user_ranks": ranks} if ranks else {}


def _dump_usage(project: Project) -> Plain:
    usages = {pool: list(usage.facts()) for pool, usage in project.decayed_usage.items()}
    return {"usage": usages} if usages else {}


def _dump_node(node: Node) -> Plain:
    return {
        "name": node.name,
        "ordinal": node.ordinal,
        "state": int(node.state),
        "pool": node.pool_name,
        "incarnation": node.incarnation,
        "dead": node.dead,
        "boot_id": node.boot_id,
        "schema_version": node.schema_version,
        "node_type": node.node_type,
        "labels": node.labels,
        "address": node.address,
        "gpus": node.gpus,
        "gpu_memory_mib": node.gpu_memory_mib,
        "cpu_milli": node.cpu_milli,
        "memory_mib": node.memory_mib,
        "ports": [node.port_first, node.port_last],
        "cordoned": node.cordoned,
        "drain_ms": node.drain_ms,
        "revoked_ms": node.revoked_ms,
        "silent_ms": node.silent_ms,
        "disabled": [list(node.disabled), node.stops_disabled],
        "executors": [executor.value for executor in node.executors],
        "fraction_limits": node.fraction_limits.value,
        "pending": _or_none(node.pending),
    }


def _dump_job(job: Job) -> Plain:
    return {
        "id": job.id,
        "seq": job.seq,
        "project": job.project.name,
        "spec": job.spec,
        "submitted_ms": job.submitted_ms,
        "details": job.details,
        "user": job.user,
        "priority": job.priority,
        "weight": job.weight,
        "max_slots_milli": job.max_slots_milli,
        "revision": job.revision,
        "erased": job.erased,
        "next_index": job.next_index,
        "ranks": _dump_ranks(job.ranks),
        "tasks": [_dump_task(task) for task in job.tasks],
    }


def _dump_ranks(ranks: dict[str, tuple[int, ...]]) -> Plain:
    return {pool: list(rank) for pool, rank in ranks.items()}


def _load_ranks(state: ClusterState, claimant: Job | Project, row: Plain) -> None:
    for name, rank in row["ranks"].items():
        claimant.ranks[name] = tuple(rank)
        state.pool(name).ranked[claimant] = None


def _dump_task(task: Task) -> list[Any]:
    run = task.run
    checkpoint = task.checkpoint
    return [
        *(int(task.phase), task.attempt, task.restarts, task.ran_ms, task.held_until_ms),
        *(task.cancelled, task.cancel_now, task.paused, task.released, task.outcome_code),
        task.cause,
        [checkpoint.uri, checkpoint.step] if checkpoint is not None else None,
        task.group is not None,
        None if run is None else _dump_run(run),
        task.preemptions,
        [task.failed_starts, list(task.failed_nodes), task.unwritable, task.expired_starts],
        task.queued_ms,
        None if task.reserved is None else _dump_reservation(task.reserved),
        task.image,
    ]


def _dump_reservation(reservation: Reservation) -> Plain:
    return {
        "pool": reservation.pool_name,
        "placements": list(reservation.placements),
        "of": [reservation.shape_id, reservation.priority, reservation.revision],
        "since": [reservation.since_ms, reservation.cycle],
        "victims": reservation.victims,
        "until_ms": reservation.until_ms,
    }


def _dump_run(run: Attempt) -> Plain:
    return {
        "number": run.number,
        "pool": run.pool_name,
        "placements": list(run.placements),
        "port": run.port,
        "allocated_ms": run.allocated_ms,
        "fence_s": run.fence_s,
        "running_ms": run.running_ms,
        "replicas": list(run.replicas),
        "started": run.started,
        "zero_exits": run.zero_exits,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "out_of_memory": run.out_of_memory,
        "engine_restarted": run.engine_restarted,
        "done": run.done,
        "stop": _or_none(run.stop),
        "stop_deadline_ms": run.stop_deadline_ms,
        "overdue": run.overdue,
        "failure": run.failure,
        "failed_nodes": list(run.failed_nodes),
        "passed_others": run.passed_others,
        "prepared_ms": run.prepared_ms,
        "image": run.image,
        "differs": run.differs,
    }


def _dump_group(state: ClusterState, group: Group) -> Plain:
    return {
        "key": list(group.key),
        "pool": group.shape.pools[0],
        "waits": _dump_waits(group.waits),
        "awake": [name for name in group.shape.pools if group in state.pools[name].awake],
    }


def _dump_waits(waits: Mapping[str, tuple[Wait, int, int]]) -> Plain:
    return {pool: [plain.dump(wait), since, cycle] for pool, (wait, since, cycle) in waits.items()}


def load(cell: str, dump: Any, policies: IndexSource) -> ClusterState:
    """The state that `dump` returned for `cell`.

    Raises:
        SnapshotUnreadable: the dump is from another version or of another cell, or it is damaged.
    """
    try:
        if dump["format"] != FORMAT or dump["cell"] != cell:
            raise SnapshotUnreadable(found=f"format {dump['format']} of cell {dump['cell']}")
        return _load(cell, dump, policies)
    except SnapshotUnreadable:
        raise
    except (
        *(KeyError, TypeError, ValueError, IndexError, AttributeError),
        *(SchemaError, CoreError),
    ) as error:
        raise SnapshotUnreadable(found=f"{type(error).__name__}: {error}") from error


def _load(cell: str, dump: Plain, policies: IndexSource) -> ClusterState:
    state = ClusterState(cell, policies)
    state.cycle = dump["cycle"]
    state.now_ms = dump["now_ms"]
    state.rules = dump["rules"]
    state.next_job = dump["next_job"]
    state.next_node = dump["next_node"]
    state.sources = {source: (last[0], last[1]) for source, last in dump["sources"].items()}
    for row in dump["pools"]:
        _load_pool(state, row)
    _load_owners(state, dump)
    for row in dump["enrolled"]:
        enrolled = state.enrolled[row["name"]] = Enrolled(row["name"])
        enrolled.revision = row["revision"]
        enrolled.config = _maybe(Enrollment, row["config"])
    for row in dump["nodes"]:
        _load_node(state, row)
    pending: list[Task] = []
    for row in dump["jobs"]:
        pending.extend(_load_job(state, row))
    # In any order: queues sort by key.
    for task in pending:
        state.enqueue(task)
    rebuild_capacities(state)
    _load_groups(state, dump["groups"])
    state.attention = {name: state.task(name) for name in dump["attention"]}
    state.node_attention = {name: state.nodes[name] for name in dump["node_attention"]}
    state.cycle_due = dump["restless"]
    _load_cycle_end(state, dump)
    for row in dump["pools"]:
        state.pools[row["name"]].index.load(row["index"])
    for things in (
        *(state.pools, state.departments, state.projects),
        *(state.enrolled, state.nodes, state.jobs),
    ):
        for thing in things.values():
            state.dirty[thing] = None
    return state


def _load_pool(state: ClusterState, row: Plain) -> None:
    pool = state.pools[row["name"]] = Pool(row["name"])
    pool.revision = row["revision"]
    pool.config = _maybe(PoolConfig, row["config"])
    pool.index = state.policies.index(pool)
    pool.workload = WorkloadCounter.load(row["workload"])
    if "shares" in row:
        pool.shares = RecordedShares(*row["shares"])
    for claimant, rank in row.get("user_ranks", {}).items():
        pool.set_user_rank(claimant, tuple(rank))
    if pool.config is not None:
        for index in pool.indexes:
            index.limit_gpuless(pool.config.gpuless_per_node)


def _load_owners(state: ClusterState, dump: Plain) -> None:
    """Load the departments and the projects."""
    for row in dump["departments"]:
        department = state.departments[row["name"]] = Department(row["name"])
        department.revision = row["revision"]
        department.config = _maybe(DepartmentConfig, row["config"])
    state.nest_departments()
    for row in dump["projects"]:
        project = Project(row["name"], state.departments[row["department"]])
        state.projects[project.name] = project
        project.revision = row["revision"]
        project.config = _maybe(ProjectConfig, row["config"])
        _load_ranks(state, project, row)
        for name, facts in row.get("usage", {}).items():
            project.decayed_usage[name] = DecayedUsage(*facts)


def _load_cycle_end(state: ClusterState, dump: Plain) -> None:
    """Load what the end of the last cycle removed and replaced."""
    for key, waits in dump["forgotten"]:
        state.forgotten[key[0], key[1]] = {
            name: (plain.load(Wait, wait), since, cycle)
            for name, (wait, since, cycle) in waits.items()
        }
    for name, pool_name, facts in dump["former_usage"]:
        former = None if facts is None else DecayedUsage(*facts)
        state.former_usage[state.projects[name], pool_name] = former


def _maybe(cls: type[Any], row: Any) -> Any:
    return None if row is None else plain.load(cls, row)


def _load_node(state: ClusterState, row: Plain) -> None:
    node = state.nodes[row["name"]] = Node(row["name"], row["ordinal"])
    node.state = NodeState(row["state"])
    node.incarnation = row["incarnation"]
    node.dead = list(row["dead"])
    node.boot_id = row["boot_id"]
    node.schema_version = row["schema_version"]
    node.node_type = row["node_type"]
    node.labels = dict(row["labels"])
    node.address = row["address"]
    node.gpus = row["gpus"]
    node.gpu_memory_mib = row["gpu_memory_mib"]
    node.cpu_milli = row["cpu_milli"]
    node.memory_mib = row["memory_mib"]
    node.port_first, node.port_last = row["ports"]
    node.cordoned = row["cordoned"]
    node.drain_ms = row["drain_ms"]
    node.revoked_ms = row["revoked_ms"]
    node.silent_ms = row["silent_ms"]
    disabled, node.stops_disabled = row["disabled"]
    node.disabled = tuple(disabled)
    node.executors = tuple(ExecutorKind(name) for name in row["executors"])
    node.fraction_limits = FractionLimits(row["fraction_limits"])
    node.pending = _maybe(NodeJoinedV1, row["pending"])
    if row["pool"] is not None:
        node.barred = is_barred(state.enrolled, node, row["pool"])
        install_capacity(state, node, state.pools[row["pool"]])
    if node.drain_ms:
        state.deadline(node.drain_ms, Due.DRAIN, node.name)
    if node.revoked:
        state.revoked[node.name] = node


def _load_job(state: ClusterState, row: Plain) -> list[Task]:
    spec = plain.load(AdmittedSpec, row["spec"])
    project = state.projects[row["project"]]
    details = plain.load(DetailsRef, row["details"])
    job = Job(row["id"], row["seq"], project, spec, row["submitted_ms"], details, row["user"])
    job.priority = row["priority"]
    job.weight = row["weight"]
    job.set_max_slots(row["max_slots_milli"])
    job.set_separate(*state.separation(spec.pools))
    job.revision = row["revision"]
    job.erased = row["erased"]
    job.next_index = row["next_index"]
    _load_ranks(state, job, row)
    state.jobs[job.id] = job
    if spec.min_runtime_s:
        for name in spec.pools:
            state.pool(name).has_min_runtimes = True
    waiting = []
    for index, facts in enumerate(row["tasks"]):
        task = Task(job, index)
        job.tasks.append(task)
        state.tasks[task.id] = task
        if _load_task(state, task, facts):
            waiting.append(task)
        state.dirty[task] = None
    job.unfinished = sum(not task.phase.final for task in job.tasks)
    if not job.unfinished:
        state.ended[job] = None
    return waiting


def _load_task(state: ClusterState, task: Task, facts: list[Any]) -> bool:
    task.phase = Phase(facts[0])
    task.attempt, task.restarts, task.ran_ms, task.held_until_ms = facts[1:5]
    task.cancelled, task.cancel_now, task.paused, task.released = facts[5:9]
    task.outcome_code, task.cause = facts[9:11]
    if facts[11] is not None:
        task.checkpoint = Checkpoint(uri=facts[11][0], step=facts[11][1])
    if task.released and not task.phase.final:
        task.job.live += 1
    task.preemptions = facts[14]
    task.failed_starts, failed_nodes, task.unwritable, task.expired_starts = facts[15]
    task.failed_nodes = tuple(failed_nodes)
    task.image = facts[18]
    if task.attempt:
        task.queued_ms = facts[16]
    if facts[17] is not None:
        _load_reservation(state, task, facts[17])
    if facts[13] is not None:
        _load_run(state, task, facts[13])
    elif not task.phase.final:
        if task.held_until_ms > state.now_ms:
            state.deadline(task.held_until_ms, Due.HOLD, task.id, task.attempt)
        watch_expiry(state, task)
    return bool(facts[12])


def _load_reservation(state: ClusterState, task: Task, row: Plain) -> None:
    task.reserved = Reservation(
        row["pool"],
        tuple(plain.load(Placement, p) for p in row["placements"]),
        of=(row["of"][0], row["of"][1], row["of"][2]),
        since=(row["since"][0], row["since"][1]),
        victims=row["victims"],
        until_ms=row["until_ms"],
    )
    restore(state, task)


def _load_run(state: ClusterState, task: Task, row: Plain) -> None:
    pool = state.pools[row["pool"]]
    placements = tuple(plain.load(Placement, p) for p in row["placements"])
    run = Attempt(row["number"], pool.name, placements, row["port"], row["allocated_ms"])
    run.fence_s = row["fence_s"]
    run.running_ms = row["running_ms"]
    run.replicas = bytearray(row["replicas"])
    run.started = row["started"]
    run.zero_exits = row["zero_exits"]
    run.exit_code = row["exit_code"]
    run.signal = row["signal"]
    run.out_of_memory = row["out_of_memory"]
    run.engine_restarted = row["engine_restarted"]
    run.done = row["done"]
    stop = row["stop"]
    run.stop = _maybe(PolicyStop if stop is not None and "policy" in stop else Stop, stop)
    run.stop_deadline_ms = row["stop_deadline_ms"]
    run.overdue = row["overdue"]
    failure = row["failure"]
    run.failure = None if failure is None else StartFailure(failure)
    run.failed_nodes = tuple(row["failed_nodes"])
    run.passed_others = row["passed_others"]
    run.prepared_ms = row["prepared_ms"]
    run.image = row["image"]
    run.differs = row["differs"]
    reopen(state, task, run)
    spec = task.job.spec
    if spec.preemptible:
        state.may_be_preempted(task, pool)
    if task.phase is Phase.STARTING and pool.config is not None:
        watch_start(state, task, run)
    if run.frees_slots:
        watch_stop(state, task, run)
    if run.running_ms and spec.time_limit_s is not None:
        when = run.running_ms + max(0, spec.time_limit_s * 1000 - task.ran_ms)
        state.deadline(when, Due.TIME_LIMIT, task.id, run.number)


def _load_groups(state: ClusterState, rows: list[Plain]) -> None:
    for pool in state.pools.values():
        pool.awake.clear()
        pool.woken.clear()
    for row in rows:
        key = (row["key"][0], row["key"][1])
        group = state.pools[row["pool"]].groups.get(key)
        if group is None:
            raise SnapshotUnreadable(found=f"no task is pending in group {key}")
        for name, (wait, since, cycle) in row["waits"].items():
            known = plain.load(Wait, wait)
            state.restore_wait(state.pools[name], group, (known, since, cycle))
            if known.code in UNTIL:
                until = known.numbers.get("until_at_ms", 0)
                state.deadline(until, Due.PROTECTION, name)
        for name in row["awake"]:
            state.pools[name].awake[group] = None


def rebuild_capacities(state: ClusterState) -> None:
    """Compute every node's free capacity from the replicas on it, and rebuild the indexes."""
    for pool in state.pools.values():
        for node in pool.nodes.values():
            _fill(node)
        for index in pool.indexes:
            index.refile()
        for node in pool.nodes.values():
            update_ready(node, state.pools)


def _fill(node: Node) -> None:
    placed: list[Placement] = []
    stopping: list[Placement] = []
    unpreemptible: list[Placement] = []
    reserved = [
        placement
        for task, replicas in node.reserved.items()
        for replica in replicas
        if task.reserved is not None
        and (placement := task.reserved.placements[replica]).incarnation == node.incarnation
    ]
    for (_, replica), task in node.open.items():
        run = task.run
        assert run is not None
        (stopping if run.frees_slots else placed).append(run.placements[replica])
        if not task.job.spec.preemptible:
            unpreemptible.append(run.placements[replica])
    node.max_free.fill(node.gpus, node.cpu_milli, node.memory_mib, unpreemptible)
    node.future.fill(node.gpus, node.cpu_milli, node.memory_mib, (*placed, *reserved))
    node.free.fill(node.gpus, node.cpu_milli, node.memory_mib, (*placed, *stopping, *reserved))
