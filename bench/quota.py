"""The policy `quota`: KAI-Scheduler's benchmarks K1, K7, K8 and K9, and cycles after one event.

Nodes have 8 GPUs, tasks one GPU unless said otherwise, all of one priority and preemptible. What is
timed is to decide and to apply the decisions, in processor time, on a state that was built by
events; each result is checked.

- K1: empty nodes, jobs of one task in four projects, two in each of two departments. All start.
- K7: nodes full of tasks of project a, which deserves nothing; b deserves all. A gang of nodes / 2
  replicas of 8 GPUs: exactly 4 victims a node.
- K8: the same, with as many tasks of one GPU as there are GPUs: all of a's tasks are reclaimed.
- K9: a deserves all but 79 GPUs, b 80, and a gang of 10 replicas of 8 GPUs: none is reclaimed.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from statistics import linear_regression
from typing import Any, Final

from bench.growth import SLOTS, SMALLEST_S, TimedCell
from bench.timing import Row, collector_off, quantile
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import requests as req

#: Milliseconds that KAI-Scheduler takes, by benchmark and number of nodes.
PEER_MS: Final = {
    ("K1", 1_000): 4_683.0,
    ("K7", 1_000): 40_232.0,
    ("K8", 200): 16_597.0,
    ("K9", 200): 105_696.0,
}
SIZES: Final = {
    "K1": (125, 250, 500, 1_000),
    "K7": (640, 1_000, 2_500, 5_000),
    "K8": (125, 200, 500, 1_000),
    "K9": (200, 1_000, 2_500, 5_000),
    "one reclaim": (625, 1_250, 2_500, 5_000),
    "ended": (100, 200, 400, 800),
}
AIMS_MS: Final = {
    **{("K1", 1_000): 400, ("K7", 1_000): 1_000, ("K7", 5_000): 6_000},
    **{("K8", 200): 800, ("K8", 1_000): 5_000, ("K9", 200): 20, ("K9", 5_000): 200},
}
#: The largest exponent of the number of nodes.
EXPONENT: Final = 1.15
#: Measured cycles of each kind, and the cycles before them that are not measured.
CYCLES: Final = 200
WARM_UP: Final = 5
P50_MS: Final = 1
P99_MS: Final = 10


class QuotaCell(TimedCell):
    """A cell with the policy `quota`; `decided_s` is the processor time of the last decision."""

    def __init__(self, **options: Any) -> None:
        self.decided_s = 0.0
        super().__init__(policy="quota", order="kai", over_quota="weight", **options)

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        began = time.process_time()
        result = super().decide_and_apply(limit, observed)
        self.decided_s = time.process_time() - began
        return result

    def deserve(
        self,
        project: str,
        gpus: int,
        *,
        department: str = "d",
        weight: int = 0,
        pools: Sequence[str] = ("main",),
    ) -> None:
        """Let a project deserve GPUs of each pool."""
        quota = req.Quota(deserved_milli=gpus * 1000, over_quota_weight=weight)
        config = req.ProjectConfig(department=department, quotas=dict.fromkeys(pools, quota))
        self.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.PROJECT, name=project, revision=1, project=config
            )
        )

    def run_due_cycles(self) -> float:
        """Run cycles until none is due; return the processor time of all (s)."""
        spent_s = 0.0
        while True:
            self.cycle()
            spent_s += self.spent_s
            due_ms = self.machine.due_ms(self.state)
            if due_ms is None or due_ms > self.now_ms:
                return spent_s

    def after(
        self,
        label: str,
        change: Callable[[int], object],
        *,
        aim: bool = True,
        p50_ms: float = P50_MS,
        p99_ms: float = P99_MS,
    ) -> list[Row]:
        """Return the quantiles of the cycles that follow each of `CYCLES` changes."""
        spent = []
        for number in range(WARM_UP + CYCLES):
            change(number)
            spent.append(self.run_due_cycles() * 1000)
        del spent[:WARM_UP]
        p50, p99 = quantile(spent, 0.5), quantile(spent, 0.99)
        return [
            Row(f"{label}, p50", p50, "ms", f"<= {p50_ms:g}" if aim else "", cpu=p50),
            Row(f"{label}, p99", p99, "ms", f"<= {p99_ms:g}" if aim else "", cpu=p99),
        ]

    def ends_one_of(self, running: Sequence[Task]) -> Callable[[int], None]:
        """Return a change: the end of one of these tasks."""
        step = len(running) // (WARM_UP + CYCLES)

        def change(number: int) -> None:
            task = running[number * step]
            self.ends(task.job.id, task.index)

        return change


def k1(nodes: int) -> tuple[float, str]:
    """Start 5 jobs a node on empty nodes."""
    cell, jobs = QuotaCell(), 5 * nodes
    for department in range(2):
        config = req.DepartmentConfig(
            quotas={"main": req.Quota(deserved_milli=nodes * SLOTS * 500)}
        )
        cell.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.DEPARTMENT, name=f"d{department}", revision=1, department=config
            )
        )
    for project in range(4):
        cell.deserve(f"p{project}", nodes * 2, department=f"d{project // 2}", weight=1)
    for number in range(nodes):
        cell.node(f"n{number}")
    cell.cycle()
    for number in range(jobs):
        project = number % 4
        cell.submit(f"j{number:06d}x", project=f"p{project}", department=f"d{project // 2}", gpus=1)
    started = _count(cell.cycle())["SlotsAllocated"]
    assert started == jobs, f"{started} of {jobs} jobs started"
    return cell.decided_s, f"{started} started"


def _full(nodes: int, a: int, b: int, **options: Any) -> QuotaCell:
    cell = QuotaCell(**options)
    cell.deserve("a", a)
    cell.deserve("b", b)
    for number in range(nodes):
        cell.node(f"n{number}")
        cell.submit(f"v{number:05d}x", project="a", tasks=SLOTS, gpus=1)
    cell.cycle()
    for number in range(nodes):
        for index in range(SLOTS):
            cell.starts(f"v{number:05d}x", index)
    cell.cycle()
    cell.cycle()
    return cell


def k7(nodes: int) -> tuple[float, str]:
    """Reclaim half of the nodes for one gang."""
    cell = _full(nodes, 0, nodes * SLOTS, actions=["allocate", "reclaim"])
    cell.submit("gang", project="b", gpus=SLOTS, replicas=nodes // 2)
    stopped = _count(cell.cycle())["PreemptionRequested"]
    assert stopped == 4 * nodes, f"{stopped} victims instead of {4 * nodes}"
    return cell.decided_s, f"{stopped} victims"


def k8(nodes: int) -> tuple[float, str]:
    """Reclaim all nodes for tasks of one GPU, over as many cycles as it takes."""
    cell = _full(nodes, 0, nodes * SLOTS)
    for number in range(nodes * SLOTS):
        cell.submit(f"j{number:06d}x", project="b", gpus=1)
    found = _count(cell.cycle())
    spent_s = cell.decided_s
    assert found["PreemptionRequested"] == found["SlotsReserved"] == nodes * SLOTS, found
    return spent_s, f"{nodes * SLOTS} victims"


def k9(nodes: int) -> tuple[float, str]:
    """Refuse a gang whose last replica would take a deserved GPU."""
    gpus = nodes * SLOTS
    cell = _full(nodes, gpus - 79, 80, actions=["allocate", "reclaim"])
    cell.submit("gang", project="b", gpus=SLOTS, replicas=10)
    found = _count(cell.cycle())
    assert not found["PreemptionRequested"], found
    return cell.decided_s, "0 victims"


def growth(name: str) -> list[Row]:
    """The time at four sizes (the best of two runs), and the exponent that fits them best."""
    work, sizes = WORK[name], SIZES[name]
    rows, times, note = [], [], ""
    for nodes in sizes:
        took, note = [], ""
        for _ in range(2):
            with collector_off():
                seconds, note = work(nodes)
            took.append(seconds)
        times.append(min(took))
        ms = times[-1] * 1000
        aim_ms, peer_ms = AIMS_MS.get((name, nodes)), PEER_MS.get((name, nodes))
        aim = f"<= {aim_ms:,}" if aim_ms is not None else ""
        rows.append(Row(f"{name}, {nodes:,} nodes: {note}", ms, "ms", aim, peer_ms, cpu=ms))
    return [*rows, Row(f"{name}: fitted exponent", exponent(sizes, times), "", f"<= {EXPONENT}")]


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The exponent of the power of the size that fits the times best (least squares of logs)."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(took, SMALLEST_S)) for took in times]
    return linear_regression(x, y).slope


# One event in a standing cell

PROJECTS: Final = 1_000
DEPARTMENTS: Final = 20
NODES: Final = 5_000
PENDING: Final = 100_000


class StandingCell(QuotaCell):
    """A cell of 5,000 nodes and 1,000 projects in 20 departments, unless others are given."""

    def __init__(self, deserved: int, *, nodes: int = NODES, projects: int = PROJECTS) -> None:
        super().__init__()
        for department in range(DEPARTMENTS):
            self.admission(
                adm.EntitlementsChangedV1(
                    level=adm.Level.DEPARTMENT,
                    name=f"d{department}",
                    revision=1,
                    department=req.DepartmentConfig(),
                )
            )
        for project in range(projects):
            self.deserve(f"p{project}", deserved, department=f"d{project % DEPARTMENTS}", weight=1)
        for node in range(nodes):
            self.node(f"n{node}")
        self.cycle()
        self._number = 0

    def submit_to(self, project: int, **spec: Any) -> str:
        """Submit a job to the n-th project; return its name."""
        self._number += 1
        name = f"{self._number:07d}x"
        spec = {"gpus": 1, **spec}
        of = {"project": f"p{project}", "department": f"d{project % DEPARTMENTS}"}
        self.submit(name, **of, **spec)
        return name


def standing(
    kind: str,
    *,
    nodes: int = NODES,
    projects: int = PROJECTS,
    pending: int = PENDING,
    p99_ms: float = P99_MS,
) -> list[Row]:
    """Cycles after one event while all GPUs are held and `pending` tasks are pending.

    Four fifths of the projects hold 48 GPUs each, deserve 32 and have all that is pending; the
    others hold 8 and request nothing. With 4,000 projects on 16,000 nodes these four fifths hold 38
    and deserve 25. `equal`: all pending tasks request one GPU; `mixed`: 1 to 8
    GPUs, at three priorities, and each tenth job cannot be preempted.
    """
    average = nodes * SLOTS // projects
    cell = StandingCell(average * 4 // 5, nodes=nodes, projects=projects)
    busy = [project for project in range(projects) if project % 5]
    held = (5 * average - 8) // 4
    jobs = [
        (cell.submit_to(project, tasks=tasks), tasks)
        for project in range(projects)
        for tasks in (held if project % 5 else 8,)
    ]
    cell.cycle()
    for name, tasks in jobs:
        for index in range(tasks):
            cell.starts(name, index)
    cell.cycle()
    chance = Random(1)
    for number in range(pending // 10):
        spec: dict[str, Any] = {}
        if kind == "mixed":
            spec = {
                "gpus": chance.choice((1, 1, 1, 2, 4, 8)),
                "priority": chance.choice((30, 42, 50)),
                "preemptible": chance.random() < 0.9,
            }
        cell.submit_to(busy[number % len(busy)], tasks=10, **spec)
    cell.run_due_cycles()
    label = f"{pending:,} pending, {kind}, one"
    with collector_off():
        rows = cell.after(
            f"{label} submit", lambda n: cell.submit_to(busy[n * 37 % len(busy)]), p99_ms=p99_ms
        )
        running = [task for task in cell.state.tasks.values() if not task.releasing]
        rows += cell.after(f"{label} end", cell.ends_one_of(running), p99_ms=p99_ms)
        rows += cell.after(
            f"{label} submit that reclaims", lambda n: cell.submit_to(n * 185 % projects), aim=False
        )
        cell.cycle(after_s=61)
        took = cell.spent_s * 1000
    return [*rows, Row(f"{label} record of all shares", took, "ms", cpu=took)]


def reserved() -> list[Row]:
    """Cycles after one event while 40,000 tasks hold reservations, of 100,000 pending."""
    cell = StandingCell(NODES * SLOTS // PROJECTS)
    cell.deserve("old", 0, department="d0")
    for node in range(NODES):
        cell.submit(f"v{node:05d}x", project="old", department="d0", tasks=SLOTS, gpus=1)
    cell.cycle()
    for node in range(NODES):
        for index in range(SLOTS):
            cell.starts(f"v{node:05d}x", index)
    cell.cycle()
    for number in range(PENDING // 10):
        cell.submit_to(number % PROJECTS, tasks=10)
    cell.run_due_cycles()
    reservations = len(cell.state.pools["main"].reserved)
    assert reservations == NODES * SLOTS, reservations
    label = f"{reservations:,} reservations, one"
    with collector_off():
        rows = cell.after(f"{label} submit", lambda n: cell.submit_to(n * 37 % PROJECTS))
        stopping = [task for task in cell.state.tasks.values() if task.phase is Phase.STOPPING]
        return rows + cell.after(f"{label} end", cell.ends_one_of(stopping))


def refused(claims: int, pools: int = 1) -> list[Row]:
    """Cycles after one event that helps none of `claims` projects, each with a task of 8 GPUs that
    it deserves and can get nowhere.

    On each of 1,000 nodes a project holds 7 GPUs that it deserves, and another one the last GPU,
    which it does not deserve.
    """
    nodes, names = 1_000, ["main", *(f"pool{number:02d}" for number in range(1, pools))]
    cell = QuotaCell()
    for name in names[1:]:
        cell.pool(name, policy="quota", order="kai", over_quota="weight")
    for project, gpus in (("a", 7 * nodes), ("b", 0), ("z", SLOTS)):
        cell.deserve(project, gpus, pools=names)
    for claim in range(claims):
        cell.deserve(f"p{claim}", SLOTS, pools=names)
    for node in range(nodes):
        cell.node(f"n{node}", pool=names[node % pools])
        cell.submit(f"a{node:05d}x", project="a", gpus=7, pools=(names[node % pools],))
    cell.run_due_cycles()
    for at, name in enumerate(names):
        cell.submit(f"b{at:02d}x", project="b", gpus=1, tasks=nodes // pools, pools=(name,))
    cell.run_due_cycles()
    for task in [task for task in cell.state.tasks.values() if task.run is not None]:
        cell.starts(task.job.id, task.index)
    cell.run_due_cycles()
    for claim in range(claims):
        cell.submit(f"c{claim:02d}x", project=f"p{claim}", gpus=8, pools=(names[claim % pools],))
    cell.run_due_cycles()
    of_b = [task for task in cell.state.tasks.values() if task.job.project.name == "b"]
    assert all(task.run is not None for task in of_b)
    label = f"{claims} claims that cannot succeed, {pools} pools, one"

    def submit(number: int) -> None:
        pool = names[number % pools]
        cell.submit(f"z{number:03d}x", project="z", gpus=1, pools=(pool,), node_types=("none",))

    with collector_off():
        rows = cell.after(f"{label} submit", submit, p50_ms=2)
        rows += cell.after(f"{label} end", cell.ends_one_of(of_b), p50_ms=2)
    waiting = [task for task in cell.state.tasks.values() if task.job.shape.gpus == SLOTS]
    assert len(waiting) == claims
    assert all(task.run is None for task in waiting)
    return rows


# Victims, history, nodes, configurations


def one_reclaim(nodes: int) -> tuple[float, str]:
    """Reclaim one GPU from a project that holds all."""
    cell = _full(nodes, 0, 1)
    cell.submit("one", project="b", gpus=1)
    stopped = _count(cell.cycle())["PreemptionRequested"]
    assert stopped == 1, stopped
    return cell.decided_s, f"{nodes * SLOTS:,} possible victims, 1 victim"


def ended(nodes: int) -> tuple[float, str]:
    """One end and start in a full cell in which 10 tasks per node have ended."""
    cell, jobs = QuotaCell(), nodes * 10
    cell.deserve("a", 80)
    for number in range(10):
        cell.node(f"n{number}")
    for number in range(jobs + 1_000):
        cell.submit(f"j{number:06d}x", project="a", gpus=1)
    cell.cycle()
    spent: list[float] = []
    while len(spent) < jobs:
        task = next(t for t in cell.state.tasks.values() if t.run is not None)
        cell.ends(task.job.id)
        cell.cycle()
        spent.append(cell.spent_s)
    last = sorted(spent[-500:])
    return last[len(last) // 2], f"{jobs:,} ended, one more"


def nodes_lost() -> list[Row]:
    """1,000 full nodes of 5,000 are lost at once, while as many tasks are pending."""
    cell = _full(5_000, 20_000, 20_000)
    for number in range(1_000):
        cell.submit(f"w{number:05d}x", project="b", tasks=SLOTS, gpus=1)
    cell.cycle()
    heard_ms = cell.now_ms
    with collector_off():
        lost = _count(cell.cycle(after_s=100, silent={f"n{n}": heard_ms for n in range(1_000)}))
        took = cell.spent_s + cell.run_due_cycles()
    assert lost["NodeLost"] == 1_000, lost
    return [Row("1,000 of 5,000 full nodes lost at once", took, "s", "<= 10", cpu=took)]


def configured() -> list[Row]:
    """1,000 projects get another quota in one cycle of a standing cell."""
    cell = StandingCell(NODES * SLOTS // PROJECTS)
    for project in range(PROJECTS):
        cell.submit_to(project, tasks=100)
    cell.run_due_cycles()
    rows = []
    for changes in (1, PROJECTS):
        for project in range(changes):
            cell.deserve(f"p{project}", 39, department=f"d{project % DEPARTMENTS}", weight=1)
        with collector_off():
            cell.cycle()
        took = cell.spent_s
        rows.append(Row(f"{changes:,} quotas changed in one cycle", took, "s", cpu=took))
    return rows


def large() -> list[Row]:
    """Cycles of the largest cell: 16,000 nodes, 4,000 projects and 160,000 pending tasks."""
    return standing("mixed", nodes=16_000, projects=4_000, pending=160_000, p99_ms=5)


WORK: Final = {
    **{"K1": k1, "K7": k7, "K8": k8, "K9": k9},
    **{"one reclaim": one_reclaim, "ended": ended},
}


def _count(decided: list[Any]) -> Counter[str]:
    return Counter(each.TYPE for each in decided)
