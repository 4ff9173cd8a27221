"""The demand of each claimant of a pool, updated from cycle to cycle.

Only claimants that were marked are counted again. Claimants with equal demands and limits share one
`ClaimantKind` (`demand_runs.py`).

A claimant's demand is the amount that its running tasks hold plus the amount that its pending tasks
could get. Pending tasks count if they would fit without the pool's preemptible tasks, so that a
claimant that arrives at a full pool counts. Tasks whose last starts failed do not count, because no
task may be preempted for them. A demand is at most the claimant's limit. If the jobs of a project
or the projects of a department demand more than a limit above them, that limit is divided among
them first, in the same way as the pool.

Every change of a job's slots or pending tasks marks the job (`ClusterState.recount`), also when a
draft is rolled back: so demands updated within a draft are updated again after it. Two results
depend on other claimants and are checked at each update: whether a shape could fit, and how much
the limits leave. Claimants whose result changed are marked. All of this follows from the state: a
new tracker computes the same.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    Pools,
    claimant_limit,
    held_by,
    owner_limit,
    retained_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand import AgedDemand, DemandSum, capped
from yardmaster_core.scheduling.policies.fair_share.demand_runs import (
    Age,
    Demand,
    DemandKind,
    DemandRun,
    Division,
    runs_of,
)
from yardmaster_core.scheduling.policies.fair_share.shares import Shares
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.shapes import Fit, Shape
from yardmaster_core.scheduling.state.tasks import Group, Job

#: The unit in which demand is counted: a job, or a group that has tasks of several equal jobs.
DemandSource = Job | Group
#: The project and the department of a claimant, each only if it has a limit to divide.
LimitedOwners = tuple[Project | None, Department | None]
#: Above this number of changes of one kind, its list is sorted again instead of changed entry by
#: entry.
MANY: Final = 256


class ShapeFit:
    """Whether tasks of one fit could run, and the sources of demand that wait for such tasks."""

    __slots__ = ("fits", "shape", "sources")

    def __init__(self, shape: Shape, *, fits: bool) -> None:
        self.shape = shape
        self.fits = fits
        self.sources: dict[Project, dict[DemandSource, None]] = {}


class ClaimantKind(DemandKind):
    """Claimants with equal demands and equal limits."""

    __slots__ = ("key", "owners")

    def __init__(
        self, key: tuple[Any, ...], demand: Demand, retained: int, owners: LimitedOwners
    ) -> None:
        super().__init__(demand, [], retained)
        self.key = key
        self.owners = owners


class DemandTracker:
    """The demands of the claimants of one pool.

    With `whole_tasks`, a limit reduces a demand to a number of whole tasks; else to the whole
    limit.
    """

    def __init__(self, state: CellView, pool: Pool, among: str, *, whole_tasks: bool) -> None:
        self.pool = pool
        self.among = among
        self.whole_tasks = whole_tasks
        self.rows: dict[Claimant, tuple[Age, ClaimantKind]] = {}
        self.claimants: dict[Age, Claimant] = {}
        self.kinds: dict[tuple[Any, ...], ClaimantKind] = {}
        #: The sources to count again at the next update.
        self.stale: dict[DemandSource, None] = dict.fromkeys(pool.held_by_job)
        for group in (group for group in pool.groups.values() if group.pending):
            job_id = group.shape.job_id
            self.stale[group if job_id is None else state.jobs[job_id]] = None
        #: Claimants that hold more than their own limit.
        self.above_limit: dict[Claimant, None] = {}
        self._fits_checked_at: tuple[int, int] | None = None
        self._memories: tuple[int, ...] = ()
        self._shape_fits: dict[Fit, ShapeFit] = {}
        self._pending: dict[DemandSource, tuple[ShapeFit, Project]] = {}
        #: By project: the project and its department, each if it has a limit; and the two limits.
        self._owners: dict[Project, LimitedOwners] = {}
        self._limits: dict[Project, tuple[int | None, int | None]] = {}
        #: For projects: the demand of each source and whether the source has a limit of its own;
        #: and the sums of sources without and with a limit.
        self._by_source: dict[DemandSource, tuple[AgedDemand, bool]] = {}
        self._sums: dict[Project, tuple[DemandSum, DemandSum]] = {}
        #: Claimants whose rank may differ from the recorded one.
        self.rank_stale: dict[Claimant, None] = dict(pool.ranked)
        #: The demands by which the claimants of a kind were ranked last.
        self._demands_of: dict[ClaimantKind, tuple[Any, ...]] = {}
        #: Project -> the number of its sources with pending tasks.
        self._waiting: dict[Project, int] = {}
        self._removals: dict[ClaimantKind, list[Age]] = {}
        self._insertions: dict[ClaimantKind, list[Age]] = {}

    def update(self, state: CellView) -> None:
        """Count the marked claimants again, and those whose shapes or limits changed."""
        self._recheck_fits()
        self._recheck_limits(state.pools)
        stale, self.stale = self.stale, {}
        if self.among == "job":
            for job in stale:
                assert isinstance(job, Job), "a job that is a claimant has equals in other jobs"
                self._set(job, self._job_demand(job, state.pools), state.pools)
        else:
            projects = dict.fromkeys(self._limits)
            for source in stale:
                projects[self._recount(source, state)] = None
            for project in projects:
                self._set(project, self._project_demand(project, state.pools), state.pools)
        self._move()

    def divide(self, pools: Pools, divide: Division) -> Shares:
        """Return the share of each claimant; `pools` are all pools of the cell.

        The limits of projects and departments are divided first, among the claimants below them.
        """
        runs = runs_of(list(self.kinds.values()))
        for level in (0, 1):
            runs = self._divide_limits(level, runs, pools, divide)
        self._note_demands(runs)
        capacity = self.pool.free.free_milli + self.pool.reserved_idle_milli + self.pool.used_milli
        return Shares(self.rows, self.claimants, divide(capacity, runs))

    def _note_demands(self, runs: Iterable[DemandRun]) -> None:
        """Note the claimants whose demand was changed by a limit that they share with others."""
        by_kind: dict[ClaimantKind, list[tuple[int, int, int]]] = {}
        for run in runs:
            assert isinstance(run.kind, ClaimantKind)
            by_kind.setdefault(run.kind, []).append((run.first, run.end, run.demand.milli))
        before, self._demands_of = self._demands_of, {}
        for kind, found in by_kind.items():
            # One run has one demand, whichever claimants joined or left.
            demands = (found[0][2],) if len(found) == 1 else tuple(sorted(found))
            self._demands_of[kind] = demands
            if before.get(kind, demands) != demands:
                self.rank_stale.update((self.claimants[age], None) for age in kind.ages)

    def waits(self, claimant: Claimant) -> bool:
        """Whether a claimant had pending GPU tasks at the last update."""
        return claimant in (self._pending if isinstance(claimant, Job) else self._waiting)

    def served(self, projects: Mapping[str, Project]) -> list[Claimant]:
        """The claimants that had pending GPU tasks at the last update and have none now."""
        sources = list(self.stale)
        if self.among == "job":
            jobs = (source for source in sources if isinstance(source, Job))
            return [job for job in jobs if job in self._pending and not self._pending_now(job)]
        left: dict[Project, int] = {}
        for source in sources:
            changed = bool(self._pending_now(source)) - (source in self._pending)
            if changed:
                project = projects[source.shape.project]
                left[project] = left.get(project, self._waiting.get(project, 0)) + changed
        return [project for project, waiting in left.items() if not waiting]

    def _pending_now(self, source: DemandSource) -> int:
        """The number of pending GPU tasks that count for a source."""
        shape = source.shape
        if not shape.queue_class:
            return 0
        if isinstance(source, Group):
            return 0 if shape.start_failed else source.pending
        if self.among != "job" and shape.job_id is None:
            return 0
        group = self.pool.groups.get((shape.id, source.priority))
        return group.pending if group is not None else 0

    def groups_of(self, claimant: Claimant) -> Iterator[Group]:
        """Yield the claimant's groups that wait for GPUs and count as demand."""
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

    # Demands

    def _job_demand(self, job: Job, pools: Pools) -> AgedDemand | None:
        """Return the demand of a job whose tasks are equal to no other job's."""
        shape = job.shape
        pending = self._pending_now(job)
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

    def _pending_demand(self, job: Job, pending: int) -> AgedDemand:
        """Return the demand of `pending` tasks of a job."""
        task_milli = self.pool.most_milli(job.shape)
        age = (job.submitted_ms, job.seq)
        return AgedDemand(age, pending * task_milli, 0, task_milli, task_milli)

    def _held_demand(self, job: Job) -> AgedDemand | None:
        """Return the demand of the tasks of a job that hold slots, or None."""
        usage = self.pool.held_by_job.get(job)
        if usage is None:
            return None
        task_milli = self.pool.most_milli(job.shape)
        # Whole tasks, even if a gang has released some replicas: its task needs all of them again.
        demand = len(usage.tasks) * task_milli
        age = (job.submitted_ms, job.seq)
        if job.spec.preemptible:
            return AgedDemand(age, demand, 0, task_milli, task_milli)
        if job.shape.gpu_memory_mib:
            demand = usage.milli
        return AgedDemand(age, demand, demand)

    def _group_demand(self, group: Group, project: Project, pools: Pools) -> AgedDemand | None:
        """Return the demand of the pending tasks of a group, or None if they do not count."""
        pending = self._pending_now(group)
        if not self._counts_pending(group, group.shape, project, pending, None, pools):
            return None
        return self._pending_demand(group.first.job, pending)

    def _recount(self, source: DemandSource, state: CellView) -> Project:
        """Count a source of a project's demand again; return the project."""
        if isinstance(source, Group):
            project = state.projects[source.shape.project]
            demand, limited = self._group_demand(source, project, state.pools), False
        elif source.shape.job_id is not None:
            project = source.project
            demand, limited = self._job_demand(source, state.pools), True
        else:
            project = source.project
            self._counts_pending(source, source.shape, project, 0, None, state.pools)
            demand, limited = self._held_demand(source), False
        sums = self._sums.get(project)
        if sums is None:
            sums = self._sums[project] = DemandSum(), DemandSum()
        known = self._by_source.pop(source, None)
        if known is not None:
            sums[known[1]].remove(known[0])
        if demand is not None:
            self._by_source[source] = demand, limited
            sums[limited].add(demand)
        return project

    def _project_demand(self, project: Project, pools: Pools) -> AgedDemand | None:
        """Return the demand of a project, capped at its limit, or None if it has none."""
        sums = self._sums.get(project)
        if sums is None:
            return None
        self._owners_of(project, pools)
        limit, _ = self._limits.get(project, (None, None))
        equal, limited = (total.total() for total in sums)
        if equal is None:
            equal, limited = limited, None
        if equal is not None:
            equal.cap(limit, whole_tasks=self.whole_tasks)
            equal.add(limited)
            equal.cap(limit, whole_tasks=self.whole_tasks)
        return equal

    # Pending tasks count if they could run

    def _counts_pending(
        self,
        source: DemandSource,
        shape: Shape,
        project: Project,
        pending: int,
        limit: int | None,
        pools: Pools,
    ) -> bool:
        """Whether the pending tasks of a source count as demand.

        The source is marked again when that may change.
        """
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
        self._waiting[project] = self._waiting.get(project, 0) + 1
        if not shape_fit.fits or not self.whole_tasks:
            return shape_fit.fits
        # A task above a limit cannot run, or not while its owners hold as much in other pools.
        task_milli = self.pool.least_milli(shape)
        self._owners_of(project, pools)
        limits = (limit, *self._limits.get(project, ()))
        return all(each is None or task_milli <= each for each in limits)

    def _forget(self, source: DemandSource, shape_fit: ShapeFit, project: Project) -> None:
        """Remove a source from the tasks that wait, and drop a shape that no source waits for."""
        self._waiting[project] -= 1
        if not self._waiting[project]:
            del self._waiting[project]
        sources = shape_fit.sources[project]
        del sources[source]
        if not sources:
            del shape_fit.sources[project]
            if not shape_fit.sources:
                del self._shape_fits[shape_fit.shape.fit]

    def _recheck_fits(self) -> None:
        """After a change of nodes, mark the sources whose tasks fit now or no longer fit."""
        now = (self.pool.topology, self.pool.max_free_changes)
        if now == self._fits_checked_at:
            return
        self._fits_checked_at = now
        memories = tuple(self.pool.free.of_gpu_memory)
        if memories != self._memories:
            # A request of GPU memory is now another part of the smallest GPUs.
            self._memories = memories
            for source in (*self.pool.held_by_job, *self._pending):
                if source.shape.gpu_memory_mib:
                    self.stale[source] = None
        for shape_fit in self._shape_fits.values():
            fits = could_fit(self.pool, shape_fit.shape)
            if fits != shape_fit.fits:
                shape_fit.fits = fits
                for sources in shape_fit.sources.values():
                    self.stale.update(sources)

    def _recheck_limits(self, pools: Pools) -> None:
        """Update the limits of projects; mark the sources whose tasks exceed other limits now."""
        for project, before in self._limits.items():
            limits = self._limits_of(project, pools)
            if limits == before:
                continue
            self._limits[project] = limits
            for shape_fit in self._shape_fits.values():
                task_milli = self.pool.least_milli(shape_fit.shape)
                if _exceeds_any(task_milli, limits) != _exceeds_any(task_milli, before):
                    self.stale.update(shape_fit.sources.get(project, {}))

    def _limits_of(self, project: Project, pools: Pools) -> tuple[int | None, int | None]:
        pool = self.pool
        return owner_limit(pool, project, pools), owner_limit(pool, project.department, pools)

    def _owners_of(self, project: Project, pools: Pools) -> LimitedOwners:
        """Return the owners of a project that have a limit, and keep their limits in `_limits`.

        The owners stay the same as long as this tracker: a change of entitlements makes a new one
        (`claimants_changed`). `_recheck_limits` updates the limits.
        """
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

    def _set(self, claimant: Claimant, demand: AgedDemand | None, pools: Pools) -> None:
        """Set a claimant's demand. The lists of kinds are changed later, all together."""
        known = self.rows.get(claimant)
        self.rank_stale[claimant] = None
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
            *(
                weight_of(claimant),
                demand.milli,
                demand.fixed,
                demand.smallest_task,
                demand.multiple_of,
            ),
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
            kind = self.kinds[key] = ClaimantKind(key, Demand(*numbers), retained, owners)
        self.rows[claimant] = demand.age, kind
        self.claimants[demand.age] = claimant
        self._insertions.setdefault(kind, []).append(demand.age)

    def _move(self) -> None:
        """Apply the collected removals and insertions to the kinds; drop the empty kinds."""
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
        self, level: int, runs: list[DemandRun], pools: Pools, divide: Division
    ) -> list[DemandRun]:
        """Divide each exceeded limit of the owners at `level` (0: projects, 1: departments).

        Returns all runs; the demands of runs below a divided limit are reduced to their shares of
        it.
        """
        below: dict[Project | Department, list[DemandRun]] = {}
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
            assert limit is not None, "a limit was removed without a new tracker"
            if sum(run.demand.milli * run.count for run in some) > limit:
                some = divide(limit, some)
                for run in some:
                    milli = capped(run.demand, run.share, whole_tasks=self.whole_tasks)
                    run.demand = replace(run.demand, milli=milli)
                    run.share = 0
            found += some
        return found


def _exceeds_any(milli: int, limits: Iterable[int | None]) -> bool:
    return any(limit is not None and milli > limit for limit in limits)
