"""Converts rows to the models of the REST API: units in names, times as RFC 3339, waits."""

from collections.abc import Mapping
from typing import Final

from yardmaster_projections import queries
from yardmaster_projections.queries import ALL_PROJECTS, Visibility, WaitFinder, Waits
from yardmaster_projections.rows import (
    AttemptRow,
    CountersRow,
    CycleRow,
    DepartmentRow,
    Dropped,
    JobRow,
    NodeRow,
    PoolRow,
    ProjectRow,
    Refused,
    RequestRow,
    Reserved,
    Stopping,
    TaskRow,
    WaitRow,
)
from yardmaster_projections.store import ReadableViews
from yardmaster_projections.units import with_units
from yardmaster_schemas import api
from yardmaster_schemas.events.decisions import Checkpoint, Placement
from yardmaster_schemas.events.node_events import FractionLimits
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.position import Position
from yardmaster_schemas.reasons import WaitClass, WaitCode
from yardmaster_schemas.resources import is_fraction

#: The condition under which a task that waits for this reason can start.
UNBLOCK: Final[Mapping[str, str]] = {
    WaitCode.NO_MATCHING_NODE: "a node of an allowed type joins the pool",
    WaitCode.EXCEEDS_EVERY_NODE: "a larger node joins, or a replica requests less",
    WaitCode.EXCEEDS_POOL: "the pool grows, or the gang gets smaller",
    WaitCode.GANG_INDIVISIBLE: "the pool gets other nodes, or the job requests another number",
    WaitCode.NO_EXECUTOR: "a container engine runs on a node of the pool",
    WaitCode.EXCEEDS_LIMIT: "the limit is raised, or the task requests less",
    WaitCode.EXCEEDS_MAX_SLOTS: "the job's max_slots is raised",
    WaitCode.EXCEEDS_DESERVED: "its owner may hold more of such tasks, or the task requests less",
    WaitCode.PAUSED: "someone resumes it",
    WaitCode.NOT_CONSIDERED: "the next cycle considers it",
    WaitCode.INSUFFICIENT_FREE: "running tasks end",
    WaitCode.FRAGMENTED: "tasks on the same node end",
    WaitCode.NODES_UNAVAILABLE: "cordoned or lost nodes become available",
    WaitCode.WAITING_FOR_VICTIMS: "preempted tasks release their slots",
    WaitCode.BEHIND_TASK: "the task ahead of it in the queue starts",
    WaitCode.BACKFILL_NOT_ALLOWED: "tasks of higher priority start",
    WaitCode.OVER_FAIR_SHARE: "tasks of the same claimant end, or other claimants request less",
    WaitCode.AT_LIMIT: "tasks under the same limit end",
    WaitCode.AT_DESERVED: (
        "tasks of the same owner that cannot be preempted end, or it may hold more of them"
    ),
    WaitCode.AT_MAX_SLOTS: "tasks of the same job end",
    WaitCode.AT_MAX_CONCURRENT: "earlier tasks of the same job end",
    WaitCode.VICTIMS_PROTECTED: "running tasks reach their min_runtime and can be preempted",
    WaitCode.PREEMPTION_DELAY: "tasks end, or the delay is over and it can preempt tasks",
    WaitCode.RESTART_BACKOFF: "the back-off after a failure is over",
    WaitCode.START_BACKOFF: (
        "the back-off after a failed start is over; the next attempt avoids the node if possible"
    ),
}
#: The phases in which a task holds slots.
_HOLDS: Final = (api.Phase.STARTING, api.Phase.RUNNING, api.Phase.STOPPING)
_RANK: Final = {WaitClass.NOT_NOW: 0, WaitClass.HELD: 1, WaitClass.NEVER: 2}


def optional_time(time_ms: int | None) -> str | None:
    """RFC 3339 of a time; None for None."""
    return None if time_ms is None else rfc3339(time_ms)


def _class(code: str) -> WaitClass:
    return WaitCode(code).wait_class


def _refusal(row: Refused | None) -> api.Refusal | None:
    if row is None:
        return None
    return api.Refusal(
        code=row.code,
        numbers=dict(row.numbers),
        about=row.about,
        not_listed=row.not_listed,
        list_owner=row.list_owner,
    )


def _requested_milli(row: TaskRow, numbers: Mapping[str, int]) -> int:
    """The GPUs that a task requests, in gpu_milli.

    For a request of GPU memory, `numbers` of the wait tell what the scheduler counted; without
    such a number, whole GPUs are returned, which is the most that it can be.
    """
    requested = row.job.requested
    most = requested.replicas_min * requested.resources.gpus * 1000
    return row.gpu_milli or numbers.get("asked_milli", most)


def _stop(row: Stopping | None) -> api.StopShown | None:
    if row is None:
        return None
    return api.StopShown(
        code=row.stop.code,
        rule=row.stop.rule,
        for_task=row.stop.for_task,
        numbers=dict(row.stop.numbers),
        about=row.stop.about,
        deadline_at=optional_time(row.deadline_at_ms),
        overdue_at=optional_time(row.overdue_at_ms),
        requested_at=rfc3339(row.at_ms),
    )


def _dropped(row: Dropped | None) -> api.DropShown | None:
    if row is None:
        return None
    return api.DropShown(
        pool=row.pool,
        code=row.code,
        for_task=row.for_task,
        numbers=dict(row.numbers),
        about=row.about,
        dropped_at=rfc3339(row.at_ms),
    )


def _preparing(row: TaskRow) -> api.PreparingShown | None:
    found = row.preparing
    if found is None or row.phase is not api.Phase.STARTING:
        return None
    return api.PreparingShown(
        replica=found.replica,
        layers=found.layers,
        layers_done=found.layers_done,
        bytes_done=found.bytes_done,
        bytes_total=found.bytes_total,
        starts_ahead=found.starts_ahead,
        reported_at=rfc3339(found.at_ms),
    )


def _reserved(row: Reserved | None) -> api.ReservedShown | None:
    if row is None:
        return None
    by_node: dict[str, list[int]] = {}
    for node, slots in row.slots:
        by_node.setdefault(node, []).extend(slots)
    return api.ReservedShown(
        pool=row.pool,
        slots=[api.SlotsOfNode(node=node, slots=slots) for node, slots in by_node.items()],
        until_at=rfc3339(row.until_ms) if row.until_ms else None,
        reserved_at=rfc3339(row.at_ms),
    )


def _end(row: TaskRow) -> api.End | None:
    end = row.end
    if end is None or row.ended_at_ms is None:
        return None
    return api.End(
        outcome=end.outcome,
        code=end.code,
        exit_code=end.exit_code,
        signal=end.signal,
        cycle=end.cycle,
        ended_at=rfc3339(row.ended_at_ms),
    )


def _checkpoint(checkpoint: Checkpoint | None, at_ms: int) -> api.CheckpointShown | None:
    if checkpoint is None:
        return None
    return api.CheckpointShown(uri=checkpoint.uri, step=checkpoint.step, at=rfc3339(at_ms))


class Presenter:
    """Converts rows for one answer of the API, without the data that the caller may not see."""

    def __init__(
        self, store: ReadableViews, now_ms: int, visibility: Visibility = ALL_PROJECTS
    ) -> None:
        self._store = store
        self._visibility = visibility
        self._finder = WaitFinder(store, now_ms)

    async def task(self, row: TaskRow) -> api.Task:
        """A task, with the reason why it waits."""
        job = row.job
        spec = job.spec
        requested = job.requested
        params = dict(job.params[row.index]) if row.index < len(job.params) else None
        preemptible = (
            requested.preemptible
            if requested.preemptible is not None
            else requested.kind == "training"
        )
        return api.Task(
            task_id=row.task_id,
            job_id=job.job_id,
            index=row.index,
            name=job.name,
            project=job.project,
            department=job.department,
            user=job.user,
            labels=dict(job.labels),
            kind=requested.kind,
            phase=row.phase,
            paused=row.paused and not row.phase.final,
            preemptible=spec.preemptible if spec is not None else preemptible,
            priority=spec.priority if spec is not None else requested.priority,
            weight=spec.weight if spec is not None else requested.weight,
            pools=list(job.pools),
            pool=row.pool,
            nodes=list(row.nodes),
            resources=requested.resources,
            replicas_min=requested.replicas_min,
            replicas_max=requested.replicas_max,
            layout=requested.layout,
            avoid_nodes=list(requested.avoid_nodes),
            gpu_milli=row.gpu_milli,
            attempt=row.attempt,
            restarts=row.restarts,
            params=params,
            progress_permille=row.progress_permille,
            preparing=_preparing(row),
            image_digest=row.image,
            run_as=requested.run_as,
            submitted_at=rfc3339(job.submitted_at_ms),
            admitted_at=optional_time(job.admitted_at_ms),
            started_at=optional_time(row.started_at_ms),
            ended_at=optional_time(row.ended_at_ms),
            wait=self._wait(row, await self._finder.waits(row)),
            reserved=_reserved(row.reserved),
            stop=_stop(row.stopping),
            checkpoint=_checkpoint(row.checkpoint, row.checkpoint_at_ms),
            end=_end(row),
            refusal=await self._task_refusal(row),
        )

    async def _task_refusal(self, row: TaskRow) -> api.Refusal | None:
        if row.phase is not api.Phase.REJECTED:
            return None
        job = await self._store.get(JobRow, row.job.job_id)
        return _refusal(job.refusal) if job is not None else None

    def _wait(self, row: TaskRow, waits: Waits | None) -> api.Wait | None:
        """The wait in the pool where the task is most likely to start."""
        if waits is None:
            return None
        if waits.held is not None:
            return api.Wait(
                code=waits.held.code,
                wait_class=_class(waits.held.code),
                pool=None,
                numbers=dict(waits.held.numbers),
                about=None,
                since_at=None,
            )
        pools = [self._pool_wait(row, pool, wait) for pool, wait in waits.recorded]
        if not pools:
            return None
        best = min(pools, key=lambda wait: _RANK[wait.wait_class])
        return api.Wait(
            code=best.code,
            wait_class=best.wait_class,
            pool=best.pool,
            numbers=best.numbers,
            about=best.about,
            since_at=best.since_at,
            cycle=best.cycle,
        )

    def _pool_wait(self, row: TaskRow, pool: str, wait: WaitRow | None) -> api.PoolWait:
        if wait is None:
            return api.PoolWait(
                pool=pool,
                code=WaitCode.NOT_CONSIDERED,
                wait_class=WaitClass.NOT_NOW,
                asked_milli=row.gpu_milli,
                numbers={},
                about=None,
                since_at=None,
                cycle=None,
            )
        since = max(wait.since_ms, row.job.admitted_at_ms or 0)
        return api.PoolWait(
            pool=pool,
            code=wait.wait.code,
            wait_class=wait.wait.code.wait_class,
            asked_milli=_requested_milli(row, wait.wait.numbers),
            numbers=with_units(
                wait.wait.code,
                wait.wait.about,
                wait.wait.numbers,
                row.job.requested.resources,
                row.job.requested.replicas_min,
            ),
            about=wait.wait.about,
            since_at=rfc3339(since),
            cycle=wait.cycle,
        )

    async def explain(self, row: TaskRow, cell: str) -> api.Explain:
        """The reasons for the state of a task."""
        waits = await self._finder.waits(row)
        pools: list[api.PoolWait] = []
        if waits is not None and waits.held is not None:
            held = waits.held
            pools = [
                api.PoolWait(
                    pool=pool,
                    code=held.code,
                    wait_class=_class(held.code),
                    asked_milli=row.gpu_milli,
                    numbers=dict(held.numbers),
                    about=None,
                    since_at=None,
                    cycle=None,
                )
                for pool in row.job.pools
            ]
        elif waits is not None:
            pools = [self._pool_wait(row, pool, wait) for pool, wait in waits.recorded]
        wait = self._wait(row, waits)
        found = (await queries.attempts(self._store, row.task_id)).rows
        current = found[0] if found else None
        last_stop = next((a.stopping for a in found if a.stopping is not None), None)
        log = await queries.log(self._store, cell)
        return api.Explain(
            task_id=row.task_id,
            phase=row.phase,
            preparing=_preparing(row),
            image_digest=row.image,
            run_as=row.job.requested.run_as,
            wait_class=wait.wait_class if wait is not None else None,
            pools=pools,
            unblock=UNBLOCK.get(wait.code) if wait is not None else None,
            reserved=_reserved(row.reserved),
            attempt=row.attempt,
            start_rule=current.start.rule if current is not None else None,
            start_numbers=dict(current.start.numbers) if current is not None else {},
            stop=_stop(row.stopping),
            last_stop=_stop(last_stop),
            last_drop=_dropped(row.dropped),
            end=_end(row),
            refusal=await self._task_refusal(row),
            cycle=log.cycle if log is not None and log.cycle else None,
            cycle_at=rfc3339(log.now_ms) if log is not None and log.cycle else None,
            nodes_without_fraction_limits=await self._without_fraction_limits(row, current),
        )

    async def _without_fraction_limits(self, row: TaskRow, current: AttemptRow | None) -> list[str]:
        """The nodes where a task holds fractions of GPUs but nothing enforces these fractions."""
        if current is None or row.phase not in _HOLDS:
            return []
        found = []
        for name in dict.fromkeys(
            one.placement.node
            for one in current.replicas
            if is_fraction(one.placement.gpu_milli) and one.released_at_ms is None
        ):
            node = await self._store.get(NodeRow, name)
            joined = node.joined if node is not None else None
            if joined is not None and joined.fraction_limits is FractionLimits.NONE:
                found.append(name)
        return found

    async def job(self, row: JobRow) -> api.Job:
        facts = row.facts
        spec = facts.spec
        return api.Job(
            job_id=row.key,
            name=facts.name,
            project=facts.project,
            department=facts.department,
            user=facts.user,
            labels=dict(facts.labels),
            kind=facts.requested.kind,
            tasks=facts.requested.tasks,
            phases=dict(row.phases),
            priority=spec.priority if spec is not None else facts.requested.priority,
            weight=spec.weight if spec is not None else facts.requested.weight,
            max_slots_milli=(spec or facts.requested).max_slots_milli,
            paused=row.paused,
            revision=row.revision,
            submitted_at=rfc3339(facts.submitted_at_ms),
            admitted_at=optional_time(facts.admitted_at_ms),
            asked=facts.requested,
            spec=spec,
            run=row.run,
            stop_signal=row.stop_signal,
            refusal=_refusal(row.refusal),
            erased=facts.erased,
        )

    async def attempt(self, row: AttemptRow) -> api.Attempt:
        """One run of a task."""
        return api.Attempt(
            task_id=row.task_id,
            attempt=row.attempt,
            pool=row.pool,
            nodes=list(dict.fromkeys(replica.placement.node for replica in row.replicas)),
            allocated_at=rfc3339(row.allocated_at_ms),
            started_at=optional_time(row.started_at_ms),
            ended_at=optional_time(row.ended_at_ms),
            end=row.end,
            rule=row.start.rule,
            start_numbers=dict(row.start.numbers),
            stop=_stop(row.stopping),
            checkpoint=_checkpoint(row.checkpoint, row.checkpoint_at_ms),
            replicas=[
                api.ReplicaShown(
                    replica=replica.placement.replica,
                    node=replica.placement.node,
                    slots=list(replica.placement.slots),
                    image_digest=replica.image,
                    started_at=optional_time(replica.started_at_ms),
                    exited_at=optional_time(replica.exited_at_ms),
                    released_at=optional_time(replica.released_at_ms),
                    exit_code=replica.exit_code,
                    signal=replica.signal,
                )
                for replica in row.replicas
            ],
        )

    async def node(self, row: NodeRow) -> api.Node:
        """A node that joined or is enrolled, without tasks that the caller may not see.

        Raises: ValueError if the node neither joined nor is enrolled.
        """
        joined, offer = row.joined, row.offer
        if offer is None:
            raise ValueError(f"node {row.name} has neither joined nor is it enrolled")
        gpus = joined.gpus if joined is not None else 0
        disabled = [index for index in row.disabled if index < gpus]
        names, used, holders = await self._held_on(row, gpus)
        free = [1000 - used[index] for index in range(gpus) if index not in disabled]
        reserved_milli, reserved = await self._reserved_on(row)
        return api.Node(
            name=row.name,
            pool=offer.pool,
            node_type=offer.node_type,
            state=row.state,
            reason=row.reason,
            deadline_at=optional_time(row.deadline_at_ms),
            gpus=gpus,
            gpu_milli_used=sum(used),
            gpu_milli_free=0 if row.state is api.NodeState.LOST else sum(free),
            gpu_memory_mib=joined.gpu_memory_mib if joined is not None else 0,
            cpu_milli=joined.cpu_milli if joined is not None else 0,
            cpu_milli_used=sum(p.cpu_milli for p in row.held.values()),
            memory_mib=joined.memory_mib if joined is not None else 0,
            memory_mib_used=sum(p.memory_mib for p in row.held.values()),
            slots=[
                api.Slot(
                    index=index,
                    gpu_milli_used=used[index],
                    tasks=holders[index],
                    disabled=index in disabled,
                    reserved_for=[one.task_id for one in reserved if index in one.slots],
                )
                for index in range(gpus)
            ],
            tasks=names,
            labels=dict(offer.labels),
            address=offer.address,
            isolation=joined.isolation if joined is not None else None,
            incarnation=joined.incarnation if joined is not None else None,
            joined_at=None if joined is None else rfc3339(row.joined_at_ms),
            seen_at=optional_time(await queries.seen_ms(self._store, row.name)),
            enrollment=row.enrollment,
            disabled_slots=list(row.disabled),
            disabled_reason=row.disabled_reason,
            gpu_milli_reserved=reserved_milli,
            reserved=reserved,
            fraction_limits=joined.fraction_limits if joined is not None else None,
            executors=list(joined.executors) if joined is not None else [],
            mounts=list(joined.mounts) if joined is not None else [],
        )

    async def _held_on(
        self, row: NodeRow, gpus: int
    ) -> tuple[list[str], list[int], list[list[str]]]:
        """Return three things about a node: the tasks on it that the caller may see; for each slot,
        the gpu_milli in use; and for each slot, the visible tasks that hold it.
        """
        names: list[str] = []
        used = [0] * gpus
        holders: list[list[str]] = [[] for _ in range(gpus)]
        for (task_id, _), placement in row.held.items():
            task = await queries.task(self._store, task_id, self._visibility)
            for index in placement.slots:
                if index < gpus:
                    used[index] += placement.gpu_milli
                    if task is not None and task_id not in holders[index]:
                        holders[index].append(task_id)
            if task is not None and task_id not in names:
                names.append(task_id)
        return names, used, holders

    async def _reserved_on(self, row: NodeRow) -> tuple[int, list[api.NodeReservation]]:
        """The gpu_milli reserved on a node for all tasks, and the reservations of the tasks that
        the caller may see, in the order in which they were made.
        """
        total_milli = 0
        by_task: dict[str, list[Placement]] = {}
        for (task_id, _), placement in row.reserved.items():
            by_task.setdefault(task_id, []).append(placement)
        found = []
        for task_id, placements in by_task.items():
            task = await self._store.get(TaskRow, task_id)
            # The task is read after its node, so it may have changed since the node was read.
            if task is None or task.reserved is None:
                continue
            gpu_milli = sum(p.gpu_milli * len(p.slots) for p in placements)
            total_milli += gpu_milli
            if not self._visibility.includes(task.job.project):
                continue
            until_ms = task.reserved.until_ms
            found.append(
                api.NodeReservation(
                    task_id=task_id,
                    slots=sorted({index for p in placements for index in p.slots}),
                    gpu_milli=gpu_milli,
                    cpu_milli=sum(p.cpu_milli for p in placements),
                    memory_mib=sum(p.memory_mib for p in placements),
                    until_at=rfc3339(until_ms) if until_ms else None,
                )
            )
        return total_milli, found

    async def pool(self, row: PoolRow) -> api.Pool:
        counters = await queries.counters(self._store, f"pool/{row.name}")
        return api.Pool(
            name=row.name,
            revision=row.revision,
            config=row.config,
            nodes=counters.nodes,
            gpu_milli=counters.gpu_milli,
            gpu_milli_used=counters.used_milli.get(row.name, 0),
            pending=counters.waiting,
        )

    async def project(self, row: ProjectRow) -> api.Project:
        """A project with its usage."""
        counters = await queries.counters(self._store, f"project/{row.name}")
        return api.Project(
            name=row.name,
            department=row.config.department,
            revision=row.revision,
            config=row.config,
            used_milli=sum(counters.used_milli.values()),
            pending_milli=counters.waiting_milli,
            running=counters.running,
            pending=counters.waiting,
            pools=_use(row.config.quotas, [counters]),
        )

    async def department(self, row: DepartmentRow) -> api.Department:
        """A department with the usage of the projects in it and below it that the caller may see.

        Departments below it are shown if the caller may see them.
        """
        projects = await queries.projects_below(self._store, row.name, self._visibility)
        children = [
            child.name
            for child in await queries.children_of(self._store, row.name)
            if await queries.department_visible(self._store, child, self._visibility)
        ]
        all_counters = [
            await queries.counters(self._store, f"project/{one.name}") for one in projects
        ]
        return api.Department(
            name=row.name,
            revision=row.revision,
            config=row.config,
            projects=[one.name for one in projects if one.config.department == row.name],
            departments=children,
            used_milli=sum(sum(counters.used_milli.values()) for counters in all_counters),
            pending_milli=sum(counters.waiting_milli for counters in all_counters),
            pools=_use(row.config.quotas, all_counters),
        )

    async def request(self, row: RequestRow, cell: str) -> api.Request:
        """A request and its outcome."""
        return api.Request(
            request_id=f"{cell}.{row.offset}",
            type=row.type,
            subject=row.subject,
            state=row.state,
            refusal=_refusal(row.refusal),
            user=row.actor,
            requested_at=rfc3339(row.at_ms),
        )

    async def cycle(self, row: CycleRow) -> api.Cycle:
        """A cycle of the scheduler."""
        commit = row.commit
        refused = [(r.topic, r.partition, r.last - r.first + 1) for r in commit.refused]
        return api.Cycle(
            cell=commit.cell,
            cycle=commit.cycle,
            term=commit.term,
            now_at=rfc3339(commit.now_ms),
            offset=row.offset,
            decisions=commit.decisions,
            complete=commit.complete,
            inputs=[
                api.CycleInput(
                    topic=taken.topic,
                    partition=taken.partition,
                    first=taken.first,
                    next=taken.next,
                    refused=sum(
                        count
                        for topic, number, count in refused
                        if (topic, number) == (taken.topic, taken.partition)
                    ),
                )
                for taken in commit.inputs
            ],
            policies={use.pool: f"{use.name}.{use.version}" for use in commit.policies},
            state_digest=commit.state_digest,
            prev=commit.prev,
            position=str(Position(cell=commit.cell, decisions=row.offset + 1)),
        )


def _use(quotas: Mapping[str, Quota], all_counters: list[CountersRow]) -> list[api.PoolUse]:
    """Usage and demand of every pool with a quota, a task or a pending task."""
    names = set(quotas)
    for counters in all_counters:
        names |= counters.used_milli.keys() | counters.pending_milli.keys()
    found = []
    for name in sorted(names):
        quota = quotas.get(name, Quota())
        found.append(
            api.PoolUse(
                pool=name,
                deserved_milli=quota.deserved_milli or 0,
                deserved_unlimited=quota.deserved_unlimited,
                deserved_cpu_milli=quota.deserved_cpu_milli,
                deserved_memory_mib=quota.deserved_memory_mib,
                limit_milli=quota.limit_milli,
                limit_cpu_milli=quota.limit_cpu_milli,
                limit_memory_mib=quota.limit_memory_mib,
                over_quota=quota.over_quota,
                over_quota_weight=quota.over_quota_weight,
                used_milli=sum(counters.used_milli.get(name, 0) for counters in all_counters),
                pending_milli=sum(counters.pending_milli.get(name, 0) for counters in all_counters),
            )
        )
    return found
