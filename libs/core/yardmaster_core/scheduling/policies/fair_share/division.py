"""How a pool is divided among those who ask for it: pure functions from claims to shares.

Amounts are gpu_milli. They are divided in whole slots as long as everybody asks for whole slots,
else in the largest grain that all they ask for is made of. Claims come in runs of equals
(`runs.py`) and age settles ties, the oldest first; a step costs what there are runs, however many
claim.

Both variants share nobody more than he asks for, and nobody less than what is `fixed` (held by
tasks that cannot be stopped); what is fixed counts as part of the share. And both know that a share
in which not one task fits helps nobody (a gang of 8 that is offered 5, while another gets the other
3): once all is given out, whoever was offered less than his smallest task returns it, the youngest
first, until the others can use theirs. `max_min` counts what is fixed as part of that share.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd
from typing import Final

from yardmaster_core.scheduling.policies.fair_share.claim_runs import (
    ClaimRun,
    Division,
    oldest_within,
)
from yardmaster_core.scheduling.policies.fair_share.water_fill import WaterFill
from yardmaster_core.scheduling.state.shapes import WHOLE


def max_min(capacity: int, runs: Sequence[ClaimRun]) -> list[ClaimRun]:
    """Shares by weight, of which whoever needs less leaves the rest to the others.

    Progressive water_fill: those who are not satisfied get of what is left by their weights, in
    rounds and the smallest demand first, but at least one grain while there is one.

    Source: Determined 0.38, `fair_share.go`, without its slips (docs/reference/policies.md).
    """
    grain = _grain(runs)
    fixed = sum(run.claim.fixed * run.count for run in runs)
    water_fill = WaterFill(max(0, capacity - fixed) // grain, runs, grain)
    water_fill.fill()
    for run in water_fill.runs:
        run.share *= grain
    # Whole slots that make no task of several stay where they are, as Determined leaves them.
    return _round_to_whole_tasks(water_fill.runs, most=WHOLE)


def demand_proportional(capacity: int, runs: Sequence[ClaimRun]) -> list[ClaimRun]:
    """Shares proportional to demand times weight.

    Who would get more than he asks for leaves the rest to the others; what is left after rounding
    down goes to those who would get nothing, then to the others, the oldest first. So what is
    offered depends on what is asked for alone, and not on who holds what.

    Source: Determined's documentation (demands 10 and 30 on 8 GPUs: 2 and 6; with weights 3 and 1,
    4 and 4).
    """
    grain = _grain(runs)
    found = _proportional(capacity // grain, runs, grain)
    leftover = _return_too_small(found, grain)
    if leftover:
        _give_to_usable(found, grain, leftover)
    for run in found:
        run.share *= grain
    return _round_to_whole_tasks(found)


def _proportional(capacity: int, runs: Sequence[ClaimRun], grain: int) -> list[ClaimRun]:
    found = list(runs)
    low = [run.claim.fixed // grain for run in found]
    high = [max(run.claim.demand, run.claim.fixed) // grain for run in found]
    counts = [run.count for run in found]
    if sum(h * n for h, n in zip(high, counts, strict=True)) <= capacity:
        for run, most in zip(found, high, strict=True):
            run.share = most
        return found
    shares = list(low)
    pulls = [h * run.claim.weight for h, run in zip(high, found, strict=True)]
    free = [i for i in range(len(found)) if low[i] < high[i] and pulls[i]]
    left = capacity - sum(low[i] * counts[i] for i in range(len(found)) if low[i] >= high[i])
    left = max(0, left)
    # Bounds on both sides: what the lower ones add is weighed against what the upper ones cut, and
    # the heavier side is settled first, so that no bound has to be taken back.
    while free:
        pull = sum(pulls[i] * counts[i] for i in free)
        below = [i for i in free if left * pulls[i] < low[i] * pull]
        above = [i for i in free if left * pulls[i] > high[i] * pull]
        added = sum((low[i] * pull - left * pulls[i]) * counts[i] for i in below)
        cut = sum((left * pulls[i] - high[i] * pull) * counts[i] for i in above)
        if not below and not above:
            break
        settled = below if added >= cut else above
        bounds = low if added >= cut else high
        for i in settled:
            shares[i] = bounds[i]
            left = max(0, left - bounds[i] * counts[i])
        done = set(settled)
        free = [i for i in free if i not in done]
    rest = 0
    tied: dict[tuple[bool, bool], list[ClaimRun]] = {}
    if free:
        pull = sum(pulls[i] * counts[i] for i in free)
        for i in free:
            shares[i] = left * pulls[i] // pull
        rest = left - sum(shares[i] * counts[i] for i in free)
        # First who would get nothing: else a small demand beside a large one would wait for as
        # long as that lasts. Then who can start his first task with it. Else age, not the
        # largest fraction: those change with whoever comes, and tasks would be stopped for them.
        for i in free:
            claim, more = found[i].claim, (shares[i] + 1) * grain
            order = (shares[i] > 0, claim.fixed + claim.least != more)
            if left * pulls[i] % pull:
                tied.setdefault(order, []).append(found[i])
    for run, share in zip(found, shares, strict=True):
        run.share = share
    for order in sorted(tied):
        if not rest:
            break
        equal = tied[order]
        for run, end in zip(equal, oldest_within(equal, [1] * len(equal), rest), strict=True):
            rest -= _raise_shares(found, run, end, run.share + 1)
    return found


def _raise_shares(found: list[ClaimRun], run: ClaimRun, end: int, share: int) -> int:
    """Offer so much to those of a run before `end`; how many they are."""
    taken = end - run.first
    if not taken:
        return 0
    if end < run.end:
        found.append(run.split(end))
    run.share = share
    return taken


def _return_too_small(found: list[ClaimRun], grain: int) -> int:
    """Let who cannot start one task with what is above what is fixed return that, the youngest
    first, and the oldest of them have it, until each can start one; returns what is left.
    """
    stuck = [
        run
        for run in found
        if run.share * grain < run.claim.demand
        and run.share * grain - run.claim.fixed < run.claim.least
    ]
    leftover = sum((run.share - run.claim.fixed // grain) * run.count for run in stuck)
    if not leftover:
        return 0
    # One comes to have what all together were offered when it is enough for him and all who are
    # older: what each of them lacks is then what the younger ones had.
    leasts = [run.claim.least // grain for run in stuck]
    for run, least, end in zip(stuck, leasts, oldest_within(stuck, leasts, leftover), strict=True):
        fixed = run.claim.fixed // grain
        if end < run.end:
            rest = run.split(end) if end > run.first else run
            rest.share = fixed
            if rest is run:
                continue
            found.append(rest)
        run.share = fixed + least
        leftover -= least * run.count
    return leftover


def _give_to_usable(found: list[ClaimRun], grain: int, leftover: int) -> None:
    """Let whoever has a task's worth have more of what nobody else can use, the oldest first."""
    users = [
        run
        for run in found
        if run.share * grain - run.claim.fixed >= max(run.claim.least, grain)
        and run.share < run.claim.demand // grain
    ]
    if not users:
        return
    wanted = [run.claim.demand // grain - run.share for run in users]
    ends = oldest_within(users, wanted, leftover)
    rest = []
    for run, more, end in zip(users, wanted, ends, strict=True):
        if end < run.end:
            other = run.split(end) if end > run.first else run
            rest.append(other)
            if other is run:
                continue
            found.append(other)
        run.share += more
        leftover -= more * run.count
    if leftover and rest:
        last = min(rest, key=lambda run: run.ages[run.first])
        _raise_shares(found, last, last.first + 1, last.share + leftover)


def _round_to_whole_tasks(found: list[ClaimRun], most: int = 0) -> list[ClaimRun]:
    """What of each share above what is fixed makes no whole size of his goes to those who can make
    one of it; with `most` a size counts as what it has in common with that.
    """
    sizes = [gcd(most, run.claim.size) if run.claim.size else 0 for run in found]
    parts = [
        (run.share - run.claim.fixed) % size if size and run.share < run.claim.demand else 0
        for run, size in zip(found, sizes, strict=True)
    ]
    leftover = sum(part * run.count for run, part in zip(found, parts, strict=True))
    if not leftover:
        return found
    tied: dict[tuple[bool, Fraction], list[ClaimRun]] = {}
    for run, part, size in zip(list(found), parts, sizes, strict=True):
        run.share -= part
        if run.share < run.claim.demand:
            # First who would get nothing, then the largest part of a task.
            order = (run.share > 0, -Fraction(part, size or WHOLE))
            tied.setdefault(order, []).append(run)
    lines = [tied[order] for order in sorted(tied)]
    while lines:
        share = leftover // sum(run.count for line in lines for run in line)
        given = []
        for line in lines:
            served: list[ClaimRun] = []
            leftover = _serve(found, line, served, share, leftover, most)
            if served:
                given.append(served)
        lines = given
    return found


def _serve(
    found: list[ClaimRun],
    line: Sequence[ClaimRun],
    served: list[ClaimRun],
    share: int,
    leftover: int,
    most: int,
) -> int:
    """Let those who come at the same time have whole tasks, the oldest first; returns what is left.
    In `served` are then those who got some and want more.
    """
    wanting = []
    for run in line:
        claim = run.claim
        size = (gcd(most, claim.size) if claim.size else 0) or 1
        least = max(size, claim.least - (run.share - claim.fixed))
        wanting.append((run, min(max(least, share - share % size), claim.demand - run.share)))
    # Whose part is more than there is lets others pass.
    while wanting := [(run, part) for run, part in wanting if part <= leftover]:
        runs, parts = [run for run, _ in wanting], [part for _, part in wanting]
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
            if run.share < run.claim.demand:
                served.append(run)
        wanting = left
    return leftover


def _grain(runs: Sequence[ClaimRun]) -> int:
    grain = WHOLE
    for run in runs:
        grain = gcd(grain, run.claim.demand, run.claim.fixed, run.claim.least)
    return grain


#: By the name of the option `variant`.
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}
