"""The openb trace as input of the scheduler: pods arrive one after another, none ends, and a pod
that does not fit is dropped.

The conditions are those of the paper on fragmentation gradient descent (USENIX ATC 2023): all pods
in a random order, then pods drawn with replacement, until they request 130 % of all GPUs.
"""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import DETAILS, admitted_spec
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.resources import Resources

TRACES: Final = Path(__file__).parent.parent / "data" / "traces"
#: By placement: the published part of all GPUs that is allocated, in percent.
PUBLISHED: Final = {"random": 87.47, "tight_fit": 93.08, "fgd": 95.39}
#: Allowed deviation from the published value, in percentage points.
WITHIN: Final = 0.7
#: Pods that arrive in one cycle; earlier pods that did not fit are dropped first.
AT_ONCE: Final = 50


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a trace file."""
    with gzip.open(TRACES / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


def nodes() -> list[dict[str, Any]]:
    """The resources of nodes with GPUs."""
    found = rows("openb_node_list_all_node.csv.gz")
    columns = {"gpus": "gpu", "cpu_milli": "cpu_milli", "memory_mib": "memory_mib"}
    every: list[dict[str, Any]] = [
        {ours: int(row[theirs]) for ours, theirs in columns.items()} for row in found
    ]
    return [node for node in every if node["gpus"]]


def pods() -> list[Resources]:
    """The resource requests of pods."""
    return [
        Resources(
            gpus=int(row["num_gpu"]),
            gpu_milli=int(row["gpu_milli"]),
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
        )
        for row in rows("openb_pod_list_default.csv.gz")
    ]


def arrivals(every: list[Resources], capacity_milli: int, seed: int) -> Iterator[Resources]:
    """Yield pods until they request 130 % of the capacity."""
    chance = Random(seed)
    order = list(every)
    chance.shuffle(order)
    requested = 0
    at = 0
    while requested * 10 < capacity_milli * 13:
        pod = order[at] if at < len(order) else chance.choice(every)
        yield pod
        requested += pod.gpu_total_milli
        at += 1


class Openb:
    """A pool of the trace's nodes."""

    def __init__(self, placement: str, seed: int = 0) -> None:
        self.machine = SchedulerMachine()
        self.state = self.machine.initial("main")
        self.cycles = 0
        self.capacity_milli = 0
        #: Pods that arrived.
        self.jobs = 0
        self._waiting: list[Task] = []
        config = req.PoolConfig(
            policy=req.PolicyRef(name="priority"), placement=placement, seed=seed
        )
        events: list[Any] = [adm.PoolConfiguredV1(pool="main", revision=1, config=config)]
        for number, offer in enumerate(nodes()):
            self.capacity_milli += offer["gpus"] * 1000
            events.append(
                nev.NodeJoinedV1(
                    node=f"openb-{number:04}",
                    incarnation="0" * 12,
                    boot_id="00000000",
                    schema_version=1,
                    pool="main",
                    node_type="any",
                    address="127.0.0.1",
                    port_first=20_000,
                    port_last=20_099,
                    **offer,
                )
            )
        self._cycle(events)

    def _cycle(self, inputs: list[Any]) -> None:
        machine, state = self.machine, self.state
        self.cycles += 1
        state = machine.begin_cycle(state, self.cycles, self.cycles * 1000)
        for event in inputs:
            state = machine.apply(state, event, f"x/1/{self.cycles}")
        verdict = machine.decide(state, limit=1_000_000)
        for decision in verdict.decisions:
            state = machine.apply(state, decision.event, "")
        assert machine.digest(state) == verdict.state_digest
        self.state = machine.end_cycle(state, complete=verdict.complete)

    def arrive(self, some: list[Resources]) -> None:
        """Let these pods arrive in order; each starts or is dropped."""
        drops = [adm.CancelAcceptedV1(job_id=t.job.id, index=None) for t in self._waiting]
        come = []
        for pod in some:
            self.jobs += 1
            spec = admitted_spec(preemptible=False, resources=pod)
            come.append(
                adm.TaskAdmittedV1(
                    job_id=f"{self.jobs:012}",
                    project="p",
                    department="d",
                    spec=spec,
                    submitted_at_ms=self.jobs,
                    details=DETAILS,
                )
            )
        self._cycle([*drops, *come])
        here = [self.state.task(f"{event.job_id}.0") for event in come]
        self._waiting = [task for task in here if task.run is None]

    @property
    def allocated(self) -> float:
        """The allocated part of all GPUs, in percent."""
        return 100 * self.state.pools["main"].used_milli / self.capacity_milli

    def play(self, seed: int) -> None:
        """Let all pods arrive."""
        waiting: list[Resources] = []
        for pod in arrivals(pods(), self.capacity_milli, seed):
            waiting.append(pod)
            if len(waiting) == AT_ONCE:
                self.arrive(waiting)
                waiting = []
        self.arrive(waiting)
