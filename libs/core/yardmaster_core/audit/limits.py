"""Checks of limits and deserved amounts (S6) when slots are reserved or allocated.

Under every policy, a task is checked against max_slots and max_concurrent of its job, the limit of
its project over all pools, and the GPU limits in the pool of its project and of every department
above the project.

Under the policy `quota`, a task is also checked against two bounds of its project and of every
department above it, each for GPUs, CPUs and memory. The first is the limit; with over-quota off,
the deserved amount is a limit too. The second applies only to tasks that are not preemptible: the
deserved amount in the pool and, for the project, in all pools with this policy together.

Only the resources that a task requests are checked. A task that starts on its reserved slots was
checked when the slots were reserved, and a move is not checked, so a quota that was lowered later
stops no task. The limits that hold under every policy are checked again at each start: the
scheduler drops the reservation of a task that exceeds one.

Under `quota` slots may also be reserved for a task that a limit lets start only once stopping tasks
are gone: those that are not overdue do not count then. All bounds are checked at its start.
"""

from collections.abc import Iterator
from typing import Final

from yardmaster_core.audit.cluster import Attempt, Cluster, Job
from yardmaster_core.audit.findings import FedRecord
from yardmaster_core.audit.quotas import Amounts, amounts_of
from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.decisions import SlotsAllocatedV1, SlotsReservedV1
from yardmaster_schemas.events.requests import Layout

#: The policy with quotas.
QUOTA_POLICY: Final = "quota"
#: What the messages call each resource.
RESOURCES: Final = ("", " of CPUs (milli)", " of memory (MiB)")

#: The name of a bound, the bound (None: unlimited), the amount in use, the amount requested.
Bound = tuple[str, int | None, int, int]


class Limits:
    """Checks each start and each reservation of a task."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.report = cluster.report
        #: By task whose reservation exceeds a bound until other tasks are gone, the attempt that
        #: starts on these slots, and the revision of the quotas.
        self._waiting: dict[str, tuple[int, int]] = {}

    def reserved(self, fed: FedRecord, body: SlotsReservedV1) -> None:
        """Check a reservation of slots, before `cluster` has it."""
        job = self.cluster.jobs.get(body.task_id.partition(".")[0])
        if job is None or self.cluster.task(body.task_id).attempt is not None:
            return  # an unknown job is reported at its start; a move is not checked
        label = f"{body.task_id} attempt {body.attempt} gets reserved slots"
        bounds = [*self._bounds_of(body, job), *self._under_quota(body, job)]
        if _first_exceeded(bounds) is not None and self._has_quotas(body.pool):
            self._waiting[body.task_id] = body.attempt, self.cluster.quotas.revision
            leaving = self._leaving(body.pool)
            for attempt in leaving:
                self.cluster.count_open(attempt, sign=-1)
            bounds = [*self._bounds_of(body, job), *self._under_quota(body, job)]
            for attempt in leaving:
                self.cluster.count_open(attempt, sign=1)
        self._check(fed, label, bounds)

    def _leaving(self, pool: str) -> list[Attempt]:
        """Return the attempts in a pool that stop, and are neither moved nor overdue."""
        return [
            attempt
            for task in self.cluster.tasks.values()
            if (attempt := task.attempt) is not None
            and (attempt.stopped, attempt.pool) == (True, pool)
            and not (attempt.moved or attempt.overdue)
        ]

    def _has_quotas(self, pool: str) -> bool:
        config = self.cluster.pools.get(pool)
        return config is not None and config.policy.name == QUOTA_POLICY

    def allocated(self, fed: FedRecord, body: SlotsAllocatedV1, job: Job) -> None:
        """Check a start, before `cluster` has the attempt."""
        cluster = self.cluster
        label = f"{body.task_id} attempt {body.attempt}"
        own = cluster.release_reserved(body.task_id)
        bounds = self._bounds_of(body, job)
        waited = self._waiting.pop(body.task_id, None) == (body.attempt, cluster.quotas.revision)
        if own is None or waited:
            bounds += self._under_quota(body, job)
        if own is not None:
            cluster.reserve(own)
        if not self._check(fed, label, bounds):
            return
        job_id = body.task_id.partition(".")[0]
        running = cluster.job_running.get(job_id, 0)
        most = job.spec.max_concurrent
        if most is not None and running >= most:
            self.report.add(
                "S6", fed, f"{label}: job {job_id} max_concurrent {most}, has {running}"
            )

    def _check(self, fed: FedRecord, label: str, bounds: list[Bound]) -> bool:
        """Add a finding for the first exceeded bound; return whether there is none."""
        exceeded = _first_exceeded(bounds)
        if exceeded is None:
            return True
        what, bound, used, requested = exceeded
        self.report.add("S6", fed, f"{label}: {what} {bound}, used {used}, requested {requested}")
        return False

    def _bounds_of(self, body: SlotsReservedV1 | SlotsAllocatedV1, job: Job) -> list[Bound]:
        """Return the bounds under every policy: of the job, its project and its queues."""
        cluster, quotas, pool = self.cluster, self.cluster.quotas, body.pool
        job_id = body.task_id.partition(".")[0]
        asked = amounts_of(body.placements)[0]
        used = cluster.job_used.get(job_id, 0)
        bounds: list[Bound] = [(f"job {job_id} max_slots", job.max_slots_milli, used, asked)]
        config = cluster.projects.get(job.project)
        if config is not None:
            what, used = f"project {job.project} limit", quotas.held_in_all_pools(job.project)
            bounds.append((what, config.limit_milli, used, asked))
            if config.pools and pool not in config.pools:
                bounds.append((f"{what} in {pool}, not one of its pools,", 0, 0, max(asked, 1)))
        for queue in quotas.path(job.project):
            limit, used = quotas.limit(queue, pool)[0], quotas.held(queue, pool)[0]
            bounds.append((f"{' '.join(queue)} limit in {pool}", limit, used, asked))
        return bounds

    def _under_quota(self, body: SlotsReservedV1 | SlotsAllocatedV1, job: Job) -> Iterator[Bound]:
        """Yield the bounds that only the policy `quota` adds; none under another policy."""
        quotas, pool = self.cluster.quotas, body.pool
        if not self._has_quotas(pool):
            return
        asked = self._requested(body, job)
        for queue in quotas.path(job.project):
            name, quota = " ".join(queue), quotas.quota(queue, pool)
            limit, deserved = quotas.limit(queue, pool), quotas.deserved(queue, pool)
            used, non_preemptible = (
                quotas.held(queue, pool),
                quotas.held(queue, pool, non_preemptible=True),
            )
            for i, resource in enumerate(RESOURCES):
                what = f"{name} deserved{resource} in {pool}"
                yield f"{name} limit{resource} in {pool}", limit[i], used[i], asked[i]
                if quota is not None and not quota.over_quota:
                    yield f"{what} (over-quota off)", deserved[i], used[i], asked[i]
                if not job.spec.preemptible:
                    yield f"{what} (not preemptible)", deserved[i], non_preemptible[i], asked[i]
        if not job.spec.preemptible:
            yield from self._in_all_pools(job.project, asked)

    def _in_all_pools(self, project: str, asked: Amounts) -> Iterator[Bound]:
        """Yield the bound of each resource that a project deserves in all pools with the policy."""
        quotas, queue = self.cluster.quotas, (Level.PROJECT, project)
        pools = [
            name
            for name, config in self.cluster.pools.items()
            if config.policy.name == QUOTA_POLICY
        ]
        if len(pools) == 1:
            return
        for i, resource in enumerate(RESOURCES):
            bounds = [quotas.deserved(queue, pool)[i] for pool in pools]
            known = [bound for bound in bounds if bound is not None]
            if len(known) == len(bounds):
                non_preemptible = sum(
                    quotas.held(queue, pool, non_preemptible=True)[i] for pool in pools
                )
                what = f"project {project} deserved{resource} in all pools (not preemptible)"
                yield what, sum(known), non_preemptible, asked[i]

    def _requested(self, body: SlotsReservedV1 | SlotsAllocatedV1, job: Job) -> Amounts:
        """Return the amounts that a task without slots counts as.

        A task on whole nodes counts with the CPUs and memory of one node, because the number of its
        nodes is known only when it is placed.
        """
        gpu, cpu, memory = amounts_of(body.placements)
        if job.spec.layout is Layout.WHOLE_NODES:
            resources = job.spec.resources
            cpu, memory = resources.cpu_milli, resources.memory_mib
        return gpu, cpu, memory


def _first_exceeded(bounds: list[Bound]) -> Bound | None:
    """Return the first exceeded bound of those that a task requests a part of, or None."""
    for bound in bounds:
        _, most, used, requested = bound
        if requested and most is not None and used + requested > most:
            return bound
    return None
