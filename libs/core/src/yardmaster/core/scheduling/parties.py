"""Who shares a pool, jobs or projects, and what each of them asks for.

A party asks for what its running tasks hold and what its waiting tasks could have: those that would
fit were every preemptible task of the pool gone, so that somebody who comes to a full pool counts.
No more than its bounds let it hold: where the jobs of a project or the projects of a department ask
for more than a limit above them, the limit is divided among them first, as the pool is.

Costs a step for each party that holds something, each group that waits, and each job that holds
something in a project whose holdings changed; it is asked for once a cycle at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from yardmaster.core.scheduling.entities import Department, Holders, Job, Pool, Project, Task
from yardmaster.core.scheduling.placement import idle_sizes, place, strategy_of
from yardmaster.core.scheduling.shapes import Shape
from yardmaster.core.scheduling.shares import Claim, Division
from yardmaster.core.scheduling.waits import sums_up
from yardmaster.schemas.events.requests import Quota

Party = Job | Project
Pools = Mapping[str, Pool]

AMONG: Final = ("job", "project")


@dataclass(slots=True)
class Share:
    """A party's part of a pool; amounts are gpu_milli, `age` is that of its oldest task."""

    party: Party
    age: tuple[int, int]
    #: What it asks for within its bounds, of that what cannot be taken away, and the smallest task
    #: that can (0: none); all that can are multiples of `size`.
    demand: int = 0
    fixed: int = 0
    least: int = 0
    size: int = 0
    held: int = 0
    offer: int = 0

    @property
    def weight(self) -> int:
        """How much it counts."""
        return weight_of(self.party)

    @property
    def claim(self) -> Claim:
        """What it asks for, for a division."""
        return Claim(self.weight, self.demand, self.fixed, self.least, self.size, self.held)

    def add(self, other: "Share") -> None:
        """Count something more that it holds or could have."""
        self.age = min(self.age, other.age)
        self.demand += other.demand
        self.fixed += other.fixed
        self.size = gcd(self.size, other.size)
        if other.least:
            self.least = min(self.least, other.least) if self.least else other.least

    def cut(self, most: int, *, whole_tasks: bool) -> None:
        """Let it ask for no more than that, above what is fixed perhaps for whole tasks only."""
        if self.demand <= most:
            return
        above = max(0, most - self.fixed)
        if whole_tasks and self.size:
            above = above - above % self.size if above >= self.least else 0
        self.demand = self.fixed + above


def weight_of(party: Party) -> int:
    """A job's own weight, or that of a project's configuration."""
    if isinstance(party, Job):
        return party.weight
    return party.config.weight if party.config is not None else 1


def party_of(job: Job, among: str) -> Party:
    """On whose behalf a job's tasks run."""
    return job if among == "job" else job.project


def held_by(pool: Pool, party: Party) -> int:
    """What a party's tasks hold of a pool, those that are stopping included."""
    if isinstance(party, Project):
        return party.used_milli.get(pool.name, 0)
    holding = pool.held.get(party)
    return holding.milli if holding is not None else 0


def bound_of(pool: Pool, party: Party, pools: Pools) -> int | None:
    """The most a party may hold of a pool, by its own bounds and with what it holds elsewhere; what
    is stopping there is as good as gone, so that a bound over pools is not enforced in each.
    """
    if isinstance(party, Job):
        if party.max_slots_milli is None:
            return None
        elsewhere = 0
        if party.used_milli > held_by(pool, party):
            others = (pools[name] for name in party.shape.pools if name != pool.name)
            elsewhere = sum(_staying(other, party) for other in others)
        return max(0, party.max_slots_milli - elsewhere)
    return _limit_of(pool, party, pools)


def _staying(pool: Pool, job: Job) -> int:
    holding = pool.held.get(job)
    if holding is None:
        return 0
    return sum(milli for task, milli in holding.tasks.items() if not leaving(task))


def leaving(task: Task) -> bool:
    """Whether what a task holds is being given back."""
    run = task.run
    return run is None or run.stop is not None or run.ended


def could_fit(pool: Pool, shape: Shape) -> bool:
    """Whether a task would fit were every preemptible task of the pool gone."""
    assert pool.config is not None
    key = ("could_fit", shape.fit)
    known = pool.policy_cache.get(key)
    now = (pool.topology, pool.firm_changes)
    if known is None or known[0] != now:
        fits = place(pool.firm, shape, strategy_of(pool.config)) is not None
        if not fits and shape.whole_nodes and pool.config.unequal_gangs:
            # There more room may fit where all of it does not.
            fits = sums_up(shape.gpus, idle_sizes(pool.firm, shape))
        known = pool.policy_cache[key] = (now, fits)
    found: bool = known[1]
    return found


def shares_of(
    pool: Pool, pools: Pools, among: str, divide: Division, *, whole_tasks: bool
) -> list[Share]:
    """What each party of a pool is offered, oldest first; `pools` are all that there are.

    With `whole_tasks` a bound lets a party ask for as many tasks as it holds, else for all of it.
    """
    rows = _asked(pool, pools, whole_tasks=whole_tasks)
    _cap(pool, rows, pools, whole_tasks=whole_tasks)
    if among == "project":
        rows = _by_project(rows)
        _cap(pool, rows, pools, whole_tasks=whole_tasks)
    shares = sorted(rows.values(), key=lambda share: share.age)
    for share in shares:
        share.held = held_by(pool, share.party)
    if among == "job":
        _divide_limits(pool, pools, shares, divide, projects=True, whole_tasks=whole_tasks)
    _divide_limits(pool, pools, shares, divide, projects=False, whole_tasks=whole_tasks)
    capacity = pool.idle.free_milli + pool.held_milli
    for share, offer in zip(shares, divide(capacity, [s.claim for s in shares]), strict=True):
        share.offer = offer
    return shares


def _asked(pool: Pool, pools: Pools, *, whole_tasks: bool) -> dict[Party, Share]:
    # By job where its tasks are equal to no other's, else by project.
    rows: dict[Party, Share] = {}
    limits: dict[Project, list[int | None]] = {}
    for group in pool.groups.values():
        shape, waiting = group.shape, group.queue.live
        if shape.lane and waiting and could_fit(pool, shape):
            asked = shape.total_gpu_milli
            job = next(group.queue.in_order()).job
            if whole_tasks:
                project = job.project
                if project not in limits:
                    owners = (project, project.department)
                    limits[project] = [_limit_of(pool, owner, pools) for owner in owners]
                bounds = (bound_of(pool, job, pools), *limits[project])
                if any(bound is not None and asked > bound for bound in bounds):
                    # It cannot run, or not as long as what they hold elsewhere does.
                    continue
            _count(rows, job, waiting * asked, 0, asked)
    for project, holders in pool.holders.items():
        for share in asked_by(project, holders).values():
            _row(rows, share.party, share.age).add(share)
    return rows


def asked_by(project: Project, holders: Holders) -> dict[Party, Share]:
    """What those who hold something ask for, by job where its tasks are equal to no other's, else
    together; kept until that changes, since there may be thousands.
    """
    kept = holders.asked
    if kept is None or kept[0] != project.reshaped:
        rows: dict[Party, Share] = {}
        for job, holding in holders.jobs.items():
            asked = job.shape.total_gpu_milli
            # Whole tasks also where a gang is half gone: it is to come back.
            demand = len(holding.tasks) * asked
            if job.spec.preemptible:
                _count(rows, job, demand, 0, asked)
            else:
                _count(rows, job, demand, demand, 0)
        kept = holders.asked = (project.reshaped, rows)
    found: dict[Party, Share] = kept[1]
    return found


def _count(rows: dict[Party, Share], job: Job, demand: int, fixed: int, least: int) -> None:
    party: Party = job if job.shape.job_id is not None else job.project
    age = (job.submitted_ms, job.seq)
    _row(rows, party, age).add(Share(party, age, demand, fixed, least, least))


def _row(rows: dict[Party, Share], party: Party, age: tuple[int, int]) -> Share:
    share = rows.get(party)
    if share is None:
        share = rows[party] = Share(party, age)
    return share


def _by_project(rows: dict[Party, Share]) -> dict[Party, Share]:
    found: dict[Party, Share] = {}
    for party, share in rows.items():
        project = party.project if isinstance(party, Job) else party
        whole = found.get(project)
        if whole is None:
            whole = found[project] = Share(project, share.age)
        whole.add(share)
    return found


def _cap(pool: Pool, rows: dict[Party, Share], pools: Pools, *, whole_tasks: bool) -> None:
    for share in rows.values():
        most = bound_of(pool, share.party, pools)
        if most is not None:
            share.cut(most, whole_tasks=whole_tasks)


def _divide_limits(
    pool: Pool,
    pools: Pools,
    shares: Sequence[Share],
    divide: Division,
    *,
    projects: bool,
    whole_tasks: bool,
) -> None:
    below: dict[Project | Department, list[Share]] = {}
    for share in shares:
        party = share.party
        project = party.project if isinstance(party, Job) else party
        owner = project if projects else project.department
        if owner.config is not None:
            below.setdefault(owner, []).append(share)
    for owner, rows in below.items():
        limit = _limit_of(pool, owner, pools)
        if limit is None or sum(share.demand for share in rows) <= limit:
            continue
        for share, part in zip(rows, divide(limit, [s.claim for s in rows]), strict=True):
            share.cut(part, whole_tasks=whole_tasks)


def _limit_of(pool: Pool, owner: Project | Department, pools: Pools) -> int | None:
    config = owner.config
    if config is None:
        return None
    quota: Quota | None = config.quotas.get(pool.name)
    limit = quota.limit_milli if quota is not None else None
    if isinstance(owner, Project) and owner.config is not None:
        whole = owner.config.limit_milli
        if whole is not None:
            elsewhere = sum(
                _staying(pools[name], job)
                for name, milli in owner.used_milli.items()
                if milli and name != pool.name
                for job in pools[name].holders[owner].jobs
            )
            left = max(0, whole - elsewhere)
            limit = left if limit is None else min(limit, left)
    return limit
