"""`python -m bench`: every figure in one run, as a table and as JSON.

Each part runs in its own process, one after another, so that the memory of one part does not slow
the next.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.timing import Row

RESULTS = Path(__file__).parent / "results"
GROUPS = (
    *("commands", "core", "policies", "quota", "placement", "logs", "gateway", "embedded"),
    *("cluster", "simulator", "containers"),
)
FOOTER = """\
In timed sections the garbage collector is off and live objects are frozen (services freeze their
restored state and collect rarely). value: by the clock; cpu: by this process's processor time,
which is more reliable on a shared machine. ratio: value divided by the peer's, on 2 cores.
Times are the best of several runs; latencies are quantiles of all operations of one run.
"""


def _core(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import core

        found: list[Row] = getattr(core, name)(*arguments)
        return found

    return run


def _peer(
    label: str, name: str, arguments: tuple[int, ...], ms: float
) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import core

        return [core.peer(label, getattr(core, name)(*arguments), ms)]

    return run


def _policy(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import policies

        found: list[Row] = getattr(policies, name)(*arguments)
        return found

    return run


def _growth(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import growth

        found: list[Row] = getattr(growth, name)(*arguments)
        return found

    return run


def _quota(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import quota

        found: list[Row] = getattr(quota, name)(*arguments)
        return found

    return run


def _placement(name: str) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import placement

        return placement.openb(name, seeds=1 if quick else 10)

    return run


def _ended(name: str, jobs: int) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import ended

        found: list[Row] = getattr(ended, name)(jobs)
        return found

    return run


def _log(name: str) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import logs

        found: list[Row] = getattr(logs, name)(quick)
        return found

    return run


def _gateway(records: int) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import gateway

        return gateway.start(records)

    return run


def _uploads(size_mib: int) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import uploads

        return uploads.rows(size_mib)

    return run


def _commands(quick: bool) -> list[Row]:
    from bench import commands

    return commands.start(quick)


def _embedded(quick: bool) -> list[Row]:
    from bench import embedded

    return embedded.rows(quick)


def _containers(*sizes: tuple[int, int]) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import containers

        return containers.rows(sizes[:1] if quick else sizes, quick)

    return run


def _simulator(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import simulator

        found: list[Row] = getattr(simulator, name)(*arguments)
        return found

    return run


def _cluster(name: str, *arguments: Any) -> Callable[[bool], list[Row]]:
    def run(quick: bool) -> list[Row]:
        from bench import cluster

        found: list[Row] = asyncio.run(getattr(cluster, name)(*arguments))
        return found

    return run


#: Determined's policies: label, its planner's milliseconds, our aim as a share of them, our policy.
DETERMINED: Sequence[tuple[str, float, float, dict[str, Any]]] = (
    ("priority alone", 185, 1, {"preemption": False}),
    ("preemption", 3_243, 0.1, {}),
    ("max_min", 146, 1, {"policy": "fair_share", "among": "project", "variant": "max_min"}),
    ("fair share", 146, 1, {"policy": "fair_share", "among": "project"}),
)
#: Armada's simulator benchmark: label, scale, whether tasks are preemptible, Armada's seconds.
WAVES = (
    ("S1", 1, True, 1.26),
    ("S2", 1, False, 0.21),
    ("S3", 50, True, 85.5),
    ("S4", 50, False, 7.4),
)
PLACEMENTS = ("best_fit", "worst_fit", "tight_fit", "random", "fgd")
PENDING = (1_000, 10_000, 100_000)
#: Jobs that have ended; the scheduler's go through their whole lives.
ENDED = (125_000, 250_000, 500_000, 1_000_000)
#: Records of `admissions` when a gateway starts.
HISTORY = (10_000, 40_000, 160_000, 640_000)
#: Sizes of packages of code, in MiB.
UPLOADS = (12, 25, 50, 100)
#: The growth of hard cycles with the size of the cell.
GROWTH = ("p1", "p2", "p3", "p4", "p5", "p6", "p7")
#: The work of KAI-Scheduler's benchmarks of quotas, the victims of one task, the ended tasks.
QUOTA = ("K1", "K7", "K8", "K9", "one reclaim", "ended")
LIVES = (2_000, 4_000, 8_000, 16_000)
AMONG_JOBS = (("jobs, fair share", "demand_proportional"), ("jobs, max_min", "max_min"))

#: (name, group, whether `--quick` runs it too, what to run)
PARTS: Sequence[tuple[str, str, bool, Callable[[bool], list[Row]]]] = (
    ("commands", "commands", True, _commands),
    ("memory", "logs", True, _log("memory")),
    ("sqlite", "logs", True, _log("sqlite")),
    ("kafka", "logs", True, _log("kafka")),
    ("apply", "core", True, _core("apply_rate")),
    ("cycles-100-10k", "core", True, _core("cycles", 100, 10_000)),
    ("cycles-100-100k", "core", False, _core("cycles", 100, 100_000)),
    ("cycles-5k-10k", "core", False, _core("cycles", 5_000, 10_000)),
    ("cycles-5k-100k", "core", False, _core("cycles", 5_000, 100_000)),
    ("a1-small", "core", True, _peer("A1, 100 nodes, 3,200 jobs", "a1", (100, 3_200), 62.7)),
    ("a1", "core", False, _peer("A1, 1,000 nodes, 32,000 jobs", "a1", (1_000, 32_000), 663)),
    ("a2-small", "core", True, _peer("A2, 1,000 nodes, 1 GPU free each", "a2", (1_000,), 30.1)),
    ("a2", "core", False, _peer("A2, 10,000 nodes, 1 GPU free each", "a2", (10_000,), 409)),
    ("a4-small", "core", True, _peer("A4, 1,000 nodes, 32,000 running", "a4", (1_000,), 65.9)),
    ("a4", "core", False, _peer("A4, 10,000 nodes, 320,000 running", "a4", (10_000,), 784)),
    *((f"ended-quota-{n}", "core", n == ENDED[0], _ended("quota", n)) for n in ENDED),
    *((f"ended-scheduler-{n}", "core", n == LIVES[0], _ended("scheduler", n)) for n in LIVES),
    *((f"growth-{name}", "core", False, _growth("growth", name)) for name in GROWTH),
    ("nodes-lost", "core", False, _growth("ten_thousand_lost")),
    ("idle-reserved", "core", False, _growth("forty_thousand_reservations")),
    ("gang-2500", "core", False, _growth("gang_of_thousands")),
    (
        *("a6-small", "core", True),
        _peer("A6, 100 nodes, 1 queue, 32,000 queued", "a6", (100, 1, 32_000), 229),
    ),
    (
        *("a6", "core", False),
        _peer("A6, 1,000 nodes, 10 queues, 320,000 queued", "a6", (1_000, 10, 320_000), 2_986),
    ),
    *(
        (f"determined-{label}", "policies", True, _policy("determined", label, ms, share, policy))
        for label, ms, share, policy in DETERMINED
    ),
    *(
        (
            *(f"determined-{label}-{pending}", "policies", pending < PENDING[-1]),
            _policy("determined_cycles", label, pending, policy),
        )
        for label, _, _, policy in DETERMINED
        for pending in PENDING
    ),
    ("k1-small", "policies", True, _policy("k1", 100, 500, 107, 1)),
    ("k1", "policies", False, _policy("k1", 1_000, 5_000, 4_683, 0.1)),
    *((f"k1-{n}", "policies", n < PENDING[-1], _policy("k1_cycles", n)) for n in PENDING),
    ("k3", "policies", True, _policy("k3")),
    ("a7-small", "policies", True, _policy("a7", 100, 28_800, 355, 1)),
    ("a7", "policies", False, _policy("a7", 1_000, 288_000, 5_021, 0.1)),
    *((f"a7-{n}", "policies", False, _policy("a7_cycles", n)) for n in PENDING),
    *(
        (f"{variant}-{n}", "policies", n < PENDING[1], _policy("among_jobs", label, variant, n))
        for label, variant in AMONG_JOBS
        for n in PENDING
    ),
    *((f"quota-{name}", "quota", name in ("K1", "K9"), _quota("growth", name)) for name in QUOTA),
    *((f"quota-{kind}", "quota", False, _quota("standing", kind)) for kind in ("equal", "mixed")),
    ("quota-large", "quota", False, _quota("large")),
    ("quota-reserved", "quota", False, _quota("reserved")),
    *((f"quota-refused-{n}", "quota", n == 80, _quota("refused", n)) for n in (10, 20, 40, 80)),
    ("quota-refused-in-30-pools", "quota", False, _quota("refused", 80, 30)),
    ("quota-nodes-lost", "quota", False, _quota("nodes_lost")),
    ("quota-configured", "quota", False, _quota("configured")),
    *((f"openb-{name}", "placement", True, _placement(name)) for name in PLACEMENTS),
    *((f"gateway-start-{n}", "gateway", n < HISTORY[2], _gateway(n)) for n in HISTORY),
    *((f"upload-{n}", "gateway", n == UPLOADS[0], _uploads(n)) for n in UPLOADS),
    ("embedded", "embedded", True, _embedded),
    *(
        (f"philly-{policy}", "simulator", False, _simulator("philly", policy))
        for policy in ("fifo", "priority", "fair_share")
    ),
    *(
        (f"waves-{label}", "simulator", scale == 1, _simulator("waves", label, scale, *of))
        for label, scale, *of in WAVES
    ),
    ("latency-100", "cluster", True, _cluster("latency", 100, 200)),
    ("latency-5k", "cluster", False, _cluster("latency", 5_000, 200)),
    ("saturation-1", "cluster", True, _cluster("saturation", 2_000, 1, 32)),
    ("saturation-100", "cluster", False, _cluster("saturation", 20_000, 100, 16)),
    ("takeover", "cluster", False, _cluster("takeover", 3)),
    ("restart-100k", "cluster", False, _cluster("restart", 100_000)),
    ("containers", "containers", False, _containers((125, 13), (250, 25), (500, 50), (1_000, 100))),
)


def machine_facts() -> dict[str, Any]:
    """The facts about the machine on which the figures depend."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_part(name: str, *, quick: bool) -> list[dict[str, Any]]:
    """Measure one part in its own process; each row has the load average before it."""
    load = round(os.getloadavg()[0], 2)
    command = [sys.executable, "-m", "bench", "--part", name, *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return [{**row, "load": load} for row in rows]


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    peer, cpu = row["peer"], row["cpu"]
    return "  ".join(
        (
            f"{row['name']:<52}",
            f"{figure(row['value']):>10} {row['unit']:<11}",
            f"{figure(cpu) if cpu is not None else '':>10}",
            f"{row['aim']:<10}",
            f"{figure(peer) if peer is not None else '':>7}",
            f"{row['value'] / peer:>5.2f}" if peer else "",
        )
    ).rstrip()


def figure(value: float) -> str:
    """Format a number with about three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> int:
    """Run the requested parts; return 0 if all could be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, help="measure one group")
    parser.add_argument("--quick", action="store_true", help="the smaller sizes, in two minutes")
    parser.add_argument("--out", type=Path, help="where the JSON goes (bench/results/<time>.json)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        run = next(run for name, _, _, run in PARTS if name == arguments.part)
        print(json.dumps([asdict(row) for row in run(arguments.quick)]))
        return 0
    facts = machine_facts()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"{'':<52}  {'value':>10} {'unit':<11}  {'cpu':>10}  {'aim':<10}  {'peer':>7}  ratio")
    rows = []
    for name, group, also_quick, _ in PARTS:
        if arguments.only in (None, group) and (also_quick or not arguments.quick):
            for row in run_part(name, quick=arguments.quick):
                rows.append({"group": group, **row})
                print(line(row), flush=True)
    facts["load_average_after"] = [round(load, 2) for load in os.getloadavg()]
    print(FOOTER)
    RESULTS.mkdir(exist_ok=True)
    out = arguments.out or RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    out.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
