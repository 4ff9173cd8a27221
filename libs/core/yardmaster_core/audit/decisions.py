"""Check S3 to S7, S9 and S10: slots, attempts, gangs, quotas, stops, ends and time.

S7 says that no two tasks preempt each other. It does not apply if an admission, a join, an end or
an overdue stop comes between the two preemptions, because another order of the tasks may be right
after such a change; nor if a minute begins in a pool where past use moves the shares. Nor does it
apply to a move, because a task that is moved keeps other slots; but it must not preempt the task
that it was moved for. The runtime of an attempt counts from the start of its last replica.
"""

from itertools import takewhile
from typing import Any, Final

from yardmaster_core.audit.cluster import Attempt, Cluster, Job, Task
from yardmaster_core.audit.findings import FedRecord
from yardmaster_core.audit.limits import Limits
from yardmaster_core.audit.placements import gang_fault, place_fault
from yardmaster_core.audit.reservations import Reservations
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    FailedStartsExpiredV1,
    LossCause,
    NodeLostV1,
    NodeSilenceObservedV1,
    Placement,
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    StopOverdueV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.requests import Fence, Layout
from yardmaster_schemas.instants import LAST_MS
from yardmaster_schemas.reasons import PolicyStop, Stop, StopCode

#: A stop is overdue this long after its deadline.
OVERDUE_MS: Final = 60_000
#: After this many consecutive failed starts a task preempts no other task.
NO_PREEMPTION_AFTER: Final = 2
#: Its failed starts expire this long after the last of them and its back-off.
EXPIRY_MS: Final = 300_000
#: Past use is counted at whole minutes.
MINUTE_MS: Final = 60_000
#: Reports about its image extend a start to at most this time after the allocation.
MAX_PULL_MS: Final = 43_200_000
#: The rule of a stop after which the task starts on other slots, which are reserved for it.
MOVED: Final = "moved"


class Decisions:
    """Checks each decision of a counted cycle, then applies it to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.report = cluster.report
        self.limits = Limits(cluster)
        self.reservations = Reservations(cluster)
        #: (victim, beneficiary) -> `Cluster.changes` at the time of the preemption, and the minute
        #: of the shares of the pool.
        self.stopped_for: dict[tuple[str, str], tuple[int, int]] = {}
        #: Tasks whose stop is overdue since this cycle.
        self._overdue_now: list[str] = []

    def decide(self, fed: FedRecord, envelope: Envelope[Any]) -> None:
        """Check the next record of a counted cycle."""
        match envelope.data:
            case SlotsAllocatedV1() as body:
                self._allocated(fed, body)
            case SlotsReservedV1() as body:
                self.limits.reserved(fed, body)
                self.reservations.reserved(fed, body)
            case ReservationDroppedV1() as body:
                self.reservations.dropped(fed, body)
            case PreemptionRequestedV1() as body:
                self._preempted(fed, body)
                self._stopped(fed, body)
            case StopRequestedV1() as body:
                self._stopped(fed, body)
            case AllocationRevokedV1() as body:
                self._revoked(fed, body)
            case StopOverdueV1() as body:
                self._overdue(fed, body)
            case TaskRequeuedV1() as body:
                self._requeued(fed, body)
            case FailedStartsExpiredV1() as body:
                self._starts_expired(fed, body)
            case TaskEndedV1() as body:
                self._ended(fed, body)
            case NodeSilenceObservedV1() as body:
                self.cluster.silences[body.node, body.incarnation] = body.last_heard_at_ms
            case NodeLostV1() as body:
                self._node_lost(fed, body)
            case _:
                pass

    def end(self, commit: FedRecord) -> None:
        """Check after a complete cycle that the gangs that broke, or ran two images, in earlier
        ones are stopped (S5), that no start takes longer than its bound (S10), and that nothing is
        reserved on slots of stops that are overdue since this cycle (S3).
        """
        cluster = self.cluster
        self._end_starts(commit)
        for task_id in self._overdue_now:
            self.reservations.check_overdue(commit, task_id)
        self._overdue_now.clear()
        self._end_differing(commit)
        for task_id, attempt in list(cluster.broken.items()):
            assert attempt.broken is not None
            since, how = attempt.broken
            spec = attempt.job.spec
            whole_nodes = spec.layout is Layout.WHOLE_NODES
            complete = len(attempt.open) >= (attempt.replicas if whole_nodes else spec.replicas_min)
            if attempt.stopped or complete:
                del cluster.broken[task_id]
                attempt.broken = None if complete else attempt.broken
            elif since < cluster.cycle:
                self.report.add(
                    "S5",
                    commit,
                    f"{task_id} attempt {attempt.number}: {how} in cycle {since}, expected the "
                    f"{len(attempt.open)} others to be stopped by cycle {since + 1}",
                )
                del cluster.broken[task_id]

    def _end_starts(self, commit: FedRecord) -> None:
        """Check that each attempt that has not started within its bound is stopped (S10)."""
        cluster = self.cluster
        oldest_ms = cluster.now_ms - MAX_PULL_MS
        long_ago = takewhile(
            lambda item: item[1].allocated_ms <= oldest_ms, cluster.starting.items()
        )
        for task_id, attempt in list(long_ago):
            waited_ms = cluster.now_ms - attempt.allocated_ms
            config = cluster.pools.get(attempt.pool)
            if attempt.stopped or config is None:
                del cluster.starting[task_id]
            elif waited_ms >= config.start_timeout_s * 1000:
                self.report.add(
                    "S10",
                    commit,
                    f"{task_id} attempt {attempt.number} has not started after {waited_ms} ms, "
                    "and is not revoked",
                )
                del cluster.starting[task_id]

    def _end_differing(self, commit: FedRecord) -> None:
        """Check that attempts whose replicas run different images are stopped (S5)."""
        cluster = self.cluster
        for task_id, attempt in list(cluster.differing.items()):
            assert attempt.differs is not None
            if attempt.stopped or attempt.differs < cluster.cycle:
                del cluster.differing[task_id]
                if not attempt.stopped:
                    self.report.add(
                        "S5",
                        commit,
                        f"{task_id} attempt {attempt.number}: two images since cycle "
                        f"{attempt.differs}, expected it to be stopped",
                    )

    # Allocations

    def _allocated(self, fed: FedRecord, body: SlotsAllocatedV1) -> None:
        """Check a new attempt (S3 to S6, S8 to S10), and open it in `cluster`."""
        cluster = self.cluster
        job_id, _, index = body.task_id.partition(".")
        job = cluster.jobs.get(job_id)
        if job is None or int(index) >= job.spec.tasks or body.project != job.project:
            self.report.add(
                "S8", fed, f"{body.task_id} of project {body.project}: no such task was admitted"
            )
            return
        task = cluster.task(body.task_id)
        label = f"{body.task_id} attempt {body.attempt}"
        if task.attempt is not None:
            self.report.add(
                "S4",
                fed,
                f"{label} opens while replicas {sorted(task.attempt.open)} of attempt "
                f"{task.attempt.number} are open",
            )
            for replica in list(task.attempt.open):
                cluster.close(task.attempt, replica)
        elif body.attempt != task.last + 1:
            self.report.add("S4", fed, f"{label}: expected attempt {task.last + 1}")
        if task.ended is not None:
            self.report.add("S9", fed, f"{label} opens after the task ended ({task.ended})")
        elif int(index) in job.cancelled:
            self.report.add("S9", fed, f"{label} opens after its cancellation")
        elif int(index) in job.paused:
            self.report.add("S9", fed, f"{label} opens while the task is paused")
        elif job.erased:
            self.report.add("S9", fed, f"{label} opens after the job's details were erased")
        if cluster.now_ms < task.not_before_ms:
            self.report.add(
                "S10",
                fed,
                f"{label} opens at {cluster.now_ms} ms, held until {task.not_before_ms} ms",
            )
        attempt = Attempt(
            task_id=body.task_id,
            number=body.attempt,
            pool=body.pool,
            job=job,
            preemptible=job.spec.preemptible,
            allocated_ms=cluster.now_ms,
            replicas=len(body.placements),
            open={p.replica: p for p in body.placements},
            fence_s=body.fence_s,
        )
        self._gang(fed, label, body, job)
        self.limits.allocated(fed, body, job)
        self._fence(fed, label, body)
        task.last = body.attempt
        task.attempt = attempt
        cluster.open(attempt)
        for placement in body.placements:
            name = f"{label} replica {placement.replica}"
            if not self._fits(fed, name, job, body.pool, placement):
                break
        self.reservations.allocated(fed, body)

    def _gang(self, fed: FedRecord, label: str, body: SlotsAllocatedV1, job: Job) -> None:
        """Check that a gang is complete, and is given the image of its task (S5), before `cluster`
        has the attempt.
        """
        image = self.cluster.task(body.task_id).image
        if body.image != image:
            self.report.add(
                "S5", fed, f"{label} is given image {body.image}, its task runs {image}"
            )
        fault = gang_fault(self.cluster, body, job)
        if fault is not None:
            self.report.add("S5", fed, f"{label}{fault}")

    def _fits(self, fed: FedRecord, label: str, job: Job, pool: str, p: Placement) -> bool:
        """Check and return whether a replica may be on its node (S3), when `cluster` has it."""
        fault = place_fault(self.cluster, job, pool, p)
        if fault is not None:
            self.report.add("S3", fed, f"{label}: {fault}")
        return fault is None

    # Stops

    def _preempted(self, fed: FedRecord, body: PreemptionRequestedV1) -> None:
        """Check the victim and the beneficiary of a preemption (S7); `_stopped` checks the rest."""
        cluster = self.cluster
        stop = body.stop
        label = f"{body.task_id} attempt {body.attempt}"
        attempt = cluster.attempt(body.task_id, body.attempt)
        if stop.for_task is None:
            self.report.add(
                "S7", fed, f"{label} is stopped ({stop.code}) without naming a beneficiary"
            )
            return
        other = cluster.tasks.get(stop.for_task)
        admitted = stop.for_task.partition(".")[0] in cluster.jobs
        if not admitted or (other is not None and other.ended) or stop.for_task == body.task_id:
            self.report.add(
                "S7", fed, f"{label} is stopped for {stop.for_task}, which cannot use its slots"
            )
        if other is not None and other.failed_starts >= max(
            NO_PREEMPTION_AFTER, other.expired_starts + 1
        ):
            self.report.add(
                "S7",
                fed,
                f"{label} is stopped for {stop.for_task}, whose last {other.failed_starts} starts "
                "failed",
            )
        if attempt is None:
            return  # reported by `_stopped`
        if not attempt.preemptible:
            self.report.add("S7", fed, f"{label} is stopped for {stop.for_task}, not preemptible")
        least_ms = attempt.job.spec.min_runtime_s * 1000
        ran_ms = 0 if attempt.running_ms is None else cluster.now_ms - attempt.running_ms
        if ran_ms < least_ms:
            self.report.add(
                "S7",
                fed,
                f"{label} is stopped for {stop.for_task} after {ran_ms} ms, "
                f"min_runtime is {least_ms} ms",
            )
        pair = (stop.for_task, body.task_id)
        since = cluster.changes, self._minute_of_shares(attempt.pool)
        if stop.rule != MOVED and self.stopped_for.get(pair) == since:
            self.report.add(
                "S7",
                fed,
                f"{label} is stopped for {stop.for_task}, which was stopped for it, without an "
                "admission, join, end or overdue stop in between",
            )
        self.stopped_for[body.task_id, stop.for_task] = since

    def _minute_of_shares(self, pool: str) -> int:
        """Return the minute in which past use was counted last, where it moves shares; else 0."""
        config = self.cluster.pools.get(pool)
        options = config.policy.options if config is not None else {}
        moves = options.get("usage_half_life_s") and options.get("usage_weight_permille") != 0
        return self.cluster.now_ms // MINUTE_MS if moves else 0

    def _stopped(self, fed: FedRecord, body: PreemptionRequestedV1 | StopRequestedV1) -> None:
        """Check the deadline and the reason of a stop (S10), and mark the attempt as stopped."""
        cluster = self.cluster
        label = f"{body.task_id} attempt {body.attempt}"
        deadline_ms = min(cluster.now_ms + body.grace_s * 1000, LAST_MS)
        if body.deadline_at_ms < deadline_ms:
            self.report.add(
                "S10",
                fed,
                f"{label}: {body.grace_s} s of grace from {cluster.now_ms} ms end at {deadline_ms} "
                f"ms, the deadline is {body.deadline_at_ms} ms",
            )
        attempt = self._stop(fed, body.task_id, body.attempt, body.nodes, body.stop)
        if attempt is None:
            return
        attempt.deadline_ms = body.deadline_at_ms
        task = cluster.task(body.task_id)
        match body.stop.code:
            case StopCode.TIME_LIMIT:
                now = 0 if attempt.running_ms is None else cluster.now_ms - attempt.running_ms
                limit_s = attempt.job.spec.time_limit_s
                if limit_s is None or task.ran_ms + now < limit_s * 1000:
                    self.report.add(
                        "S10",
                        fed,
                        f"{label} exceeds its time limit of {limit_s} s: {task.ran_ms + now} ms",
                    )
            case StopCode.NODE_DRAINED:
                drains = [cluster.drains.get(p.node) for p in attempt.open.values()]
                known = [d for d in drains if d is not None]
                if not known or not (attempt.preemptible or min(known) <= cluster.now_ms):
                    self.report.add(
                        "S10",
                        fed,
                        f"{label} is drained at {cluster.now_ms} ms, deadlines of nodes: {known}",
                    )
            case StopCode.SLOT_DISABLED:
                held = [
                    set(p.slots) & set(cluster.stopping_slots.get(p.node, ()))
                    for p in attempt.open.values()
                ]
                if not any(held):
                    self.report.add(
                        "S10",
                        fed,
                        f"{label} is stopped, but holds no disabled slot that must be emptied",
                    )
            case _:
                pass

    def _revoked(self, fed: FedRecord, body: AllocationRevokedV1) -> None:
        """Check that an allocation is not revoked before its start timeout (S10), and mark the
        attempt as stopped.
        """
        cluster = self.cluster
        attempt = self._stop(fed, body.task_id, body.attempt, body.nodes, body.stop)
        if attempt is None or body.stop.code is not StopCode.START_TIMEOUT:
            return
        config = cluster.pools.get(attempt.pool)
        waited_ms = cluster.now_ms - attempt.allocated_ms
        if config is not None and waited_ms < config.start_timeout_s * 1000:
            self.report.add(
                "S10",
                fed,
                f"{body.task_id} attempt {body.attempt} is revoked after {waited_ms} ms, "
                f"start_timeout of {attempt.pool} is {config.start_timeout_s} s",
            )

    def _overdue(self, fed: FedRecord, body: StopOverdueV1) -> None:
        """Check that an attempt holds slots `OVERDUE_MS` after the deadline of its stop (S10)."""
        attempt = self.cluster.attempt(body.task_id, body.attempt)
        label = f"{body.task_id} attempt {body.attempt}"
        if attempt is None or not attempt.stopped or attempt.overdue:
            self.report.add("S4", fed, f"{label} is overdue, but not open and stopping in time")
            return
        overdue_ms = attempt.deadline_ms + OVERDUE_MS
        if body.deadline_at_ms != attempt.deadline_ms or self.cluster.now_ms < overdue_ms:
            self.report.add(
                "S10",
                fed,
                f"{label} is overdue at {self.cluster.now_ms} ms, its deadline is "
                f"{attempt.deadline_ms} ms",
            )
        attempt.overdue = True
        # Its slots count as held again, as if they were lost.
        self.cluster.changes += 1
        self._overdue_now.append(body.task_id)

    def _stop(
        self,
        fed: FedRecord,
        task_id: str,
        number: int,
        nodes: tuple[str, ...],
        stop: Stop | PolicyStop,
    ) -> Attempt | None:
        """Mark an attempt as stopped and return it; if it is not open, add a finding (S4).

        Add a finding (S5) if `nodes`, the nodes that get the stop, lack a node of an open replica.
        """
        attempt = self.cluster.attempt(task_id, number)
        label = f"{task_id} attempt {number}"
        if attempt is None:
            self.report.add("S4", fed, f"{label} is stopped ({stop.code}) but is not open")
            return None
        missing = sorted({p.node for p in attempt.open.values()} - set(nodes))
        if missing:
            self.report.add("S5", fed, f"{label} is stopped, but not on its nodes {missing}")
        attempt.stopped = True
        attempt.deadline_ms = self.cluster.now_ms
        return attempt

    # Ends

    def _requeued(self, fed: FedRecord, body: TaskRequeuedV1) -> None:
        """Check a requeue (S4, S9), and note its earliest start and its failed starts."""
        task = self.cluster.task(body.task_id)
        label = f"{body.task_id} attempt {body.attempt}"
        if task.ended is not None:
            self.report.add("S9", fed, f"{label} is requeued after the task ended ({task.ended})")
        else:
            self._check_closed("S4", fed, task, body.attempt, f"{label} is requeued")
        if body.failed_starts not in (task.failed_starts, task.failed_starts + 1):
            self.report.add(
                "S4",
                fed,
                f"{label} is requeued with {body.failed_starts} failed starts; the task had "
                f"{task.failed_starts}",
            )
        task.not_before_ms = body.not_before_ms
        task.failed_starts = body.failed_starts
        task.expiry_ms = max(self.cluster.now_ms, body.not_before_ms) + EXPIRY_MS

    def _starts_expired(self, fed: FedRecord, body: FailedStartsExpiredV1) -> None:
        """Check that the failed starts of a pending task expire after their time (S4)."""
        cluster = self.cluster
        task = cluster.task(body.task_id)
        label = f"{body.failed_starts} failed starts of {body.task_id} expire"
        if task.attempt is not None or body.failed_starts != task.failed_starts:
            self.report.add("S4", fed, f"{label}; it is not pending after that many")
        elif cluster.now_ms < task.expiry_ms:
            self.report.add("S4", fed, f"{label} at {cluster.now_ms}, before {task.expiry_ms}")
        task.expired_starts = body.failed_starts

    def _check_closed(
        self, rule: str, fed: FedRecord, task: Task, attempt: int, label: str
    ) -> None:
        """Add a finding unless `attempt` is the task's last and none of its replicas is open."""
        if task.attempt is not None or attempt != task.last:
            opened = [] if task.attempt is None else sorted(task.attempt.open)
            self.report.add(
                rule,
                fed,
                f"{label}; expected attempt {task.last} with nothing open, found replicas "
                f"{opened} open",
            )

    def _ended(self, fed: FedRecord, body: TaskEndedV1) -> None:
        """Check that a task ends once and with nothing open (S9), and note its end."""
        task = self.cluster.task(body.task_id)
        this = f"decisions/{fed.offset}"
        if task.ended is not None:
            self.report.add("S9", fed, f"{body.task_id} ends again; it ended at {task.ended}")
        else:
            label = f"{body.task_id} ends with attempt {body.attempt}"
            self._check_closed("S9", fed, task, body.attempt, label)
        self.reservations.ended(fed, body)
        task.ended = this
        self.cluster.changes += 1

    def _node_lost(self, fed: FedRecord, body: NodeLostV1) -> None:
        """Check the loss of a node (S3, S4, S10), and close the replicas on it."""
        cluster = self.cluster
        label = f"node {body.node} incarnation {body.incarnation}"
        node = cluster.nodes.get(body.node)
        current = node is not None and node.incarnation == body.incarnation
        if body.cause is LossCause.REPLACED and (node is None or current):
            self.report.add(
                "S3", fed, f"{label} is lost as replaced, but no other incarnation joined"
            )
        if body.cause is LossCause.REVOKED and cluster.enrolled.get(body.node, label) is not None:
            self.report.add("S3", fed, f"{label} is lost as revoked, but its enrollment is not")
        if body.cause is LossCause.REVOKED:
            self._check_fences(fed, label, body, silent_ms=0)
        if body.cause is LossCause.SILENT:
            self._silent(fed, label, body)
        held = sorted(
            key
            for key, incarnation in cluster.on_node.get(body.node, {}).items()
            if incarnation == body.incarnation
        )
        named = sorted((r.task_id, r.replica) for r in body.closed)
        if held != named:
            odd = sorted(set(held) ^ set(named))[:8]
            self.report.add("S3", fed, f"{label} is lost: closed and open replicas differ in {odd}")
        for task_id, replica in held:
            attempt = cluster.task(task_id).attempt
            assert attempt is not None
            cluster.break_gang(attempt, f"replica {replica} was lost with node {body.node}")
            cluster.close(attempt, replica)
        cluster.lost.add((body.node, body.incarnation))
        cluster.changes += 1
        if node is not None and current:
            node.up = False

    def _fence(self, fed: FedRecord, label: str, body: SlotsAllocatedV1) -> None:
        """Check the fence of a new attempt (S4).

        An attempt has a fence if and only if its pool has `fence: kill`, and its fence is shorter
        than the node timeout.
        """
        config = self.cluster.pools.get(body.pool)
        if config is None:
            return
        fenced = config.fence is Fence.KILL
        if fenced != (body.fence_s is not None) or (body.fence_s or 0) >= config.node_timeout_s:
            self.report.add(
                "S4",
                fed,
                f"{label} has fence_s {body.fence_s}, its pool fence {config.fence} and "
                f"node_timeout {config.node_timeout_s} s",
            )

    def _silent(self, fed: FedRecord, label: str, body: NodeLostV1) -> None:
        """Check that a lost node was silent for its node timeout (S10), and check the fences."""
        cluster = self.cluster
        heard_ms = cluster.silences.get((body.node, body.incarnation))
        if heard_ms is None:
            self.report.add("S10", fed, f"{label} is lost, but its silence was never observed")
            return
        node = cluster.nodes.get(body.node)
        config = cluster.pools.get(node.pool) if node is not None else None
        if config is not None and cluster.now_ms - heard_ms < config.node_timeout_s * 1000:
            self.report.add(
                "S10",
                fed,
                f"{label} is lost after {cluster.now_ms - heard_ms} ms of silence, node_timeout of "
                f"its pool is {config.node_timeout_s} s",
            )
        self._check_fences(fed, label, body, silent_ms=cluster.now_ms - heard_ms)

    def _check_fences(
        self, fed: FedRecord, label: str, body: NodeLostV1, *, silent_ms: int
    ) -> None:
        """Check that the fences of the attempts on a lost node ended during its silence (S4)."""
        cluster = self.cluster
        for (task_id, _), incarnation in cluster.on_node.get(body.node, {}).items():
            attempt = cluster.task(task_id).attempt
            fence_s = attempt.fence_s if attempt is not None else None
            if incarnation == body.incarnation and fence_s and silent_ms <= fence_s * 1000:
                self.report.add(
                    "S4",
                    fed,
                    f"{label} is lost after {silent_ms} ms of silence, while {task_id} may run "
                    f"there for {fence_s} s",
                )
