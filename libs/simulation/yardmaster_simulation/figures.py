"""The figures of one run for a report: small, and picklable for transfer between processes."""

from dataclasses import dataclass
from typing import Final

from yardmaster_schemas.events.decisions import Outcome
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import (
    BE,
    TE,
    WINDOWS,
    ExecMs,
    ProjectTotals,
    Shares,
    Summary,
    of_kind,
    percentile,
    pools_over,
    project_shares,
    project_totals,
    span,
    summary,
)
from yardmaster_simulation.series import windows
from yardmaster_simulation.tables import Labels

#: The number of projects that a report shows: those that held the most GPUs. All other projects are
#: added up.
MAX_PROJECTS: Final = 8
OTHERS: Final = "all others"


@dataclass(frozen=True, slots=True)
class Figures:
    """A run's summary, its distribution of waits, and its series over time.

    `waits_s`: by kind, the percentiles 0 to 100 of the waits of succeeded tasks (empty: no task
    succeeded). `up` to `unusable`: GPUs, the means of `WINDOWS` equal windows of `window_ms`.
    `divided`: whether the policy of a pool recorded shares.
    """

    labels: Labels
    summary: Summary
    window_ms: float
    waits_s: dict[str, list[float]]
    up: list[float]
    allocated: list[float]
    requested: list[float]
    unusable: list[float]
    projects: list[Shares]
    totals: list[ProjectTotals]
    divided: bool


def figures(labels: Labels, history: History, exec_ms: ExecMs | None = None) -> Figures:
    """Compute the figures of a run; `exec_ms` as in `summary`."""
    begin, end = span(history)
    edges = windows(begin, end, WINDOWS)
    up, allocated, requested, unusable, _ = pools_over(history, edges)
    return Figures(
        labels=dict(labels),
        summary=summary(history, exec_ms),
        window_ms=(edges[-1] - begin) / WINDOWS,
        waits_s={kind: _waits(history, kind) for kind in (TE, BE)},
        up=up,
        allocated=allocated,
        requested=requested,
        unusable=unusable,
        projects=_largest(project_shares(history, edges, up)),
        totals=project_totals(history),
        divided=history.divided,
    )


def _waits(history: History, kind: str) -> list[float]:
    ordered = sorted(
        task.wait_ms / 1000
        for task in of_kind(history.tasks.values(), kind)
        if task.outcome is Outcome.SUCCEEDED
    )
    return [percentile(ordered, share / 100) for share in range(101)] if ordered else []


def _largest(shares: list[Shares]) -> list[Shares]:
    ordered = sorted(shares, key=lambda one: (-sum(one.held), one.name))
    if len(ordered) <= MAX_PROJECTS + 1:
        return ordered
    rest = ordered[MAX_PROJECTS:]
    columns = (
        [sum(values) for values in zip(*(getattr(one, name) for one in rest), strict=True)]
        for name in ("held", "requested", "fair", "deserved", "share")
    )
    others = Shares(OTHERS, *columns)
    return [*ordered[:MAX_PROJECTS], others]
