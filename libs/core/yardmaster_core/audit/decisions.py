"""The scheduler's promises: slots, attempts, gangs, quotas, stops, ends, time (S3 to S7, S9, S10).

What this version of the log can say of S6: limits of projects and departments, per pool and in all,
a job's max_slots and max_concurrent. That what is not preemptible stays within what is deserved is
promised in pools whose policy is `quota`, and checked there alone; only attempts that are not
preemptible count, since the others can be asked to go.

S7's "no pair stops each other": not while nothing was admitted, joined or ended in between; after
that another order may be right. An attempt runs since all its replicas had started.
"""

from typing import Any, Final

from yardmaster_core.audit.cluster import Attempt, Cluster, Job
from yardmaster_core.audit.findings import Seen
from yardmaster_core.audit.placements import gang_fault, place_fault
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    LossCause,
    NodeLostV1,
    NodeSilenceObservedV1,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.requests import Fence, Layout
from yardmaster_schemas.reasons import Stop, StopCode

#: The policy that promises S6's first half.
QUOTA_POLICY: Final = "quota"
#: After so many failed starts in a row a task preempts no other.
APART_AFTER: Final = 2


class Decisions:
    """Checks each decision of a counted cycle, then folds it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.report = cluster.report
        #: (victim, beneficiary) -> the count of changes when the one was stopped for the other.
        self.stopped_for: dict[tuple[str, str], int] = {}

    def decide(self, seen: Seen, envelope: Envelope[Any]) -> None:
        """One record of a cycle's batch, in order."""
        match envelope.data:
            case SlotsAllocatedV1() as body:
                self._allocated(seen, body)
            case PreemptionRequestedV1() as body:
                self._preempted(seen, body)
                self._stopped(seen, body)
            case StopRequestedV1() as body:
                self._stopped(seen, body)
            case AllocationRevokedV1() as body:
                self._revoked(seen, body)
            case TaskRequeuedV1() as body:
                self._requeued(seen, body)
            case TaskEndedV1() as body:
                self._ended(seen, body)
            case NodeSilenceObservedV1() as body:
                self.cluster.silences[body.node, body.incarnation] = body.last_heard_at_ms
            case NodeLostV1() as body:
                self._node_lost(seen, body)
            case _:
                pass

    def end(self, commit: Seen) -> None:
        """A cycle that was not cut ended: gangs torn in an earlier one were told to stop (S5)."""
        cluster = self.cluster
        for task_id, attempt in list(cluster.torn.items()):
            assert attempt.torn is not None
            since, what = attempt.torn
            spec = attempt.job.spec
            laid = spec.layout is Layout.WHOLE_NODES
            whole = len(attempt.open) >= (attempt.replicas if laid else spec.replicas_min)
            if attempt.stopped or whole:
                del cluster.torn[task_id]
                attempt.torn = None if whole else attempt.torn
            elif since < cluster.cycle:
                self.report.add(
                    "S5",
                    commit,
                    f"{task_id} attempt {attempt.number}: {what} in cycle {since}, expected the "
                    f"{len(attempt.open)} others to be stopped by cycle {since + 1}",
                )
                del cluster.torn[task_id]

    # A start

    def _allocated(self, seen: Seen, body: SlotsAllocatedV1) -> None:
        cluster = self.cluster
        job_id, _, index = body.task_id.partition(".")
        job = cluster.jobs.get(job_id)
        if job is None or int(index) >= job.spec.tasks or body.project != job.project:
            self.report.add(
                "S8", seen, f"{body.task_id} of project {body.project}: no such task was admitted"
            )
            return
        task = cluster.task(body.task_id)
        who = f"{body.task_id} attempt {body.attempt}"
        if task.attempt is not None:
            self.report.add(
                "S4",
                seen,
                f"{who} opens while replicas {sorted(task.attempt.open)} of attempt "
                f"{task.attempt.number} are open",
            )
            for replica in list(task.attempt.open):
                cluster.close(task.attempt, replica)
        elif body.attempt != task.last + 1:
            self.report.add("S4", seen, f"{who}: expected attempt {task.last + 1}")
        if task.ended is not None:
            self.report.add("S9", seen, f"{who} opens after the task ended ({task.ended})")
        elif int(index) in job.cancelled:
            self.report.add("S9", seen, f"{who} opens after its cancel was taken")
        elif int(index) in job.paused:
            self.report.add("S9", seen, f"{who} opens while the task is paused")
        elif job.erased:
            self.report.add("S9", seen, f"{who} opens after the job's details were erased")
        if cluster.now_ms < task.not_before_ms:
            self.report.add(
                "S10",
                seen,
                f"{who} opens at {cluster.now_ms} ms, held until {task.not_before_ms} ms",
            )
        attempt = Attempt(
            task_id=body.task_id,
            number=body.attempt,
            pool=body.pool,
            project=body.project,
            job=job,
            preemptible=job.spec.preemptible,
            allocated_ms=cluster.now_ms,
            replicas=len(body.placements),
            open={p.replica: p for p in body.placements},
            fence_s=body.fence_s,
        )
        self._gang(seen, who, body, job)
        self._levels(seen, who, attempt)
        self._fence(seen, who, body)
        task.last = body.attempt
        task.attempt = attempt
        cluster.open(attempt)
        for placement in body.placements:
            name = f"{who} replica {placement.replica}"
            if not self._fits(seen, name, job, body.pool, placement):
                break

    def _gang(self, seen: Seen, who: str, body: SlotsAllocatedV1, job: Job) -> None:
        """S5, with the attempt not yet counted."""
        fault = gang_fault(self.cluster, body, job)
        if fault is not None:
            self.report.add("S5", seen, f"{who}{fault}")

    def _fits(self, seen: Seen, who: str, job: Job, pool: str, p: Placement) -> bool:
        """S3, with the placement already counted."""
        fault = place_fault(self.cluster, job, pool, p)
        if fault is not None:
            self.report.add("S3", seen, f"{who}: {fault}")
        return fault is None

    def _levels(self, seen: Seen, who: str, attempt: Attempt) -> None:
        """S6, with the attempt not yet counted."""
        cluster = self.cluster
        job, project, pool = attempt.job, attempt.project, attempt.pool
        job_id = attempt.task_id.partition(".")[0]
        asked = attempt.gpu_milli
        department = cluster.department_of(project, job)
        of_project = cluster.projects.get(project)
        of_department = cluster.departments.get(department)
        bounds: list[tuple[str, int | None, int]] = [
            (f"job {job_id} max_slots", job.max_slots_milli, cluster.job_used.get(job_id, 0))
        ]
        if of_project is not None:
            in_all = sum(v for (name, _), v in cluster.used.items() if name == project)
            bounds.append((f"project {project} limit", of_project.limit_milli, in_all))
            if quota := of_project.quotas.get(pool):
                used = cluster.used.get((project, pool), 0)
                bounds.append((f"project {project} limit in {pool}", quota.limit_milli, used))
        if of_department is not None and (quota := of_department.quotas.get(pool)):
            used = cluster.used_by(cluster.used, department, pool)
            bounds.append((f"department {department} limit in {pool}", quota.limit_milli, used))
        config = cluster.pools.get(pool)
        if config is not None and config.policy.name == QUOTA_POLICY and not attempt.preemptible:
            firm = cluster.used_firm
            if of_project is not None and (quota := of_project.quotas.get(pool)):
                used = firm.get((project, pool), 0)
                what = f"project {project} deserved in {pool} (not preemptible)"
                bounds.append((what, quota.deserved_milli or 0, used))
            if of_department is not None and (quota := of_department.quotas.get(pool)):
                used = cluster.used_by(firm, department, pool)
                what = f"department {department} deserved in {pool} (not preemptible)"
                bounds.append((what, quota.deserved_milli or 0, used))
        for what, bound, used in bounds:
            if asked and bound is not None and used + asked > bound:
                self.report.add("S6", seen, f"{who}: {what} {bound}, used {used}, asked {asked}")
                return
        running = cluster.job_running.get(job_id, 0)
        if job.spec.max_concurrent is not None and running >= job.spec.max_concurrent:
            self.report.add(
                "S6",
                seen,
                f"{who}: job {job_id} max_concurrent {job.spec.max_concurrent}, running {running}",
            )

    # A stop

    def _preempted(self, seen: Seen, body: PreemptionRequestedV1) -> None:
        cluster = self.cluster
        stop = body.stop
        who = f"{body.task_id} attempt {body.attempt}"
        attempt = cluster.attempt(body.task_id, body.attempt)
        if stop.for_task is None or stop.rule is None:
            missing = "beneficiary" if stop.for_task is None else "rule"
            self.report.add(
                "S7", seen, f"{who} is stopped ({stop.code}) without naming a {missing}"
            )
            return
        other = cluster.tasks.get(stop.for_task)
        admitted = stop.for_task.partition(".")[0] in cluster.jobs
        if not admitted or (other is not None and other.ended) or stop.for_task == body.task_id:
            self.report.add(
                "S7", seen, f"{who} is stopped for {stop.for_task}, which cannot gain from it"
            )
        if other is not None and other.failed_starts >= APART_AFTER:
            self.report.add(
                "S7",
                seen,
                f"{who} is stopped for {stop.for_task}, whose last {other.failed_starts} starts "
                "failed",
            )
        if attempt is None:
            return  # found as a stop of what is not open
        if not attempt.preemptible:
            self.report.add("S7", seen, f"{who} is stopped for {stop.for_task}, not preemptible")
        least_ms = attempt.job.spec.min_runtime_s * 1000
        ran_ms = 0 if attempt.running_ms is None else cluster.now_ms - attempt.running_ms
        if ran_ms < least_ms:
            self.report.add(
                "S7",
                seen,
                f"{who} is stopped for {stop.for_task} after {ran_ms} ms, "
                f"min_runtime is {least_ms} ms",
            )
        pair = (stop.for_task, body.task_id)
        if self.stopped_for.get(pair) == cluster.changes:
            self.report.add(
                "S7",
                seen,
                f"{who} is stopped for {stop.for_task}, which was stopped for it, and nothing was "
                "admitted, joined or ended in between",
            )
        self.stopped_for[body.task_id, stop.for_task] = cluster.changes

    def _stopped(self, seen: Seen, body: PreemptionRequestedV1 | StopRequestedV1) -> None:
        cluster = self.cluster
        who = f"{body.task_id} attempt {body.attempt}"
        deadline_ms = cluster.now_ms + body.grace_s * 1000
        if body.deadline_at_ms < deadline_ms:
            self.report.add(
                "S10",
                seen,
                f"{who}: {body.grace_s} s of grace from {cluster.now_ms} ms end at {deadline_ms} "
                f"ms, the deadline is {body.deadline_at_ms} ms",
            )
        attempt = self._stop(seen, body.task_id, body.attempt, body.nodes, body.stop)
        if attempt is None:
            return
        task = cluster.task(body.task_id)
        match body.stop.code:
            case StopCode.TIME_LIMIT:
                now = 0 if attempt.running_ms is None else cluster.now_ms - attempt.running_ms
                limit_s = attempt.job.spec.time_limit_s
                if limit_s is None or task.ran_ms + now < limit_s * 1000:
                    self.report.add(
                        "S10",
                        seen,
                        f"{who} is over its time limit of {limit_s} s after {task.ran_ms + now} ms",
                    )
            case StopCode.NODE_DRAINED:
                drains = [cluster.drains.get(p.node) for p in attempt.open.values()]
                known = [d for d in drains if d is not None]
                if not known or not (attempt.preemptible or min(known) <= cluster.now_ms):
                    self.report.add(
                        "S10",
                        seen,
                        f"{who} is drained at {cluster.now_ms} ms, deadlines of its nodes: {known}",
                    )
            case StopCode.SLOT_DISABLED:
                held = [
                    set(p.slots) & set(cluster.emptied.get(p.node, ()))
                    for p in attempt.open.values()
                ]
                if not any(held):
                    self.report.add(
                        "S10", seen, f"{who} is stopped, but holds no slot that is to be emptied"
                    )
            case _:
                pass

    def _revoked(self, seen: Seen, body: AllocationRevokedV1) -> None:
        cluster = self.cluster
        attempt = self._stop(seen, body.task_id, body.attempt, body.nodes, body.stop)
        if attempt is None or body.stop.code is not StopCode.START_TIMEOUT:
            return
        config = cluster.pools.get(attempt.pool)
        waited_ms = cluster.now_ms - attempt.allocated_ms
        if config is not None and waited_ms < config.start_timeout_s * 1000:
            self.report.add(
                "S10",
                seen,
                f"{body.task_id} attempt {body.attempt} is revoked after {waited_ms} ms, "
                f"start_timeout of {attempt.pool} is {config.start_timeout_s} s",
            )

    def _stop(
        self, seen: Seen, task_id: str, number: int, nodes: tuple[str, ...], stop: Stop
    ) -> Attempt | None:
        attempt = self.cluster.attempt(task_id, number)
        who = f"{task_id} attempt {number}"
        if attempt is None:
            self.report.add("S4", seen, f"{who} is stopped ({stop.code}) but is not open")
            return None
        left_out = sorted({p.node for p in attempt.open.values()} - set(nodes))
        if left_out:
            self.report.add("S5", seen, f"{who} is stopped, but not on its nodes {left_out}")
        attempt.stopped = True
        return attempt

    # Ends

    def _requeued(self, seen: Seen, body: TaskRequeuedV1) -> None:
        task = self.cluster.task(body.task_id)
        who = f"{body.task_id} attempt {body.attempt}"
        if task.ended is not None:
            self.report.add("S9", seen, f"{who} is requeued after the task ended ({task.ended})")
        elif task.attempt is not None or body.attempt != task.last:
            opened = [] if task.attempt is None else sorted(task.attempt.open)
            self.report.add(
                "S4",
                seen,
                f"{who} is requeued; expected attempt {task.last} with nothing open, found "
                f"replicas {opened} open",
            )
        if body.failed_starts not in (task.failed_starts, task.failed_starts + 1):
            self.report.add(
                "S4",
                seen,
                f"{who} is requeued after {body.failed_starts} failed starts in a row, there were "
                f"{task.failed_starts} before it",
            )
        task.not_before_ms = body.not_before_ms
        task.failed_starts = body.failed_starts

    def _ended(self, seen: Seen, body: TaskEndedV1) -> None:
        task = self.cluster.task(body.task_id)
        this = f"decisions/{seen.offset}"
        if task.ended is not None:
            self.report.add("S9", seen, f"{body.task_id} ends again; it ended at {task.ended}")
        elif task.attempt is not None or body.attempt != task.last:
            opened = [] if task.attempt is None else sorted(task.attempt.open)
            self.report.add(
                "S9",
                seen,
                f"{body.task_id} ends with attempt {body.attempt}; expected {task.last} with "
                f"nothing open, found replicas {opened} open",
            )
        task.ended = this
        self.cluster.changes += 1

    def _node_lost(self, seen: Seen, body: NodeLostV1) -> None:
        cluster = self.cluster
        who = f"node {body.node} incarnation {body.incarnation}"
        node = cluster.nodes.get(body.node)
        current = node is not None and node.incarnation == body.incarnation
        if body.cause is LossCause.REPLACED and (node is None or current):
            self.report.add("S3", seen, f"{who} counts as replaced, but no other has joined")
        if body.cause is LossCause.REVOKED and cluster.enrolled.get(body.node, who) is not None:
            self.report.add("S3", seen, f"{who} counts as revoked, but its enrolment was not")
        if body.cause is LossCause.REVOKED:
            self._keeps_fences(seen, who, body, silent_ms=0)
        if body.cause is LossCause.SILENT:
            self._silent(seen, who, body)
        held = sorted(
            key
            for key, incarnation in cluster.on_node.get(body.node, {}).items()
            if incarnation == body.incarnation
        )
        named = sorted((r.task_id, r.replica) for r in body.closed)
        if held != named:
            odd = sorted(set(held) ^ set(named))[:8]
            self.report.add("S3", seen, f"{who} is lost: closed and open replicas differ in {odd}")
        for task_id, replica in held:
            attempt = cluster.task(task_id).attempt
            assert attempt is not None
            cluster.tear(attempt, f"replica {replica} was lost with node {body.node}")
            cluster.close(attempt, replica)
        cluster.lost.add((body.node, body.incarnation))
        cluster.changes += 1
        if node is not None and current:
            node.up = False

    def _fence(self, seen: Seen, who: str, body: SlotsAllocatedV1) -> None:
        """Attempts of a pool with `fence: kill` have one that ends before their node is lost."""
        config = self.cluster.pools.get(body.pool)
        if config is None:
            return
        fenced = config.fence is Fence.KILL
        if fenced != (body.fence_s is not None) or (body.fence_s or 0) >= config.node_timeout_s:
            self.report.add(
                "S4",
                seen,
                f"{who} has fence_s {body.fence_s}, its pool fence {config.fence} and node_timeout "
                f"{config.node_timeout_s} s",
            )

    def _silent(self, seen: Seen, who: str, body: NodeLostV1) -> None:
        cluster = self.cluster
        heard_ms = cluster.silences.get((body.node, body.incarnation))
        if heard_ms is None:
            self.report.add("S10", seen, f"{who} is lost, but its silence was never observed")
            return
        node = cluster.nodes.get(body.node)
        config = cluster.pools.get(node.pool) if node is not None else None
        if config is not None and cluster.now_ms - heard_ms < config.node_timeout_s * 1000:
            self.report.add(
                "S10",
                seen,
                f"{who} is lost after {cluster.now_ms - heard_ms} ms of silence, node_timeout of "
                f"its pool is {config.node_timeout_s} s",
            )
        self._keeps_fences(seen, who, body, silent_ms=cluster.now_ms - heard_ms)

    def _keeps_fences(self, seen: Seen, who: str, body: NodeLostV1, *, silent_ms: int) -> None:
        """What is closed with a node runs no more, if it has a fence: that counts silence alone."""
        cluster = self.cluster
        for (task_id, _), incarnation in cluster.on_node.get(body.node, {}).items():
            attempt = cluster.task(task_id).attempt
            fence_s = attempt.fence_s if attempt is not None else None
            if incarnation == body.incarnation and fence_s and silent_ms <= fence_s * 1000:
                self.report.add(
                    "S4",
                    seen,
                    f"{who} is lost after {silent_ms} ms of silence, while {task_id} may run on "
                    f"there for {fence_s} s",
                )
