"""Whether a job can ever fit: told at submission, from the sizes of the nodes that the views show.

A warning, not a verdict: nodes may join later, and the scheduler's reason counts. It costs a
submission nothing but a read of the views every `FRESH_S` seconds, and is left out while they
cannot be read. `avoid_nodes` and labels are not looked at.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from yardmaster_gateway.monotonic import MonotonicViews
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsError
from yardmaster_projections.rows import NodeRow
from yardmaster_projections.store import Query
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.api import NodeState
from yardmaster_schemas.events.requests import Layout, SubmittedSpec
from yardmaster_schemas.resources import Resources

#: How old the sizes may be, in seconds.
FRESH_S: Final = 5.0
#: Nodes that are looked at, and read at once. In a larger cell nothing is said.
MAX_NODES: Final = 20_000
PAGE: Final = 1_000
_AWAY: Final = frozenset({NodeState.ENROLLED, NodeState.GONE, NodeState.REVOKED})


@dataclass(frozen=True, slots=True)
class Size:
    """What nodes of one kind have."""

    node_type: str
    gpus: int
    cpu_milli: int
    memory_mib: int

    def holds(self, asked: Resources) -> int:
        """How many replicas that ask for this fit on the empty node; they may ask for nothing."""
        most = [MAX_NODES]
        if asked.gpus:
            on_a_slot = 1000 // asked.gpu_milli
            most.append(self.gpus * on_a_slot // asked.gpus if asked.gpus <= self.gpus else 0)
        if asked.cpu_milli:
            most.append(self.cpu_milli // asked.cpu_milli)
        if asked.memory_mib:
            most.append(self.memory_mib // asked.memory_mib)
        return min(most)


Sizes = Mapping[Size, int]


class NodeSizes:
    """The sizes of a cell's nodes by pool, read again when they are older than `FRESH_S`."""

    def __init__(self, views: MonotonicViews, clock: Clock, telemetry: Telemetry) -> None:
        self._views = views
        self._clock = clock
        self._reads = telemetry.counter("node_size_reads", "Reads of all nodes' sizes")
        self._lock = asyncio.Lock()
        self._fresh_until_s: float | None = None
        self._pools: Mapping[str, Sizes] = {}
        #: The pools of projects that were asked for since the last read.
        self._of_projects: dict[str, tuple[str, ...]] = {}

    async def warnings(self, spec: SubmittedSpec, project: str) -> list[str]:
        """Why a job can never fit on the nodes that there are, and what would; mostly nothing."""
        try:
            async with self._lock:
                if not self._fresh():
                    await self._refresh()
            if not self._pools:
                return []
            named = spec.pools or await self._pools_of(project)
        except ViewsError:
            return []
        pools = {name: self._pools.get(name, {}) for name in named or self._pools}
        return fit_warnings(spec, pools)

    def _fresh(self) -> bool:
        until_s = self._fresh_until_s
        return until_s is not None and self._clock.monotonic_s() < until_s

    async def _refresh(self) -> None:
        """Read the sizes; a failure counts as long as sizes do, so that nobody waits for another.

        Raises: ViewsError.
        """
        self._pools = {}
        self._of_projects.clear()
        try:
            self._pools = await self._read()
        finally:
            self._fresh_until_s = self._clock.monotonic_s() + FRESH_S

    async def _pools_of(self, project: str) -> tuple[str, ...]:
        if project not in self._of_projects:
            row = await queries.project(self._views.store, project)
            if row is None:
                return ()
            self._of_projects[project] = row.config.pools
        return self._of_projects[project]

    async def _read(self) -> Mapping[str, Sizes]:
        self._reads.inc()
        found: defaultdict[str, Counter[Size]] = defaultdict(Counter)
        query = Query(facets={"listed": frozenset({"yes"})}, limit=PAGE)
        for _ in range(MAX_NODES // PAGE):
            page = await self._views.store.page(NodeRow, query)
            for row in page.rows:
                node = row.joined
                if node is not None and row.state not in _AWAY:
                    size = Size(node.node_type, node.gpus, node.cpu_milli, node.memory_mib)
                    found[node.pool][size] += 1
            if page.next is None:
                return found
            query = Query(facets=query.facets, limit=PAGE, after=page.next)
        return {}


def fit_warnings(spec: SubmittedSpec, pools: Mapping[str, Sizes]) -> list[str]:
    """One sentence about a job that none of these pools could ever run; else none.

    Of pools without nodes nothing is said: they wait for theirs.
    """
    allowed = [
        {
            size: count
            for size, count in sizes.items()
            if not spec.node_types or size.node_type in spec.node_types
        }
        for sizes in pools.values()
    ]
    if not any(pools.values()) or any(_fits(spec, sizes) for sizes in allowed):
        return []
    largest = max(allowed, key=lambda sizes: sum(size.gpus * n for size, n in sizes.items()))
    if not largest:
        return [f"node_types: no node of type {', '.join(spec.node_types)} is in its pools"]
    return [_short(spec, largest)]


def _fits(spec: SubmittedSpec, sizes: Sizes) -> bool:
    asked = spec.resources
    if spec.layout is Layout.WHOLE_NODES:
        return asked.gpus <= sum(size.gpus * count for size, count in sizes.items())
    return _places(asked, sizes) >= spec.replicas_min


def _places(asked: Resources, sizes: Sizes) -> int:
    return sum(size.holds(asked) * count for size, count in sizes.items())


def _short(spec: SubmittedSpec, sizes: Sizes) -> str:
    """What is short, of the resource that is, and what would fit instead."""
    asked = spec.resources
    total = sum(size.gpus * count for size, count in sizes.items())
    if spec.layout is Layout.WHOLE_NODES:
        return f"resources.gpus: {asked.gpus}, all nodes together have {total}"
    most_gpus = max(size.gpus for size in sizes)
    if asked.gpus > most_gpus:
        text = f"resources.gpus: {asked.gpus} per replica, the largest node has {most_gpus}"
        return text + _instead(spec, sizes, most_gpus)
    most_cpu = max(size.cpu_milli for size in sizes)
    if asked.cpu_milli > most_cpu:
        asks, has = asked.cpu_milli / 1000, most_cpu / 1000
        return f"resources.cpus: {asks:g} per replica, the largest node has {has:g}"
    most_memory = max(size.memory_mib for size in sizes)
    if asked.memory_mib > most_memory:
        asks_mib = f"{asked.memory_mib}Mi"
        return f"resources.memory: {asks_mib} per replica, the largest node has {most_memory}Mi"
    places = _places(asked, sizes)
    if places:
        return f"replicas: {spec.replicas_min}, all nodes together hold {places} of them"
    return "resources: no node has all of the GPUs, CPUs and memory that one replica asks for"


def _instead(spec: SubmittedSpec, sizes: Sizes, most: int) -> str:
    """` Try replicas: 3, gpus: 4.` where as many GPUs fit as more and smaller replicas."""
    asked = spec.resources
    wanted: Sequence[int] = range(most, 0, -1) if asked.gpu_milli == 1000 else ()
    for gpus in wanted:
        replicas, rest = divmod(asked.gpus * spec.replicas_min, gpus)
        one = Resources(
            gpus=gpus,
            gpu_milli=1000,
            cpu_milli=asked.cpu_milli * spec.replicas_min // replicas,
            memory_mib=asked.memory_mib * spec.replicas_min // replicas,
        )
        if not rest and _places(one, sizes) >= replicas:
            return f". Try replicas: {replicas}, gpus: {gpus}."
    return ""
