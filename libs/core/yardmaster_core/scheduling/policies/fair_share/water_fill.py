"""The rounds of `max_min` (`shares.py`), over runs of equals.

A round goes around those who want more, the smallest demand first, then the oldest, and depends on
what went before in it: what is left, and who has enough by now. So equals are served together for
as long as that makes no difference to any of those who come among them.
"""

from bisect import bisect_left
from collections.abc import Sequence

from yardmaster_core.scheduling.policies.fair_share.claim_runs import Age, ClaimRun, oldest_within
from yardmaster_core.scheduling.policies.fair_share.water_fill_one_by_one import (
    Member,
    WaterFillOneByOne,
)


class WaterFill:
    """What is left, and who wants more of it, in grains."""

    def __init__(self, left: int, runs: Sequence[ClaimRun], grain: int) -> None:
        self.left = left
        #: All of them, also those who have enough.
        self.runs = list(runs)
        self.grain = grain
        #: Who is to get more, by demand.
        self.by_demand: dict[int, list[ClaimRun]] = {}
        self.weight = 0
        for run in runs:
            # `fixed_left` is what is fixed and was not counted as part of a share yet.
            run.share = run.fixed_left = run.claim.fixed // grain
            if run.share < self._cap(run):
                self.by_demand.setdefault(self._cap(run), []).append(run)
                self.weight += run.claim.weight * run.count
        self.by_demand = dict(sorted(self.by_demand.items()))
        #: How many runs it has gone through, and how many members might have been instead.
        self._spent = 0
        self._enough = sum(run.count for line in self.by_demand.values() for run in line)

    def _cap(self, run: ClaimRun) -> int:
        return max(run.claim.demand, run.claim.fixed) // self.grain

    def fill(self) -> None:
        """Offer all that is left, until nobody wants more or can use it."""
        while self.left and self.by_demand:
            if self._spent > self._enough:
                self._fill_one_by_one()
                return
            at_first = self.left
            self._one_round()
            if self.left == at_first:
                self._skip_fixed_rounds()
            if not self.left:
                self._return_unusable()

    def _one_round(self) -> None:
        at_first = self.left
        for cap, line in list(self.by_demand.items()):
            if not self.left:
                return
            rest = line
            stay: list[ClaimRun] = []
            if len(line) == 1 and self._serve_whole_run(line[0], cap, at_first):
                if line[0].share == cap:
                    del self.by_demand[cap]
                continue
            while rest and self.left:
                rest = self._serve_prefix(rest, stay, at_first)
            if stay or rest:
                self.by_demand[cap] = stay + rest
            else:
                del self.by_demand[cap]

    def _serve_whole_run(self, run: ClaimRun, cap: int, at_first: int) -> bool:
        """Serve a run that has a line to itself, if there is enough for all of it."""
        part = self._part(run, at_first)
        if run.fixed_left or part * run.count > self.left:
            return False
        run.share += part
        self.left -= part * run.count
        if run.share == cap:
            self.weight -= run.claim.weight * run.count
        return True

    def _part(self, run: ClaimRun, at_first: int) -> int:
        part = max(1, at_first * run.claim.weight // self.weight) if self.weight else 1
        return min(part, self._cap(run) - run.share)

    def _serve_prefix(
        self, line: list[ClaimRun], stay: list[ClaimRun], at_first: int
    ) -> list[ClaimRun]:
        """Serve the oldest of a line, and those after them for whom that changes nothing; returns
        those who are still to be served, and puts the others who want more into `stay`.
        """
        self._spent += len(line)
        wanted = [self._part(run, at_first) for run in line]
        parts = [min(part, self.left) for part in wanted]
        nets = [max(0, part - run.fixed_left) for run, part in zip(line, parts, strict=True)]
        closing = [run.share + net >= self._cap(run) for run, net in zip(line, nets, strict=True)]
        ends = self._prefix_ends(line, wanted, nets, closing, at_first)
        if all(end == run.first for run, end in zip(line, ends, strict=True)):
            first = min(range(len(line)), key=lambda i: line[i].ages[line[i].first])
            ends[first] += 1
        rest = []
        for run, end, part, net, closes in zip(line, ends, parts, nets, closing, strict=True):
            if end == run.first:
                rest.append(run)
                continue
            if end < run.end:
                rest.append(run.split(end))
                self.runs.append(rest[-1])
            run.share += net
            run.fixed_left -= min(part, run.fixed_left)
            self.left -= net * run.count
            if closes:
                self.weight -= run.claim.weight * run.count
            else:
                stay.append(run)
        return rest

    def _prefix_ends(
        self,
        line: list[ClaimRun],
        wanted: list[int],
        nets: list[int],
        closing: list[bool],
        at_first: int,
    ) -> list[int]:
        """Where each run of a line ends if it is served up to where somebody's part changes."""
        heads = [run.ages[run.first] for run in line]
        short = [part > self.left for part in wanted]
        if short[heads.index(min(heads))]:
            # He takes all that is left, but for what was fixed of it: then nothing changes.
            return oldest_within(line, nets, 0)
        ends = [run.first for run in line]
        until = min(
            (head for head, is_short in zip(heads, short, strict=True) if is_short), default=None
        )
        some = [i for i, is_short in enumerate(short) if not is_short]
        runs = []
        for i in some:
            run = line[i]
            end = run.end if until is None else bisect_left(run.ages, until, run.first, run.end)
            runs.append(_between(run, run.first, end))
        left = self.left
        if any(nets[i] < wanted[i] for i in some):
            # Of what was fixed no more is counted than is left.
            left -= max(wanted[i] for i in some)
        found = oldest_within(runs, [nets[i] for i in some], left)
        # Those behind one who has enough have larger parts, unless they have enough by theirs too.
        rising = [
            self.weight - at_first * run.claim.weight // (wanted[i] + 1) - 1
            for i, run in enumerate(line)
            if run.claim.weight and wanted[i] < self._cap(run) - run.share
        ]
        if rising and any(closing):
            runs = [_between(run, run.first, end) for run, end in zip(runs, found, strict=True)]
            leaving = [line[i].claim.weight if closing[i] else 0 for i in some]
            found = oldest_within(runs, leaving, min(rising))
        for i, end in zip(some, found, strict=True):
            ends[i] = end
        return ends

    def _skip_fixed_rounds(self) -> None:
        """Skip the rounds like the last one, in which all that was with_returnable was fixed
        already.
        """
        runs = [run for line in self.by_demand.values() for run in line]
        parts = [min(self._part(run, self.left), self.left) for run in runs]
        rounds = min(run.fixed_left // part for run, part in zip(runs, parts, strict=True))
        for run, part in zip(runs, parts, strict=True):
            run.fixed_left -= rounds * part

    def _return_unusable(self) -> None:
        """Take back what the youngest was with_returnable whose offer, what is fixed included, is
        less than his smallest task, as Determined compares them; and so on until something is left.

        Offers only grow, so who can use his now can later.
        """
        while self.by_demand and not self.left:
            self._spent += sum(map(len, self.by_demand.values()))
            stuck = [
                run
                for line in self.by_demand.values()
                for run in line
                if run.share < run.claim.least // self.grain
            ]
            with_returnable = [run for run in stuck if self._returnable(run)]
            if not with_returnable:
                self._exclude_younger(stuck, None)
                return
            youngest = max(with_returnable, key=_last)
            if not self._redistribute(stuck, with_returnable, self._returnable(youngest)):
                self._exclude_younger(stuck, _last(youngest))
                self._exclude(youngest, youngest.end - 1)

    def _fill_one_by_one(self) -> None:
        """Serve every member by himself from now on."""
        open_ = [run for line in self.by_demand.values() for run in line]
        places = sorted((run.ages[at], i, at) for i, run in enumerate(open_) for at in _all(run))
        members = []
        for _, i, _ in places:
            run, claim = open_[i], open_[i].claim
            least, fixed = claim.least // self.grain, claim.fixed // self.grain
            members.append(
                Member(claim.weight, run.share, self._cap(run), least, fixed, run.fixed_left)
            )
        water_fill = WaterFillOneByOne(self.left, members)
        water_fill.fill()
        self.left = water_fill.left
        self.by_demand = {}
        for (_, i, at), member in zip(places, members, strict=True):
            run = open_[i]
            if at == run.first:
                run.share = member.share
            elif member.share != run.share:
                # The next of the same run comes later: what is cut off is his run from now on.
                open_[i] = run.split(at)
                open_[i].share = member.share
                self.runs.append(open_[i])

    def _returnable(self, run: ClaimRun) -> int:
        """What each of them was with_returnable above what is fixed."""
        return run.share - run.claim.fixed // self.grain

    def _exclude_younger(self, stuck: list[ClaimRun], age: Age | None) -> None:
        """Who was with_returnable nothing, and is asked before those of `age`, has nothing to
        return.
        """
        for run in stuck:
            if not self._returnable(run):
                first = run.first if age is None else bisect_left(run.ages, age, run.first, run.end)
                self._exclude(run, first)

    def _redistribute(
        self, stuck: list[ClaimRun], with_returnable: list[ClaimRun], part: int
    ) -> bool:
        """Take `part` back from as many of the youngest as possible at once, and have it fill those
        whose turn it is; whether there were any.

        Each time one returns his part, those who come first have one more each, as many as that
        is enough for. So as long as all return as much, and lack as much, they are served in blocks
        of so many; if it is 1 that is returned, one after another.
        """
        line = next(iter(self.by_demand.values()))
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
        there = sum(some.count for _, some in returning_runs)
        if there == 1 or any(run.fixed_left for run in line):
            return False
        if part > 1 and len({run.share for run in line}) > 1:
            return False
        # They meet where those who are older lack what those who are younger return.
        cap = self._cap(line[0])
        of_run = dict(returning_runs)
        tried: list[ClaimRun] = []
        sizes: list[int] = []
        for run in line:
            some = of_run.pop(run, _between(run, run.end, run.end))
            tried += (_between(run, run.first, some.first), some)
            sizes += (cap - run.share, cap - run.share + part)
        tried += of_run.values()
        sizes += [part] * len(of_run)
        met = oldest_within(tried, sizes, part * there)
        ends = [
            run.first + met[2 * i] - tried[2 * i].first + met[2 * i + 1] - tried[2 * i + 1].first
            for i, run in enumerate(line)
        ]
        if part > 1:
            blocks = sum(end - run.first for run, end in zip(line, ends, strict=True)) // part
            ends = oldest_within(line, [1] * len(line), blocks * part)
        lacking = sum(
            (cap - run.share) * (end - run.first) for run, end in zip(line, ends, strict=True)
        )
        if not lacking:
            return False
        runs = [some for _, some in returning_runs]
        kept = oldest_within(runs, [1] * len(runs), there - lacking // part)
        returning = [
            (run, end) for (run, _), end in zip(returning_runs, kept, strict=True) if end < run.end
        ]
        asked = min(run.ages[end] for run, end in returning)
        filled = [(run, end) for run, end in zip(line, ends, strict=True) if end > run.first]
        if part > 1:
            # One each they have only while no weight is large beside the sum of all.
            left = self.weight - sum(r.claim.weight * (r.end - end) for r, end in returning)
            left -= sum(r.claim.weight * (end - r.first) for r, end in filled)
            left -= sum(r.claim.weight * r.count for r in stuck if not self._returnable(r))
            if any(part * run.claim.weight >= 2 * left for run in line):
                return False
        self._exclude_younger(stuck, asked)
        for run, end in returning:
            self._exclude(run, end)
        for run, end in filled:
            self._fill_up(run, end, cap)
        return True

    def _fill_up(self, run: ClaimRun, end: int, cap: int) -> None:
        """Let those of a run before `end` have all they want."""
        line = self.by_demand[cap]
        line.remove(run)
        if end < run.end:
            line.append(run.split(end))
            self.runs.append(line[-1])
        elif not line:
            del self.by_demand[cap]
        self.left -= (cap - run.share) * run.count
        self.weight -= run.claim.weight * run.count
        run.share = cap

    def _exclude(self, run: ClaimRun, first: int) -> None:
        """Let those of a run from `first` on have no more than what is fixed."""
        if first == run.end:
            return
        line = self.by_demand[self._cap(run)]
        if first > run.first:
            run = run.split(first)
            self.runs.append(run)
        else:
            line.remove(run)
            if not line:
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
