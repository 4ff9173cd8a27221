"""Sources of workloads, as picklable values.

`Changed` modifies another source: fewer jobs, other nodes, other behavior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from yardmaster_simulation.distributions import Chance
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.recorded import read_log
from yardmaster_simulation.synthetic import Mix, trial_and_error, waves
from yardmaster_simulation.traces import Columns, Equal, csv_jobs, openb, own_or_equal, philly
from yardmaster_simulation.workload import (
    Arrivals,
    Listed,
    NodeFaults,
    Organization,
    SimJob,
    Workload,
)


class Movable(Protocol):
    """A workload that can run on equal nodes instead of its own."""

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The workload of a seed, on its own nodes or on equal ones, and its arrivals.

        Raises: BadWorkload.
        """


@dataclass(frozen=True, slots=True)
class TrialAndError:
    """FitGpp's experiment; its jobs arrive at a constant load."""

    mix: Mix

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        return trial_and_error(self.mix, seed, equal)


@dataclass(frozen=True, slots=True)
class Waves:
    """Two queues with many small tasks and some large ones."""

    scale: int
    preemptible: bool

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        return listed(waves(self.scale, preemptible=self.preemptible, seed=seed, equal=equal))


@dataclass(frozen=True, slots=True)
class Philly:
    """The Philly trace, or one virtual cluster of it."""

    path: Path
    cluster: str | None
    since: str | None = None
    until: str | None = None

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same workload for every seed."""
        return listed(
            philly(self.path, cluster=self.cluster, since=self.since, until=self.until, equal=equal)
        )


@dataclass(frozen=True, slots=True)
class Openb:
    """The openb trace: its pods on its nodes."""

    pods: Path
    nodes: Path

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        return listed(openb(self.pods, self.nodes, seed=seed, equal=equal))


@dataclass(frozen=True, slots=True)
class Csv:
    """Jobs of any CSV file with a mapping of its columns."""

    path: Path
    columns: Columns

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same workload for every seed."""
        return listed(csv_jobs(self.path, self.columns, equal=equal))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded log of Yardmaster."""

    path: Path
    cell: str

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same workload for every seed; equal nodes join the log's only pool that has nodes."""
        workload = read_log(self.path, self.cell)
        # Nodes of a pool without a configuration never got tasks.
        own = tuple(node for node in workload.nodes if node.pool in workload.pools)
        pools = sorted({node.pool for node in own})
        if not own:
            raise BadWorkload(path=self.path, found="the log has no node of a configured pool")
        if equal is not None and len(pools) > 1:
            found = f"the log has pools {', '.join(pools)}; --nodes needs a log with one pool"
            raise BadWorkload(path=self.path, found=found)
        return listed(replace(workload, nodes=own_or_equal(own, equal)))


@dataclass(frozen=True, slots=True)
class Changed:
    """Another source with changes: only the first `jobs` jobs, equal nodes, other behavior, and
    other projects with their quotas.
    """

    source: Movable
    jobs: int | None = None
    equal: Equal | None = None
    cadence_ms: int | None = None
    faults: NodeFaults | None = None
    #: Fields of `Behavior`.
    behavior: Mapping[str, Any] = field(default_factory=dict)
    #: Of the jobs of a trace, in thousandths: the share that is not preemptible, drawn by the seed,
    #: and the GPU time that they request relative to that of the nodes. None: as in the trace.
    te_permille: int | None = None
    load_permille: int | None = None
    organization: Organization = field(default_factory=Organization)

    def workload(self, seed: int) -> tuple[Workload, Arrivals]:
        """Return the workload of the source for `seed`, with the changes.

        Raises: BadWorkload, BadOrganization.
        """
        workload, arrivals = self.source.workload(seed, self.equal)
        workload = workload.organized(self.organization)
        if self.jobs is not None and isinstance(arrivals, Listed):
            workload = replace(workload, jobs=workload.jobs[: self.jobs])
            arrivals = Listed(workload.jobs)
        if self.te_permille is not None or self.load_permille is not None:
            jobs = _with_kinds(workload.jobs, self.te_permille, seed)
            workload = replace(workload, jobs=_with_load(workload, jobs, self.load_permille))
            arrivals = Listed(workload.jobs)
        return (
            replace(
                workload,
                cadence_ms=workload.cadence_ms if self.cadence_ms is None else self.cadence_ms,
                faults=self.faults,
                behavior=replace(workload.behavior, **self.behavior),
            ),
            arrivals,
        )


def _with_kinds(jobs: Sequence[SimJob], te_permille: int | None, seed: int) -> Sequence[SimJob]:
    """The jobs, of which a share drawn at random is not preemptible and the others are."""
    if te_permille is None:
        return jobs
    chance = Chance(seed)
    drawn = (chance.below(1000, "te", at) >= te_permille for at in range(len(jobs)))
    return [
        replace(job, spec=replace(job.spec, preemptible=preemptible))
        for job, preemptible in zip(jobs, drawn, strict=True)
    ]


def _with_load(
    workload: Workload, jobs: Sequence[SimJob], load_permille: int | None
) -> Sequence[SimJob]:
    """The jobs, submitted faster or slower: the GPU time that they request is this part (in
    thousandths) of the GPU time of the nodes from the first submission to the last.
    """
    span_ms = jobs[-1].submit_ms if jobs else 0
    capacity = workload.capacity[2] * span_ms
    if load_permille is None or not capacity:
        return jobs
    requested = sum(
        job.task_amounts[2] * sum(run_ms or 0 for run_ms in job.runs_ms) for job in jobs
    )
    return [job.at(job.submit_ms * requested * 1000 // (capacity * load_permille)) for job in jobs]


def listed(workload: Workload) -> tuple[Workload, Arrivals]:
    """A workload whose jobs have submission times, with its arrivals."""
    return workload, Listed(workload.jobs)
