"""The rounds of `max_min` (`division.py`), over runs of equal demands.

A round visits all demands that are not satisfied, the smallest first, then the oldest. Each
step depends on the earlier steps of the round: on what is left and on which demands are satisfied.
So equal demands are served together as long as that changes nothing for any demand between them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from yardmaster_core.scheduling.policies.fair_share.demand_runs import Age, DemandRun, oldest_within
from yardmaster_core.scheduling.policies.fair_share.water_fill_one_by_one import (
    Member,
    WaterFillOneByOne,
)


class WaterFill:
    """The remaining capacity, and the runs of demands that are not satisfied, in grains."""

    def __init__(self, left: int, runs: Sequence[DemandRun], grain: int) -> None:
        self.left = left
        #: All runs, also satisfied ones.
        self.runs = list(runs)
        self.grain = grain
        #: Runs that are not satisfied, by demand.
        self.by_demand: dict[int, list[DemandRun]] = {}
        self.weight = 0
        for run in runs:
            # `fixed_left` is the fixed part that was not counted as part of a share yet.
            run.share = run.fixed_left = run.demand.fixed // grain
            if run.share < self._cap(run):
                self.by_demand.setdefault(self._cap(run), []).append(run)
                self.weight += run.demand.weight * run.count
        self.by_demand = dict(sorted(self.by_demand.items()))
        #: How many runs were visited so far, and how many single demands could have been visited
        #: instead.
        self._runs_visited = 0
        self._demand_count = sum(
            run.count for same_demand in self.by_demand.values() for run in same_demand
        )

    def _cap(self, run: DemandRun) -> int:
        """Return the most that each demand of a run may get, in grains."""
        return max(run.demand.milli, run.demand.fixed) // self.grain

    def fill(self) -> None:
        """Divide the remaining capacity until every demand is satisfied or none can use more."""
        while self.left and self.by_demand:
            if self._runs_visited > self._demand_count:
                self._fill_one_by_one()
                return
            round_start = self.left
            self._one_round()
            if self.left == round_start:
                self._skip_fixed_rounds()
            if not self.left:
                self._return_unusable()

    def _one_round(self) -> None:
        """Visit all demands that are not satisfied once, the smallest first."""
        round_start = self.left
        for cap, same_demand in list(self.by_demand.items()):
            if not self.left:
                return
            rest = same_demand
            stay: list[DemandRun] = []
            if len(same_demand) == 1 and self._serve_whole_run(same_demand[0], cap, round_start):
                if same_demand[0].share == cap:
                    del self.by_demand[cap]
                continue
            while rest and self.left:
                rest = self._serve_prefix(rest, stay, round_start)
            if stay or rest:
                self.by_demand[cap] = stay + rest
            else:
                del self.by_demand[cap]

    def _serve_whole_run(self, run: DemandRun, cap: int, round_start: int) -> bool:
        """Serve a run that is the only one of its amount, if enough is left for all its demands;
        return whether the run was served.
        """
        part = self._part(run, round_start)
        if run.fixed_left or part * run.count > self.left:
            return False
        run.share += part
        self.left -= part * run.count
        if run.share == cap:
            self.weight -= run.demand.weight * run.count
        return True

    def _part(self, run: DemandRun, round_start: int) -> int:
        """Return the part of each demand of a run: by weight, at least 1, at most up to the cap."""
        part = max(1, round_start * run.demand.weight // self.weight) if self.weight else 1
        return min(part, self._cap(run) - run.share)

    def _serve_prefix(
        self, same_demand: list[DemandRun], stay: list[DemandRun], round_start: int
    ) -> list[DemandRun]:
        """Serve the oldest demands of one amount, as many as can be served together.

        Returns the runs still to serve in this round; adds served runs that want more to `stay`.
        """
        self._runs_visited += len(same_demand)
        steps = [self._step(run, round_start) for run in same_demand]
        self._find_ends(steps, round_start)
        if all(step.end == step.run.first for step in steps):
            min(steps, key=_Step.oldest).end += 1
        rest = []
        for step in steps:
            run, end = step.run, step.end
            if end == run.first:
                rest.append(run)
                continue
            if end < run.end:
                rest.append(run.split(end))
                self.runs.append(rest[-1])
            run.share += step.added
            run.fixed_left -= min(step.part, run.fixed_left)
            self.left -= step.added * run.count
            if step.satisfies:
                self.weight -= run.demand.weight * run.count
            else:
                stay.append(run)
        return rest

    def _step(self, run: DemandRun, round_start: int) -> "_Step":
        """Return the step for all demands of a run, as if each of them were the next."""
        by_weight = self._part(run, round_start)
        part = min(by_weight, self.left)
        added = max(0, part - run.fixed_left)
        satisfies = run.share + added >= self._cap(run)
        return _Step(run, by_weight, part, added, satisfies, run.end)

    def _find_ends(self, steps: list["_Step"], round_start: int) -> None:
        """Set the end of each step so that demands are served together up to the first whose amount
        changes.
        """
        if min(steps, key=_Step.oldest).by_weight > self.left:
            # The oldest demand takes all that is left. Only demands that count a fixed part, and so
            # take nothing, are served together with it.
            _set_ends(steps, [step.added for step in steps], 0)
            return
        covered = [step for step in steps if step.by_weight <= self.left]
        if len(covered) < len(steps):
            # Up to the first demand whose part is larger than what is left.
            age = min(step.oldest() for step in steps if step.by_weight > self.left)
            for step in steps:
                step.end = step.run.first
            for step in covered:
                step.end = bisect_left(step.run.ages, age, step.run.first, step.run.end)
        left = self.left
        if any(step.added < step.by_weight for step in covered):
            # A step counts no more of a fixed part than the capacity that is left.
            left -= max(step.by_weight for step in covered)
        _set_ends(covered, [step.added for step in covered], left)
        if any(step.satisfies for step in steps):
            most = self._most_satisfied_weight(steps, round_start)
            if most is not None:
                satisfied_weights = [step.run.demand.weight * step.satisfies for step in covered]
                _set_ends(covered, satisfied_weights, most)

    def _most_satisfied_weight(self, steps: list["_Step"], round_start: int) -> int | None:
        """Return the most weight of satisfied demands behind which no demand gets a larger part.

        None: there is no limit, because all demands are satisfied by their parts.
        """
        return min(
            (
                self.weight - round_start * step.run.demand.weight // (step.by_weight + 1) - 1
                for step in steps
                if step.run.demand.weight and step.by_weight < self._cap(step.run) - step.run.share
            ),
            default=None,
        )

    def _skip_fixed_rounds(self) -> None:
        """Skip the rounds that repeat the last one, in which only fixed parts were counted."""
        runs = [run for same_demand in self.by_demand.values() for run in same_demand]
        parts = [min(self._part(run, self.left), self.left) for run in runs]
        rounds = min(run.fixed_left // part for run, part in zip(runs, parts, strict=True))
        for run, part in zip(runs, parts, strict=True):
            run.fixed_left -= rounds * part

    def _return_unusable(self) -> None:
        """Take back the share of the youngest demand whose share, its fixed part included, is
        smaller than its smallest task, as Determined compares them; repeat until some capacity is
        left.

        Shares only grow, so a demand that can use its share now can use it later.
        """
        while self.by_demand and not self.left:
            self._runs_visited += sum(map(len, self.by_demand.values()))
            too_small = [
                run
                for same_demand in self.by_demand.values()
                for run in same_demand
                if run.share < run.demand.smallest_task // self.grain
            ]
            with_returnable = [run for run in too_small if self._returnable(run)]
            if not with_returnable:
                self._exclude_younger(too_small, None)
                return
            youngest = max(with_returnable, key=_last)
            if not self._redistribute(too_small, with_returnable, self._returnable(youngest)):
                self._exclude_younger(too_small, _last(youngest))
                self._exclude(youngest, youngest.end - 1)

    def _fill_one_by_one(self) -> None:
        """Serve the demands one by one from now on."""
        unsatisfied = [run for same_demand in self.by_demand.values() for run in same_demand]
        positions = sorted(
            (run.ages[at], i, at) for i, run in enumerate(unsatisfied) for at in _all(run)
        )
        members = []
        for _, i, _ in positions:
            run, demand = unsatisfied[i], unsatisfied[i].demand
            least, fixed = demand.smallest_task // self.grain, demand.fixed // self.grain
            members.append(
                Member(demand.weight, run.share, self._cap(run), least, fixed, run.fixed_left)
            )
        water_fill = WaterFillOneByOne(self.left, members)
        water_fill.fill()
        self.left = water_fill.left
        self.by_demand = {}
        for (_, i, at), member in zip(positions, members, strict=True):
            run = unsatisfied[i]
            if at == run.first:
                run.share = member.share
            elif member.share != run.share:
                # The next demand of this run comes later: the split run stands for it from now on.
                unsatisfied[i] = run.split(at)
                unsatisfied[i].share = member.share
                self.runs.append(unsatisfied[i])

    def _returnable(self, run: DemandRun) -> int:
        """Return the share of each demand above its fixed part."""
        return run.share - run.demand.fixed // self.grain

    def _exclude_younger(self, too_small: list[DemandRun], age: Age | None) -> None:
        """Exclude the demands younger than `age` (None: all) that have nothing to return."""
        for run in too_small:
            if not self._returnable(run):
                first = run.first if age is None else bisect_left(run.ages, age, run.first, run.end)
                self._exclude(run, first)

    def _redistribute(
        self, too_small: list[DemandRun], with_returnable: list[DemandRun], part: int
    ) -> bool:
        """Take `part` back from as many of the youngest demands as possible at once, and satisfy
        the first demands in order with it; return whether this was possible for any demand.

        Each time a demand returns its part, the first demands get one grain more each, as many as
        the part covers. So as long as all return the same amount and lack the same amount, they are
        served in blocks of that many demands; if the returned amount is 1, one after another.
        """
        receivers = next(iter(self.by_demand.values()))
        returning = self._youngest_returning(with_returnable, part)
        count = sum(demands.count for demands in returning.values())
        if count == 1 or any(run.fixed_left for run in receivers):
            return False
        if part > 1 and len({run.share for run in receivers}) > 1:
            return False
        cap = self._cap(receivers[0])
        satisfied = _satisfied(receivers, returning, part, cap)
        lacking = sum((cap - cut.run.share) * (cut.at - cut.run.first) for cut in satisfied)
        if not lacking:
            return False
        excluded = _all_but_oldest(returning, count - lacking // part)
        if part > 1:
            # A receiver gets one grain at a time only while no weight is large compared with the
            # sum of all weights.
            left = self.weight
            left -= sum(cut.run.demand.weight * (cut.run.end - cut.at) for cut in excluded)
            left -= sum(cut.run.demand.weight * (cut.at - cut.run.first) for cut in satisfied)
            left -= sum(r.demand.weight * r.count for r in too_small if not self._returnable(r))
            if any(part * run.demand.weight >= 2 * left for run in receivers):
                return False
        self._exclude_younger(too_small, min(cut.run.ages[cut.at] for cut in excluded))
        for cut in excluded:
            self._exclude(cut.run, cut.at)
        for cut in satisfied:
            self._satisfy(cut.run, cut.at, cap)
        return True

    def _youngest_returning(
        self, with_returnable: list[DemandRun], part: int
    ) -> dict[DemandRun, DemandRun]:
        """Return, for each run whose demands return `part`, those of its demands that are younger
        than all demands that return another amount.
        """
        others_last = [_last(run) for run in with_returnable if self._returnable(run) != part]
        age = max(others_last, default=None)
        returning = {}
        for run in with_returnable:
            if self._returnable(run) == part:
                first = run.first if age is None else bisect_left(run.ages, age, run.first, run.end)
                returning[run] = _between(run, first, run.end)
        return returning

    def _satisfy(self, run: DemandRun, end: int, cap: int) -> None:
        """Satisfy the demands of a run before index `end`."""
        same_demand = self.by_demand[cap]
        same_demand.remove(run)
        if end < run.end:
            same_demand.append(run.split(end))
            self.runs.append(same_demand[-1])
        elif not same_demand:
            del self.by_demand[cap]
        self.left -= (cap - run.share) * run.count
        self.weight -= run.demand.weight * run.count
        run.share = cap

    def _exclude(self, run: DemandRun, first: int) -> None:
        """Reduce the demands of a run from index `first` on to their fixed part, and exclude
        them.
        """
        if first == run.end:
            return
        same_demand = self.by_demand[self._cap(run)]
        if first > run.first:
            run = run.split(first)
            self.runs.append(run)
        else:
            same_demand.remove(run)
            if not same_demand:
                del self.by_demand[self._cap(run)]
        fixed = run.demand.fixed // self.grain
        self.left += (run.share - fixed) * run.count
        self.weight -= run.demand.weight * run.count
        run.share = fixed


@dataclass(slots=True)
class _Step:
    """The next step of a round for a run, in grains; the demands before `end` take part in it."""

    run: DemandRun
    #: The part of each demand by weight, and the same part, but at most the capacity that is left.
    by_weight: int
    part: int
    #: By how much the part raises the share, and whether the demand is satisfied then.
    added: int
    satisfies: bool
    end: int

    def oldest(self) -> Age:
        """Return the age of the run's first demand."""
        return self.run.ages[self.run.first]


def _set_ends(steps: Sequence[_Step], sizes: Sequence[int], most: int) -> None:
    """Reduce the ends of the steps to the oldest demands whose sizes sum up to `most` at most."""
    runs = [_between(step.run, step.run.first, step.end) for step in steps]
    for step, end in zip(steps, oldest_within(runs, sizes, most), strict=True):
        step.end = end


@dataclass(frozen=True, slots=True)
class _Cut:
    """An index that divides the demands of a run."""

    run: DemandRun
    at: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a run, with the amount that each demand lacks or returns, or both.

    `receiver` is the run, if its demands are among the first in order.
    """

    demands: DemandRun
    size: int
    receiver: DemandRun | None = None


def _satisfied(
    receivers: list[DemandRun], returning: dict[DemandRun, DemandRun], part: int, cap: int
) -> list[_Cut]:
    """Return the runs with demands that are satisfied, each with the end of these demands.

    Satisfied and returning demands meet at the age where the older demands lack as much as the
    younger demands return.
    """
    only_returning = dict(returning)
    pieces = []
    for run in receivers:
        lacking = cap - run.share
        demands = only_returning.pop(run, None) or _between(run, run.end, run.end)
        pieces.append(_Piece(_between(run, run.first, demands.first), lacking, run))
        pieces.append(_Piece(demands, lacking + part, run))
    pieces += [_Piece(demands, part) for demands in only_returning.values()]
    returned = part * sum(demands.count for demands in returning.values())
    ends = oldest_within([piece.demands for piece in pieces], [p.size for p in pieces], returned)
    counts = dict.fromkeys(receivers, 0)
    for piece, end in zip(pieces, ends, strict=True):
        if piece.receiver is not None:
            counts[piece.receiver] += end - piece.demands.first
    if part > 1:
        whole_blocks = sum(counts.values()) // part * part
        ends = oldest_within(receivers, [1] * len(receivers), whole_blocks)
        cuts = [_Cut(run, end) for run, end in zip(receivers, ends, strict=True)]
    else:
        cuts = [_Cut(run, run.first + count) for run, count in counts.items()]
    return [cut for cut in cuts if cut.at > cut.run.first]


def _all_but_oldest(returning: dict[DemandRun, DemandRun], count: int) -> list[_Cut]:
    """Return the runs with demands that are not among the `count` oldest, each with the first of
    these demands.
    """
    ends = oldest_within(list(returning.values()), [1] * len(returning), count)
    cuts = [_Cut(run, end) for run, end in zip(returning, ends, strict=True)]
    return [cut for cut in cuts if cut.at < cut.run.end]


def _all(run: DemandRun) -> range:
    return range(run.first, run.end)


def _between(run: DemandRun, first: int, end: int) -> DemandRun:
    return DemandRun(run.kind, run.demand, first, end)


def _last(run: DemandRun) -> Age:
    return run.ages[run.end - 1]
