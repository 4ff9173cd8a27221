"""Who shares a pool, jobs or projects, and what each of them asks for.

A party asks for what its running tasks hold and what its waiting tasks could have: those that would
fit were every preemptible task of the pool gone, so that somebody who comes to a full pool counts.
No more than its bounds let it hold: where the jobs of a project or the projects of a department ask
for more than a limit above them, the limit is divided among them first, as the pool is.

Costs a step for each job that holds something and each group that waits, and is asked for once a
cycle at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from yardmaster.core.scheduling.entities import Department, Job, Pool, Project
from yardmaster.core.scheduling.placement import place, strategy_of
from yardmaster.core.scheduling.shapes import Shape
from yardmaster.core.scheduling.shares import Claim, Division
from yardmaster.schemas.events.requests import Quota

Party = Job | Project

AMONG: Final = ("job", "project")


@dataclass(slots=True)
class Share:
    """A party's part of a pool; amounts are gpu_milli, `age` is that of its oldest task."""

    party: Party
    age: tuple[int, int]
    #: What it asks for within its bounds, of that what cannot be taken away, and the smallest task
    #: that can (0: none).
    demand: int = 0
    fixed: int = 0
    least: int = 0
    offer: int = 0

    @property
    def weight(self) -> int:
        """How much it counts."""
        return weight_of(self.party)

    @property
    def claim(self) -> Claim:
        """What it asks for, for a division."""
        return Claim(self.weight, self.demand, self.fixed, self.least)

    def add(self, age: tuple[int, int], demand: int, fixed: int, least: int) -> None:
        """Count something more that it holds or could have."""
        self.age = min(self.age, age)
        self.demand += demand
        self.fixed += fixed
        if least:
            self.least = min(self.least, least) if self.least else least


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


def bound_of(pool: Pool, party: Party) -> int | None:
    """The most a party may hold of a pool, by its own bounds and with what it holds elsewhere."""
    if isinstance(party, Job):
        if party.max_slots_milli is None:
            return None
        return max(0, party.max_slots_milli - party.used_milli + held_by(pool, party))
    return _limit_of(pool, party)


def could_fit(pool: Pool, shape: Shape) -> bool:
    """Whether a task would fit were every preemptible task of the pool gone."""
    assert pool.config is not None
    key = ("could_fit", shape.fit)
    known = pool.policy_cache.get(key)
    now = (pool.topology, pool.firm_changes)
    if known is None or known[0] != now:
        fits = place(pool.firm, shape, strategy_of(pool.config)) is not None
        known = pool.policy_cache[key] = (now, fits)
    found: bool = known[1]
    return found


def shares_of(pool: Pool, among: str, divide: Division) -> list[Share]:
    """What each party of a pool is offered, oldest first."""
    rows = _asked(pool)
    for share in rows.values():
        _cap(share, bound_of(pool, share.party))
    if among == "project":
        rows = _by_project(rows)
        for share in rows.values():
            _cap(share, bound_of(pool, share.party))
    shares = sorted(rows.values(), key=lambda share: share.age)
    if among == "job":
        _divide_limits(pool, shares, divide, projects=True)
    _divide_limits(pool, shares, divide, projects=False)
    capacity = pool.idle.free_milli + sum(holding.milli for holding in pool.held.values())
    for share, offer in zip(shares, divide(capacity, [s.claim for s in shares]), strict=True):
        share.offer = offer
    return shares


def _asked(pool: Pool) -> dict[Party, Share]:
    # By job where its tasks are equal to no other's, else by project.
    rows: dict[Party, Share] = {}

    def count(job: Job, demand: int, fixed: int, least: int) -> None:
        party: Party = job if job.shape.job_id is not None else job.project
        age = (job.submitted_ms, job.seq)
        share = rows.get(party)
        if share is None:
            share = rows[party] = Share(party, age)
        share.add(age, demand, fixed, least)

    for group in pool.groups.values():
        shape, waiting = group.shape, group.queue.live
        if shape.lane and waiting and could_fit(pool, shape):
            asked = shape.total_gpu_milli
            count(next(group.queue.in_order()).job, waiting * asked, 0, asked)
    for job, holding in pool.held.items():
        asked = job.shape.total_gpu_milli
        # Whole tasks also where a gang is half gone: it is to come back.
        demand = len(holding.tasks) * asked
        if job.spec.preemptible:
            count(job, demand, 0, asked)
        else:
            count(job, demand, demand, 0)
    return rows


def _by_project(rows: dict[Party, Share]) -> dict[Party, Share]:
    found: dict[Party, Share] = {}
    for party, share in rows.items():
        project = party.project if isinstance(party, Job) else party
        whole = found.get(project)
        if whole is None:
            whole = found[project] = Share(project, share.age)
        whole.add(share.age, share.demand, share.fixed, share.least)
    return found


def _cap(share: Share, most: int | None) -> None:
    if most is not None:
        share.demand = max(share.fixed, min(share.demand, most))


def _divide_limits(
    pool: Pool, shares: Sequence[Share], divide: Division, *, projects: bool
) -> None:
    below: dict[Project | Department, list[Share]] = {}
    for share in shares:
        party = share.party
        project = party.project if isinstance(party, Job) else party
        owner = project if projects else project.department
        if owner.config is not None:
            below.setdefault(owner, []).append(share)
    for owner, rows in below.items():
        limit = _limit_of(pool, owner)
        if limit is None or sum(share.demand for share in rows) <= limit:
            continue
        for share, part in zip(rows, divide(limit, [s.claim for s in rows]), strict=True):
            share.demand = part


def _limit_of(pool: Pool, owner: Project | Department) -> int | None:
    config = owner.config
    if config is None:
        return None
    quota: Quota | None = config.quotas.get(pool.name)
    limit = quota.limit_milli if quota is not None else None
    if isinstance(owner, Project) and owner.config is not None:
        whole = owner.config.limit_milli
        if whole is not None:
            elsewhere = sum(owner.used_milli.values()) - owner.used_milli.get(pool.name, 0)
            left = max(0, whole - elsewhere)
            limit = left if limit is None else min(limit, left)
    return limit
