"""How a pool is divided: pure functions from demands to shares.

Amounts are in gpu_milli. They are divided in whole slots while all demands are whole slots, else in
the largest grain that divides all demands. Equal demands come as one run (`demand_runs.py`), and
age breaks ties, oldest first. A step costs as many operations as there are runs, however many
demands there are.

Neither variant gives a claimant more than its demand, or less than its `fixed` part (held by tasks
that cannot be preempted); the fixed part counts as part of the share. A share smaller than one task
is useless: a gang of 8 cannot use a share of 5. So in both variants a claimant returns a share that
is smaller than its smallest task, the youngest claimant first, until the other claimants can use
their shares. In this comparison `max_min` counts the fixed part as part of the share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Final

from yardmaster_core.scheduling.policies.fair_share.demand_runs import (
    DemandRun,
    Division,
    oldest_within,
)
from yardmaster_core.scheduling.policies.fair_share.water_fill import WaterFill
from yardmaster_core.scheduling.state.shapes import WHOLE


def max_min(capacity: int, runs: Sequence[DemandRun]) -> list[DemandRun]:
    """Return shares by weight; capacity that a claimant does not need goes to the others.

    Progressive filling, in rounds: each claimant that is not satisfied gets a part of the remaining
    capacity by its weight, the smallest demand first, but at least one grain while there is one.

    Source: Determined 0.38, `fair_share.go`, with corrections (docs/reference/policies.md).
    """
    grain = _grain(runs)
    fixed = sum(run.demand.fixed * run.count for run in runs)
    water_fill = WaterFill(max(0, capacity - fixed) // grain, runs, grain)
    water_fill.fill()
    for run in water_fill.runs:
        run.share *= grain
    # Whole slots that do not make a whole task stay with their claimant, as in Determined.
    return _round_to_whole_tasks(water_fill.runs, most=WHOLE)


def demand_proportional(capacity: int, runs: Sequence[DemandRun]) -> list[DemandRun]:
    """Return shares proportional to demand times weight.

    The part of a share above its claimant's demand goes to the others. The remainder of rounding
    down goes to the claimants without a share first, then to the others, oldest first. So the
    shares depend only on the demands, and not on the slots that each claimant holds.

    Source: Determined's documentation (demands of 10 and 30 on 8 GPUs: 2 and 6; with weights 3 and
    1: 4 and 4).
    """
    grain = _grain(runs)
    found = _proportional(capacity // grain, runs, grain)
    leftover = _return_too_small(found, grain)
    if leftover:
        _give_to_usable(found, grain, leftover)
    for run in found:
        run.share *= grain
    return _round_to_whole_tasks(found)


@dataclass(slots=True, eq=False)
class _BoundedRun:
    """A run and the bounds of the share of each of its demands, in grains.

    `least` is the fixed part, `most` the demand; `weighted` is `most` times the weight.
    """

    run: DemandRun
    count: int
    least: int
    most: int
    weighted: int


def _bounded(run: DemandRun, grain: int) -> _BoundedRun:
    """Return a run with the bounds of its shares in grains."""
    demand = run.demand
    most = max(demand.milli, demand.fixed) // grain
    return _BoundedRun(run, run.count, demand.fixed // grain, most, most * demand.weight)


def _proportional(capacity: int, runs: Sequence[DemandRun], grain: int) -> list[DemandRun]:
    """Return the runs with shares in grains, none outside its bounds."""
    bounded_runs = [_bounded(run, grain) for run in runs]
    found = list(runs)
    if sum(each.most * each.count for each in bounded_runs) <= capacity:
        for bounded in bounded_runs:
            bounded.run.share = bounded.most
        return found
    undecided, left = _decide_at_bounds(bounded_runs, capacity)
    if undecided:
        _divide_by_weight(found, undecided, left, grain)
    return found


def _decide_at_bounds(
    bounded_runs: Sequence[_BoundedRun], capacity: int
) -> tuple[list[_BoundedRun], int]:
    """Set the shares that are equal to a bound.

    Returns the other runs, whose parts by weight are within their bounds, and the capacity for
    them.
    """
    undecided = []
    left = capacity
    for bounded in bounded_runs:
        bounded.run.share = bounded.least
        if bounded.least >= bounded.most:
            left -= bounded.least * bounded.count
        elif bounded.weighted:
            undecided.append(bounded)
    left = max(0, left)
    # The amount that the lower bounds add is compared with the amount that the upper bounds cut.
    # The side with the larger amount is decided first, so that no bound has to be undone.
    while undecided:
        total = sum(each.weighted * each.count for each in undecided)
        below = [each for each in undecided if left * each.weighted < each.least * total]
        above = [each for each in undecided if left * each.weighted > each.most * total]
        if not below and not above:
            break
        added = sum((each.least * total - left * each.weighted) * each.count for each in below)
        cut = sum((left * each.weighted - each.most * total) * each.count for each in above)
        decided = below if added >= cut else above
        for bounded in decided:
            bounded.run.share = bounded.least if added >= cut else bounded.most
            left -= bounded.run.share * bounded.count
        left = max(0, left)
        decided_set = set(decided)
        undecided = [each for each in undecided if each not in decided_set]
    return undecided, left


def _divide_by_weight(
    found: list[DemandRun], bounded_runs: Sequence[_BoundedRun], capacity: int, grain: int
) -> None:
    """Divide the capacity by weighted demand, and the remainder of rounding down grain by grain.

    Runs that are split off are added to `found`.
    """
    total = sum(each.weighted * each.count for each in bounded_runs)
    for bounded in bounded_runs:
        bounded.run.share = capacity * bounded.weighted // total
    left = capacity - sum(each.run.share * each.count for each in bounded_runs)
    # Claimants without a share come first: else a small demand would wait as long as a large one
    # lasts. Then claimants that can start their first task with one more grain. Then age, and not
    # the largest fraction: fractions change with each new claimant, and tasks would be preempted
    # for that.
    by_order: dict[tuple[bool, bool], list[DemandRun]] = {}
    for bounded in bounded_runs:
        if capacity * bounded.weighted % total:
            run, demand = bounded.run, bounded.run.demand
            order = (run.share > 0, demand.fixed + demand.smallest_task != (run.share + 1) * grain)
            by_order.setdefault(order, []).append(run)
    for order in sorted(by_order):
        if not left:
            break
        same_order = by_order[order]
        ends = oldest_within(same_order, [1] * len(same_order), left)
        for run, end in zip(same_order, ends, strict=True):
            left -= _raise_shares(found, run, end, run.share + 1)


def _raise_shares(found: list[DemandRun], run: DemandRun, end: int, share: int) -> int:
    """Set the share of the demands before `end`; return their number."""
    taken = end - run.first
    if not taken:
        return 0
    if end < run.end:
        found.append(run.split(end))
    run.share = share
    return taken


def _return_too_small(found: list[DemandRun], grain: int) -> int:
    """Take shares too small for one task back, youngest first, and give them to the oldest such
    claimants until each of them can start one; return what is left.
    """
    too_small = [
        run
        for run in found
        if run.share * grain < run.demand.milli
        and run.share * grain - run.demand.fixed < run.demand.smallest_task
    ]
    leftover = sum((run.share - run.demand.fixed // grain) * run.count for run in too_small)
    if not leftover:
        return 0
    # A claimant gets the size of one task if the sum suffices for it and for all older ones: older
    # claimants get what the younger ones return.
    leasts = [run.demand.smallest_task // grain for run in too_small]
    for run, least, end in zip(
        too_small, leasts, oldest_within(too_small, leasts, leftover), strict=True
    ):
        fixed = run.demand.fixed // grain
        if end < run.end:
            rest = run.split(end) if end > run.first else run
            rest.share = fixed
            if rest is run:
                continue
            found.append(rest)
        run.share = fixed + least
        leftover -= least * run.count
    return leftover


def _give_to_usable(found: list[DemandRun], grain: int, leftover: int) -> None:
    """Give the leftover to claimants that already have at least the size of one task, oldest
    first.
    """
    users = [
        run
        for run in found
        if run.share * grain - run.demand.fixed >= max(run.demand.smallest_task, grain)
        and run.share < run.demand.milli // grain
    ]
    if not users:
        return
    wanted = [run.demand.milli // grain - run.share for run in users]
    ends = oldest_within(users, wanted, leftover)
    rest = []
    for run, more, end in zip(users, wanted, ends, strict=True):
        if end < run.end:
            unserved = run.split(end) if end > run.first else run
            rest.append(unserved)
            if unserved is run:
                continue
            found.append(unserved)
        run.share += more
        leftover -= more * run.count
    if leftover and rest:
        last = min(rest, key=lambda run: run.ages[run.first])
        _raise_shares(found, last, last.first + 1, last.share + leftover)


def _round_to_whole_tasks(found: list[DemandRun], most: int = 0) -> list[DemandRun]:
    """Round each share, above its fixed part, down to a multiple of `multiple_of`; give the rest to
    claimants that can complete a multiple with it.

    With `most`, the greatest common divisor of `multiple_of` and `most` counts as the size.
    """
    sizes = [gcd(most, run.demand.multiple_of) if run.demand.multiple_of else 0 for run in found]
    parts = [
        (run.share - run.demand.fixed) % size if size and run.share < run.demand.milli else 0
        for run, size in zip(found, sizes, strict=True)
    ]
    leftover = sum(part * run.count for run, part in zip(found, parts, strict=True))
    if not leftover:
        return found
    by_order: dict[tuple[bool, Fraction], list[DemandRun]] = {}
    for run, part, size in zip(list(found), parts, sizes, strict=True):
        run.share -= part
        if run.share < run.demand.milli:
            # Claimants without a share come first, then the largest fraction of a task.
            order = (run.share > 0, -Fraction(part, size or WHOLE))
            by_order.setdefault(order, []).append(run)
    by_order_runs = [by_order[order] for order in sorted(by_order)]
    while by_order_runs:
        share = leftover // sum(run.count for same_order in by_order_runs for run in same_order)
        given = []
        for same_order in by_order_runs:
            served: list[DemandRun] = []
            leftover = _serve(found, same_order, served, share, leftover, most)
            if served:
                given.append(served)
        by_order_runs = given
    return found


def _serve(
    found: list[DemandRun],
    same_order: Sequence[DemandRun],
    served: list[DemandRun],
    share: int,
    leftover: int,
    most: int,
) -> int:
    """Give whole tasks to claimants of equal order, oldest first; return what is left.

    Adds the runs that got some and want more to `served`.
    """
    unserved = []
    for run in same_order:
        demand = run.demand
        size = (gcd(most, demand.multiple_of) if demand.multiple_of else 0) or 1
        least = max(size, demand.smallest_task - (run.share - demand.fixed))
        unserved.append((run, min(max(least, share - share % size), demand.milli - run.share)))
    # A claimant that needs more than is left lets others pass.
    while unserved := [(run, part) for run, part in unserved if part <= leftover]:
        runs, parts = [run for run, _ in unserved], [part for _, part in unserved]
        left = []
        for run, part, end in zip(runs, parts, oldest_within(runs, parts, leftover), strict=True):
            if end == run.first:
                left.append((run, part))
                continue
            if end < run.end:
                rest = run.split(end)
                found.append(rest)
                left.append((rest, part))
            run.share += part
            leftover -= part * run.count
            if run.share < run.demand.milli:
                served.append(run)
        unserved = left
    return leftover


def _grain(runs: Sequence[DemandRun]) -> int:
    """Return the largest amount that divides a whole slot and all amounts of the demands."""
    grain = WHOLE
    for run in runs:
        grain = gcd(grain, run.demand.milli, run.demand.fixed, run.demand.smallest_task)
    return grain


#: By the value of the option `variant`.
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}
