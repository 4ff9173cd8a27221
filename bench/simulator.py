"""Whole simulated runs as `yard simulate --out` makes them: jobs a second, the event log written.

Philly is the whole trace on 309 nodes of 8 GPUs, one decision a minute; waves are Armada's
simulator benchmark (S1 to S4 in README.md), one decision every ten seconds. Reading the workload
and working out the figures of the report is not in it; noting what they are worked out from is.
"""

from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import process_time

from bench.timing import Row
from yardmaster.schemas.events.requests import PolicyRef
from yardmaster.simulation.sources import Philly, Waves
from yardmaster.simulation.study import Case, Source, Study

TRACE = Path(__file__).parents[1] / "tests" / "data" / "traces" / "philly_jobs.csv.gz"
AIM_S = 40
AIM_RATE = 5_000
MIB = 1024


def philly(policy: str) -> list[Row]:
    """The whole trace under one policy."""
    return _rows(f"philly, {policy}", Philly(TRACE, None), policy, f"<= {AIM_S}")


def waves(label: str, scale: int, preemptible: bool, peer_s: float) -> list[Row]:
    """Two queues that share a few nodes, under fair share."""
    return _rows(f"{label}, fair_share", Waves(scale, preemptible), "fair_share", "", peer_s)


def _rows(
    label: str, source: Source, policy: str, aim: str, peer_s: float | None = None
) -> list[Row]:
    case = Case(name="run", labels={"policy": policy}, policy=PolicyRef(name=policy))
    with TemporaryDirectory() as folder:
        began_s = process_time()
        (result,) = Study(source=source, cases=(case,), out=Path(folder)).run()
        whole_s = process_time() - began_s
        log_mib = (Path(folder) / "run.db").stat().st_size / MIB / MIB
    rate = result.tasks / result.seconds
    name = f"{label}: {result.tasks:,} tasks, {result.cycles:,} cycles, {result.left} left"
    return [
        Row(name, result.seconds, "s", aim=aim, peer=peer_s),
        Row(f"{label}: tasks a second", rate, "/s", aim=f">= {AIM_RATE:,}" if peer_s else ""),
        Row(f"{label}: with reading and figures", whole_s, "s cpu"),
        Row(f"{label}: log", log_mib, "MiB"),
        Row(
            f"{label}: memory at most",
            getrusage(RUSAGE_SELF).ru_maxrss / MIB,
            "MiB",
            aim="<= 2,048",
        ),
    ]
