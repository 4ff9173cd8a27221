"""Where workloads come from, each a value that another process can be given.

`Changed` lays over any of them what is asked for on top: fewer jobs, other nodes, other behaviour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.recorded import read_log
from yardmaster_simulation.synthetic import Mix, trial_and_error, waves
from yardmaster_simulation.traces import Columns, Equal, csv_jobs, instead, openb, philly
from yardmaster_simulation.workload import Arrivals, Listed, NodeFaults, Workload


class Movable(Protocol):
    """A workload that can be laid over other nodes than its own."""

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The workload for a seed, on its own nodes or on equal ones, and who submits it when.

        Raises: BadWorkload.
        """


@dataclass(frozen=True, slots=True)
class TrialAndError:
    """FitGpp's experiment; its jobs come at a constant load."""

    mix: Mix

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """See `synthetic.trial_and_error`."""
        return trial_and_error(self.mix, seed, equal)


@dataclass(frozen=True, slots=True)
class Waves:
    """Two queues, many small tasks and some large ones."""

    scale: int
    preemptible: bool

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """See `synthetic.waves`."""
        return listed(waves(self.scale, preemptible=self.preemptible, seed=seed, equal=equal))


@dataclass(frozen=True, slots=True)
class Philly:
    """Philly's jobs, or those of one virtual cluster."""

    path: Path
    cluster: str | None
    since: str | None = None
    until: str | None = None

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same for every seed."""
        return listed(
            philly(self.path, cluster=self.cluster, since=self.since, until=self.until, equal=equal)
        )


@dataclass(frozen=True, slots=True)
class Openb:
    """openb's pods on its nodes."""

    pods: Path
    nodes: Path

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """See `traces.openb`."""
        return listed(openb(self.pods, self.nodes, seed=seed, equal=equal))


@dataclass(frozen=True, slots=True)
class Csv:
    """Jobs of any CSV file, by a map of its columns."""

    path: Path
    columns: Columns

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same for every seed."""
        return listed(csv_jobs(self.path, self.columns, equal=equal))


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a log of Yardmaster's recorded."""

    path: Path
    cell: str

    def workload(self, seed: int, equal: Equal | None = None) -> tuple[Workload, Arrivals]:
        """The same for every seed; equal nodes join the only pool that has any."""
        workload = read_log(self.path, self.cell)
        # What joined a pool that nobody configured never got work.
        own = tuple(node for node in workload.nodes if node.pool in workload.pools)
        pools = sorted({node.pool for node in own})
        if not own:
            raise BadWorkload(path=self.path, found="no node of a configured pool in it")
        if equal is not None and len(pools) > 1:
            found = f"the log has pools {', '.join(pools)}; --nodes is for one"
            raise BadWorkload(path=self.path, found=found)
        return listed(replace(workload, nodes=instead(own, equal)))


@dataclass(frozen=True, slots=True)
class Changed:
    """Another source with changes: the first `jobs` jobs, equal nodes, other ways to behave."""

    source: Movable
    jobs: int | None = None
    equal: Equal | None = None
    cadence_ms: int | None = None
    faults: NodeFaults | None = None
    #: Fields of `Behaviour`.
    behaviour: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, seed: int) -> tuple[Workload, Arrivals]:
        """The other's workload, changed."""
        workload, arrivals = self.source.workload(seed, self.equal)
        if self.jobs is not None and isinstance(arrivals, Listed):
            workload = replace(workload, jobs=workload.jobs[: self.jobs])
            arrivals = Listed(workload.jobs)
        return (
            replace(
                workload,
                cadence_ms=workload.cadence_ms if self.cadence_ms is None else self.cadence_ms,
                faults=self.faults,
                behaviour=replace(workload.behaviour, **self.behaviour),
            ),
            arrivals,
        )


def listed(workload: Workload) -> tuple[Workload, Arrivals]:
    """A workload whose jobs have their times."""
    return workload, Listed(workload.jobs)
