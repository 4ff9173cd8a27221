"""Random static problems: a few nodes and owners, jobs that never end, agents that obey at once.

In a third of them the nodes have few CPUs, and some tasks request only CPUs.

`python -m tests.histories.static_problems --seeds 0:50000` plays many. In each of them the cell
comes to rest within a bounded number of preemptions, and then decides nothing: no two owners take
slots from each other in turn. Nor do two tasks: after one was preempted for the other, it preempts
that one only if jobs were submitted or a node was lost in between.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import Pool
from random import Random
from typing import Any, Final

from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.planner.pool_pass import MOVED
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import START_MS, Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources

POLICIES: Final = ("quota", "starved_first")
#: The most preemptions per task that a problem may need.
PER_TASK: Final = 12
#: Cycles, of 10 seconds, until a problem must be at rest.
MOST_CYCLES: Final = 600


class StaticCell(Cell):
    """A cell whose jobs never end and whose agents obey at once."""

    def __init__(self, **pool: Any) -> None:
        super().__init__(**pool)
        self.preempted = 0
        #: How often jobs were submitted or a node was lost: later another order may be right.
        self.changes = 0
        #: Victim and claimant of each preemption -> `changes` at that time.
        self.stopped_for: dict[tuple[str, str], int] = {}
        #: Two tasks that preempted each other without a change in between.
        self.in_turn: tuple[str, str] | None = None
        #: What was decided about which task (seconds after the start, event, task).
        self.log: list[tuple[int, str, str]] = []

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide in place: the properties of deciding are checked by other histories."""
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)

    def submit(self, name: str, **job: Any) -> str:
        self.changes += 1
        return super().submit(name, **job)

    def step(self, after_s: float = 10, **more: Any) -> list[Event]:
        """Let agents obey, then run a cycle; return its decisions."""
        for task in list(self.state.tasks.values()):
            run = task.run
            if run is None:
                continue
            name = task.job.id
            if run.stop is not None:
                self.ends(name, task.index)
            elif not run.started:
                self.starts(name, task.index)
        self.changes += "silent" in more
        decided = self.cycle(after_s=after_s, **more)
        self.history.clear()
        self.steps.clear()
        for event in decided:
            if isinstance(event, dec.PreemptionRequestedV1):
                self.preempted += 1
                self._note_preemption(event)
            if not isinstance(event, dec.TaskUnschedulableV1):
                about = str(getattr(event, "task_id", ""))
                self.log.append(((self.now_ms - START_MS) // 1000, type(event).__name__, about))
        return decided

    def _note_preemption(self, event: dec.PreemptionRequestedV1) -> None:
        victim, claimant = event.task_id, str(event.stop.for_task)
        if event.stop.rule == MOVED:
            return  # it keeps other slots
        if self.stopped_for.get((claimant, victim)) == self.changes and self.in_turn is None:
            self.in_turn = claimant, victim
        self.stopped_for[victim, claimant] = self.changes

    def come_to_rest(self, most: int = MOST_CYCLES) -> bool:
        """Run cycles until three decide nothing; return whether they did within `most`."""
        quiet = 0
        for _ in range(most):
            decided = self.step()
            quiet = 0 if decided or self._due_or_moving() else quiet + 1
            if quiet == 3:
                return True
        return False

    def _due_or_moving(self) -> bool:
        due_ms = self.machine.due_ms(self.state)
        if due_ms is not None:
            return True
        return any(_moves(task) for task in self.state.tasks.values())


def _moves(task: Task) -> bool:
    run = task.run
    return run is not None and (run.stop is not None or not run.started)


def problem(seed: int, policy: str) -> tuple[StaticCell, bool]:
    """Play the problem of a seed; return its cell, and whether it came to rest within the bound."""
    random = Random(f"{policy}/{seed}")
    # Apart, so that the other problems stay the same.
    cpus = Random(f"{policy}/{seed}/cpus")
    few_cpus = cpus.random() < 1 / 3
    cell = StaticCell(**_pool(random, policy))
    # Half of the problems have one small node, or one and a second of another type.
    narrow = random.random() < 0.5
    nodes = random.randint(1, 2 if narrow else 3)
    types = random.choice((("any",), ("any",), ("a", "b")))
    for number in range(nodes):
        gpus = random.choice((3, 4, 4, 5) if narrow else (1, 2, 3, 4, 4, 8))
        more = {"cpu_milli": gpus * 1500 + 1000} if few_cpus else {}
        cell.node(f"n{number}", gpus=gpus, node_type=types[number % len(types)], **more)
    projects = [f"p{number}" for number in range(random.randint(2, 4))]
    departments = {name: random.choice(("d", "d", "e")) for name in projects}
    if policy == "quota":
        _entitle(random, cell, departments, cpus if few_cpus else None)
    cell.cycle()
    tasks = 0
    waves = random.randint(2, 4)
    lost = random.randrange(1, waves) if nodes > 1 and random.random() < 0.3 else None
    for wave in range(waves):
        for number in range(random.randint(1, 4)):
            count = random.choice((1, 1, 1, 2, 3))
            tasks += count
            project = random.choice(projects)
            user = random.choice(("u0", "u1", "u2"))
            shape = _shape(random, types)
            if few_cpus:
                shape["resources"] = _with_cpus(cpus, shape["resources"])
            cell.submit(
                f"w{wave}n{number}",
                project=project,
                department=departments[project],
                user=user,
                tasks=count,
                **shape,
            )
        if wave == lost:
            heard_ms = cell.now_ms
            cell.step(61, silent={f"n{nodes - 1}": heard_ms})
        before = cell.preempted
        if not cell.come_to_rest() or cell.preempted - before > PER_TASK * tasks:
            return cell, False
    return cell, True


def _pool(random: Random, policy: str) -> dict[str, Any]:
    if policy == "starved_first":
        return {"policy": policy, "owners": random.choice(("user", "project"))}
    return {
        "policy": policy,
        "order": random.choice(("document", "document", "kai")),
        "over_quota": random.choice(("deserved", "weight")),
        "max_moves": random.choice((0, 16)),
    }


def _entitle(
    random: Random, cell: StaticCell, departments: dict[str, str], cpus: Random | None
) -> None:
    for name in sorted(set(departments.values())):
        if random.random() < 0.5:
            deserved = random.choice((0, 1, 2, 4, 8))
            quota = req.Quota(deserved_milli=deserved * 1000)
            cell.configure_department(name, quotas={"main": quota})
    for name, department in departments.items():
        quota = req.Quota(
            deserved_milli=random.choice((0, 0, 1000, 1000, 1500, 2000, 3000, 4000)),
            over_quota_weight=random.choice((0, 1, 1, 3)),
            deserved_cpu_milli=cpus.choice((None, None, 0, 2000, 4000)) if cpus else None,
        )
        rank = random.choice((100, 100, 100, 200))
        cell.entitle(name, department=department, quotas={"main": quota}, rank=rank)


def _shape(random: Random, types: tuple[str, ...]) -> dict[str, Any]:
    milli = random.choice((1000, 1000, 1000, 1000, 500, 700, 300))
    gpus = random.choice((1, 1, 1, 2, 3, 4)) if milli == 1000 else 1
    shape: dict[str, Any] = {
        "resources": Resources(gpus=gpus, gpu_milli=milli),
        "replicas": random.choice((1, 1, 1, 2, 3, 4)),
        "priority": random.choice((42, 42, 42, 10, 60)),
    }
    if random.random() < 0.15:
        shape["preemptible"] = False
    if random.random() < 0.15:
        shape["min_runtime_s"] = random.choice((5, 60, 600))
    if len(types) > 1 and random.random() < 0.5:
        shape["node_types"] = (random.choice(types),)
    return shape


def _with_cpus(cpus: Random, resources: Resources) -> Resources:
    """Return a request with CPUs, for some tasks instead of GPUs."""
    cpu_milli = cpus.choice((0, 1000, 2000, 3000))
    if cpus.random() < 0.25:
        return Resources(cpu_milli=cpu_milli or 1000)
    return replace(resources, cpu_milli=cpu_milli)


def fault(cell: StaticCell, rests: bool) -> str | None:
    """Return what a problem that was played shows to be wrong; None: nothing."""
    if not rests:
        return "does not come to rest"
    if cell.in_turn is not None:
        first, second = cell.in_turn
        return (
            f"{first} was preempted for {second}, and then {second} for {first}, without a "
            "submission or a lost node in between"
        )
    return None


def outcome(policy: str, seed: int) -> tuple[int, str | None, list[tuple[int, str, str]]]:
    """Return the seed, what is wrong with its problem, and the last decisions if something is."""
    cell, rests = problem(seed, policy)
    found = fault(cell, rests)
    return seed, found, [] if found is None else cell.log[-24:]


def main() -> int:
    """Play the problems of these seeds; print those that break a property."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.static_problems")
    parser.add_argument("--seeds", default="0:50000", help="FIRST:END")
    parser.add_argument("--policy", choices=POLICIES)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    first, end = map(int, args.seeds.split(":"))
    failed = 0
    with Pool(args.jobs) as pool:
        for policy in (args.policy,) if args.policy else POLICIES:
            play = partial(outcome, policy)
            for seed, found, log in pool.imap_unordered(play, range(first, end), chunksize=16):
                if found is not None:
                    failed += 1
                    print(f"{policy}: seed {seed}: {found}", *log, sep="\n  ", flush=True)
    print(f"{failed} problems break a property")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
