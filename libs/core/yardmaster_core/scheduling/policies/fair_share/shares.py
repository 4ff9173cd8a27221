"""The share of each claimant of a pool, in one cycle."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from yardmaster_core.scheduling.policies.fair_share.claimants import Claimant
from yardmaster_core.scheduling.policies.fair_share.demand_runs import Age, DemandKind, DemandRun

_first = attrgetter("first")
_age = attrgetter("age")


class Share(NamedTuple):
    """A claimant's share of a pool: its demand within its limits, what it held at the division
    (`retained`: without stopping tasks), and its share. Amounts are in gpu_milli.
    """

    claimant: Claimant
    age: Age
    weight: int
    demand: int
    held: int
    retained: int
    share_milli: int


class Shares:
    """The result of a division. Claimants above or below their share are found without a loop over
    all others.
    """

    def __init__(
        self,
        rows: Mapping[Claimant, tuple[Age, DemandKind]],
        claimants: Mapping[Age, Claimant],
        runs: Sequence[DemandRun],
    ) -> None:
        self._rows = rows
        self._claimants = claimants
        self._runs: dict[DemandKind, list[DemandRun]] = {}
        for run in sorted(runs, key=_first):
            self._runs.setdefault(run.kind, []).append(run)
        self._found: dict[Claimant, Share | None] = {}
        self._below: list[Share] | None = None

    def of(self, claimant: Claimant) -> Share | None:
        """Return a claimant's share; None: it has no demand."""
        if claimant not in self._found:
            row = self._rows.get(claimant)
            share = None
            if row is not None:
                age, kind = row
                runs = self._runs[kind]
                at = bisect_left(kind.ages, age) if len(runs) > 1 else runs[0].first
                share = _share(claimant, age, runs[bisect_right(runs, at, key=_first) - 1])
            self._found[claimant] = share
        return self._found[claimant]

    @property
    def any_above(self) -> bool:
        """Whether a claimant holds more than its share; stopping tasks do not count."""
        return any(run.kind.retained > run.share for run in self._all())

    def above(self) -> list[Share]:
        """Return the shares that are exceeded also without stopping tasks, oldest first."""
        return self._of([run for run in self._all() if run.kind.retained > run.share])

    def above_of(self, claimants: Iterable[Claimant]) -> list[Share]:
        """Return the shares of the claimants in `claimants` that hold more than their share, oldest
        first. Stopping tasks count.
        """
        some = [share for claimant in claimants if (share := self.of(claimant)) is not None]
        return sorted((share for share in some if share.held > share.share_milli), key=_age)

    def below(self) -> list[Share]:
        """Return the shares of claimants that hold less than their share, oldest first."""
        if self._below is None:
            self._below = self._of([run for run in self._all() if run.demand.held < run.share])
        return self._below

    def all(self) -> list[Share]:
        """Return the shares of all claimants, oldest first."""
        return self._of(self._all())

    def _all(self) -> list[DemandRun]:
        return [run for runs in self._runs.values() for run in runs]

    def _of(self, runs: Sequence[DemandRun]) -> list[Share]:
        shares = [
            _share(self._claimants[age], age, run)
            for run in runs
            for age in run.ages[run.first : run.end]
        ]
        return sorted(shares, key=_age)


def _share(claimant: Claimant, age: Age, run: DemandRun) -> Share:
    demand = run.demand
    amounts = demand.milli, demand.held, run.kind.retained, run.share
    return Share(claimant, age, demand.weight, *amounts)
