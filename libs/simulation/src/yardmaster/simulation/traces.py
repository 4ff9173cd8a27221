"""Recorded workloads as files: Philly's jobs, openb's pods and nodes, any CSV by a map of columns.

A file may be compressed with gzip. Times are seconds, or dates and times as ISO 8601 has them;
they count from the first submission.
"""

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Final

from yardmaster.schemas.events.requests import ProjectConfig, SubmittedSpec
from yardmaster.schemas.resources import Resources
from yardmaster.simulation.distributions import Chance
from yardmaster.simulation.errors import BadWorkload
from yardmaster.simulation.workload import DEFAULT, Behaviour, SimJob, SimNode, Workload

#: What a column can be mapped to.
FIELDS: Final = (
    *("submit", "run", "end", "project", "gpus", "gpu_milli"),
    *("cpu", "cpu_milli", "memory_gib", "memory_mib", "preemptible"),
)
MAX_GPUS_PER_NODE: Final = 8
PHILLY: Final = {"submit": "timestamp", "run": "duration", "gpus": "num_gpus", "project": "cluster"}
GIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column holds what; `where` keeps the rows that have these values, `since` and `until`
    those submitted from then until then (as the file has times; the last moment counts).

    `run` is how long a job runs, or `end` when it ended, had it started at once. `gpus` may be more
    than a node has: a gang of equal replicas then. Values that no column gives are `otherwise`'s.
    """

    names: Mapping[str, str]
    where: Mapping[str, str] = field(default_factory=dict)
    since: str | None = None
    until: str | None = None


def read_jobs(path: Path, columns: Columns, *, per_node: int = MAX_GPUS_PER_NODE) -> list[SimJob]:
    """The jobs of a trace file, by submission time, then in the order of the file.

    Raises:
        BadWorkload: it cannot be read, or a row says something that no job can ask for.
    """
    unknown = sorted(set(columns.names) - set(FIELDS))
    if unknown or "submit" not in columns.names:
        found = f"no field {unknown[0]}" if unknown else "no column for submit"
        raise BadWorkload(path=path, found=f"{found}; fields are {', '.join(FIELDS)}")
    jobs: list[tuple[Decimal, SimJob]] = []
    try:
        first_s = None if columns.since is None else _seconds(columns.since)
        last_s = None if columns.until is None else _seconds(columns.until)
    except ValueError as error:
        raise BadWorkload(path=path, found=str(error)) from None
    for line, row in _rows(path, (*columns.names.values(), *columns.where)):
        if any(row[name] != value for name, value in columns.where.items()):
            continue
        try:
            submit_s, job = _job({key: row[name] for key, name in columns.names.items()}, per_node)
        except (ValueError, InvalidOperation) as error:
            raise BadWorkload(path=path, found=f"line {line}: {error}") from None
        if (first_s is None or submit_s >= first_s) and (last_s is None or submit_s <= last_s):
            jobs.append((submit_s, job))
    if not jobs:
        raise BadWorkload(path=path, found="no job in it")
    jobs.sort(key=lambda each: each[0])
    begin_s = jobs[0][0]
    return [job.at(int((submit_s - begin_s) * 1000)) for submit_s, job in jobs]


def projects_of(jobs: Sequence[SimJob]) -> dict[str, ProjectConfig]:
    """A project for each that the jobs name, all of equal weight."""
    return {
        name: ProjectConfig(department=DEFAULT) for name in sorted({job.project for job in jobs})
    }


def equal_nodes(
    number: int, *, gpus: int, cpu: int = 96, memory_gib: int = 1024
) -> tuple[SimNode, ...]:
    """So many nodes of one kind."""
    digits = len(str(number - 1))
    return tuple(
        SimNode(
            name=f"node-{each:0{digits}d}",
            gpus=gpus,
            cpu_milli=cpu * 1000,
            memory_mib=memory_gib * GIB,
        )
        for each in range(number)
    )


def philly(
    path: Path,
    *,
    cluster: str | None = None,
    since: str | None = None,
    until: str | None = None,
    nodes: int = 309,
) -> Workload:
    """Microsoft's Philly trace, or one of its virtual clusters, on nodes of 8 GPUs.

    GPUs alone are counted, as the trace says nothing else.
    """
    where = {} if cluster is None else {"cluster": cluster}
    jobs = read_jobs(path, Columns(names=PHILLY, where=where, since=since, until=until))
    return Workload(
        name="philly" if cluster is None else f"philly-{cluster}",
        nodes=equal_nodes(nodes, gpus=8),
        jobs=jobs,
        projects=projects_of(jobs),
        cadence_ms=60_000,
        source=f"{path.name} ({len(jobs)} jobs)",
    )


def csv_jobs(path: Path, columns: Columns, *, nodes: int = 100) -> Workload:
    """The jobs of any CSV file, on equal nodes of 8 GPUs where nothing else is said.

    Raises: BadWorkload.
    """
    jobs = read_jobs(path, columns)
    return Workload(
        name=path.name.partition(".")[0],
        nodes=equal_nodes(nodes, gpus=MAX_GPUS_PER_NODE),
        jobs=jobs,
        projects=projects_of(jobs),
        source=f"{path.name} ({len(jobs)} jobs)",
    )


def read_nodes(path: Path) -> tuple[SimNode, ...]:
    """A list of nodes: columns sn, cpu_milli, memory_mib, gpu and, where it is there, model.

    Raises: BadWorkload.
    """
    nodes = []
    for line, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu")):
        try:
            nodes.append(
                SimNode(
                    name=row["sn"].lower(),
                    gpus=int(row["gpu"]),
                    cpu_milli=int(row["cpu_milli"]),
                    memory_mib=int(row["memory_mib"]),
                    node_type=(row.get("model") or "any").lower(),
                )
            )
        except ValueError as error:
            raise BadWorkload(path=path, found=f"line {line}: {error}") from None
    if not nodes:
        raise BadWorkload(path=path, found="no node in it")
    return tuple(nodes)


def openb(pods: Path, nodes: Path, *, seed: int, arrived_permille: int = 1300) -> Workload:
    """Alibaba's openb as the paper on FGD uses it (Weng and others, ATC 2023).

    Onto the nodes with GPUs come all pods in random order, then pods drawn from them with
    replacement, until the GPUs that arrived are `arrived_permille` of those there. Nothing ends,
    and a pod that finds no room as it comes is dropped.
    """
    there = tuple(node for node in read_nodes(nodes) if node.gpus)
    asked = [
        _pod(row) for _, row in _rows(pods, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    ]
    chance = Chance(seed)
    order = chance.shuffled(len(asked), "pods")
    wanted = sum(node.gpus for node in there) * arrived_permille
    jobs: list[SimJob] = []
    arrived = 0
    for number in count():
        if arrived >= wanted:
            break
        again = number >= len(order)
        pod = chance.below(len(asked), number, "again") if again else order[number]
        jobs.append(SimJob(submit_ms=number * 1000, spec=asked[pod], runs_ms=(None,)))
        arrived += asked[pod].resources.gpu_total_milli
    return Workload(
        name="openb",
        nodes=there,
        jobs=jobs,
        behaviour=Behaviour(patience_ms=0),
        source=f"{pods.name} on {nodes.name}, seed {seed}",
    )


def _pod(row: Mapping[str, str]) -> SubmittedSpec:
    gpus = int(row["num_gpu"])
    return _spec(
        gpus,
        int(row["gpu_milli"]) if gpus else 0,
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        replicas=1,
        preemptible=True,
        estimate_s=None,
    )


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with their line numbers.

    Raises: BadWorkload.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = sorted(set(needed) - set(reader.fieldnames or ()))
            if missing:
                has = ", ".join(reader.fieldnames or ()) or "nothing"
                raise BadWorkload(path=path, found=f"no column {missing[0]}; it has {has}")
            for row in reader:
                if None in row.values():
                    raise BadWorkload(path=path, found=f"line {reader.line_num} is cut short")
                yield reader.line_num, row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadWorkload(path=path, found=str(error)) from None


def _job(said: Mapping[str, str], per_node: int) -> tuple[Decimal, SimJob]:
    submit_s = _seconds(said["submit"])
    run_ms = None
    if "run" in said:
        run_ms = int(Decimal(said["run"]) * 1000)
    elif "end" in said:
        run_ms = int((_seconds(said["end"]) - submit_s) * 1000)
    if run_ms is not None and run_ms < 0:
        raise ValueError(f"it runs for {run_ms} ms")
    gpus = int(Decimal(said.get("gpus") or 0))
    replicas = _replicas(gpus, per_node)
    cpu = int(Decimal(said.get("cpu") or 0) * 1000) + int(Decimal(said.get("cpu_milli") or 0))
    memory = int(Decimal(said.get("memory_gib") or 0) * GIB)
    memory += int(Decimal(said.get("memory_mib") or 0))
    spec = _spec(
        gpus // replicas,
        int(Decimal(said.get("gpu_milli") or 1000)) if gpus else 0,
        cpu,
        memory,
        replicas=replicas,
        preemptible=said.get("preemptible", "true").lower() in ("true", "1", "yes"),
        estimate_s=None if run_ms is None else max(1, run_ms // 1000),
    )
    project = said.get("project") or DEFAULT
    # What runs for no time at all still has to end after it has started.
    runs_ms = None if run_ms is None else max(1, run_ms)
    return submit_s, SimJob(submit_ms=0, spec=spec, runs_ms=(runs_ms,), project=project.lower())


def _replicas(gpus: int, per_node: int) -> int:
    """The fewest equal replicas that each fit on a node."""
    return next(number for number in count(max(1, -(-gpus // per_node))) if not gpus % number)


@lru_cache(maxsize=65_536)
def _spec(
    gpus: int,
    gpu_milli: int,
    cpu_milli: int,
    memory_mib: int,
    *,
    replicas: int,
    preemptible: bool,
    estimate_s: int | None,
) -> SubmittedSpec:
    return SubmittedSpec(
        preemptible=preemptible,
        pools=(DEFAULT,),
        resources=Resources(
            gpus=gpus, gpu_milli=gpu_milli, cpu_milli=cpu_milli, memory_mib=memory_mib
        ),
        replicas_min=replicas,
        replicas_max=replicas,
        runtime_estimate_s=estimate_s,
    )


def _seconds(said: str) -> Decimal:
    try:
        return Decimal(said)
    except InvalidOperation:
        moment = datetime.fromisoformat(said)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return Decimal(int(moment.timestamp()))
