"""The rounds of `max_min` (`division.py`), over runs of equal claims.

A round visits all claims that are not satisfied, the smallest demand first, then the oldest. Each
step depends on the earlier steps of the round: on what is left and on which claims are satisfied.
So equal claims are served together as long as that changes nothing for any claim between them.
"""

from bisect import bisect_left
from collections.abc import Sequence

from yardmaster_core.scheduling.policies.fair_share.claim_runs import Age, ClaimRun, oldest_within
from yardmaster_core.scheduling.policies.fair_share.water_fill_one_by_one import (
    Member,
    WaterFillOneByOne,
)


class WaterFill:
    """The remaining capacity, and the runs of claims that are not satisfied, in grains."""

    def __init__(self, left: int, runs: Sequence[ClaimRun], grain: int) -> None:
        self.left = left
        #: All runs, also satisfied ones.
        self.runs = list(runs)
        self.grain = grain
        #: Runs that are not satisfied, by demand.
        self.by_demand: dict[int, list[ClaimRun]] = {}
        self.weight = 0
        for run in runs:
            # `fixed_left` is the fixed part that was not counted as part of a share yet.
            run.share = run.fixed_left = run.claim.fixed // grain
            if run.share < self._cap(run):
                self.by_demand.setdefault(self._cap(run), []).append(run)
                self.weight += run.claim.weight * run.count
        self.by_demand = dict(sorted(self.by_demand.items()))
        #: How many runs were visited so far, and how many single claims could have been visited
        #: instead.
        self._runs_visited = 0
        self._claim_count = sum(
            run.count for same_demand in self.by_demand.values() for run in same_demand
        )

    def _cap(self, run: ClaimRun) -> int:
        return max(run.claim.demand, run.claim.fixed) // self.grain

    def fill(self) -> None:
        """Divide the remaining capacity until every claim is satisfied or none can use more."""
        while self.left and self.by_demand:
            if self._runs_visited > self._claim_count:
                self._fill_one_by_one()
                return
            round_start = self.left
            self._one_round()
            if self.left == round_start:
                self._skip_fixed_rounds()
            if not self.left:
                self._return_unusable()

    def _one_round(self) -> None:
        round_start = self.left
        for cap, same_demand in list(self.by_demand.items()):
            if not self.left:
                return
            rest = same_demand
            stay: list[ClaimRun] = []
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

    def _serve_whole_run(self, run: ClaimRun, cap: int, round_start: int) -> bool:
        """Serve a run that is the only one of its demand, if enough is left for all of it; return
        whether it was.
        """
        part = self._part(run, round_start)
        if run.fixed_left or part * run.count > self.left:
            return False
        run.share += part
        self.left -= part * run.count
        if run.share == cap:
            self.weight -= run.claim.weight * run.count
        return True

    def _part(self, run: ClaimRun, round_start: int) -> int:
        part = max(1, round_start * run.claim.weight // self.weight) if self.weight else 1
        return min(part, self._cap(run) - run.share)

    def _serve_prefix(
        self, same_demand: list[ClaimRun], stay: list[ClaimRun], round_start: int
    ) -> list[ClaimRun]:
        """Serve the oldest claims of equal demand, as many as can be served together.

        Returns the runs still to serve in this round; adds served runs that want more to `stay`.
        """
        self._runs_visited += len(same_demand)
        wanted = [self._part(run, round_start) for run in same_demand]
        parts = [min(part, self.left) for part in wanted]
        nets = [max(0, part - run.fixed_left) for run, part in zip(same_demand, parts, strict=True)]
        satisfies = [
            run.share + net >= self._cap(run) for run, net in zip(same_demand, nets, strict=True)
        ]
        ends = self._prefix_ends(same_demand, wanted, nets, satisfies, round_start)
        if all(end == run.first for run, end in zip(same_demand, ends, strict=True)):
            first = min(
                range(len(same_demand)), key=lambda i: same_demand[i].ages[same_demand[i].first]
            )
            ends[first] += 1
        rest = []
        for run, end, part, net, satisfied in zip(
            same_demand, ends, parts, nets, satisfies, strict=True
        ):
            if end == run.first:
                rest.append(run)
                continue
            if end < run.end:
                rest.append(run.split(end))
                self.runs.append(rest[-1])
            run.share += net
            run.fixed_left -= min(part, run.fixed_left)
            self.left -= net * run.count
            if satisfied:
                self.weight -= run.claim.weight * run.count
            else:
                stay.append(run)
        return rest

    def _prefix_ends(
        self,
        same_demand: list[ClaimRun],
        wanted: list[int],
        nets: list[int],
        satisfies: list[bool],
        round_start: int,
    ) -> list[int]:
        """Return where each run ends if claims are served together up to the first for which the
        amount changes.
        """
        oldest_ages = [run.ages[run.first] for run in same_demand]
        short = [part > self.left for part in wanted]
        if short[oldest_ages.index(min(oldest_ages))]:
            # It takes all that is left, except for its fixed part: then nothing changes.
            return oldest_within(same_demand, nets, 0)
        ends = [run.first for run in same_demand]
        until = min(
            (head for head, is_short in zip(oldest_ages, short, strict=True) if is_short),
            default=None,
        )
        some = [i for i, is_short in enumerate(short) if not is_short]
        runs = []
        for i in some:
            run = same_demand[i]
            end = run.end if until is None else bisect_left(run.ages, until, run.first, run.end)
            runs.append(_between(run, run.first, end))
        left = self.left
        if any(nets[i] < wanted[i] for i in some):
            # Of the fixed part no more is counted than is left.
            left -= max(wanted[i] for i in some)
        found = oldest_within(runs, [nets[i] for i in some], left)
        # Claims behind a satisfied one get larger parts, unless they are satisfied by theirs too.
        rising = [
            self.weight - round_start * run.claim.weight // (wanted[i] + 1) - 1
            for i, run in enumerate(same_demand)
            if run.claim.weight and wanted[i] < self._cap(run) - run.share
        ]
        if rising and any(satisfies):
            runs = [_between(run, run.first, end) for run, end in zip(runs, found, strict=True)]
            satisfied_weights = [same_demand[i].claim.weight if satisfies[i] else 0 for i in some]
            found = oldest_within(runs, satisfied_weights, min(rising))
        for i, end in zip(some, found, strict=True):
            ends[i] = end
        return ends

    def _skip_fixed_rounds(self) -> None:
        """Skip the rounds that repeat the last one, in which only fixed parts were counted."""
        runs = [run for same_demand in self.by_demand.values() for run in same_demand]
        parts = [min(self._part(run, self.left), self.left) for run in runs]
        rounds = min(run.fixed_left // part for run, part in zip(runs, parts, strict=True))
        for run, part in zip(runs, parts, strict=True):
            run.fixed_left -= rounds * part

    def _return_unusable(self) -> None:
        """Take back the share of the youngest claim whose share, its fixed part included, is
        smaller than its smallest task, as Determined compares them; repeat until some capacity is
        left.

        Shares only grow, so a claim that can use its share now can use it later.
        """
        while self.by_demand and not self.left:
            self._runs_visited += sum(map(len, self.by_demand.values()))
            too_small = [
                run
                for same_demand in self.by_demand.values()
                for run in same_demand
                if run.share < run.claim.smallest_task // self.grain
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
        """Serve the claims one by one from now on."""
        unsatisfied = [run for same_demand in self.by_demand.values() for run in same_demand]
        positions = sorted(
            (run.ages[at], i, at) for i, run in enumerate(unsatisfied) for at in _all(run)
        )
        members = []
        for _, i, _ in positions:
            run, claim = unsatisfied[i], unsatisfied[i].claim
            least, fixed = claim.smallest_task // self.grain, claim.fixed // self.grain
            members.append(
                Member(claim.weight, run.share, self._cap(run), least, fixed, run.fixed_left)
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
                # The next claim of this run comes later: the split run stands for it from now on.
                unsatisfied[i] = run.split(at)
                unsatisfied[i].share = member.share
                self.runs.append(unsatisfied[i])

    def _returnable(self, run: ClaimRun) -> int:
        """Return the share of each claim above its fixed part."""
        return run.share - run.claim.fixed // self.grain

    def _exclude_younger(self, too_small: list[ClaimRun], age: Age | None) -> None:
        """Exclude the claims younger than `age` (None: all) that have nothing to return."""
        for run in too_small:
            if not self._returnable(run):
                first = run.first if age is None else bisect_left(run.ages, age, run.first, run.end)
                self._exclude(run, first)

    def _redistribute(
        self, too_small: list[ClaimRun], with_returnable: list[ClaimRun], part: int
    ) -> bool:
        """Take `part` back from as many of the youngest claims as possible at once, and satisfy the
        first claims in order with it; return whether returning_count were any.

        Each time a claim returns its part, the first claims get one grain more each, as many as the
        part covers. So as long as all return the same amount and lack the same amount, they are
        served in blocks of that many claims; if the returned amount is 1, one after another.
        """
        same_demand = next(iter(self.by_demand.values()))
        until = max(
            (_last(run) for run in with_returnable if self._returnable(run) != part), default=None
        )
        returning_runs = []
        for run in with_returnable:
            if self._returnable(run) == part:
                after = (
                    run.first if until is None else bisect_left(run.ages, until, run.first, run.end)
                )
                returning_runs.append((run, _between(run, after, run.end)))
        returning_count = sum(some.count for _, some in returning_runs)
        if returning_count == 1 or any(run.fixed_left for run in same_demand):
            return False
        if part > 1 and len({run.share for run in same_demand}) > 1:
            return False
        # The two groups meet where the older claims lack as much as the younger ones return.
        cap = self._cap(same_demand[0])
        of_run = dict(returning_runs)
        tried: list[ClaimRun] = []
        sizes: list[int] = []
        for run in same_demand:
            some = of_run.pop(run, _between(run, run.end, run.end))
            tried += (_between(run, run.first, some.first), some)
            sizes += (cap - run.share, cap - run.share + part)
        tried += of_run.values()
        sizes += [part] * len(of_run)
        meeting = oldest_within(tried, sizes, part * returning_count)
        ends = [
            run.first
            + meeting[2 * i]
            - tried[2 * i].first
            + meeting[2 * i + 1]
            - tried[2 * i + 1].first
            for i, run in enumerate(same_demand)
        ]
        if part > 1:
            blocks = (
                sum(end - run.first for run, end in zip(same_demand, ends, strict=True)) // part
            )
            ends = oldest_within(same_demand, [1] * len(same_demand), blocks * part)
        lacking = sum(
            (cap - run.share) * (end - run.first)
            for run, end in zip(same_demand, ends, strict=True)
        )
        if not lacking:
            return False
        runs = [some for _, some in returning_runs]
        kept_ends = oldest_within(runs, [1] * len(runs), returning_count - lacking // part)
        returning = [
            (run, end)
            for (run, _), end in zip(returning_runs, kept_ends, strict=True)
            if end < run.end
        ]
        oldest_returning = min(run.ages[end] for run, end in returning)
        satisfied_runs = [
            (run, end) for run, end in zip(same_demand, ends, strict=True) if end > run.first
        ]
        if part > 1:
            # They get one grain each only while no weight is large compared with the sum of all
            # weights.
            left = self.weight - sum(r.claim.weight * (r.end - end) for r, end in returning)
            left -= sum(r.claim.weight * (end - r.first) for r, end in satisfied_runs)
            left -= sum(r.claim.weight * r.count for r in too_small if not self._returnable(r))
            if any(part * run.claim.weight >= 2 * left for run in same_demand):
                return False
        self._exclude_younger(too_small, oldest_returning)
        for run, end in returning:
            self._exclude(run, end)
        for run, end in satisfied_runs:
            self._satisfy(run, end, cap)
        return True

    def _satisfy(self, run: ClaimRun, end: int, cap: int) -> None:
        """Satisfy the claims of a run before index `end`."""
        same_demand = self.by_demand[cap]
        same_demand.remove(run)
        if end < run.end:
            same_demand.append(run.split(end))
            self.runs.append(same_demand[-1])
        elif not same_demand:
            del self.by_demand[cap]
        self.left -= (cap - run.share) * run.count
        self.weight -= run.claim.weight * run.count
        run.share = cap

    def _exclude(self, run: ClaimRun, first: int) -> None:
        """Reduce the claims of a run from index `first` on to their fixed part, and exclude
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
        fixed = run.claim.fixed // self.grain
        self.left += (run.share - fixed) * run.count
        self.weight -= run.claim.weight * run.count
        run.share = fixed


def _all(run: ClaimRun) -> range:
    return range(run.first, run.end)


def _between(run: ClaimRun, first: int, end: int) -> ClaimRun:
    return ClaimRun(run.kind, run.claim, first, end)


def _last(run: ClaimRun) -> Age:
    return run.ages[run.end - 1]
