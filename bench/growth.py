"""How the time of the core's hardest cycles grows with the size of the cell, over four sizes.

Each size is twice the one before, and the mean ratio of two that follow each other is reported: 2.0
is linear growth. Cells are built by events, through `testing.Cell`; only the named step is timed.
"""

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.timing import Row, collector_off
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec

#: A priority that is preempted, and one that preempts.
LOW, HIGH = 60, 1
#: The largest mean ratio of a doubled size that counts as linear.
LINEAR: Final = 2.3
SLOTS: Final = 8


class TimedCell(Cell):
    """A cell that decides in place, as a leader does; `spent_s` is the last cycle's time."""

    def __init__(self, **pool: Any) -> None:
        super().__init__(**pool)
        self.spent_s = 0.0

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)

    def cycle(self, **how: Any) -> list[Any]:
        began = time.process_time()
        decided = super().cycle(**how)
        self.spent_s = time.process_time() - began
        # Nothing is folded again here.
        self.history.clear()
        self.steps.clear()
        return decided


def full(nodes: int, spec: dict[str, Any] | None = None, **pool: Any) -> TimedCell:
    """Return `nodes` nodes of 8 GPUs, full of running tasks of one GPU each."""
    cell = TimedCell(**pool)
    for number in range(nodes):
        cell.node(f"n{number}")
        cell.submit(f"v{number:05d}x", tasks=SLOTS, gpus=1, priority=LOW, **(spec or {}))
    cell.cycle()
    for number in range(nodes):
        for index in range(SLOTS):
            cell.starts(f"v{number:05d}x", index)
    cell.cycle()
    return cell


def unequal(cell: Cell, jobs: int, **spec: Any) -> None:
    """Submit `jobs` jobs of one GPU, of which no two are equal."""
    for number in range(jobs):
        cell.submit(f"p{number:05d}x", gpus=1, max_slots_milli=1000 + number, **spec)


def nodes_lost(nodes: int) -> float:
    """All `nodes` nodes, full of tasks, are lost in one cycle."""
    cell = full(nodes)
    heard_ms = cell.now_ms
    lost = cell.cycle(after_s=100, silent={f"n{n}": heard_ms for n in range(nodes)})
    assert sum(isinstance(event, dec.NodeLostV1) for event in lost) == nodes
    return cell.spent_s


def scattered_victims(nodes: int) -> float:
    """A gang of half the nodes preempts victims that lie on all of them."""
    cell = full(nodes, placement="random")
    cell.submit("gang", replicas=nodes // 2, gpus=SLOTS, priority=HIGH)
    decided = cell.cycle()
    victims = sum(isinstance(event, dec.PreemptionRequestedV1) for event in decided)
    assert victims == nodes // 2 * SLOTS, victims
    return cell.spent_s


def protected_victims(groups: int) -> float:
    """One GPU is released while `groups` unequal jobs wait for protected victims."""
    cell = full(100, {"min_runtime_s": 600})
    unequal(cell, groups, priority=10)
    cell.cycle()
    cell.ends("v00000x", 0)
    cell.cycle()
    return cell.spent_s


def gang_ends(groups: int) -> float:
    """A gang of one GPU per eight groups ends while `groups` unequal jobs wait."""
    cell = TimedCell()
    replicas = groups // 8
    for number in range(replicas // SLOTS):
        cell.node(f"n{number}")
    cell.submit("gang", replicas=replicas, gpus=1, priority=50)
    cell.cycle()
    cell.starts("gang")
    cell.cycle()
    unequal(cell, groups, priority=70)
    cell.cycle()
    cell.ends("gang")
    began = time.process_time()
    inputs, cell._inputs = cell._inputs, []
    for event, record_id in inputs:
        cell._apply_input(event, record_id)
    return time.process_time() - began


def limit_is_freed(jobs: int) -> float:
    """A task ends while `jobs` unequal jobs wait for the limit of its project."""
    cell = TimedCell()
    for number in range(2):
        cell.node(f"n{number}")
    cell.entitle("p", limit_milli=8000)
    unequal(cell, jobs)
    cell.cycle()
    for number in range(SLOTS):
        cell.starts(f"p{number:05d}x")
    cell.cycle()
    cell.ends("p00000x")
    cell.cycle()
    return cell.spent_s


def reservations_kept(nodes: int) -> float:
    """A cycle without an input while 8 tasks of each node hold reservations."""
    cell = full(nodes)
    for number in range(nodes):
        cell.submit(f"w{number:05d}x", tasks=SLOTS, gpus=1, priority=HIGH)
    reserved = cell.cycle()
    assert sum(isinstance(event, dec.SlotsReservedV1) for event in reserved) == nodes * SLOTS
    cell.cycle()
    cell.cycle()
    return cell.spent_s


def projects_wait(projects: int) -> float:
    """A task ends while each of `projects` projects waits in three priorities; the best of four.

    The first end is not measured: it sorts the groups that were submitted.
    """
    cell = full(100)
    for number in range(projects):
        for priority in (LOW, LOW + 10, LOW + 20):
            cell.submit(f"p{number:04d}x{priority}", project=f"p{number:04d}", priority=priority)
    cell.cycle()
    times = []
    for number in range(5):
        cell.ends(f"v{number:05d}x", 0, done=True)
        started = cell.cycle()
        assert sum(isinstance(event, dec.SlotsAllocatedV1) for event in started) == 1
        times.append(cell.spent_s)
    return min(times[1:])


SERIES: dict[str, tuple[str, Callable[[int], float], int]] = {
    "p1": ("nodes lost at once", nodes_lost, 400),
    "p2": ("nodes, a gang preempts scattered victims", scattered_victims, 100),
    "p3": ("groups with protected victims, one release", protected_victims, 500),
    "p4": ("groups waiting, a gang's releases", gang_ends, 2_048),
    "p5": ("jobs at a limit, one end", limit_is_freed, 2_000),
    "p6": ("nodes full of reservations, an idle cycle", reservations_kept, 200),
    "p7": ("projects with three priorities waiting, one end", projects_wait, 500),
}
#: The largest mean ratio where the time does not depend on the size.
FLAT: Final = {"p7": 1.1}
#: Times below this are rounding of the clock, whose ratios say nothing.
SMALLEST_S: Final = 1e-4


def growth(name: str) -> list[Row]:
    """The time at four sizes, and the mean ratio of two that follow each other."""
    label, measure, first = SERIES[name]
    sizes = [first * 2**step for step in range(4)]
    times = []
    for size in sizes:
        with collector_off():
            times.append(min(measure(size) for _ in range(2)))
    rows = [
        Row(f"{name}, {size:,} {label}", took * 1e3, "ms", cpu=took * 1e3)
        for size, took in zip(sizes, times, strict=True)
    ]
    ratio = (max(times[-1], SMALLEST_S) / max(times[0], SMALLEST_S)) ** (1 / (len(sizes) - 1))
    return [*rows, Row(f"{name}: ratio per doubling", ratio, "x", f"<= {FLAT.get(name, LINEAR)}")]


def ten_thousand_lost() -> list[Row]:
    """10,000 nodes lost at once: time, and added peak memory (of this process)."""
    cell = full(10_000)
    heard_ms = cell.now_ms
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cell.cycle(after_s=100, silent={f"n{n}": heard_ms for n in range(10_000)})
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return [
        Row("10,000 nodes lost at once", cell.spent_s, "s", "<= 10 s", cpu=cell.spent_s),
        Row("10,000 nodes lost at once: added peak memory", added, "GiB", "<= 1 GiB"),
    ]


def forty_thousand_reservations() -> list[Row]:
    """A cycle without an input while 40,000 tasks hold reservations."""
    took = reservations_kept(5_000) * 1e3
    return [Row("idle cycle, 40,000 reservations", took, "ms", "<= 1 ms", cpu=took)]


def gang_of_thousands(limit: int = 5_000) -> list[Row]:
    """A gang of 2,500 replicas of 8 GPUs preempts 20,000 scattered victims on 5,000 nodes."""
    cell = full(5_000, placement="random")
    cell.submit("gang", replicas=2_500, gpus=SLOTS, priority=HIGH)
    spent_s, victims, cycles = 0.0, 0, 0
    while cycles < 100:
        decided = cell.cycle(limit=limit)
        spent_s, cycles = spent_s + cell.spent_s, cycles + 1
        victims += sum(isinstance(event, dec.PreemptionRequestedV1) for event in decided)
        assert not any(isinstance(event, dec.SlotsAllocatedV1) for event in decided)
        if not decided:
            break
    assert victims == 20_000, victims
    return [Row("2,500 x 8 preempts 20,000 victims", spent_s, "s", "<= 3 s", cpu=spent_s)]
