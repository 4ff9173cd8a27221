"""What each claimant of a pool asks for, kept from cycle to cycle: who is marked is counted again,
and who asks for the same as others is one of a kind (`runs.py`).

A claimant asks for what its running tasks hold and what its pending tasks could have: those that
would fit were every preemptible task of the pool gone, so that somebody who comes to a full pool
counts; but not those whose last starts failed, for which nothing may be stopped. No more than its
bounds let it hold: where the jobs of a project or the projects of a department ask for more than a
limit above them, the limit is divided among them first, as the pool is.

Whatever changes what a job holds or waits for marks it (`ClusterState.recount`), also when a draft
is taken back, so that what was brought up to date capped a draft is so again after it.
Two answers depend on others and are looked at each time: whether something of that kind would fit,
and what limits leave; whose answer is another than it was is marked. All of it follows from the
state: made anew it says the same.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.policies.fair_share.claim_runs import (
    Age,
    Claim,
    ClaimKind,
    ClaimRun,
    Division,
    runs_of,
)
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    Pools,
    claimant_limit,
    held_by,
    owner_limit,
    retained_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand import Demand, DemandSum, capped
from yardmaster_core.scheduling.policies.fair_share.shares import Shares
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.shapes import Fit, Shape
from yardmaster_core.scheduling.state.tasks import Group, Job

#: What is counted by itself: a job, or a group of tasks that are equal to those of other jobs.
DemandSource = Job | Group
#: The project and the department of a claimant, each if it has a limit that is to be divided.
LimitedOwners = tuple[Project | None, Department | None]
#: More changes of one kind than this are made at once.
MANY: Final = 256


class ShapeFit:
    """Who waits for tasks of which one fits where another does."""

    __slots__ = ("fits", "shape", "sources")

    def __init__(self, shape: Shape, *, fits: bool) -> None:
        self.shape = shape
        self.fits = fits
        self.sources: dict[Project, dict[DemandSource, None]] = {}


class ClaimantKind(ClaimKind):
    """Parties that ask for the same and are bounded by the same."""

    __slots__ = ("key", "owners")

    def __init__(
        self, key: tuple[Any, ...], claim: Claim, retained: int, owners: LimitedOwners
    ) -> None:
        super().__init__(claim, [], retained)
        self.key = key
        self.owners = owners


class DemandTracker:
    """What the claimants of one pool ask for.

    With `whole_tasks` a limit lets a claimant ask for as many tasks as it holds, else for all of
    it.
    """

    def __init__(self, pool: Pool, among: str, *, whole_tasks: bool) -> None:
        self.pool = pool
        self.among = among
        self.whole_tasks = whole_tasks
        self.rows: dict[Claimant, tuple[Age, ClaimantKind]] = {}
        self.claimants: dict[Age, Claimant] = {}
        self.kinds: dict[tuple[Any, ...], ClaimantKind] = {}
        #: Who holds more than its own limit.
        self.above_limit: dict[Claimant, None] = {}
        self._fits_checked_at: tuple[int, int] | None = None
        self._shape_fits: dict[Fit, ShapeFit] = {}
        self._pending: dict[DemandSource, tuple[ShapeFit, Project]] = {}
        #: Whether it has a limit, and its department has; what these limits are.
        self._owners: dict[Project, LimitedOwners] = {}
        self._limits: dict[Project, tuple[int | None, int | None]] = {}
        #: Of projects: what each source asks for, and the sums of sources with and without a limit
        #: of their own.
        self._by_source: dict[DemandSource, tuple[Demand, bool]] = {}
        self._sums: dict[Project, tuple[DemandSum, DemandSum]] = {}
        self._removals: dict[ClaimantKind, list[Age]] = {}
        self._insertions: dict[ClaimantKind, list[Age]] = {}

    def update(self, state: ClusterState) -> None:
        """Count again whatever changed."""
        pool = self.pool
        self._recheck_fits()
        self._recheck_limits(state.pools)
        stale, pool.stale = pool.stale, {}
        if self.among == "job":
            for job in stale:
                assert isinstance(job, Job), "a job that shares a pool is equal to no other"
                self._set(job, self._job_demand(job, state.pools), state.pools)
        else:
            projects = dict.fromkeys(self._limits)
            for source in stale:
                projects[self._recount(source, state)] = None
            for project in projects:
                self._set(project, self._project_demand(project, state.pools), state.pools)
        self._move()

    def divide(self, pools: Pools, divide: Division) -> Shares:
        """What each claimant is offered; `pools` are all that there are."""
        runs = runs_of(list(self.kinds.values()))
        for level in (0, 1):
            runs = self._divide_limits(level, runs, pools, divide)
        capacity = self.pool.free.free_milli + self.pool.used_milli
        return Shares(self.rows, self.claimants, divide(capacity, runs))

    def groups_of(self, claimant: Claimant) -> Iterator[Group]:
        """Who of a claimant waits for GPUs."""
        if isinstance(claimant, Job):
            if claimant in self._pending:
                yield self.pool.groups[claimant.shape.id, claimant.priority]
            return
        for shape_fit in self._shape_fits.values():
            for source in shape_fit.sources.get(claimant, ()):
                if isinstance(source, Job):
                    yield self.pool.groups[source.shape.id, source.priority]
                else:
                    yield source

    # Who asks for what

    def _job_demand(self, job: Job, pools: Pools) -> Demand | None:
        """What a job asks for that is equal to no other."""
        shape = job.shape
        group = self.pool.groups.get((shape.id, job.priority))
        pending = group.queue.live if group is not None else 0
        limit = claimant_limit(self.pool, job, pools)
        found = self._held_demand(job)
        if self._counts_pending(job, shape, job.project, pending, limit, pools):
            demand = self._pending_demand(job, pending)
            if found is not None:
                demand.add(found)
            found = demand
        if found is not None:
            found.cap(limit, whole_tasks=self.whole_tasks)
        return found

    def _pending_demand(self, job: Job, pending: int) -> Demand:
        task_milli = job.shape.total_gpu_milli
        age = (job.submitted_ms, job.seq)
        return Demand(age, pending * task_milli, 0, task_milli, task_milli)

    def _held_demand(self, job: Job) -> Demand | None:
        holding = self.pool.usage_by_job.get(job)
        if holding is None:
            return None
        task_milli = job.shape.total_gpu_milli
        # Whole tasks also where a gang is half gone: it is to come back.
        demand = len(holding.tasks) * task_milli
        age = (job.submitted_ms, job.seq)
        if job.spec.preemptible:
            return Demand(age, demand, 0, task_milli, task_milli)
        return Demand(age, demand, demand)

    def _group_demand(self, group: Group, project: Project, pools: Pools) -> Demand | None:
        pending = 0 if group.shape.start_failed else group.queue.live
        if not self._counts_pending(group, group.shape, project, pending, None, pools):
            return None
        return self._pending_demand(next(group.queue.in_order()).job, pending)

    def _recount(self, source: DemandSource, state: ClusterState) -> Project:
        """Count a source of a project again."""
        if isinstance(source, Group):
            project = state.projects[source.shape.project]
            demand, bounded = self._group_demand(source, project, state.pools), False
        elif source.shape.job_id is not None:
            project = source.project
            demand, bounded = self._job_demand(source, state.pools), True
        else:
            project = source.project
            self._counts_pending(source, source.shape, project, 0, None, state.pools)
            demand, bounded = self._held_demand(source), False
        sums = self._sums.get(project)
        if sums is None:
            sums = self._sums[project] = DemandSum(), DemandSum()
        known = self._by_source.pop(source, None)
        if known is not None:
            sums[known[1]].remove(known[0])
        if demand is not None:
            self._by_source[source] = demand, bounded
            sums[bounded].add(demand)
        return project

    def _project_demand(self, project: Project, pools: Pools) -> Demand | None:
        sums = self._sums.get(project)
        if sums is None:
            return None
        self._owners_of(project, pools)
        limit, _ = self._limits.get(project, (None, None))
        equal, bounded = (total.total() for total in sums)
        if equal is None:
            equal, bounded = bounded, None
        if equal is not None:
            equal.cap(limit, whole_tasks=self.whole_tasks)
            equal.add(bounded)
            equal.cap(limit, whole_tasks=self.whole_tasks)
        return equal

    # What waits counts if it could run

    def _counts_pending(
        self,
        source: DemandSource,
        shape: Shape,
        project: Project,
        pending: int,
        limit: int | None,
        pools: Pools,
    ) -> bool:
        """Whether what waits counts; it is looked at again when that may change."""
        known = self._pending.pop(source, None)
        if known is not None:
            self._forget(source, *known)
        if not pending or not shape.queue_class:
            return False
        shape_fit = self._shape_fits.get(shape.fit)
        if shape_fit is None:
            fits = could_fit(self.pool, shape)
            shape_fit = self._shape_fits[shape.fit] = ShapeFit(shape, fits=fits)
        shape_fit.sources.setdefault(project, {})[source] = None
        self._pending[source] = shape_fit, project
        if not shape_fit.fits or not self.whole_tasks:
            return shape_fit.fits
        # It cannot run, or not as long as what they hold elsewhere does.
        task_milli = shape.total_gpu_milli
        self._owners_of(project, pools)
        limits = (limit, *self._limits.get(project, ()))
        return all(each is None or task_milli <= each for each in limits)

    def _forget(self, source: DemandSource, shape_fit: ShapeFit, project: Project) -> None:
        sources = shape_fit.sources[project]
        del sources[source]
        if not sources:
            del shape_fit.sources[project]
            if not shape_fit.sources:
                del self._shape_fits[shape_fit.shape.fit]

    def _recheck_fits(self) -> None:
        now = (self.pool.topology, self.pool.max_free_changes)
        if now == self._fits_checked_at:
            return
        self._fits_checked_at = now
        for shape_fit in self._shape_fits.values():
            fits = could_fit(self.pool, shape_fit.shape)
            if fits != shape_fit.fits:
                shape_fit.fits = fits
                for sources in shape_fit.sources.values():
                    self.pool.stale.update(sources)

    def _recheck_limits(self, pools: Pools) -> None:
        for project, before in self._limits.items():
            limits = self._limits_of(project, pools)
            if limits == before:
                continue
            self._limits[project] = limits
            for shape_fit in self._shape_fits.values():
                task_milli = shape_fit.shape.total_gpu_milli
                if _exceeds_any(task_milli, limits) != _exceeds_any(task_milli, before):
                    self.pool.stale.update(shape_fit.sources.get(project, {}))

    def _limits_of(self, project: Project, pools: Pools) -> tuple[int | None, int | None]:
        pool = self.pool
        return owner_limit(pool, project, pools), owner_limit(pool, project.department, pools)

    def _owners_of(self, project: Project, pools: Pools) -> LimitedOwners:
        owners = self._owners.get(project)
        if owners is None:
            limits = self._limits_of(project, pools)
            owners = self._owners[project] = (
                project if limits[0] is not None else None,
                project.department if limits[1] is not None else None,
            )
            if any(owners):
                self._limits[project] = limits
        return owners

    # Kinds

    def _set(self, claimant: Claimant, demand: Demand | None, pools: Pools) -> None:
        """Let a claimant ask for that from now on; it is moved with all others."""
        known = self.rows.get(claimant)
        if demand is None:
            self.above_limit.pop(claimant, None)
            if known is not None:
                del self.rows[claimant], self.claimants[known[0]]
                self._removals.setdefault(known[1], []).append(known[0])
            return
        pool = self.pool
        retained = retained_by(pool, claimant)
        limit = claimant_limit(pool, claimant, pools)
        if limit is not None and retained > limit:
            self.above_limit[claimant] = None
        else:
            self.above_limit.pop(claimant, None)
        if isinstance(claimant, Job):
            owners = self._owners_of(claimant.project, pools)
        else:
            owners = (None, self._owners_of(claimant, pools)[1])
        numbers = (
            *(weight_of(claimant), demand.demand, demand.fixed, demand.least, demand.size),
            held_by(pool, claimant),
        )
        key = (*numbers, retained, owners)
        if known is not None:
            if known[1].key == key and known[0] == demand.age:
                return
            del self.claimants[known[0]]
            self._removals.setdefault(known[1], []).append(known[0])
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = ClaimantKind(key, Claim(*numbers), retained, owners)
        self.rows[claimant] = demand.age, kind
        self.claimants[demand.age] = claimant
        self._insertions.setdefault(kind, []).append(demand.age)

    def _move(self) -> None:
        for kind, ages in self._removals.items():
            if len(ages) > MANY:
                gone = set(ages)
                kind.ages[:] = [age for age in kind.ages if age not in gone]
            else:
                for age in ages:
                    del kind.ages[bisect_left(kind.ages, age)]
        for kind, ages in self._insertions.items():
            if len(ages) > MANY:
                kind.ages += ages
                kind.ages.sort()
            else:
                for age in ages:
                    insort(kind.ages, age)
        for kind in self._removals:
            if not kind.ages:
                self.kinds.pop(kind.key, None)
        self._removals.clear()
        self._insertions.clear()

    def _divide_limits(
        self, level: int, runs: list[ClaimRun], pools: Pools, divide: Division
    ) -> list[ClaimRun]:
        below: dict[Project | Department, list[ClaimRun]] = {}
        found = []
        for run in runs:
            assert isinstance(run.kind, ClaimantKind)
            owner = run.kind.owners[level]
            if owner is None:
                found.append(run)
            else:
                below.setdefault(owner, []).append(run)
        for owner, some in below.items():
            limit = owner_limit(self.pool, owner, pools)
            assert limit is not None, "a limit went without the demands being made anew"
            if sum(run.claim.demand * run.count for run in some) > limit:
                some = divide(limit, some)
                for run in some:
                    demand = capped(run.claim, run.share, whole_tasks=self.whole_tasks)
                    run.claim = replace(run.claim, demand=demand)
                    run.share = 0
            found += some
        return found


def _exceeds_any(milli: int, limits: Iterable[int | None]) -> bool:
    return any(limit is not None and milli > limit for limit in limits)


def current_demands(
    state: ClusterState, pool: Pool, among: str, *, whole_tasks: bool
) -> DemandTracker:
    """What the claimants of a pool ask for, up to date."""
    demands: DemandTracker | None = pool.demands
    if demands is None:
        demands = pool.demands = DemandTracker(pool, among, whole_tasks=whole_tasks)
        pool.stale = dict.fromkeys(pool.usage_by_job)
        for group in (group for group in pool.groups.values() if group.queue.live):
            job_id = group.shape.job_id
            pool.stale[group if job_id is None else state.jobs[job_id]] = None
    demands.update(state)
    return demands
