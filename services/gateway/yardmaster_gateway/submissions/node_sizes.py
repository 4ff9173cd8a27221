"""Warnings at submission that a job can never fit on the present nodes of its pools.

The result is a warning and not a decision: nodes may join later, and only the scheduler decides.
The node sizes are read from the views at most every `FRESH_S` seconds. A submission waits for such
a read until `READ_S` seconds after the start of the read. A longer read continues; meanwhile,
submissions use the sizes of the read before if they are at most `STALE_S` seconds old, or else get
no warnings. `avoid_nodes` and labels are ignored.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from yardmaster_gateway.monotonic import MonotonicViews
from yardmaster_gateway.submissions.views_in_time import in_time
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsError
from yardmaster_projections.rows import NodeRow
from yardmaster_projections.store import Query
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import happens_within
from yardmaster_schemas.api import NodeState
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation
from yardmaster_schemas.events.requests import Layout, SubmittedSpec
from yardmaster_schemas.resources import Resources, fraction_of

#: The age in seconds from which the sizes are read again, and the age up to which they are used
#: during this read.
FRESH_S: Final = 5.0
STALE_S: Final = 600.0
#: The longest that a submission waits for the sizes, in seconds: the job is recorded already.
READ_S: Final = 1.0
#: The largest cell with warnings, in nodes, and the number of nodes per read.
MAX_NODES: Final = 20_000
PAGE: Final = 1_000
_ABSENT: Final = frozenset({NodeState.ENROLLED, NodeState.GONE, NodeState.REVOKED})


@dataclass(frozen=True, slots=True)
class Size:
    """The resources of nodes of one type and size."""

    node_type: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    gpu_memory_mib: int = 0
    #: Whether the node runs container images.
    containers: bool = False
    #: The folders that containers may mount on the node, with `:rw` also to write.
    mounts: frozenset[str] = frozenset()
    #: Whether the node can run tasks as users that jobs name.
    switches_users: bool = False

    def replicas_that_fit(self, request: Resources) -> int:
        """The number of replicas that fit on the empty node, at most MAX_NODES."""
        bounds = [MAX_NODES]
        if request.gpus:
            milli = request.gpu_milli or fraction_of(request.gpu_memory_mib, self.gpu_memory_mib)
            per_slot = 1000 // milli
            fits = request.gpus <= self.gpus
            bounds.append(self.gpus * per_slot // request.gpus if fits else 0)
        if request.cpu_milli:
            bounds.append(self.cpu_milli // request.cpu_milli)
        if request.memory_mib:
            bounds.append(self.memory_mib // request.memory_mib)
        return min(bounds)

    def lacks(self, mounts: Sequence[str]) -> list[str]:
        """Return those of the mounts of a job that the node does not allow."""
        return [one for one in mounts if self.mounts.isdisjoint((one, f"{one}:rw"))]


#: The number of nodes of each size.
Sizes = Mapping[Size, int]


class NodeSizes:
    """A cache of the sizes of a cell's nodes by pool; while `run` runs, submissions refresh it."""

    def __init__(self, views: MonotonicViews, clock: Clock, telemetry: Telemetry) -> None:
        self._views = views
        self._clock = clock
        self._reads = telemetry.counter("node_size_reads", "Reads of all nodes' sizes")
        self._late = telemetry.counter(
            "node_size_reads_late", "Reads of all nodes' sizes that no submission waited for"
        )
        self._running = False
        self._wanted = asyncio.Event()
        #: The present or next read: the time until which submissions wait for it, and the event
        #: that is set at its end. None: no read runs or is wanted.
        self._reading: tuple[float, asyncio.Event] | None = None
        #: The time of the last result or failure of a read.
        self._read_at_s: float | None = None
        self._pools: Mapping[str, Sizes] = {}
        #: The pools of each project that submitted a job since the last read.
        self._of_projects: dict[str, tuple[str, ...]] = {}

    async def warnings(self, spec: SubmittedSpec, project: str) -> list[str]:
        """Return why a job can never fit on the present nodes, and what would fit.

        The list is usually empty. It is also empty if the sizes are not known in time.
        """
        until_s = self._clock.monotonic_s() + READ_S
        if self._running and self._age_s() >= FRESH_S:
            await self._refresh()
        left_s = max(0.0, until_s - self._clock.monotonic_s())
        return await in_time(self._warnings(spec, project), self._clock, left_s) or []

    async def run(self) -> NoReturn:
        """Read the sizes when a submission needs them, one read at a time, until cancelled."""
        self._running = True
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._read_sizes()

    async def _warnings(self, spec: SubmittedSpec, project: str) -> list[str]:
        """Return the warnings from the cached sizes, without a wait for a new read.

        Raises: ViewsError: the pools of the project cannot be read.
        """
        if not self._pools or self._age_s() >= STALE_S:
            return []
        names = spec.pools or await self._pools_of(project)
        pools = {name: self._pools.get(name, {}) for name in names or self._pools}
        return fit_warnings(spec, pools)

    def _age_s(self) -> float:
        at_s = self._read_at_s
        return math.inf if at_s is None else self._clock.monotonic_s() - at_s

    async def _refresh(self) -> None:
        """Wait for the present read, or request a new one, until `READ_S` after its start."""
        now_s = self._clock.monotonic_s()
        if self._reading is None:
            self._reading = (now_s + READ_S, asyncio.Event())
            self._wanted.set()
        until_s, ended = self._reading
        if now_s < until_s:
            await happens_within(self._clock, until_s - now_s, ended)

    async def _read_sizes(self) -> None:
        """Read the sizes. A failure is cached too, so that later submissions do not wait for it."""
        try:
            pools = await self._read()
        except ViewsError:
            pools = {}
        self._pools = pools
        self._of_projects.clear()
        self._read_at_s = self._clock.monotonic_s()
        assert self._reading is not None
        until_s, ended = self._reading
        if self._read_at_s > until_s:
            self._late.inc()
        self._reading = None
        ended.set()

    async def _pools_of(self, project: str) -> tuple[str, ...]:
        if project not in self._of_projects:
            row = await queries.project(self._views.store, project)
            if row is None:
                return ()
            self._of_projects[project] = row.config.pools
        return self._of_projects[project]

    async def _read(self) -> Mapping[str, Sizes]:
        """Return the sizes of all present nodes, by pool; empty if the cell is above MAX_NODES."""
        self._reads.inc()
        found: defaultdict[str, Counter[Size]] = defaultdict(Counter)
        query = Query(facets={"listed": frozenset({"yes"})}, limit=PAGE)
        for _ in range(MAX_NODES // PAGE):
            page = await self._views.store.page(NodeRow, query)
            for row in page.rows:
                node = row.joined
                if node is not None and row.state not in _ABSENT:
                    amounts = (node.cpu_milli, node.memory_mib, node.gpu_memory_mib)
                    containers = ExecutorKind.CONTAINER in node.executors
                    mounts = frozenset(node.mounts)
                    users = node.isolation is Isolation.USER
                    size = Size(node.node_type, node.gpus, *amounts, containers, mounts, users)
                    found[node.pool][size] += 1
            if page.next is None:
                return found
            query = Query(facets=query.facets, limit=PAGE, after=page.next)
        return {}


def fit_warnings(spec: SubmittedSpec, pools: Mapping[str, Sizes]) -> list[str]:
    """One warning if none of these pools can ever run the job; otherwise none.

    There is no warning if no pool has nodes, because nodes are expected to join.
    """
    allowed = [
        {
            size: count
            for size, count in sizes.items()
            if (not spec.node_types or size.node_type in spec.node_types)
            and (size.containers or not spec.image)
            and (size.switches_users or spec.run_as is None)
            and not size.lacks(spec.mounts)
        }
        for sizes in pools.values()
    ]
    if not any(pools.values()) or any(_fits(spec, sizes) for sizes in allowed):
        return []
    largest = max(allowed, key=lambda sizes: sum(size.gpus * n for size, n in sizes.items()))
    if largest:
        return [_shortage(spec, largest)]
    if spec.image and not any(size.containers for sizes in pools.values() for size in sizes):
        return ["run.image: no node of its pools runs containers"]
    which = " that runs containers" if spec.image else ""
    running = [
        size
        for sizes in pools.values()
        for size in sizes
        if (size.containers or not spec.image)
        and (not spec.node_types or size.node_type in spec.node_types)
    ]
    if spec.run_as is not None and running:
        running = [size for size in running if size.switches_users]
        if not running:
            return [f"run.run_as: no node{which} of its pools can switch users (ISOLATION none)"]
    lacking = [size.lacks(spec.mounts) for size in running]
    if spec.mounts and lacking:
        of_all = [one for one in spec.mounts if all(one in some for some in lacking)]
        amount = "" if of_all else "all of "
        return [f"run.mounts: no node of its pools has {amount}{', '.join(of_all or spec.mounts)}"]
    return [f"node_types: no node of type {', '.join(spec.node_types)}{which} is in its pools"]


def _fits(spec: SubmittedSpec, sizes: Sizes) -> bool:
    request = spec.resources
    if spec.layout is Layout.WHOLE_NODES:
        return request.gpus <= sum(size.gpus * count for size, count in sizes.items())
    return _capacity(request, sizes) >= spec.replicas_min


def _capacity(request: Resources, sizes: Sizes) -> int:
    return sum(size.replicas_that_fit(request) * count for size, count in sizes.items())


def _shortage(spec: SubmittedSpec, sizes: Sizes) -> str:
    """Return a text with the resource that is short, and a request that would fit."""
    request = spec.resources
    total = sum(size.gpus * count for size, count in sizes.items())
    if spec.layout is Layout.WHOLE_NODES:
        return f"resources.gpus: {request.gpus}, all nodes together have {total}"
    most_gpus = max(size.gpus for size in sizes)
    if request.gpus > most_gpus:
        text = f"resources.gpus: {request.gpus} per replica, the largest node has {most_gpus}"
        return text + _alternative(spec, sizes, most_gpus)
    most_of_gpu = max((size.gpu_memory_mib for size in sizes if size.gpus), default=0)
    if request.gpu_memory_mib > most_of_gpu:
        return (
            f"resources.gpu_memory: {request.gpu_memory_mib}Mi of a GPU, the largest that is known "
            f"has {most_of_gpu}Mi"
        )
    most_cpu = max(size.cpu_milli for size in sizes)
    if request.cpu_milli > most_cpu:
        requested, largest = request.cpu_milli / 1000, most_cpu / 1000
        return f"resources.cpus: {requested:g} per replica, the largest node has {largest:g}"
    most_memory = max(size.memory_mib for size in sizes)
    if request.memory_mib > most_memory:
        requested_mib = f"{request.memory_mib}Mi"
        return (
            f"resources.memory: {requested_mib} per replica, the largest node has {most_memory}Mi"
        )
    capacity = _capacity(request, sizes)
    if capacity:
        return f"replicas: {spec.replicas_min}, all nodes together hold {capacity} of them"
    return "resources: no node has all GPUs, CPUs and memory that one replica requests"


def _alternative(spec: SubmittedSpec, sizes: Sizes, largest: int) -> str:
    """Return the end of a warning: a proposal of smaller replicas with as many GPUs in total.

    Example: `. Try replicas: 3, gpus: 4.` It is made only if these replicas fit.
    """
    request = spec.resources
    candidates: Sequence[int] = range(largest, 0, -1) if request.gpu_milli == 1000 else ()
    for gpus in candidates:
        replicas, rest = divmod(request.gpus * spec.replicas_min, gpus)
        one = Resources(
            gpus=gpus,
            gpu_milli=1000,
            cpu_milli=request.cpu_milli * spec.replicas_min // replicas,
            memory_mib=request.memory_mib * spec.replicas_min // replicas,
        )
        if not rest and _capacity(one, sizes) >= replicas:
            return f". Try replicas: {replicas}, gpus: {gpus}."
    return ""
