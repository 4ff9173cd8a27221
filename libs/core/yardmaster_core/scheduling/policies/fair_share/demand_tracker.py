"""What each claimant of a pool asks for, kept from cycle to cycle: who is marked is counted again,
and who asks for the same as others is one of a kind (`runs.py`).

A claimant asks for what its running tasks hold and what its waiting tasks could have: those that
would fit were every preemptible task of the pool gone, so that somebody who comes to a full pool
counts; but not those whose last starts failed, for which nothing may be stopped. No more than its
bounds let it hold: where the jobs of a project or the projects of a department ask for more than a
limit above them, the limit is divided among them first, as the pool is.

Whatever changes what a job holds or waits for marks it (`ClusterState.recount`), also when a draft
is taken back, so that what was brought up to date within a draft is so again after it.
Two answers depend on others and are looked at each time: whether something of that kind would fit,
and what limits leave; whose answer is another than it was is marked. All of it follows from the
state: made anew it says the same.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    Pools,
    bound_of,
    could_fit,
    held_by,
    limit_of,
    staying_of,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand import Asked, Total, within
from yardmaster_core.scheduling.policies.fair_share.offers import Shares
from yardmaster_core.scheduling.policies.fair_share.runs import (
    Age,
    Claim,
    Division,
    Kind,
    Run,
    runs_of,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.entities import Department, Group, Job, Pool, Project
from yardmaster_core.scheduling.state.shapes import Fit, Shape

#: What is counted by itself: a job, or a group of tasks that are equal to those of other jobs.
Piece = Job | Group
#: The project and the department of a claimant, each if it has a limit that is to be divided.
Owners = tuple[Project | None, Department | None]
#: More changes of one kind than this are made at once.
MANY: Final = 256


class Fitting:
    """Who waits for tasks of which one fits where another does."""

    __slots__ = ("fits", "pieces", "shape")

    def __init__(self, shape: Shape, *, fits: bool) -> None:
        self.shape = shape
        self.fits = fits
        self.pieces: dict[Project, dict[Piece, None]] = {}


class Kept(Kind):
    """Parties that ask for the same and are bounded by the same."""

    __slots__ = ("key", "owners")

    def __init__(self, key: tuple[Any, ...], claim: Claim, staying: int, owners: Owners) -> None:
        super().__init__(claim, [], staying)
        self.key = key
        self.owners = owners


class Demands:
    """What the claimants of one pool ask for.

    With `whole_tasks` a bound lets a claimant ask for as many tasks as it holds, else for all of
    it.
    """

    def __init__(self, pool: Pool, among: str, *, whole_tasks: bool) -> None:
        self.pool = pool
        self.among = among
        self.whole_tasks = whole_tasks
        self.rows: dict[Claimant, tuple[Age, Kept]] = {}
        self.claimants: dict[Age, Claimant] = {}
        self.kinds: dict[tuple[Any, ...], Kept] = {}
        #: Who holds more than its own bound.
        self.above_bound: dict[Claimant, None] = {}
        self._looked: tuple[int, int] | None = None
        self._fittings: dict[Fit, Fitting] = {}
        self._waiting: dict[Piece, tuple[Fitting, Project]] = {}
        #: Whether it has a limit, and its department has; what these limits are.
        self._owners: dict[Project, Owners] = {}
        self._limits: dict[Project, tuple[int | None, int | None]] = {}
        #: Of projects: what each piece asks for, and the sums of pieces with and without a bound of
        #: their own.
        self._pieces: dict[Piece, tuple[Asked, bool]] = {}
        self._totals: dict[Project, tuple[Total, Total]] = {}
        self._leaving: dict[Kept, list[Age]] = {}
        self._coming: dict[Kept, list[Age]] = {}

    def update(self, state: ClusterState) -> None:
        """Count again whatever changed."""
        pool = self.pool
        self._look_at_fits()
        self._look_at_limits(state.pools)
        stale, pool.stale = pool.stale, {}
        if self.among == "job":
            for job in stale:
                assert isinstance(job, Job), "a job that shares a pool is equal to no other"
                self._set(job, self._of_job(job, state.pools), state.pools)
        else:
            projects = dict.fromkeys(self._limits)
            for piece in stale:
                projects[self._recount(piece, state)] = None
            for project in projects:
                self._set(project, self._of_project(project, state.pools), state.pools)
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
            if claimant in self._waiting:
                yield self.pool.groups[claimant.shape.id, claimant.priority]
            return
        for fitting in self._fittings.values():
            for piece in fitting.pieces.get(claimant, ()):
                if isinstance(piece, Job):
                    yield self.pool.groups[piece.shape.id, piece.priority]
                else:
                    yield piece

    # Who asks for what

    def _of_job(self, job: Job, pools: Pools) -> Asked | None:
        """What a job asks for that is equal to no other."""
        shape = job.shape
        group = self.pool.groups.get((shape.id, job.priority))
        waiting = group.queue.live if group is not None else 0
        bound = bound_of(self.pool, job, pools)
        found = self._of_holding(job)
        if self._counts(job, shape, job.project, waiting, bound, pools):
            asked = self._of_waiting(job, waiting)
            if found is not None:
                asked.add(found)
            found = asked
        if found is not None:
            found.cut(bound, whole_tasks=self.whole_tasks)
        return found

    def _of_waiting(self, job: Job, waiting: int) -> Asked:
        asked = job.shape.total_gpu_milli
        return Asked((job.submitted_ms, job.seq), waiting * asked, 0, asked, asked)

    def _of_holding(self, job: Job) -> Asked | None:
        holding = self.pool.usage_by_job.get(job)
        if holding is None:
            return None
        asked = job.shape.total_gpu_milli
        # Whole tasks also where a gang is half gone: it is to come back.
        demand = len(holding.tasks) * asked
        age = (job.submitted_ms, job.seq)
        if job.spec.preemptible:
            return Asked(age, demand, 0, asked, asked)
        return Asked(age, demand, demand)

    def _of_group(self, group: Group, project: Project, pools: Pools) -> Asked | None:
        waiting = 0 if group.shape.start_failed else group.queue.live
        if not self._counts(group, group.shape, project, waiting, None, pools):
            return None
        return self._of_waiting(next(group.queue.in_order()).job, waiting)

    def _recount(self, piece: Piece, state: ClusterState) -> Project:
        """Count a piece of a project again."""
        if isinstance(piece, Group):
            project = state.projects[piece.shape.project]
            asked, bounded = self._of_group(piece, project, state.pools), False
        elif piece.shape.job_id is not None:
            project = piece.project
            asked, bounded = self._of_job(piece, state.pools), True
        else:
            project = piece.project
            self._counts(piece, piece.shape, project, 0, None, state.pools)
            asked, bounded = self._of_holding(piece), False
        totals = self._totals.get(project)
        if totals is None:
            totals = self._totals[project] = Total(), Total()
        known = self._pieces.pop(piece, None)
        if known is not None:
            totals[known[1]].remove(known[0])
        if asked is not None:
            self._pieces[piece] = asked, bounded
            totals[bounded].add(asked)
        return project

    def _of_project(self, project: Project, pools: Pools) -> Asked | None:
        totals = self._totals.get(project)
        if totals is None:
            return None
        self._owners_of(project, pools)
        limit, _ = self._limits.get(project, (None, None))
        equal, bounded = (total.asked() for total in totals)
        if equal is None:
            equal, bounded = bounded, None
        if equal is not None:
            equal.cut(limit, whole_tasks=self.whole_tasks)
            equal.add(bounded)
            equal.cut(limit, whole_tasks=self.whole_tasks)
        return equal

    # What waits counts if it could run

    def _counts(
        self,
        piece: Piece,
        shape: Shape,
        project: Project,
        waiting: int,
        bound: int | None,
        pools: Pools,
    ) -> bool:
        """Whether what waits counts; it is looked at again when that may change."""
        known = self._waiting.pop(piece, None)
        if known is not None:
            self._forget(piece, *known)
        if not waiting or not shape.queue_class:
            return False
        fitting = self._fittings.get(shape.fit)
        if fitting is None:
            fits = could_fit(self.pool, shape)
            fitting = self._fittings[shape.fit] = Fitting(shape, fits=fits)
        fitting.pieces.setdefault(project, {})[piece] = None
        self._waiting[piece] = fitting, project
        if not fitting.fits or not self.whole_tasks:
            return fitting.fits
        # It cannot run, or not as long as what they hold elsewhere does.
        asked = shape.total_gpu_milli
        self._owners_of(project, pools)
        limits = (bound, *self._limits.get(project, ()))
        return all(limit is None or asked <= limit for limit in limits)

    def _forget(self, piece: Piece, fitting: Fitting, project: Project) -> None:
        pieces = fitting.pieces[project]
        del pieces[piece]
        if not pieces:
            del fitting.pieces[project]
            if not fitting.pieces:
                del self._fittings[fitting.shape.fit]

    def _look_at_fits(self) -> None:
        now = (self.pool.topology, self.pool.max_free_changes)
        if now == self._looked:
            return
        self._looked = now
        for fitting in self._fittings.values():
            fits = could_fit(self.pool, fitting.shape)
            if fits != fitting.fits:
                fitting.fits = fits
                for pieces in fitting.pieces.values():
                    self.pool.stale.update(pieces)

    def _look_at_limits(self, pools: Pools) -> None:
        for project, before in self._limits.items():
            limits = self._limits_of(project, pools)
            if limits == before:
                continue
            self._limits[project] = limits
            for fitting in self._fittings.values():
                asked = fitting.shape.total_gpu_milli
                if _above(asked, limits) != _above(asked, before):
                    self.pool.stale.update(fitting.pieces.get(project, {}))

    def _limits_of(self, project: Project, pools: Pools) -> tuple[int | None, int | None]:
        pool = self.pool
        return limit_of(pool, project, pools), limit_of(pool, project.department, pools)

    def _owners_of(self, project: Project, pools: Pools) -> Owners:
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

    def _set(self, claimant: Claimant, asked: Asked | None, pools: Pools) -> None:
        """Let a claimant ask for that from now on; it is moved with all others."""
        known = self.rows.get(claimant)
        if asked is None:
            self.above_bound.pop(claimant, None)
            if known is not None:
                del self.rows[claimant], self.claimants[known[0]]
                self._leaving.setdefault(known[1], []).append(known[0])
            return
        pool = self.pool
        staying = staying_of(pool, claimant)
        bound = bound_of(pool, claimant, pools)
        if bound is not None and staying > bound:
            self.above_bound[claimant] = None
        else:
            self.above_bound.pop(claimant, None)
        if isinstance(claimant, Job):
            owners = self._owners_of(claimant.project, pools)
        else:
            owners = (None, self._owners_of(claimant, pools)[1])
        numbers = (
            *(weight_of(claimant), asked.demand, asked.fixed, asked.least, asked.size),
            held_by(pool, claimant),
        )
        key = (*numbers, staying, owners)
        if known is not None:
            if known[1].key == key and known[0] == asked.age:
                return
            del self.claimants[known[0]]
            self._leaving.setdefault(known[1], []).append(known[0])
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = Kept(key, Claim(*numbers), staying, owners)
        self.rows[claimant] = asked.age, kind
        self.claimants[asked.age] = claimant
        self._coming.setdefault(kind, []).append(asked.age)

    def _move(self) -> None:
        for kind, ages in self._leaving.items():
            if len(ages) > MANY:
                gone = set(ages)
                kind.ages[:] = [age for age in kind.ages if age not in gone]
            else:
                for age in ages:
                    del kind.ages[bisect_left(kind.ages, age)]
        for kind, ages in self._coming.items():
            if len(ages) > MANY:
                kind.ages += ages
                kind.ages.sort()
            else:
                for age in ages:
                    insort(kind.ages, age)
        for kind in self._leaving:
            if not kind.ages:
                self.kinds.pop(kind.key, None)
        self._leaving.clear()
        self._coming.clear()

    def _divide_limits(
        self, level: int, runs: list[Run], pools: Pools, divide: Division
    ) -> list[Run]:
        below: dict[Project | Department, list[Run]] = {}
        found = []
        for run in runs:
            assert isinstance(run.kind, Kept)
            owner = run.kind.owners[level]
            if owner is None:
                found.append(run)
            else:
                below.setdefault(owner, []).append(run)
        for owner, some in below.items():
            limit = limit_of(self.pool, owner, pools)
            assert limit is not None, "a limit went without the demands being made anew"
            if sum(run.claim.demand * run.count for run in some) > limit:
                some = divide(limit, some)
                for run in some:
                    demand = within(run.claim, run.offer, whole_tasks=self.whole_tasks)
                    run.claim = replace(run.claim, demand=demand)
                    run.offer = 0
            found += some
        return found


def _above(asked: int, limits: Iterable[int | None]) -> bool:
    return any(limit is not None and asked > limit for limit in limits)


def demands_of(state: ClusterState, pool: Pool, among: str, *, whole_tasks: bool) -> Demands:
    """What the claimants of a pool ask for, up to date."""
    demands: Demands | None = pool.demands
    if demands is None:
        demands = pool.demands = Demands(pool, among, whole_tasks=whole_tasks)
        pool.stale = dict.fromkeys(pool.usage_by_job)
        for group in (group for group in pool.groups.values() if group.queue.live):
            job_id = group.shape.job_id
            pool.stale[group if job_id is None else state.jobs[job_id]] = None
    demands.update(state)
    return demands
