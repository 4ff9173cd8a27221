"""Run one workload several times in parallel: with several policies, placements and seeds.

Each run is the work of one process. Runs are independent: neither their order nor their parallelism
changes their results.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from yardmaster_eventlog.sqlite.writer import SqliteWriter
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.garbage_collection import tuned_gc
from yardmaster_runtime.parallel import Progress, run_calls
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig
from yardmaster_simulation.figures import Figures, figures
from yardmaster_simulation.history import History
from yardmaster_simulation.log_sink import TOPICS
from yardmaster_simulation.tables import read_table, share_table, task_table, write_tables
from yardmaster_simulation.workload import Arrivals, Listed, Workload
from yardmaster_simulation.world import World

#: The tables that a study writes, one file each.
TABLES: Final = ("tasks", "shares")


class Source(Protocol):
    """A source of workloads; must be picklable."""

    def workload(self, seed: int) -> tuple[Workload, Arrivals]:
        """The workload of a seed, and its arrivals.

        Raises: BadWorkload.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run.

    `labels` identify the run in tables and plots; `name` is the name of its log file. Without
    `policy` or `placement`, the workload's own configuration applies.
    """

    name: str
    labels: Mapping[str, str | int]
    seed: int = 0
    policy: PolicyRef | None = None
    placement: str | None = None

    def pools(self, workload: Workload) -> dict[str, PoolConfig]:
        """The configurations of the workload's pools in this run."""
        return {
            name: replace(
                config,
                policy=self.policy or config.policy,
                placement=self.placement or config.placement,
                seed=self.seed,
            )
            for name, config in workload.pools.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run.

    `left`: the number of tasks that did not end because no node fits them. `seconds`: the duration
    of the run and of writing its log, without reading the workload and computing the figures.
    """

    case: Case
    figures: Figures
    tasks: int
    left: int
    cycles: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Several runs of one workload.

    With `out`, each run writes its log into this folder, and all runs together write one table of
    tasks and one table of projects. `progress` receives the finished share of all work, from 0 to
    1.
    """

    source: Source
    cases: Sequence[Case]
    out: Path | None = None
    workers: int = 1
    progress: Progress = lambda part: None

    def run(self) -> list[Result]:
        """Run all cases; return the results in the order of the cases.

        If a run fails or the user interrupts, the other runs are stopped. Complete logs are kept;
        incomplete logs and the tables are not.

        Raises:
            SimulationError: of the first run that raised one.
            LogError: a log cannot be written.
        """
        seeds = list(dict.fromkeys(case.seed for case in self.cases))
        with TemporaryDirectory(prefix="yard-simulate-") as name:
            folder = Path(name)
            # First prepare the data that all runs of a seed share: jobs with submission times.
            calls = [(prepare, (self.source, seed, folder)) for seed in seeds]
            share = len(seeds) / (len(seeds) + len(self.cases))
            first = run_calls(calls, self.workers, lambda part: self.progress(share * part))
            ready = dict(zip(seeds, first, strict=True))
            cases = [(run, (case, ready[case.seed], folder, self.out)) for case in self.cases]
            results: list[Result] = run_calls(
                cases, self.workers, lambda part: self.progress(share + (1 - share) * part)
            )
            if self.out is not None:
                for table in TABLES:
                    parts = (read_table(_part(folder, case, table)) for case in self.cases)
                    write_tables(self.out / f"{table}.parquet", parts)
        return results


def _part(folder: Path, case: Case, table: str) -> Path:
    return folder / f"{case.name}-{table}.parquet"


def prepare(source: Source, seed: int, folder: Path, report: Progress) -> Path:
    """Write the workload of a seed to a file, with the submission times of its jobs.

    If these times depend on the load, a run under the workload's own policy determines them.
    """
    workload, arrivals = source.workload(seed)
    if not isinstance(arrivals, Listed):
        case = Case(name="", labels={}, seed=seed)
        world = World(workload, case.pools(workload), None, arrivals, seed=seed)
        world.run(_progress(world, report))
        workload = replace(workload, jobs=tuple(world.submitted))
    path = folder / f"workload-{seed}"
    with path.open("wb") as file:
        pickle.dump(workload, file)
    report(1.0)
    return path


def run(case: Case, prepared: Path, folder: Path, out: Path | None, report: Progress) -> Result:
    """Run one case; write its tables into `folder` and its log into `out`."""
    with prepared.open("rb") as file:
        # `prepare` wrote the file into a folder that only this user can open, so pickle is safe.
        workload: Workload = pickle.load(file)
    history = History()
    sink = None if out is None else SqliteWriter(out / f"{case.name}.db", TOPICS)
    arrivals, pools = Listed(workload.jobs), case.pools(workload)
    clock = SystemClock()
    try:
        world = World(workload, pools, sink, arrivals, seed=case.seed, watch=history.see)
        began_s = clock.monotonic_s()
        with tuned_gc():
            world.run(_progress(world, report))
        if sink is not None:
            sink.close()
    except BaseException:
        if sink is not None:
            sink.discard()
        raise
    seconds = clock.monotonic_s() - began_s
    history.flush()
    labels = dict(case.labels)
    if out is not None:
        tables = (task_table(labels, history, world.work_ms), share_table(labels, history))
        for name, table in zip(TABLES, tables, strict=True):
            write_tables(_part(folder, case, name), [table])
    result = Result(
        case=case,
        figures=figures(labels, history, world.work_ms),
        tasks=world.tasks,
        left=world.open,
        cycles=world.cycles,
        seconds=seconds,
    )
    report(1.0)
    return result


def _progress(world: World, report: Progress) -> Callable[[], None]:
    count = 0

    def progress() -> None:
        nonlocal count
        count += 1
        if count % 100 == 0:
            report(world.part_done)

    return progress
