"""`yard simulate`: compare policies, placements and seeds on a simulated cluster."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import click

from yardmaster_cli.commands.apply import objects_of
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.cells import Span
from yardmaster_cli.output.formats import Column, Output
from yardmaster_cli.progress import share_bar
from yardmaster_cli.session import Session, command
from yardmaster_cli.simulate import arguments as simulated
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.quantities import duration_s
from yardmaster_simulation.errors import BadOrganization, BadWorkload
from yardmaster_simulation.metrics import ALL, BE, TE
from yardmaster_simulation.report import SEED, write_report
from yardmaster_simulation.sources import Changed
from yardmaster_simulation.study import Result, Study
from yardmaster_simulation.synthetic import DEMAND_SETS, Mix
from yardmaster_simulation.workload import NodeFaults, Organization

DEFAULT_JOBS = 1 << 13
#: The policies that a run can have, in the order of their registry.
POLICY_NAMES = tuple(dict.fromkeys(name for name, _ in POLICIES))


@command("simulate")
@click.argument("workload", default="calibrated", metavar="[WORKLOAD]")
@click.option(
    *("--policy", "policies"),
    multiple=True,
    metavar="NAME[:KEY=V|V,...]",
    help="Policy to simulate; repeat the option to compare policies. KEY=V|V runs once for each "
    "value. Default: fifo, lrtp, rand and fitgpp for calibrated, fit_mean_2 and plain; own for "
    "log:FILE; else fifo. own is the policy that the workload itself configures. "
    f"Policies: {', '.join(POLICY_NAMES)}.",
)
@click.option(
    *("--placement", "placements"),
    multiple=True,
    metavar="NAME",
    help="Placement to simulate; repeat the option to compare placements.",
)
@click.option(
    "--seed",
    default="0",
    metavar="SEEDS",
    help="Seeds of the runs: 7, or 1,2,5, or 100..107 (default: 0).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the log of each run, tasks.parquet, shares.parquet and report.html to DIR.",
)
@click.option(
    "--org",
    metavar="FILE",
    help="Configure pools, departments and projects, with their quotas, by a file of yard apply.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Use only the first N jobs.")
@click.option(
    "--nodes",
    metavar="NODESxGPUS",
    help="Replace the nodes by equal ones: 16x8. Their CPU and memory are those of the workload's "
    "largest node.",
)
@click.option(
    "--every", metavar="TIME", help="Time between decisions; 0s: decide after every event."
)
@click.option("--checkpoint-every", metavar="TIME", help="Time between checkpoints of a task.")
@click.option("--checkpoint-cost", metavar="TIME", help="Duration of a checkpoint.")
@click.option("--restart-cost", metavar="TIME", help="Time lost at each restart of a task.")
@click.option(
    "--works-in-grace/--idles-in-grace",
    default=None,
    help="Whether a task makes progress while it stops.",
)
@click.option("--node-fails", metavar="TIME", help="Mean time between failures of a node.")
@click.option("--node-repair", metavar="TIME", help="Mean time to repair a node (default: 1h).")
@click.option(
    "--te-share",
    type=click.IntRange(0, 1000),
    metavar="N",
    help="Share of trial-and-error jobs, which are not preemptible, in thousandths; those of a "
    "trace are drawn by the seed.",
)
@click.option(
    "--load",
    type=click.IntRange(min=1),
    metavar="N",
    help="Load relative to the capacity, in thousandths; a trace is submitted faster or slower.",
)
@click.option(
    "--grace",
    type=click.IntRange(min=0),
    metavar="N",
    help="Grace periods relative to the workload's own, in thousandths.",
)
@click.option(
    "--preemptible/--not-preemptible",
    default=None,
    help="Whether tasks of the workload waves:SCALE are preemptible.",
)
@click.option("--columns", metavar="FIELD=COLUMN,...", help="Columns of the CSV file.")
@click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", help="Use only these rows of the CSV file."
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    help="Use only jobs of a trace that were submitted from TIME on.",
)
@click.option(
    "--to", "until", metavar="TIME", help="Use only jobs of a trace that were submitted up to TIME."
)
@click.option("--cell", metavar="CELL", help="Cell of a recorded log (default: main).")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of parallel runs (default: all cores).",
)
def simulate(
    session: Session,
    workload: str,
    policies: tuple[str, ...],
    placements: tuple[str, ...],
    seed: str,
    out: Path | None,
    org: str | None,
    jobs: int | None,
    workers: int | None,
    **options: Any,
) -> None:
    """Compare policies, placements and seeds on a simulated cluster.

    WORKLOAD is a synthetic workload (calibrated (default), fit_mean_2, plain, waves:SCALE), a trace
    (philly:FILE[#CLUSTER], openb:PODS,NODES, csv:FILE) or a recorded log (log:FILE). --out DIR
    writes the log of each run, tasks.parquet, shares.parquet and report.html. The page
    docs/explanation/simulator.md explains workloads and figures.
    """
    simulated.check_options(workload, options)
    mix = _mix(workload, jobs, options)
    columns = simulated.columns_of(options["columns"], options["where"])
    source = simulated.source(
        workload,
        mix,
        columns,
        options["cell"] or "main",
        preemptible=options["preemptible"] is not False,
        since=options["since"],
        until=options["until"],
    )
    changed = Changed(
        source,
        jobs=jobs,
        equal=simulated.nodes(options["nodes"]),
        cadence_ms=_ms(options, "every"),
        faults=_faults(options),
        behavior=_behavior(options),
        **_changes_of_trace(workload, options),
        organization=_organization(org),
    )
    cases = simulated.cases(
        simulated.policies(policies or _default(workload)),
        simulated.placements(placements),
        simulated.seeds(seed),
    )
    if out is not None:
        _prepare(out)
    with share_bar(session.out, count_of(len(cases), "run")) as bar:
        study = Study(
            source=changed,
            cases=cases,
            out=out,
            workers=workers or os.cpu_count() or 1,
            progress=bar,
        )
        try:
            results = study.run()
        except (BadWorkload, BadOrganization) as error:
            raise BadUsage(str(error)) from None
    _show(session.out, results)
    if out is not None:
        write_report(out / "report.html", f"yard simulate {workload}", [r.figures for r in results])
        tables = "tasks.parquet, shares.parquet"
        session.out.note(f"{out}/report.html; logs for yard replay: {out}/*.db; {tables}")


def _default(workload: str) -> tuple[str, ...]:
    if workload in DEMAND_SETS:
        return "fifo", "lrtp", "rand", "fitgpp"
    return (simulated.OWN,) if workload.startswith("log:") else ("fifo",)


def _organization(org: str | None) -> Organization:
    if org is None:
        return Organization()
    objects = objects_of(org)
    if "cell" in objects:
        raise BadUsage(
            f"--org {org}: the key cell has no effect on a simulation", hint="leave it out"
        )
    return Organization(**objects)


def _mix(workload: str, jobs: int | None, options: Mapping[str, Any]) -> Mix:
    if workload not in DEMAND_SETS:
        return Mix()
    given = {"te_share": "te_permille", "load": "load_permille", "grace": "grace_permille"}
    said = {field: options[name] for name, field in given.items() if options[name] is not None}
    return Mix(demands=workload, jobs=jobs or DEFAULT_JOBS, **said)


def _changes_of_trace(workload: str, options: Mapping[str, Any]) -> dict[str, int | None]:
    """The kinds and the load of the jobs of a trace; a synthetic workload has its own (`_mix`)."""
    if workload in DEMAND_SETS:
        return {}
    return {"te_permille": options["te_share"], "load_permille": options["load"]}


def _ms(options: Mapping[str, Any], name: str) -> int | None:
    text = options[name]
    if text is None:
        return None
    try:
        return duration_s(text) * 1000
    except ValueError as error:
        raise BadUsage(f"--{name.replace('_', '-')}: {error}") from None


def _faults(options: Mapping[str, Any]) -> NodeFaults | None:
    up_ms, down_ms = _ms(options, "node_fails"), _ms(options, "node_repair")
    if up_ms is None:
        return None
    if up_ms == 0:
        raise BadUsage("--node-fails 0s: expected a longer time, as nodes would always fail")
    return NodeFaults(mean_up_ms=up_ms, mean_down_ms=3_600_000 if down_ms is None else down_ms)


def _behavior(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{name}_ms": when_ms
        for name in ("checkpoint_every", "checkpoint_cost", "restart_cost")
        if (when_ms := _ms(options, name)) is not None
    }
    if found.get("checkpoint_every_ms") == 0:
        raise BadUsage(
            "--checkpoint-every 0s: expected a longer time, as tasks would make no progress"
        )
    if options["works_in_grace"] is not None:
        found["works_in_grace"] = options["works_in_grace"]
    return found


def _prepare(out: Path) -> None:
    """Create the output directory; it must be empty.

    Raises: BadUsage.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadUsage(f"--out {out}: the directory is not empty", hint="name a new directory")
    except OSError as error:
        raise BadUsage(f"--out {out}: {error.strerror}") from None


def _show(out: Output, results: Sequence[Result]) -> None:
    """Print one line for each group of runs that differ only by seed, with means over seeds."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        fixed = {key: value for key, value in result.case.labels.items() if key != SEED}
        groups.setdefault(" ".join(map(str, fixed.values())), []).append(result)
    rows = [_row(name, group) for name, group in groups.items()]
    runs = [
        {
            **result.case.labels,
            "seconds": result.seconds,
            "cycles": result.cycles,
            "left": result.left,
        }
        | {
            "figures": result.figures.summary.rows(),
            "projects": [totals.row() for totals in result.figures.totals],
        }
        for result in results
    ]
    out.items(rows, COLUMNS, name="policy", document={"runs": runs})
    left = sum(result.left for result in results)
    if left:
        out.note(f"{count_of(left, 'task')} did not end: no fitting node, or running forever")
    refused = sum(result.figures.summary.rejected for result in results)
    if refused:
        out.note(f"{count_of(refused, 'job')} refused: above the limits of a project")


#: The means of whole runs in a row: the column's key, and the field of the summary.
MEANS: Final = {
    "makespan_s": "makespan_s",
    "utilisation": "utilisation",
    "arriving_utilisation": "arriving_utilisation",
    "fragmentation": "fragmentation",
    "fairness": "fairness",
    "preemptions": "preemptions",
    "useless_preemptions": "useless_preemptions",
    "lost_gpu_hours": "preempted_lost_gpu_hours",
    "reserved_idle_gpu_hours": "reserved_idle_gpu_hours",
}


def _row(name: str, group: Sequence[Result]) -> dict[str, Any]:
    summaries = [result.figures.summary for result in group]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    row: dict[str, Any] = {"policy": name, "seeds": len(group)}
    for kind in (TE, BE):
        parts = [summary.part(kind) for summary in summaries]
        for of in ("p50", "p95", "p99"):
            row[f"{kind}_{of}"] = mean(getattr(part.slowdown, of) for part in parts)
    every = [summary.part(ALL) for summary in summaries]
    row["wait_s"] = mean(part.wait_s.mean for part in every)
    row["completion_s"] = mean(part.completion_s.mean for part in every)
    row["preempted"] = mean(part.preempted_share for part in every)
    for key, field in MEANS.items():
        row[key] = mean(getattr(summary, field) for summary in summaries)
    tasks, seconds = sum(r.tasks for r in group), sum(r.seconds for r in group)
    return row | {"tasks": tasks, "seconds": seconds, "tasks_per_s": tasks / max(1e-9, seconds)}


def _figure(key: str, form: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str | None]:
    def cell(row: Mapping[str, Any]) -> str | None:
        value = row[key]
        return None if value is None else format(value * scale, form)

    return cell


def _time(key: str) -> Callable[[Mapping[str, Any]], Span | None]:
    def cell(row: Mapping[str, Any]) -> Span | None:
        return None if row[key] is None else Span(row[key])

    return cell


COLUMNS = (
    Column("POLICY", lambda row: row["policy"]),
    Column("SEEDS", lambda row: row["seeds"], wide=True, right=True),
    Column("TE P50", _figure("te_p50", ".2f"), right=True),
    Column("TE P95", _figure("te_p95", ".2f"), right=True),
    Column("TE P99", _figure("te_p99", ".2f"), right=True, wide=True),
    Column("BE P50", _figure("be_p50", ".2f"), right=True),
    Column("BE P95", _figure("be_p95", ".2f"), right=True),
    Column("BE P99", _figure("be_p99", ".2f"), right=True, wide=True),
    Column("WAIT", _time("wait_s"), right=True),
    Column("COMPLETION", _time("completion_s"), right=True),
    Column("MAKESPAN", _time("makespan_s"), right=True, wide=True),
    Column("USED %", _figure("utilisation", ".1f", 100), right=True),
    Column("ARRIVING %", _figure("arriving_utilisation", ".1f", 100), right=True, wide=True),
    Column("FRAGMENTED %", _figure("fragmentation", ".1f", 100), right=True, wide=True),
    Column("FAIRNESS", _figure("fairness", ".3f"), right=True, wide=True),
    Column("PREEMPTED %", _figure("preempted", ".2f", 100), right=True),
    Column("PREEMPTIONS", _figure("preemptions", ",.0f"), right=True, wide=True),
    Column("USELESS", _figure("useless_preemptions", ",.0f"), right=True, wide=True),
    Column("LOST GPUH", _figure("lost_gpu_hours", ".1f"), right=True, wide=True),
    Column("RESERVED GPUH", _figure("reserved_idle_gpu_hours", ".1f"), right=True, wide=True),
    Column("TASKS/S", _figure("tasks_per_s", ",.0f"), right=True, wide=True),
)
