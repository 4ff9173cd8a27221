"""Static problems: jobs that arrive on few nodes, and then agents that only obey.

`python -m tests.histories.fair_share_problems --seeds 0:50000` plays that many; tests play a few.

A problem has at most 3 nodes in 2 pools, and 4 projects. Its jobs never end by themselves: agents
only start what is placed and stop what is preempted. Then the cell must come to rest:

1. After the last input each task is preempted at most once in each pool.
2. When nothing starts or stops any more, three cycles decide nothing.
3. Then considering every task again decides nothing: no wake-up was missed.
4. Each task that was preempted lost its slots to a task that started.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing import Pool
from typing import Any, Final

from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources

POOLS: Final = ("main", "side")
PROJECTS: Final = ("p", "q", "r", "s")
#: Rounds of agents and cycles after which a problem counts as endless.
MOST_ROUNDS: Final = 200
#: How often one task may be preempted after the last input: once in each pool.
MOST_PREEMPTIONS: Final = 2


class Restless(AssertionError):
    """A problem that breaks one of the properties; the text says which."""


class ObedientCell(Cell):
    """A cell whose agents start and stop tasks at once; it counts preemptions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.preempted: Counter[str] = Counter()
        #: The tasks for which others were preempted, and those that started.
        self.receivers: dict[str, None] = {}
        self.started: set[str] = set()
        self.log: list[str] = []

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide in place, without the slow checks of `Cell`."""
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        for decision in decisions:
            self._note(decision.event)
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)

    def _note(self, event: Any) -> None:
        match event:
            case dec.SlotsAllocatedV1():
                self.started.add(event.task_id)
                self.log.append(f"start {event.task_id} in {event.pool}")
            case dec.PreemptionRequestedV1():
                self.preempted[event.task_id] += 1
                assert event.stop.for_task is not None
                self.receivers[event.stop.for_task] = None
                self.started.discard(event.stop.for_task)
                self.log.append(f"preempt {event.task_id} for {event.stop.for_task}")
            case dec.StopRequestedV1():
                self.log.append(f"stop {event.task_id}")

    def obey(self) -> bool:
        """Report what agents do; return whether there was anything to do."""
        moved = False
        for task in list(self.state.tasks.values()):
            name, run = task.job.id.rstrip("0"), task.run
            if run is None:
                continue
            if run.stop is not None and run.open:
                self.ends(name, task.index)
            elif not run.started:
                self.starts(name, task.index)
            else:
                continue
            moved = True
        return moved

    def come_to_rest(self) -> None:
        """Let agents obey until no cycle decides anything.

        Raises:
            Restless: the cell does not come to rest.
        """
        for _ in range(MOST_ROUNDS):
            moved = self.obey()
            if not self.cycle(after_s=1) and not moved:
                return
            self.history.clear()
            self.steps.clear()
        raise Restless(f"no rest after {MOST_ROUNDS} rounds: {self.log[-6:]}")


def problem(seed: int, policy: str) -> tuple[ObedientCell, list[list[dict[str, Any]]]]:
    """Return a cell with nodes and projects, and waves of jobs: each arrives on a cell at rest."""
    chance = random.Random(f"{policy}/{seed}")
    options: dict[str, Any] = {"policy": policy, **_options(chance, policy)}
    cell = ObedientCell(**options)
    cell.pool("side", **{**options, "pool_order": chance.choice([*req.PoolOrder])})
    sizes = [chance.randint(1, 6) for _ in range(chance.randint(1, 3))]
    for number, size in enumerate(sizes):
        pool = "side" if number and chance.random() < 0.5 else "main"
        cell.node(f"n{number}", gpus=size, pool=pool, cpu_milli=chance.choice((64_000, 4_000)))
    for project in PROJECTS[: chance.randint(1, 4)]:
        if chance.random() < 0.4:
            limit = chance.choice((None, None, 2000, 4000))
            cell.entitle(project, weight=chance.randint(1, 3), limit_milli=limit)
    waves = []
    jobs = 0
    for _ in range(chance.randint(1, 3)):
        wave = [_job(chance, jobs + at) for at in range(chance.randint(1, 3))]
        jobs += len(wave)
        waves.append(wave)
    return cell, waves


def _options(chance: random.Random, policy: str) -> dict[str, Any]:
    if policy != "fair_share":
        return {}
    return {
        "variant": chance.choice(("demand_proportional", "max_min")),
        "among": chance.choice(("job", "project")),
        "pool_order": chance.choice([*req.PoolOrder]),
    }


def _job(chance: random.Random, number: int) -> dict[str, Any]:
    gpus = chance.choice((1, 1, 1, 2, 2, 3, 4))
    resources = Resources(gpus=gpus, gpu_milli=1000)
    kind = chance.random()
    if kind < 0.1:
        resources = Resources(gpus=1, gpu_milli=chance.choice((300, 500, 700)))
    elif kind < 0.2:
        resources = Resources(gpus=gpus, gpu_milli=1000, cpu_milli=chance.choice((1000, 3000)))
    elif kind < 0.25:
        resources = Resources(cpu_milli=chance.choice((1000, 4000)))
    return {
        "name": f"job{chr(ord('a') + number)}",
        "project": chance.choice(PROJECTS),
        "user": chance.choice(("alice", "bob", "carol")),
        "priority": chance.choice((42, 42, 10, 60)),
        "resources": resources,
        "tasks": chance.choice((1, 1, 2, 3, 6)),
        "replicas": chance.choice((1, 1, 1, 1, 2)),
        "preemptible": chance.random() < 0.85,
        "weight": chance.randint(1, 3),
        "max_slots_milli": chance.choice((None, None, None, None, 2000, 4000)),
        "pools": chance.choice((("main",), ("main",), ("side",), POOLS, POOLS[::-1])),
    }


def play(seed: int, policy: str = "fair_share") -> ObedientCell:
    """Play a problem to its end; return its cell.

    Raises:
        Restless: it breaks a property.
    """
    cell, waves = problem(seed, policy)
    for wave in waves:
        for job in wave:
            cell.submit(**job)
        cell.preempted.clear()
        cell.receivers.clear()
        cell.come_to_rest()
        _check(cell)
    return cell


def _check(cell: ObedientCell) -> None:
    for task_id, times in cell.preempted.items():
        if times > MOST_PREEMPTIONS:
            raise Restless(f"{task_id} is preempted {times} times: {cell.log[-8:]}")
    for task_id in cell.receivers:
        if task_id not in cell.started:
            raise Restless(f"preempted for {task_id}, which did not start: {cell.log[-6:]}")
    for _ in range(3):
        if cell.cycle(after_s=1):
            raise Restless("a cell at rest decides")
    for pool in cell.state.pools.values():
        cell.state.wake_index.wake_all(pool)
        pool.index.input_changed(from_next_cycle=False)
    moved = [event for event in cell.cycle() if event.TYPE != "TaskUnschedulable"]
    if moved:
        about = [f"{event.TYPE} {getattr(event, 'task_id', '')}" for event in moved]
        raise Restless(f"a wake-up was missed: {about}")
    cell.obey()
    cell.come_to_rest()


def broken(policy: str, seed: int) -> tuple[int, str | None]:
    """Return the seed and the property that its problem breaks, or None."""
    try:
        play(seed, policy)
    except Restless as error:
        return seed, str(error)
    return seed, None


def main() -> int:
    """Play the problems, and print those that break a property."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="fair_share")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END, or one seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (2)")
    args = parser.parse_args()
    first, _, last = args.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    failed = 0
    with Pool(args.jobs) as pool:
        for seed, text in pool.imap_unordered(partial(broken, args.policy), seeds, chunksize=32):
            if text is not None:
                failed += 1
                print(f"{args.policy}: seed {seed}: {text}", flush=True)
    print(f"{args.policy}: {len(seeds)} problems, {failed} break a property")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
