"""Checks of limits and of what is deserved (S6), when slots are reserved or allocated.

Under every policy: a job's max_slots and max_concurrent, the limit of its project over all pools,
and the GPU limits of its project and of every department above it in the pool. Under `quota` also,
for each of them, of GPUs, CPUs and memory: the limits (with over-quota off, what is deserved is a
limit); and what is deserved, for tasks that are not preemptible, of the project also in all pools
with this policy together.

Only the resources that a task requests are checked. A task that starts on the slots reserved for
it, or is moved, was checked before; a limit that was lowered since then stops no task. But its
slots are taken back if it then exceeds a GPU limit that holds under every policy.
"""

from collections.abc import Iterator
from typing import Final

from yardmaster_core.audit.cluster import Cluster, Job
from yardmaster_core.audit.findings import FedRecord
from yardmaster_core.audit.quotas import Amounts, amounts_of
from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.decisions import SlotsAllocatedV1, SlotsReservedV1
from yardmaster_schemas.events.requests import Layout

#: The policy with quotas.
QUOTA_POLICY: Final = "quota"
#: What the messages call each resource.
RESOURCES: Final = ("", " of CPUs (milli)", " of memory (MiB)")

#: What a bound is, the bound, what is used of it, what a task requests.
Bound = tuple[str, int | None, int, int]


class Limits:
    """Checks each start and each reservation of a task."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.report = cluster.report

    def reserved(self, fed: FedRecord, body: SlotsReservedV1) -> None:
        """Check a reservation, which `cluster` does not have yet."""
        job = self.cluster.jobs.get(body.task_id.partition(".")[0])
        if job is None or self.cluster.task(body.task_id).attempt is not None:
            return  # reported when it starts, or a move
        label = f"{body.task_id} attempt {body.attempt} gets reserved slots"
        bounds = [*self._bounds_of(body, job), *self._under_quota(body, job)]
        self._check(fed, label, bounds)

    def allocated(self, fed: FedRecord, body: SlotsAllocatedV1, job: Job) -> None:
        """Check a start, which `cluster` does not have yet."""
        cluster = self.cluster
        label = f"{body.task_id} attempt {body.attempt}"
        own = cluster.release_reserved(body.task_id)
        bounds = self._bounds_of(body, job)
        if own is None:
            bounds += self._under_quota(body, job)
        else:
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
        for what, bound, used, requested in bounds:
            if requested and bound is not None and used + requested > bound:
                self.report.add(
                    "S6", fed, f"{label}: {what} {bound}, used {used}, requested {requested}"
                )
                return False
        return True

    def _bounds_of(self, body: SlotsReservedV1 | SlotsAllocatedV1, job: Job) -> list[Bound]:
        """Return each limit of the job, its project and its queues, with what is used and asked."""
        cluster, quotas, pool = self.cluster, self.cluster.quotas, body.pool
        job_id = body.task_id.partition(".")[0]
        asked = self._milli(body, job)
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
        cluster, quotas, pool = self.cluster, self.cluster.quotas, body.pool
        config = cluster.pools.get(pool)
        if config is None or config.policy.name != QUOTA_POLICY:
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
        """Yield what a project deserves in all pools with the policy together."""
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
        """Return the amounts that a task counts as before it has slots.

        A task on whole nodes counts with the CPUs and memory of one, because how many nodes it
        takes is found only then.
        """
        _, cpu, memory = amounts_of(body.placements)
        if job.spec.layout is Layout.WHOLE_NODES:
            resources = job.spec.resources
            cpu, memory = resources.cpu_milli, resources.memory_mib
        return self._milli(body, job), cpu, memory

    def _milli(self, body: SlotsReservedV1 | SlotsAllocatedV1, job: Job) -> int:
        """Return the gpu_milli that a task counts as: of a request for memory of GPUs, its part of
        the largest GPUs of the pool.
        """
        placed, requested = amounts_of(body.placements)[0], job.spec.resources
        if not requested.gpu_memory_mib:
            return placed
        largest_mib = max(
            mib
            for node in self.cluster.nodes.values()
            if node.pool == body.pool and node.gpus
            for mib in node.gpu_memories_mib
        )
        each = -(-requested.gpu_memory_mib * 100 // max(largest_mib, 1)) * 10
        return min(placed, len(body.placements) * requested.gpus * each)
