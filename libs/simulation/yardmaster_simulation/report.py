"""A report on one or several runs as one self-contained HTML file.

The file contains the page (`report.html`), the data and the plotting library. Runs that differ only
in their seed form one group, shown as means with minimum and maximum.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from yardmaster_schemas.counts import count_of
from yardmaster_simulation.figures import OTHERS, Figures
from yardmaster_simulation.metrics import BE, TE, Spread, Summary

SEED: Final = "seed"
POLICY: Final = "policy"
#: The columns of the table of projects, and the fields of `ProjectTotals`.
_TOTALS: Final = {
    "GPU hours": "gpu_hours",
    "within what it deserves": "within_deserved_gpu_hours",
    "over quota": "over_quota_gpu_hours",
    "requested and pending": "pending_gpu_hours",
}


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs that differ only in their seed, in the given order."""

    name: str
    runs: list[Figures]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table: its name, the figure it shows, and how to format the figure."""

    name: str
    value: Callable[[Summary], float | None]
    written: Callable[[float], str]


def write_report(path: Path, title: str, runs: Sequence[Figures]) -> None:
    """Write the page that `report` returns to `path`."""
    path.write_text(report(title, runs), encoding="utf-8")


def report(title: str, runs: Sequence[Figures]) -> str:
    """The report on `runs` as one page of HTML.

    Raises:
        ValueError: there are no runs.
    """
    if not runs:
        raise ValueError("a report is about at least one run")
    from plotly.offline import get_plotlyjs

    groups = _grouped(runs)
    seeds = len({run.labels.get(SEED) for run in runs})
    about = count_of(len(runs), "run")
    if seeds > 1:
        about += f", {seeds} seeds; each figure is the mean, with minimum and maximum"
    common = [
        f"{key} {value}"
        for key, value in runs[0].labels.items()
        if key != SEED and all(run.labels.get(key) == value for run in runs)
    ]
    page = files("yardmaster_simulation").joinpath("report.html").read_text(encoding="utf-8")
    data = json.dumps([_plotted(group) for group in groups], separators=(",", ":"))
    parts = {
        "title": escape(title),
        "about": escape("; ".join([about, *common])),
        "table": _table(groups),
        "projects": _projects(groups),
        "data": data.replace("<", "\\u003c"),
        "library": get_plotlyjs(),
    }
    return re.sub(r"\[\[([a-z]+)\]\]", lambda mark: parts[mark[1]], page)


def _grouped(runs: Sequence[Figures]) -> list[_Group]:
    keys = dict.fromkeys(key for run in runs for key in run.labels if key != SEED)
    distinct = [key for key in keys if len({run.labels.get(key) for run in runs}) > 1]
    distinct = distinct or [key for key in keys if key == POLICY] or list(keys)[:1]
    found: dict[tuple[object, ...], _Group] = {}
    for run in runs:
        same = tuple(run.labels.get(key) for key in keys)
        if same not in found:
            words = [
                str(run.labels[key]) if key == POLICY else f"{key} {run.labels[key]}"
                for key in distinct
                if key in run.labels
            ]
            found[same] = _Group(", ".join(words) or "run", [])
        found[same].runs.append(run)
    return list(found.values())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _times(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value * 100:.2f} %" if value < 0.1 else f"{value * 100:.1f} %"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _index(value: float) -> str:
    return f"{value:.3f}"


def _of_spread(kind: str, spread: str, of: str) -> Callable[[Summary], float | None]:
    def value(summary: Summary) -> float | None:
        found: Spread = getattr(summary.part(kind), spread)
        value: float | None = getattr(found, of)
        return value

    return value


def _tasks_of(kind: str) -> Callable[[Summary], float]:
    return lambda summary: summary.part(kind).tasks


def _lines() -> list[tuple[str, list[_Line]]]:
    found: list[tuple[str, list[_Line]]] = []
    for kind, name in (
        (TE, "TE: not preemptible"),
        (BE, "BE: preemptible"),
    ):
        lines = [_Line("tasks", _tasks_of(kind), _number)]
        lines += [
            _Line(f"slowdown, {of}", _of_spread(kind, "slowdown", of), _times)
            for of in ("p50", "p75", "p95", "p99")
        ]
        lines += [
            _Line(f"wait, {of}", _of_spread(kind, "wait_s", of), _duration)
            for of in ("mean", "p50", "p95", "p99")
        ]
        lines.append(_Line("completion, mean", _of_spread(kind, "completion_s", "mean"), _duration))
        if kind == BE:
            lines.append(
                _Line("preempted at least once", lambda s: s.part(BE).preempted_share, _percent)
            )
            lines += [
                _Line(
                    f"preempted to restarted, {of}",
                    _of_spread(BE, "rescheduling_s", of),
                    _duration,
                )
                for of in ("p50", "p75", "p95", "p99")
            ]
        found.append((name, lines))
    whole = [
        _Line("succeeded", lambda s: s.part("all").succeeded, _number),
        _Line("makespan", lambda s: s.makespan_s, _duration),
        _Line("utilization of GPUs", lambda s: s.utilisation, _percent),
        _Line("utilization while jobs arrive", lambda s: s.arriving_utilisation, _percent),
        _Line("unusable free GPUs", lambda s: s.fragmentation, _percent),
        _Line("fairness (Jain)", lambda s: s.fairness, _index),
        _Line("GPU hours", lambda s: s.gpu_hours, _number),
        _Line("GPU hours lost to preemption", lambda s: s.preempted_lost_gpu_hours, _number),
        _Line("GPU hours lost for other reasons", lambda s: s.other_lost_gpu_hours, _number),
        _Line("GPU hours reserved and idle", lambda s: s.reserved_idle_gpu_hours, _number),
        _Line("preemptions", lambda s: s.preemptions, _number),
        _Line("useless preemptions", lambda s: s.useless_preemptions, _number),
        _Line("nodes lost", lambda s: s.nodes_lost, _number),
    ]
    found.append(("The whole run", whole))
    return found


def _table(groups: Sequence[_Group]) -> str:
    head = "".join(f'<th scope="col">{escape(group.name)}</th>' for group in groups)
    rows = [f"<thead><tr><td></td>{head}</tr></thead>"]
    for name, lines in _lines():
        rows.append(
            f'<tbody><tr><th class="part" scope="rowgroup" colspan="{len(groups) + 1}">'
            f"<span>{escape(name)}</span></th></tr>"
        )
        for line in lines:
            cells = "".join(_cell(line, group) for group in groups)
            if cells != "<td></td>" * len(groups):
                rows.append(f'<tr><th scope="row">{escape(line.name)}</th>{cells}</tr>')
        rows.append("</tbody>")
    return f"<table>{''.join(rows)}</table>"


def _cell(line: _Line, group: _Group) -> str:
    found = [value for run in group.runs if (value := line.value(run.summary)) is not None]
    if not found:
        return "<td></td>"
    mean, least, most = (
        line.written(value) for value in (sum(found) / len(found), min(found), max(found))
    )
    between = f"<small>{least} to {most}</small>" if least != most else ""
    return f"<td>{mean}{between}</td>"


def _projects(groups: Sequence[_Group]) -> str:
    """The table of the projects that held the most GPUs in each group, as means over the seeds."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *_TOTALS, "preempted"))
    rows = [f"<thead><tr>{head}</tr></thead>"]
    for group in groups:
        rows.append(
            f'<tbody><tr><th class="part" scope="rowgroup" colspan="{len(_TOTALS) + 2}">'
            f"<span>{escape(group.name)}</span></th></tr>"
        )
        for name in [one.name for one in group.runs[0].projects if one.name != OTHERS]:
            found = [total for run in group.runs for total in run.totals if total.name == name]
            means = (
                sum(getattr(total, field) for total in found) / len(group.runs)
                for field in _TOTALS.values()
            )
            rules: dict[str, int] = {}
            for total in found:
                for rule, count in total.preempted.items():
                    rules[rule] = rules.get(rule, 0) + count
            preempted = (
                f"{_number(count / len(group.runs))} {rule}"
                for rule, count in sorted(rules.items())
            )
            cells = [*(_number(value) for value in means), ", ".join(preempted)]
            rows.append(
                f'<tr><th scope="row">{escape(name)}</th>'
                + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                + "</tr>"
            )
        rows.append("</tbody>")
    return f"<table>{''.join(rows)}</table>"


def _plotted(group: _Group) -> dict[str, Any]:
    """The data of a group for the page's script."""
    runs = group.runs
    first = runs[0]
    return {
        "name": group.name,
        "slowdown": {
            kind: {
                of: [_short(getattr(run.summary.part(kind).slowdown, of)) for run in runs]
                for of in ("p50", "p75", "p95", "p99")
            }
            for kind in (TE, BE)
        },
        "waits": {kind: _mean_waits(runs, kind) for kind in (TE, BE)},
        "preempted": [
            [
                _short(100 * run.summary.part(BE).preempted[times] / run.summary.part(BE).tasks)
                if run.summary.part(BE).tasks
                else 0
                for run in runs
            ]
            for times in range(3)
        ],
        "window_s": first.window_ms / 1000,
        "used": _parts_of(first.allocated, first.up),
        "unusable": _parts_of(first.unusable, first.up),
        "requested": [_short(value) for value in first.requested],
        "gpus": [_short(value) for value in first.up],
        "projects": [
            {
                "name": one.name,
                "held": [_short(value) for value in one.held],
                "requested": [_short(value) for value in one.requested],
                "fair": [_short(value) for value in one.fair],
                "deserved": [_short(value) for value in one.deserved],
                "share": [_short(value) for value in one.share] if first.divided else None,
            }
            for one in first.projects
        ],
    }


def _mean_waits(runs: Sequence[Figures], kind: str) -> list[float | None]:
    """The mean of each percentile over the seeds."""
    found = [run.waits_s[kind] for run in runs if run.waits_s[kind]]
    return [_short(sum(values) / len(values)) for values in zip(*found, strict=True)]


def _parts_of(values: Sequence[float], whole: Sequence[float]) -> list[float | None]:
    """The values as percent of `whole`, by window; None where `whole` is zero."""
    return [
        _short(100 * value / all_of_it) if all_of_it else None
        for value, all_of_it in zip(values, whole, strict=True)
    ]


def _short(value: float | None) -> float | None:
    """Round to five digits, enough for a plot."""
    return None if value is None else float(f"{value:.5g}")
