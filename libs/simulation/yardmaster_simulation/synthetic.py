"""Synthetic workloads, each a function of its seed.

- `trial_and_error`: the experiment of FitGpp (Yabuuchi and others, OpML 2019): jobs that must start
  at once together with preemptible jobs, on 84 nodes, at twice the load that fits. The demands of
  jobs and their distribution are not in the paper; they were fitted to its tables.
- `waves`: two queues on a few nodes, many small jobs and, half an hour later, some jobs that need a
  whole node: the input of Armada's simulator benchmark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from yardmaster_schemas.events.requests import ProjectConfig, SubmittedSpec
from yardmaster_schemas.resources import Resources
from yardmaster_simulation.distributions import Chance, Normal
from yardmaster_simulation.traces import GIB, Equal, equal_nodes, own_or_equal
from yardmaster_simulation.workload import (
    DEFAULT,
    Amounts,
    Behavior,
    SimJob,
    SimNode,
    Workload,
    plus,
    pool,
)

MINUTE_MS: Final = 60_000


def _minutes(mean: str, deviation: str, low: int, high: int) -> Normal:
    """A distribution of minutes in steps of one second."""
    return Normal(Decimal(mean), Decimal(deviation), low, high, steps=60)


def _whole(mean: str, deviation: str, low: int, high: int) -> Normal:
    return Normal(Decimal(mean), Decimal(deviation), low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The demands of one kind of job: minutes of work, CPUs, GiB of memory, and GPUs."""

    work: Normal
    cpu: Normal
    memory: Normal
    gpu: Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSet:
    """The demands of trial-and-error (te) and best-effort (be) jobs.

    `load_on`: whether load is measured on GPUs or as the mean of the three resources.
    """

    te: Demands
    be: Demands
    grace: Normal
    load_on: str
    placement: str
    works_in_grace: bool


def _both(
    te_cpu: Normal, te_memory: Normal, te_gpu: Normal, be: tuple[Normal, Normal, Normal, Normal]
) -> tuple[Demands, Demands]:
    te_work = _minutes("5", "5", 1, 30)
    work, cpu, memory, gpu = be
    return (
        Demands(work=te_work, cpu=te_cpu, memory=te_memory, gpu=te_gpu),
        Demands(work=work, cpu=cpu, memory=memory, gpu=gpu),
    )


_CALIBRATED: Final = _both(
    _whole("7", "13", 1, 32),
    _whole("44", "64", 1, 256),
    _whole("1.6", "1.5", 0, 8),
    (
        _minutes("30", "10", 1, 1440),
        _whole("4", "8.5", 1, 32),
        _whole("66", "88", 1, 256),
        _whole("1", "2.75", 0, 8),
    ),
)
_FIT_MEAN_2: Final = _both(
    _whole("8", "6.9", 1, 32),
    _whole("47", "65", 1, 256),
    _whole("1.5", "3.4", 0, 8),
    (
        _minutes("30", "9.4", 1, 1440),
        _whole("2", "4.1", 1, 32),
        _whole("87", "67", 1, 256),
        _whole("2.1", "1.7", 0, 8),
    ),
)
_PLAIN_DEMANDS: Final = (
    _whole("8", "8", 1, 32),
    _whole("60", "60", 1, 256),
    _whole("2", "2", 0, 8),
)
_PLAIN: Final = _both(*_PLAIN_DEMANDS, (_minutes("30", "10", 1, 1440), *_PLAIN_DEMANDS))
DEMAND_SETS: Final = {
    "calibrated": DemandSet(
        te=_CALIBRATED[0],
        be=_CALIBRATED[1],
        grace=_minutes("3", "1.1", 0, 20),
        load_on="gpu",
        placement="random",
        works_in_grace=True,
    ),
    "fit_mean_2": DemandSet(
        te=_FIT_MEAN_2[0],
        be=_FIT_MEAN_2[1],
        grace=_minutes("3", "0.9", 0, 20),
        load_on="mean",
        placement="random",
        works_in_grace=False,
    ),
    "plain": DemandSet(
        te=_PLAIN[0],
        be=_PLAIN[1],
        grace=_minutes("3", "1", 0, 20),
        load_on="mean",
        placement="best_fit",
        works_in_grace=False,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The parameters of `trial_and_error`.

    `te_permille`: share of TE jobs. `load_permille`: load relative to the capacity.
    `grace_permille`: length of grace periods relative to the demand set's.
    """

    demands: str = "calibrated"
    jobs: int = 1 << 16
    te_permille: int = 300
    load_permille: int = 2000
    grace_permille: int = 1000


def trial_and_error(mix: Mix, seed: int, equal: Equal | None = None) -> tuple[Workload, "AtLoad"]:
    """The experiment's workload without jobs, and the arrivals that submit its jobs.

    The jobs arrive so that the load on the nodes (the experiment's, or equal ones) is constant.
    """
    of, chance = DEMAND_SETS[mix.demands], Chance(seed)
    grace = of.grace.times(Decimal(mix.grace_permille) / 1000)
    jobs = []
    for number in range(mix.jobs):
        te = chance.below(1000, number, "kind") < mix.te_permille
        requested = of.te if te else of.be
        gpus = chance.normal(requested.gpu, number, "gpu")
        seconds = chance.normal(requested.work, number, "work")
        spec = SubmittedSpec(
            preemptible=not te,
            pools=(DEFAULT,),
            resources=Resources(
                gpus=gpus,
                gpu_milli=1000 if gpus else 0,
                cpu_milli=chance.normal(requested.cpu, number, "cpu") * 1000,
                memory_mib=chance.normal(requested.memory, number, "memory") * GIB,
            ),
            grace_s=chance.normal(grace, number, "grace"),
            runtime_estimate_s=seconds,
        )
        project = "te" if te else "be"
        jobs.append(SimJob(submit_ms=0, spec=spec, runs_ms=(seconds * 1000,), project=project))
    workload = Workload(
        name=mix.demands,
        nodes=own_or_equal(equal_nodes(84, gpus=8, cpu=32, memory_gib=256), equal),
        jobs=(),
        behavior=Behavior(works_in_grace=of.works_in_grace),
        projects={name: ProjectConfig(department=DEFAULT) for name in ("be", "te")},
        cadence_ms=MINUTE_MS,
        pools={DEFAULT: pool(placement=of.placement)},
        source=f"FitGpp's experiment, demands {mix.demands}, seed {seed}",
    )
    return workload, AtLoad(jobs, workload.capacity, of.load_on, mix.load_permille)


class AtLoad:
    """Arrivals that keep the load of running and pending tasks constant, checked every minute."""

    def __init__(
        self, jobs: Sequence[SimJob], capacity: Amounts, load_on: str, load_permille: int
    ) -> None:
        self._jobs = jobs
        self._capacity = capacity
        self._load_on = load_on
        self._permille = load_permille
        self._next = 0
        self._next_ms = 0

    @property
    def next_ms(self) -> int | None:
        """The next check; None after the last job."""
        return self._next_ms if self._next < len(self._jobs) else None

    @property
    def left(self) -> int:
        """Number of jobs (of one task each) that are not submitted yet."""
        return len(self._jobs) - self._next

    def due(self, now_ms: int, outstanding: Amounts) -> Sequence[SimJob]:
        """The next jobs, in order, that raise the load to its target."""
        submitted = []
        while self._next < len(self._jobs) and self._load(outstanding) < self._permille:
            job = self._jobs[self._next].at(now_ms)
            submitted.append(job)
            outstanding = plus(outstanding, job.amounts)
            self._next += 1
        self._next_ms = now_ms + MINUTE_MS
        return submitted

    def _load(self, outstanding: Amounts) -> float:
        parts = [
            1000 * requested / there
            for requested, there in zip(outstanding, self._capacity, strict=True)
        ]
        return parts[2] if self._load_on == "gpu" else sum(parts) / 3


def waves(scale: int, *, preemptible: bool, seed: int, equal: Equal | None = None) -> Workload:
    """The workload of Armada's benchmark, `scale` times.

    Each time adds two nodes of 32 GPUs (or `equal` nodes), 640 small tasks and 2 tasks that need a
    whole node. The benchmark's CPUs are GPUs here, so that only the resource that policies divide
    counts.
    """
    chance = Chance(seed)

    def job(project: str, tasks: range, submit_ms: int, gpus: int, seconds: int) -> SimJob:
        # Tasks run `seconds` plus an exponentially distributed time, a tenth of it on average.
        return SimJob(
            submit_ms=submit_ms,
            project=project,
            spec=SubmittedSpec(
                tasks=len(tasks),
                preemptible=preemptible,
                pools=(DEFAULT,),
                grace_s=0,
                resources=Resources(
                    gpus=gpus, gpu_milli=1000, cpu_milli=1000 * gpus, memory_mib=32 * GIB * gpus
                ),
            ),
            runs_ms=tuple(
                seconds * 1000 + chance.exponential(seconds * 100, project, task) for task in tasks
            ),
        )

    small = [job("a", range(at, at + 640), 0, 1, 360) for at in range(0, 640 * scale, 640)]
    large = job("b", range(2 * scale), 30 * MINUTE_MS, 32, 3600)
    nodes = [
        SimNode(name=f"node-{number:03d}", gpus=32, cpu_milli=32_000, memory_mib=1024 * GIB)
        for number in range(2 * scale)
    ]
    return Workload(
        name=f"waves-{scale}",
        nodes=own_or_equal(nodes, equal),
        jobs=(*small, large),
        projects={name: ProjectConfig(department=DEFAULT) for name in ("a", "b")},
        cadence_ms=10_000,
        source=f"two queues, scale {scale}, seed {seed}",
    )
