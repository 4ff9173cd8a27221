"""Read trace files: Philly's jobs, openb's pods and nodes, any CSV file with mapped columns.

A file may be compressed with gzip. Times are seconds, or dates and times in ISO 8601; workloads
count them from the first submission.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from yardmaster_schemas.counts import count_of
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import ProjectConfig, SubmittedSpec
from yardmaster_schemas.fields import Name
from yardmaster_simulation.distributions import Chance
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.rows import FIELDS, Wrong, amount, moment, rows, seconds, whole
from yardmaster_simulation.workload import DEFAULT, Behavior, SimJob, SimNode, Workload

MAX_GPUS_PER_NODE: Final = 8
#: The longest time from the first submission to the last: 100 years.
MAX_SPAN_S: Final = 100 * 365 * 86_400
PHILLY: Final = {"submit": "timestamp", "run": "duration", "gpus": "num_gpus", "project": "cluster"}
OPENB_PODS: Final = {
    "gpus": "num_gpu",
    "gpu_milli": "gpu_milli",
    "cpu_milli": "cpu_milli",
    "memory_mib": "memory_mib",
}
OPENB_NODES: Final = {
    "node": "sn",
    "node_type": "model",
    "gpus": "gpu",
    "cpu_milli": "cpu_milli",
    "memory_mib": "memory_mib",
}
GIB: Final = 1024
_SPECS: Final = TypeAdapter(SubmittedSpec)
_NAMES: Final = TypeAdapter[str](Name)
_JOINS: Final = TypeAdapter(NodeJoinedV1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The mapping of fields to columns, and filters of rows.

    `where` keeps the rows that have these values. `since` and `until`, in the file's format of
    times, keep the rows with a submission time between them, inclusive. The field `run` is the
    duration of a job. The field `end` is the time at which the job ends if it starts at its
    submission. If `gpus` is more than a node has, the job becomes a gang of equal replicas, among
    which GPUs, CPU and memory are divided.
    """

    names: Mapping[str, str]
    where: Mapping[str, str] = field(default_factory=dict)
    since: str | None = None
    until: str | None = None


#: A job of a file: submission time (s), spec, duration (ms), project.
_Job = tuple[Decimal, SubmittedSpec, int | None, str]


def read_jobs(path: Path, columns: Columns, *, per_node: int = MAX_GPUS_PER_NODE) -> list[SimJob]:
    """Read the jobs of a trace file, by submission time, then in file order.

    Raises:
        BadWorkload: the file cannot be read, or a row is not a valid job.
    """
    unknown = sorted(set(columns.names) - set(FIELDS))
    if unknown or "submit" not in columns.names:
        found = f"no field {unknown[0]}" if unknown else "no column for submit"
        raise BadWorkload(path=path, found=f"{found}; fields are {', '.join(FIELDS)}")
    try:
        first_s = None if columns.since is None else seconds(columns.since)
        last_s = None if columns.until is None else seconds(columns.until)
    except ValueError as error:
        raise BadWorkload(path=path, found=str(error)) from None
    jobs = [
        job
        for job in rows(path, columns.names, partial(_job, per_node=per_node), where=columns.where)
        if (first_s is None or job[0] >= first_s) and (last_s is None or job[0] <= last_s)
    ]
    if not jobs:
        raise BadWorkload(path=path, found="the file has no job")
    jobs.sort(key=lambda each: each[0])
    begin_s, end_s = jobs[0][0], jobs[-1][0]
    if end_s - begin_s > MAX_SPAN_S:
        name = columns.names["submit"]
        found = f"column {name}: from {begin_s} to {end_s} s are more than 100 years"
        raise BadWorkload(path=path, found=found)
    return [
        SimJob(
            submit_ms=int((submit_s - begin_s) * 1000),
            spec=spec,
            runs_ms=(run_ms,),
            project=project,
        )
        for submit_s, spec, run_ms, project in jobs
    ]


def projects_of(jobs: Sequence[SimJob]) -> dict[str, ProjectConfig]:
    """A configuration for each project of the jobs, all with equal weight."""
    return {
        name: ProjectConfig(department=DEFAULT) for name in sorted({job.project for job in jobs})
    }


@dataclass(frozen=True, slots=True)
class Equal:
    """Equal nodes that replace a workload's own: their number, and the GPUs of each."""

    number: int
    gpus: int


def own_or_equal(own: Sequence[SimNode], equal: Equal | None) -> tuple[SimNode, ...]:
    """The workload's own nodes, or the equal nodes that replace them.

    Equal nodes are in the first own node's pool and have the maximum CPU and memory of the own
    nodes, and the own nodes' type if all have the same type.
    """
    if equal is None:
        return tuple(own)
    types = {node.node_type for node in own}
    like = replace(
        own[0],
        gpus=equal.gpus,
        cpu_milli=max(node.cpu_milli for node in own),
        memory_mib=max(node.memory_mib for node in own),
        node_type=own[0].node_type if len(types) == 1 else "any",
    )
    return _numbered(equal.number, like)


def equal_nodes(
    number: int, *, gpus: int, cpu: int = 96, memory_gib: int = 1024
) -> tuple[SimNode, ...]:
    """`number` nodes of one kind."""
    like = SimNode(name="", gpus=gpus, cpu_milli=cpu * 1000, memory_mib=memory_gib * GIB)
    return _numbered(number, like)


def _numbered(number: int, like: SimNode) -> tuple[SimNode, ...]:
    digits = len(str(number - 1))
    return tuple(replace(like, name=f"node-{each:0{digits}d}") for each in range(number))


def philly(
    path: Path,
    *,
    cluster: str | None = None,
    since: str | None = None,
    until: str | None = None,
    equal: Equal | None = None,
) -> Workload:
    """Microsoft's Philly trace, or one of its virtual clusters, on 309 nodes of 8 GPUs or `equal`.

    Jobs request GPUs only, because the trace has no CPU or memory.
    """
    where = {} if cluster is None else {"cluster": cluster}
    columns = Columns(names=PHILLY, where=where, since=since, until=until)
    nodes = own_or_equal(equal_nodes(309, gpus=MAX_GPUS_PER_NODE), equal)
    jobs = read_jobs(path, columns, per_node=nodes[0].gpus)
    return Workload(
        name="philly" if cluster is None else f"philly-{cluster}",
        nodes=nodes,
        jobs=jobs,
        projects=projects_of(jobs),
        cadence_ms=60_000,
        source=f"{path.name} ({count_of(len(jobs), 'job')})",
    )


def csv_jobs(path: Path, columns: Columns, *, equal: Equal | None = None) -> Workload:
    """The jobs of any CSV file, on 100 nodes of 8 GPUs or `equal`.

    Raises: BadWorkload.
    """
    nodes = own_or_equal(equal_nodes(100, gpus=MAX_GPUS_PER_NODE), equal)
    jobs = read_jobs(path, columns, per_node=nodes[0].gpus)
    return Workload(
        name=path.name.partition(".")[0],
        nodes=nodes,
        jobs=jobs,
        projects=projects_of(jobs),
        source=f"{path.name} ({count_of(len(jobs), 'job')})",
    )


def read_nodes(path: Path) -> tuple[SimNode, ...]:
    """Read nodes from columns sn, cpu_milli, memory_mib, gpu and, if it exists, model.

    Raises: BadWorkload.
    """
    nodes = tuple(rows(path, OPENB_NODES, _node, optional=("node_type",)))
    if not nodes:
        raise BadWorkload(path=path, found="the file has no node")
    for name, times in Counter(node.name for node in nodes).items():
        if times > 1:
            raise BadWorkload(path=path, found=f"node {name} occurs {times} times")
    return nodes


def _node(values: Mapping[str, str]) -> SimNode:
    node = SimNode(
        name=values["node"].lower(),
        gpus=whole(values, "gpus"),
        cpu_milli=whole(values, "cpu_milli"),
        memory_mib=whole(values, "memory_mib"),
        node_type=(values["node_type"] or "any").lower(),
    )
    _JOINS.validate_python(
        {
            "node": node.name,
            "address": "simulated",
            "pool": node.pool,
            "node_type": node.node_type,
            "gpus": node.gpus,
            "cpu_milli": node.cpu_milli,
            "memory_mib": node.memory_mib,
            "incarnation": "0" * 12,
            "boot_id": "0" * 8,
            "schema_version": 1,
            "port_first": 1,
            "port_last": 1,
        },
        strict=False,  # strict mode accepts no dict
    )
    return node


def read_pods(path: Path) -> list[SubmittedSpec]:
    """Read the specs of pods from columns num_gpu, gpu_milli, cpu_milli, memory_mib.

    Raises: BadWorkload.
    """
    return list(rows(path, OPENB_PODS, _pod))


def _pod(values: Mapping[str, str]) -> SubmittedSpec:
    gpus = whole(values, "gpus")
    return _spec(
        gpus,
        whole(values, "gpu_milli") if gpus else 0,
        whole(values, "cpu_milli"),
        whole(values, "memory_mib"),
        replicas=1,
        preemptible=True,
        estimate_s=None,
    )


def openb(
    pods: Path,
    nodes: Path,
    *,
    seed: int,
    arrived_permille: int = 1300,
    equal: Equal | None = None,
) -> Workload:
    """Alibaba's openb trace as the FGD paper uses it (Weng and others, ATC 2023).

    On the nodes with GPUs, all pods arrive in random order, then pods drawn with replacement, until
    the requested GPUs are `arrived_permille` of the cluster's. No pod ends, and a pod that does not
    fit on arrival is dropped.

    Raises: BadWorkload.
    """
    own = [node for node in read_nodes(nodes) if node.gpus]
    if not own:
        raise BadWorkload(path=nodes, found="no node has GPUs")
    pod_specs = read_pods(pods)
    if not any(spec.resources.gpus for spec in pod_specs):
        raise BadWorkload(path=pods, found="no pod requests GPUs")
    there = own_or_equal(own, equal)
    chance = Chance(seed)
    order = chance.shuffled(len(pod_specs), "pods")
    wanted = sum(node.gpus for node in there) * arrived_permille
    jobs: list[SimJob] = []
    arrived = 0
    for number in count():
        if arrived >= wanted:
            break
        again = number >= len(order)
        pod = chance.below(len(pod_specs), number, "again") if again else order[number]
        jobs.append(SimJob(submit_ms=number * 1000, spec=pod_specs[pod], runs_ms=(None,)))
        arrived += pod_specs[pod].resources.gpu_total_milli
    return Workload(
        name="openb",
        nodes=there,
        jobs=jobs,
        behavior=Behavior(patience_ms=0),
        source=f"{pods.name} on {nodes.name}, seed {seed}",
    )


def _job(values: Mapping[str, str], per_node: int) -> _Job:
    submit_s = moment(values, "submit")
    run_ms, by = None, "run" if "run" in values else "end"
    if by in values:
        run_s = amount(values, by) if by == "run" else moment(values, by) - submit_s
        run_ms = int(run_s * 1000)
        if run_ms < 0:
            raise Wrong(by, f"the job runs for {run_ms} ms")
    gpus = whole(values, "gpus", "0")
    replicas = _replicas(gpus, per_node)
    cpu = int(amount(values, "cpu", "0") * 1000) + int(amount(values, "cpu_milli", "0"))
    memory = int(amount(values, "memory_gib", "0") * GIB) + int(amount(values, "memory_mib", "0"))
    spec = _spec(
        gpus // replicas,
        whole(values, "gpu_milli", "1000") if gpus else 0,
        -(-cpu // replicas),
        -(-memory // replicas),
        replicas=replicas,
        preemptible=_preemptible(values),
        estimate_s=None if run_ms is None else max(1, run_ms // 1000),
    )
    # A task with a duration of zero must still end after its start.
    run_ms = None if run_ms is None else max(1, run_ms)
    return submit_s, spec, run_ms, _project(values.get("project"))


def _preemptible(values: Mapping[str, str]) -> bool:
    text = (values.get("preemptible") or "true").lower()
    if text not in ("true", "1", "yes", "false", "0", "no"):
        raise Wrong("preemptible")
    return text in ("true", "1", "yes")


@lru_cache(maxsize=4096)
def _project(values: str | None) -> str:
    try:
        return _NAMES.validate_python((values or DEFAULT).lower())
    except ValidationError:
        raise Wrong("project") from None


@lru_cache(maxsize=4096)
def _replicas(gpus: int, per_node: int) -> int:
    """The smallest number of equal replicas that each fit on a node."""
    each = next(number for number in range(per_node, 0, -1) if not gpus % number)
    return max(1, gpus // each)


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
    """Validate a spec as the log stores it.

    Raises: ValidationError: a value is not allowed in the spec of a job.
    """
    return _SPECS.validate_python(
        {
            "preemptible": preemptible,
            "pools": (DEFAULT,),
            "resources": {
                "gpus": gpus,
                "gpu_milli": gpu_milli,
                "cpu_milli": cpu_milli,
                "memory_mib": memory_mib,
            },
            "replicas_min": replicas,
            "replicas_max": replicas,
            "runtime_estimate_s": estimate_s,
        },
        strict=False,  # strict mode accepts no dict
    )
