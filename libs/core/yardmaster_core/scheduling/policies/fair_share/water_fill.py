"""The rounds of `max_min` (`shares.py`), over runs of equals.

A round goes around those who want more, the smallest demand first, then the oldest, and depends on
what went before in it: what is left, and who has enough by now. So equals are served together for
as long as that makes no difference to any of those who come among them.
"""

from bisect import bisect_left
from collections.abc import Sequence

from yardmaster_core.scheduling.policies.fair_share.runs import Age, Run, oldest
from yardmaster_core.scheduling.policies.fair_share.water_fill_one_by_one import (
    Member,
    WaterFillOneByOne,
)


class WaterFill:
    """What is left, and who wants more of it, in grains."""

    def __init__(self, left: int, runs: Sequence[Run], grain: int) -> None:
        self.left = left
        #: All of them, also those who have enough.
        self.runs = list(runs)
        self.grain = grain
        #: Who is to get more, by demand.
        self.lines: dict[int, list[Run]] = {}
        self.weight = 0
        for run in runs:
            # `ahead` is what is fixed and was not counted as part of a share yet.
            run.offer = run.ahead = run.claim.fixed // grain
            if run.offer < self._most(run):
                self.lines.setdefault(self._most(run), []).append(run)
                self.weight += run.claim.weight * run.count
        self.lines = dict(sorted(self.lines.items()))
        #: How many runs it has gone through, and how many members might have been instead.
        self._spent = 0
        self._enough = sum(run.count for line in self.lines.values() for run in line)

    def _most(self, run: Run) -> int:
        return max(run.claim.demand, run.claim.fixed) // self.grain

    def fill(self) -> None:
        """Offer all that is left, until nobody wants more or can use it."""
        while self.left and self.lines:
            if self._spent > self._enough:
                self._one_by_one()
                return
            at_first = self.left
            self._one_round()
            if self.left == at_first:
                self._count_ahead()
            if not self.left:
                self._give_up()

    def _one_round(self) -> None:
        at_first = self.left
        for most, line in list(self.lines.items()):
            if not self.left:
                return
            rest = line
            stay: list[Run] = []
            if len(line) == 1 and self._all_alike(line[0], most, at_first):
                if line[0].offer == most:
                    del self.lines[most]
                continue
            while rest and self.left:
                rest = self._step(rest, stay, at_first)
            if stay or rest:
                self.lines[most] = stay + rest
            else:
                del self.lines[most]

    def _all_alike(self, run: Run, most: int, at_first: int) -> bool:
        """Serve a run that has a line to itself, if there is enough for all of it."""
        part = self._part(run, at_first)
        if run.ahead or part * run.count > self.left:
            return False
        run.offer += part
        self.left -= part * run.count
        if run.offer == most:
            self.weight -= run.claim.weight * run.count
        return True

    def _part(self, run: Run, at_first: int) -> int:
        part = max(1, at_first * run.claim.weight // self.weight) if self.weight else 1
        return min(part, self._most(run) - run.offer)

    def _step(self, line: list[Run], stay: list[Run], at_first: int) -> list[Run]:
        """Serve the oldest of a line, and those after them for whom that changes nothing; returns
        those who are still to be served, and puts the others who want more into `stay`.
        """
        self._spent += len(line)
        wanted = [self._part(run, at_first) for run in line]
        parts = [min(part, self.left) for part in wanted]
        nets = [max(0, part - run.ahead) for run, part in zip(line, parts, strict=True)]
        closing = [run.offer + net >= self._most(run) for run, net in zip(line, nets, strict=True)]
        ends = self._while_nothing_changes(line, wanted, nets, closing, at_first)
        if all(end == run.first for run, end in zip(line, ends, strict=True)):
            first = min(range(len(line)), key=lambda i: line[i].ages[line[i].first])
            ends[first] += 1
        rest = []
        for run, end, part, net, closes in zip(line, ends, parts, nets, closing, strict=True):
            if end == run.first:
                rest.append(run)
                continue
            if end < run.end:
                rest.append(run.cut_off(end))
                self.runs.append(rest[-1])
            run.offer += net
            run.ahead -= min(part, run.ahead)
            self.left -= net * run.count
            if closes:
                self.weight -= run.claim.weight * run.count
            else:
                stay.append(run)
        return rest

    def _while_nothing_changes(
        self,
        line: list[Run],
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
            return oldest(line, nets, 0)
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
        found = oldest(runs, [nets[i] for i in some], left)
        # Those behind one who has enough have larger parts, unless they have enough by theirs too.
        rising = [
            self.weight - at_first * run.claim.weight // (wanted[i] + 1) - 1
            for i, run in enumerate(line)
            if run.claim.weight and wanted[i] < self._most(run) - run.offer
        ]
        if rising and any(closing):
            runs = [_between(run, run.first, end) for run, end in zip(runs, found, strict=True)]
            leaving = [line[i].claim.weight if closing[i] else 0 for i in some]
            found = oldest(runs, leaving, min(rising))
        for i, end in zip(some, found, strict=True):
            ends[i] = end
        return ends

    def _count_ahead(self) -> None:
        """Skip the rounds like the last one, in which all that was offered was fixed already."""
        runs = [run for line in self.lines.values() for run in line]
        parts = [min(self._part(run, self.left), self.left) for run in runs]
        rounds = min(run.ahead // part for run, part in zip(runs, parts, strict=True))
        for run, part in zip(runs, parts, strict=True):
            run.ahead -= rounds * part

    def _give_up(self) -> None:
        """Take back what the youngest was offered whose offer, what is fixed included, is less than
        his smallest task, as Determined compares them; and so on until something is left.

        Offers only grow, so who can use his now can later.
        """
        while self.lines and not self.left:
            self._spent += sum(map(len, self.lines.values()))
            stuck = [
                run
                for line in self.lines.values()
                for run in line
                if run.offer < run.claim.least // self.grain
            ]
            offered = [run for run in stuck if self._returned(run)]
            if not offered:
                self._close_younger(stuck, None)
                return
            youngest = max(offered, key=_last)
            if not self._pass_on(stuck, offered, self._returned(youngest)):
                self._close_younger(stuck, _last(youngest))
                self._close(youngest, youngest.end - 1)

    def _one_by_one(self) -> None:
        """Serve every member by himself from now on."""
        open_ = [run for line in self.lines.values() for run in line]
        places = sorted((run.ages[at], i, at) for i, run in enumerate(open_) for at in _all(run))
        members = []
        for _, i, _ in places:
            run, claim = open_[i], open_[i].claim
            least, fixed = claim.least // self.grain, claim.fixed // self.grain
            members.append(
                Member(claim.weight, run.offer, self._most(run), least, fixed, run.ahead)
            )
        water_fill = WaterFillOneByOne(self.left, members)
        water_fill.fill()
        self.left = water_fill.left
        self.lines = {}
        for (_, i, at), member in zip(places, members, strict=True):
            run = open_[i]
            if at == run.first:
                run.offer = member.offer
            elif member.offer != run.offer:
                # The next of the same run comes later: what is cut off is his run from now on.
                open_[i] = run.cut_off(at)
                open_[i].offer = member.offer
                self.runs.append(open_[i])

    def _returned(self, run: Run) -> int:
        """What each of them was offered above what is fixed."""
        return run.offer - run.claim.fixed // self.grain

    def _close_younger(self, stuck: list[Run], age: Age | None) -> None:
        """Who was offered nothing, and is asked before those of `age`, has nothing to return."""
        for run in stuck:
            if not self._returned(run):
                first = run.first if age is None else bisect_left(run.ages, age, run.first, run.end)
                self._close(run, first)

    def _pass_on(self, stuck: list[Run], offered: list[Run], part: int) -> bool:
        """Take `part` back from as many of the youngest as possible at once, and have it fill those
        whose turn it is; whether there were any.

        Each time one returns his part, those who come first have one more each, as many as that
        is enough for. So as long as all return as much, and lack as much, they are served in blocks
        of so many; if it is 1 that is returned, one after another.
        """
        line = next(iter(self.lines.values()))
        until = max((_last(run) for run in offered if self._returned(run) != part), default=None)
        giving = []
        for run in offered:
            if self._returned(run) == part:
                after = (
                    run.first if until is None else bisect_left(run.ages, until, run.first, run.end)
                )
                giving.append((run, _between(run, after, run.end)))
        there = sum(some.count for _, some in giving)
        if there == 1 or any(run.ahead for run in line):
            return False
        if part > 1 and len({run.offer for run in line}) > 1:
            return False
        # They meet where those who are older lack what those who are younger return.
        most = self._most(line[0])
        of_run = dict(giving)
        tried: list[Run] = []
        sizes: list[int] = []
        for run in line:
            some = of_run.pop(run, _between(run, run.end, run.end))
            tried += (_between(run, run.first, some.first), some)
            sizes += (most - run.offer, most - run.offer + part)
        tried += of_run.values()
        sizes += [part] * len(of_run)
        met = oldest(tried, sizes, part * there)
        ends = [
            run.first + met[2 * i] - tried[2 * i].first + met[2 * i + 1] - tried[2 * i + 1].first
            for i, run in enumerate(line)
        ]
        if part > 1:
            blocks = sum(end - run.first for run, end in zip(line, ends, strict=True)) // part
            ends = oldest(line, [1] * len(line), blocks * part)
        lacking = sum(
            (most - run.offer) * (end - run.first) for run, end in zip(line, ends, strict=True)
        )
        if not lacking:
            return False
        runs = [some for _, some in giving]
        kept = oldest(runs, [1] * len(runs), there - lacking // part)
        returning = [
            (run, end) for (run, _), end in zip(giving, kept, strict=True) if end < run.end
        ]
        asked = min(run.ages[end] for run, end in returning)
        filled = [(run, end) for run, end in zip(line, ends, strict=True) if end > run.first]
        if part > 1:
            # One each they have only while no weight is large beside the sum of all.
            left = self.weight - sum(r.claim.weight * (r.end - end) for r, end in returning)
            left -= sum(r.claim.weight * (end - r.first) for r, end in filled)
            left -= sum(r.claim.weight * r.count for r in stuck if not self._returned(r))
            if any(part * run.claim.weight >= 2 * left for run in line):
                return False
        self._close_younger(stuck, asked)
        for run, end in returning:
            self._close(run, end)
        for run, end in filled:
            self._fill_up(run, end, most)
        return True

    def _fill_up(self, run: Run, end: int, most: int) -> None:
        """Let those of a run before `end` have all they want."""
        line = self.lines[most]
        line.remove(run)
        if end < run.end:
            line.append(run.cut_off(end))
            self.runs.append(line[-1])
        elif not line:
            del self.lines[most]
        self.left -= (most - run.offer) * run.count
        self.weight -= run.claim.weight * run.count
        run.offer = most

    def _close(self, run: Run, first: int) -> None:
        """Let those of a run from `first` on have no more than what is fixed."""
        if first == run.end:
            return
        line = self.lines[self._most(run)]
        if first > run.first:
            run = run.cut_off(first)
            self.runs.append(run)
        else:
            line.remove(run)
            if not line:
                del self.lines[self._most(run)]
        fixed = run.claim.fixed // self.grain
        self.left += (run.offer - fixed) * run.count
        self.weight -= run.claim.weight * run.count
        run.offer = fixed


def _all(run: Run) -> range:
    return range(run.first, run.end)


def _between(run: Run, first: int, end: int) -> Run:
    return Run(run.kind, run.claim, first, end)


def _last(run: Run) -> Age:
    return run.ages[run.end - 1]
