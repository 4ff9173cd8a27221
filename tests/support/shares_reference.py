"""The division of a pool, demand by demand: the reference for `division.py`, which divides among
runs of equal demands, and for `demand_tracker.py`, which keeps demands from cycle to cycle.

Slow; only for comparison. Demands come by age, oldest first, which breaks ties; shares are returned
in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    Pools,
    held_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand_runs import Demand
from yardmaster_core.scheduling.state.held import HeldByProject
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.tasks import Job
from yardmaster_schemas.events.requests import Quota

Division = Callable[[int, Sequence[Demand]], list[int]]


def max_min(capacity: int, demands: Sequence[Demand]) -> list[int]:
    """Return shares by weight; capacity that a claimant does not need goes to the others.

    Progressive filling, in rounds: each claimant that is not satisfied gets a part of the remaining
    capacity by its weight, the smallest demand first, but at least one grain while there is one.

    Source: Determined 0.38, `fair_share.go`, with corrections (docs/reference/policies.md).
    """
    grain = _grain(demands)
    fill = _WaterFill(max(0, capacity - sum(c.fixed for c in demands)) // grain, demands, grain)
    while fill.left:
        if not fill.one_round():
            break
        while not fill.left and fill.give_one_up():
            pass
    # Whole slots that do not fill a task of several slots keep their owner, as in Determined.
    sizes = [gcd(WHOLE, c.multiple_of) if c.multiple_of else 0 for c in demands]
    return _in_whole_tasks([offer * grain for offer in fill.offers], demands, sizes)


class _WaterFill:
    """The rounds of `max_min`, in grains."""

    def __init__(self, left: int, demands: Sequence[Demand], grain: int) -> None:
        self.left = left
        self.demands = demands
        self.fixed = [c.fixed // grain for c in demands]
        self.most = [max(c.milli, c.fixed) // grain for c in demands]
        self.smallest_tasks = [c.smallest_task // grain for c in demands]
        self.offers = list(self.fixed)
        #: The fixed part that is not counted in a share yet.
        self.ahead = list(self.fixed)
        open_ = [i for i, demand in enumerate(self.most) if self.offers[i] < demand]
        open_.sort(key=self.most.__getitem__)
        self.weight = sum(demands[i].weight for i in open_)
        #: Unsatisfied demands by amount and age, as a ring, so that removing one is cheap.
        self._ring = len(demands)
        self._next = [-1] * (len(demands) + 1)
        self._last = [-1] * (len(demands) + 1)
        for one, other in pairwise((self._ring, *open_, self._ring)):
            self._next[one], self._last[other] = other, one
        #: Demands older than this one were not yet checked for an offer that they cannot use.
        self._oldest_checked = len(demands)

    def one_round(self) -> bool:
        """Do one round; return whether it changed anything."""
        at_first = self.left
        moved = False
        i = self._next[self._ring]
        while i != self._ring and self.left:
            weight = self.demands[i].weight
            part = max(1, at_first * weight // self.weight) if self.weight else 1
            part = min(part, self.left, self.most[i] - self.offers[i])
            counted = min(part, self.ahead[i])
            self.ahead[i] -= counted
            self.offers[i] += part - counted
            self.left -= part - counted
            moved = True
            if self.offers[i] >= self.most[i]:
                self._close(i)
            i = self._next[i]
        if moved and self.left == at_first:
            self._count_ahead()
        return moved

    def _count_ahead(self) -> None:
        """Skip the rounds that repeat the last one, in which only fixed parts were counted."""
        parts: dict[int, int] = {}
        i = self._next[self._ring]
        while i != self._ring:
            part = max(1, self.left * self.demands[i].weight // self.weight) if self.weight else 1
            parts[i] = min(part, self.left, self.most[i] - self.offers[i])
            i = self._next[i]
        rounds = min(self.ahead[i] // part for i, part in parts.items())
        for i, part in parts.items():
            self.ahead[i] -= rounds * part

    def _close(self, i: int) -> None:
        before, after = self._last[i], self._next[i]
        self._next[before], self._last[after] = after, before
        self.weight -= self.demands[i].weight

    def give_one_up(self) -> bool:
        """Take the offer of the youngest demand whose offer is smaller than its smallest task.

        The fixed part counts as part of the offer, as in Determined. Returns whether there was such
        a demand. Offers only grow, so a usable offer stays usable: each demand is checked once.
        """
        while self._oldest_checked:
            self._oldest_checked -= 1
            i = self._oldest_checked
            part = self.offers[i] - self.fixed[i]
            if self.offers[i] < self.most[i] and self.offers[i] < self.smallest_tasks[i]:
                self._close(i)
                self.offers[i] = self.fixed[i]
                self.left += part
                return True
        return False


def demand_proportional(capacity: int, demands: Sequence[Demand]) -> list[int]:
    """Shares proportional to demand times weight.

    A demand whose share exceeds it leaves the rest to the others. The rest after rounding
    down goes to demands whose share would be 0, then to the others, oldest first.

    Source: Determined's documentation (demands 10 and 30 on 8 GPUs: 2 and 6; with weights 3 and 1,
    4 and 4).
    """
    grain = _grain(demands)
    offers = _proportional(capacity // grain, demands, grain)
    stuck = [
        i
        for i, c in enumerate(demands)
        if offers[i] * grain < c.milli and offers[i] * grain - c.fixed < c.smallest_task
    ]
    pot = 0
    while stuck:
        i = stuck.pop()
        pot += offers[i] - demands[i].fixed // grain
        offers[i] = demands[i].fixed // grain
        # The oldest of them first, until it can start one task.
        while stuck and pot:
            first = stuck[0]
            wanted = (demands[first].fixed + demands[first].smallest_task) // grain - offers[first]
            part = min(pot, wanted)
            offers[first] += part
            pot -= part
            if part < wanted:
                break
            stuck.pop(0)
    # The rest goes to demands that can start a task and are not met.
    for i, c in enumerate(demands):
        if offers[i] * grain - c.fixed >= max(c.smallest_task, grain):
            part = min(pot, c.milli // grain - offers[i])
            offers[i] += part
            pot -= part
    return _in_whole_tasks(
        [offer * grain for offer in offers], demands, [c.multiple_of for c in demands]
    )


def _in_whole_tasks(offers: list[int], demands: Sequence[Demand], sizes: list[int]) -> list[int]:
    """Move the part of each offer that is no whole task to demands that can make one of it.

    A size counts above the fixed part of a demand.
    """
    parts = [
        (offer - c.fixed) % size if size and offer < c.milli else 0
        for offer, c, size in zip(offers, demands, sizes, strict=True)
    ]
    pot = sum(parts)
    if not pot:
        return offers
    offers = [offer - part for offer, part in zip(offers, parts, strict=True)]
    order = [i for i, c in enumerate(demands) if offers[i] < c.milli]
    # First demands whose share would be 0, then the largest part of a task.
    order.sort(key=lambda i: (offers[i] > 0, -Fraction(parts[i], sizes[i] or WHOLE)))
    while order:
        share = pot // len(order)
        given = []
        for i in order:
            demand = demands[i]
            size = sizes[i] or 1
            least = max(size, demand.smallest_task - (offers[i] - demand.fixed))
            part = min(max(least, share - share % size), demand.milli - offers[i])
            if part <= pot:
                offers[i] += part
                pot -= part
                if offers[i] < demand.milli:
                    given.append(i)
        order = given
    return offers


def _proportional(capacity: int, demands: Sequence[Demand], grain: int) -> list[int]:
    low = [c.fixed // grain for c in demands]
    high = [max(c.milli, c.fixed) // grain for c in demands]
    if sum(high) <= capacity:
        return high
    offers = list(low)
    pulls = [h * c.weight for h, c in zip(high, demands, strict=True)]
    free = [i for i in range(len(demands)) if low[i] < high[i] and pulls[i]]
    left = capacity - sum(low[i] for i in range(len(demands)) if low[i] >= high[i])
    left = max(0, left)
    # Both bounds apply: the sum that lower bounds add is compared with the sum that upper bounds
    # cut, and the larger side is fixed first, so that no bound must be undone.
    while free:
        pull = sum(pulls[i] for i in free)
        below = [i for i in free if left * pulls[i] < low[i] * pull]
        above = [i for i in free if left * pulls[i] > high[i] * pull]
        added = sum(low[i] * pull - left * pulls[i] for i in below)
        cut = sum(left * pulls[i] - high[i] * pull for i in above)
        if not below and not above:
            break
        bounded = below if added >= cut else above
        bounds = low if added >= cut else high
        for i in bounded:
            offers[i] = bounds[i]
            left = max(0, left - bounds[i])
        done = set(bounded)
        free = [i for i in free if i not in done]
    if free:
        pull = sum(pulls[i] for i in free)
        for i in free:
            offers[i] = left * pulls[i] // pull
        rest = left - sum(offers[i] for i in free)
        # First shares of 0, then demands that can start their first task with it, then the oldest.
        firsts = [
            c.fixed + c.smallest_task == (o + 1) * grain
            for c, o in zip(demands, offers, strict=True)
        ]
        more = [i for i in free if left * pulls[i] % pull]
        for i in sorted(more, key=lambda i: (offers[i] > 0, not firsts[i]))[:rest]:
            offers[i] += 1
    return offers


def _grain(demands: Sequence[Demand]) -> int:
    grain = WHOLE
    for demand in demands:
        grain = gcd(grain, demand.milli, demand.fixed, demand.smallest_task)
    return grain


#: By the name of the option `variant`.
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}


# The demand of each claimant


@dataclass(slots=True)
class Share:
    """A claimant's part of a pool; amounts are gpu_milli, `age` is that of its oldest task."""

    claimant: Claimant
    age: tuple[int, int]
    #: The demand within its limits, the part that cannot be preempted, and the smallest preemptible
    #: task (0: none); the preemptible part is a multiple of `size`.
    demand: int = 0
    fixed: int = 0
    smallest_task: int = 0
    multiple_of: int = 0
    held: int = 0
    offer: int = 0

    @property
    def weight(self) -> int:
        """The claimant's weight."""
        return weight_of(self.claimant)

    def as_demand(self) -> Demand:
        """Return the demand of this share, for a division."""
        return Demand(
            self.weight, self.demand, self.fixed, self.smallest_task, self.multiple_of, self.held
        )

    def add(self, other: "Share") -> None:
        """Add another demand."""
        self.age = min(self.age, other.age)
        self.demand += other.demand
        self.fixed += other.fixed
        self.multiple_of = gcd(self.multiple_of, other.multiple_of)
        if other.smallest_task:
            self.smallest_task = (
                min(self.smallest_task, other.smallest_task)
                if self.smallest_task
                else other.smallest_task
            )

    def cut(self, most: int, *, whole_tasks: bool) -> None:
        """Reduce the demand to at most `most`, above the fixed part perhaps to whole tasks."""
        if self.demand <= most:
            return
        above = max(0, most - self.fixed)
        if whole_tasks and self.multiple_of:
            above = above - above % self.multiple_of if above >= self.smallest_task else 0
        self.demand = self.fixed + above


def claimant_limit(pool: Pool, claimant: Claimant, pools: Pools) -> int | None:
    """Return the most a claimant may hold of a pool, by its own limits and what it holds in other
    pools; stopping tasks of other pools do not count.
    """
    if isinstance(claimant, Job):
        if claimant.max_slots_milli is None:
            return None
        elsewhere = 0
        if claimant.used_milli > held_by(pool, claimant):
            others = (pools[name] for name in claimant.shape.pools if name != pool.name)
            elsewhere = sum(_staying(other, claimant) for other in others)
        return max(0, claimant.max_slots_milli - elsewhere)
    return _owner_limit(pool, claimant, pools)


def _staying(pool: Pool, job: Job) -> int:
    holding = pool.held_by_job.get(job)
    if holding is None:
        return 0
    return sum(milli for task, milli in holding.tasks.items() if not task.releasing)


def shares_of(
    pool: Pool, pools: Pools, among: str, divide: Division, *, whole_tasks: bool
) -> list[Share]:
    """Return the share of each claimant of a pool, oldest first; `pools` are all pools.

    With `whole_tasks`, a limit caps the demand of a claimant to whole tasks; otherwise to the
    whole limit.
    """
    rows = _requested(pool, pools, whole_tasks=whole_tasks)
    _cap(pool, rows, pools, whole_tasks=whole_tasks)
    if among == "project":
        rows = _by_project(rows)
        _cap(pool, rows, pools, whole_tasks=whole_tasks)
    shares = sorted(rows.values(), key=lambda share: share.age)
    for share in shares:
        share.held = held_by(pool, share.claimant)
    if among == "job":
        _divide_limits(pool, pools, shares, divide, projects=True, whole_tasks=whole_tasks)
    _divide_limits(pool, pools, shares, divide, projects=False, whole_tasks=whole_tasks)
    capacity = unheld_milli(pool) + pool.used_milli
    for share, offer in zip(shares, divide(capacity, [s.as_demand() for s in shares]), strict=True):
        share.offer = offer
    return shares


def unheld_milli(pool: Pool) -> int:
    """Return the gpu_milli that no task holds, whether it is reserved or not, of slots that take
    tasks.
    """
    unheld = 0
    for node in pool.nodes.values():
        if not node.usable:
            continue
        free = [0 if slot in node.disabled else WHOLE for slot in range(node.gpus)]
        for (_, replica), task in node.open.items():
            assert task.run is not None
            for slot in task.run.placements[replica].slots:
                free[slot] -= task.run.placements[replica].gpu_milli
        unheld += sum(milli for milli in free if milli > 0)
    return unheld


def _requested(pool: Pool, pools: Pools, *, whole_tasks: bool) -> dict[Claimant, Share]:
    # By job where its tasks are equal to no other's, else by project.
    rows: dict[Claimant, Share] = {}
    limits: dict[Project, list[int | None]] = {}
    for group in pool.groups.values():
        shape, waiting = group.shape, group.pending
        if shape.queue_class and waiting and not shape.start_failed and could_fit(pool, shape):
            requested, least = pool.most_milli(shape), pool.least_milli(shape)
            job = group.first.job
            if whole_tasks:
                project = job.project
                if project not in limits:
                    owners = (project, project.department)
                    limits[project] = [_owner_limit(pool, owner, pools) for owner in owners]
                bounds = (claimant_limit(pool, job, pools), *limits[project])
                if any(bound is not None and least > bound for bound in bounds):
                    # It cannot run, or not while its owners hold this much in other pools.
                    continue
            _count(rows, job, waiting * requested, 0, requested)
    for holders in pool.held_by_project.values():
        for share in _requested_by(pool, holders).values():
            _row(rows, share.claimant, share.age).add(share)
    return rows


def _requested_by(pool: Pool, holders: HeldByProject) -> dict[Claimant, Share]:
    rows: dict[Claimant, Share] = {}
    for job, holding in holders.jobs.items():
        requested = pool.most_milli(job.shape)
        # Count whole tasks, also for a gang with released replicas: it will be placed again.
        demand = len(holding.tasks) * requested
        if job.spec.preemptible:
            _count(rows, job, demand, 0, requested)
        else:
            held = holding.milli if job.shape.gpu_memory_mib else demand
            _count(rows, job, held, held, 0)
    return rows


def _count(rows: dict[Claimant, Share], job: Job, demand: int, fixed: int, least: int) -> None:
    claimant: Claimant = job if job.shape.job_id is not None else job.project
    age = (job.submitted_ms, job.seq)
    _row(rows, claimant, age).add(Share(claimant, age, demand, fixed, least, least))


def _row(rows: dict[Claimant, Share], claimant: Claimant, age: tuple[int, int]) -> Share:
    share = rows.get(claimant)
    if share is None:
        share = rows[claimant] = Share(claimant, age)
    return share


def _by_project(rows: dict[Claimant, Share]) -> dict[Claimant, Share]:
    found: dict[Claimant, Share] = {}
    for claimant, share in rows.items():
        project = claimant.project if isinstance(claimant, Job) else claimant
        whole = found.get(project)
        if whole is None:
            whole = found[project] = Share(project, share.age)
        whole.add(share)
    return found


def _cap(pool: Pool, rows: dict[Claimant, Share], pools: Pools, *, whole_tasks: bool) -> None:
    for share in rows.values():
        most = claimant_limit(pool, share.claimant, pools)
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
        claimant = share.claimant
        project = claimant.project if isinstance(claimant, Job) else claimant
        owner = project if projects else project.department
        if owner.config is not None:
            below.setdefault(owner, []).append(share)
    for owner, rows in below.items():
        limit = _owner_limit(pool, owner, pools)
        if limit is None or sum(share.demand for share in rows) <= limit:
            continue
        for share, part in zip(rows, divide(limit, [s.as_demand() for s in rows]), strict=True):
            share.cut(part, whole_tasks=whole_tasks)


def _owner_limit(pool: Pool, owner: Project | Department, pools: Pools) -> int | None:
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
                for job in pools[name].held_by_project[owner].jobs
            )
            left = max(0, whole - elsewhere)
            limit = left if limit is None else min(limit, left)
    return limit
