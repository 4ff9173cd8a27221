"""Whole simulated runs as in `yard simulate --out`: jobs per second with the event log written.

Philly is the whole trace on 309 nodes of 8 GPUs, one decision a minute; waves are Armada's
simulator benchmark (S1 to S4 in README.md), one decision every ten seconds. The time includes the
recording of the history, but neither reading the workload nor computing the report's figures. Each
run is repeated as without `--out`, where only figures remain.
"""

from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import process_time

from bench.timing import Row
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_simulation.sources import Philly, Waves
from yardmaster_simulation.study import Case, Result, Source, Study

TRACE = Path(__file__).parents[1] / "tests" / "data" / "traces" / "philly_jobs.csv.gz"
AIM_S = 40
AIM_RATE = 5_000
KIB = 1024


def philly(policy: str) -> list[Row]:
    """The whole trace under one policy."""
    return _rows(f"philly, {policy}", Philly(TRACE, None), policy, runs=1)


def waves(label: str, scale: int, preemptible: bool, peer_s: float) -> list[Row]:
    """Two queues on a few nodes, under fair share; the best of three runs."""
    source = Waves(scale, preemptible)
    return _rows(f"{label}, fair_share", source, "fair_share", runs=3, peer_s=peer_s)


def _rows(
    label: str, source: Source, policy: str, *, runs: int, peer_s: float | None = None
) -> list[Row]:
    case = Case(name="run", labels={"policy": policy}, policy=PolicyRef(name=policy))
    with TemporaryDirectory() as folder:
        began_s = process_time()
        result = _best(source, case, runs, Path(folder))
        whole_s = (process_time() - began_s) / runs
        log_mib = (Path(folder) / "0" / "run.db").stat().st_size / KIB / KIB
    memory_mib = getrusage(RUSAGE_SELF).ru_maxrss / KIB
    unlogged = _best(source, case, runs, None)
    name = f"{label}: {result.tasks:,} tasks, {result.cycles:,} cycles, {result.left} left"
    aim = "" if peer_s else f"<= {AIM_S}"
    rate_aim = f">= {AIM_RATE:,}" if peer_s else ""
    return [
        Row(name, result.seconds, "s", aim=aim, peer=peer_s),
        Row(f"{label}: tasks per second", result.tasks / result.seconds, "/s", aim=rate_aim),
        Row(f"{label}: with reading and figures", whole_s, "s cpu"),
        Row(f"{label}: log", log_mib, "MiB"),
        Row(f"{label}: memory at most", memory_mib, "MiB", aim="<= 2,048"),
        Row(f"{label}, without a log", unlogged.seconds, "s", peer=peer_s),
        Row(
            f"{label}, without a log: tasks per second",
            unlogged.tasks / unlogged.seconds,
            "/s",
            aim=rate_aim,
        ),
    ]


def _best(source: Source, case: Case, runs: int, folder: Path | None) -> Result:
    """The fastest of `runs` runs; with `folder`, each writes its log into its own subfolder."""
    found: list[Result] = []
    for number in range(runs):
        out = folder / str(number) if folder is not None else None
        if out is not None:
            out.mkdir()
        found += Study(source=source, cases=(case,), out=out).run()
    return min(found, key=lambda result: result.seconds)
