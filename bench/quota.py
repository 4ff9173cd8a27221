"""The work of KAI-Scheduler's benchmarks K1, K7, K8 and K9 under the policy `quota`, over sizes.

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
from collections.abc import Sequence
from statistics import linear_regression
from typing import Any, Final

from bench.growth import SLOTS, SMALLEST_S, TimedCell
from bench.timing import Row, collector_off
from yardmaster_core.machine import CycleResult, Decision
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
    "K7": (625, 1_000, 2_500, 5_000),
    "K8": (125, 200, 500, 1_000),
    "K9": (200, 1_000, 2_500, 5_000),
}
AIMS_MS: Final = {
    **{("K1", 1_000): 400, ("K7", 1_000): 1_000, ("K7", 5_000): 6_000},
    **{("K8", 200): 800, ("K8", 1_000): 5_000, ("K9", 200): 20, ("K9", 5_000): 200},
}
#: The largest exponent of the number of nodes.
EXPONENT: Final = 1.15


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

    def deserve(self, project: str, gpus: int, *, department: str = "d", weight: int = 0) -> None:
        """Let a project deserve GPUs."""
        quota = req.Quota(deserved_milli=gpus * 1000, over_quota_weight=weight)
        config = req.ProjectConfig(department=department, quotas={"main": quota})
        self.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.PROJECT, name=project, revision=1, project=config
            )
        )


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


WORK: Final = {"K1": k1, "K7": k7, "K8": k8, "K9": k9}


def growth(name: str) -> list[Row]:
    """The time at four sizes (the best of two runs), and the exponent that fits them best."""
    work, sizes = WORK[name], SIZES[name]
    rows, times = [], []
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


def _count(decided: list[Any]) -> Counter[str]:
    return Counter(each.TYPE for each in decided)
