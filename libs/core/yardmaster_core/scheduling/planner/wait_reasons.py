"""The reason why a shape does not fit in a pool: first what can never fit, then what does not fit
now.

The first failing check gives the reason. Reasons that depend only on the pool's nodes (never, or
nodes unavailable) are cached until the set of nodes changes. So the cost of a repeated failure does
not grow with the pool.
"""

from collections.abc import Iterable, Sequence

from yardmaster_core.scheduling.planner.feasibility import has_exact_sum
from yardmaster_core.scheduling.planner.placement import (
    nodes_for,
    replicas_by_gpus,
    replicas_that_fit,
)
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_schemas.reasons import Wait, WaitClass, WaitCode


def no_capacity(pool: Pool, shape: Shape) -> Wait:
    """Return the wait reason of a shape that did not fit."""
    return _known_lasting(pool, shape) or _not_now(pool, shape)


def never_fits(pool: Pool, shape: Shape) -> bool:
    """Whether a shape fits on the pool's nodes in no case, also when they are empty."""
    lasting = _known_lasting(pool, shape)
    return lasting is not None and lasting.code.wait_class is WaitClass.NEVER


def fits_usable_nodes(pool: Pool, shape: Shape) -> bool:
    """Whether a shape fits on the nodes that take tasks when they are empty."""
    return _known_lasting(pool, shape) is None


def _known_lasting(pool: Pool, shape: Shape) -> Wait | None:
    """Return the wait reason that depends only on the set of nodes, or None."""
    key = ("no_capacity", shape.fit)
    cached: tuple[int, Wait | None] | None = pool.policy_cache.get(key)
    if cached is None or cached[0] != pool.topology:
        cached = (pool.topology, _lasting(pool, shape))
        pool.policy_cache[key] = cached
    return cached[1]


def _not_now(pool: Pool, shape: Shape) -> Wait:
    index = pool.free
    requested = pool.least_milli(shape)
    free = index.free_for(shape)
    blocked = sum(1 for name in shape.avoid_nodes if name in index.named)
    if not requested and not index.lacks_gpuless(shape):
        about, numbers = _short_without_gpus(index, shape)
        numbers = _with_blocked(numbers, shape, blocked)
        return Wait(code=WaitCode.INSUFFICIENT_FREE, numbers=numbers, about=about)
    if requested > free or not requested:
        about = "gpus" if requested else "gpuless"
        numbers = {
            "asked_milli": requested,
            "free_milli": free,
            "short_milli": max(0, requested - free),
            **_unknown(index, shape),
        }
        return Wait(
            code=WaitCode.INSUFFICIENT_FREE,
            numbers=_with_blocked(numbers, shape, blocked),
            about=about,
        )
    numbers = {
        "asked_milli": requested,
        "free_milli": free,
        "largest_milli": index.largest(shape),
        **_unknown(index, shape),
    }
    short = None
    if shape.whole_nodes:
        idle = index.candidates(shape) & index.idle
        counts = [found & idle for found in index.whole]
        numbers["idle_milli"] = sum(n * found.bit_count() * WHOLE for n, found in enumerate(counts))
    else:
        numbers["replicas"] = shape.replicas
        short = _short_on_nodes_with_gpus(index, shape)
    numbers = _with_blocked(numbers, shape, blocked)
    return Wait(code=WaitCode.FRAGMENTED, numbers=numbers, about=short)


def _short_without_gpus(index: CapacityIndex, shape: Shape) -> tuple[str, dict[str, int]]:
    """The resource that a task without GPUs lacks, its free amount, and the missing amount.

    For one replica, free is the most that a node has; for several, the sum over all nodes.
    """
    together = max if shape.replicas == 1 else sum
    mask = index.available & index.matching(shape)
    found = [capacity for at, capacity in index.capacities.items() if mask >> at & 1]
    needs = (
        ("cpus", "cpu_milli", shape.cpu_milli, [capacity.cpu_milli for capacity in found]),
        ("memory", "memory_mib", shape.memory_mib, [capacity.memory_mib for capacity in found]),
    )
    short = []
    for about, unit, of_replica, free_of_nodes in needs:
        asked = of_replica * shape.replicas
        free = together(max(0, free) for free in (*free_of_nodes, 0))
        if asked > free:
            short.append((about, {f"free_{unit}": free, f"short_{unit}": asked - free}))
    # Where neither is short in all, no node has enough of both.
    return short[0] if short else ("cpus", {})


def _unknown(index: CapacityIndex, shape: Shape) -> dict[str, int]:
    """The number of nodes whose GPUs are not used because their memory is unknown."""
    if not shape.gpu_memory_mib:
        return {}
    known = index.of_size.get(0, 0)
    for nodes in index.of_gpu_memory.values():
        known |= nodes
    unknown = (index.available & ~known).bit_count()
    return {"unknown_nodes": unknown} if unknown else {}


def _short_on_nodes_with_gpus(index: CapacityIndex, shape: Shape) -> str | None:
    """Return the resource that is short on the nodes with free GPUs.

    None: these nodes do not have enough GPUs for all replicas, so GPUs are short.
    """
    by_gpus = with_cpus = 0
    mask = index.with_gpus(shape) if shape.cpu_milli or shape.memory_mib else 0
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        capacity = index.capacities[lowest.bit_length() - 1]
        replicas = replicas_by_gpus(capacity, shape)
        by_gpus += replicas
        if shape.cpu_milli:
            replicas = min(replicas, max(0, capacity.cpu_milli) // shape.cpu_milli)
        with_cpus += replicas
    if by_gpus < shape.replicas:
        return None
    return "cpus" if with_cpus < shape.replicas else "memory"


def _with_blocked(numbers: dict[str, int], shape: Shape, blocked: int) -> dict[str, int]:
    return {**numbers, "blocked": blocked} if shape.avoid_nodes else numbers


def _lasting(pool: Pool, shape: Shape) -> Wait | None:
    nodes = [node for _, node in sorted(pool.nodes.items())]
    of_type = [n for n in nodes if not shape.node_types or n.node_type in shape.node_types]
    fitting = [n for n in of_type if n.name not in shape.avoid_nodes]
    blocked = len(of_type) - len(fitting)
    if shape.image and fitting:
        fitting = [n for n in fitting if n.runs_images]
        if not fitting:
            numbers = _with_blocked({"nodes": len(of_type)}, shape, blocked)
            return Wait(code=WaitCode.NO_EXECUTOR, numbers=numbers)
    if not fitting:
        numbers = {"nodes": len(nodes), "left_by_pool": len(nodes), "left_by_type": len(of_type)}
        if blocked:
            numbers["left_by_avoid"] = 0
        return Wait(code=WaitCode.NO_MATCHING_NODE, numbers=numbers)
    never = _exceeds_every_node(pool, shape, fitting) or _exceeds_pool(pool, shape, fitting)
    if never is not None:
        code, numbers, about = never
        return Wait(code=code, numbers=_with_blocked(numbers, shape, blocked), about=about)
    usable = [n for n in fitting if n.usable]
    if not _possible(pool, shape, usable, disabled=True):
        numbers = {
            "nodes": len(fitting),
            "cordoned": sum(1 for n in fitting if n.cordoned or n.barred),
            "lost": sum(1 for n in fitting if n.state is not NodeState.UP),
        }
        if disabled := sum(len(n.disabled_slots) for n in fitting):
            numbers["disabled"] = disabled
        return Wait(code=WaitCode.NODES_UNAVAILABLE, numbers=_with_blocked(numbers, shape, blocked))
    return None


#: A wait code, its numbers, and the resource concerned.
_NeverReason = tuple[WaitCode, dict[str, int], str | None]


def _exceeds_every_node(pool: Pool, shape: Shape, fitting: Sequence[Node]) -> _NeverReason | None:
    """Return the reason if one replica exceeds every node, else None."""
    config = pool.config
    offers = [
        ("gpus", shape.gpus, [n.gpus for n in fitting]),
        ("cpus", shape.cpu_milli, [n.cpu_milli for n in fitting]),
        ("memory", shape.memory_mib, [n.memory_mib for n in fitting]),
        ("gpu_memory", shape.gpu_memory_mib, [n.gpu_memory_mib if n.gpus else 0 for n in fitting]),
    ]
    for resource, requested, offered in offers[1:] if shape.whole_nodes else offers:
        if requested > max(offered):
            numbers = {"asked": requested, "largest": max(offered)}
            if resource == "gpu_memory":
                unknown = sum(1 for n in fitting if n.gpus and not n.gpu_memory_mib)
                numbers |= {"unknown_nodes": unknown} if unknown else {}
            return WaitCode.EXCEEDS_EVERY_NODE, numbers, resource
    if not shape.gpus and config is not None and config.gpuless_per_node == 0:
        return WaitCode.EXCEEDS_EVERY_NODE, {"asked": 1, "largest": 0}, "gpuless"
    return None


def _exceeds_pool(pool: Pool, shape: Shape, fitting: Sequence[Node]) -> _NeverReason | None:
    """Return the reason if all replicas exceed the nodes together, else None.

    Checked with and without disabled slots: with fewer GPUs a gang may be divisible, and with more
    not.
    """
    if any(_possible(pool, shape, fitting, disabled=d) for d in (False, True)):
        return None
    numbers = {
        "asked_milli": pool.least_milli(shape),
        "pool_milli": sum(n.gpus for n in fitting) * WHOLE,
    }
    if not shape.whole_nodes:
        capacities = (_empty(pool, n, disabled=False) for n in fitting)
        numbers |= {"replicas": shape.replicas, "places": replicas_that_fit(capacities, shape)}
        return WaitCode.EXCEEDS_POOL, numbers, None
    counts = _sizes(pool, shape, fitting, disabled=False)
    if shape.gpus > sum(size * count for size, count in counts.items()):
        return WaitCode.EXCEEDS_POOL, numbers, None
    equal = [size * count for size, count in counts.items() if shape.gpus % size == 0]
    numbers = {
        "asked": shape.gpus,
        "largest": max(counts),
        "divisible": max(equal, default=0),
    }
    return WaitCode.GANG_INDIVISIBLE, numbers, None


def _possible(pool: Pool, shape: Shape, nodes: Sequence[Node], *, disabled: bool) -> bool:
    """Whether the task fits on these nodes when they are empty, or on a subset of them.

    With `disabled`, without their disabled slots.
    """
    if not shape.whole_nodes:
        capacities = (_empty(pool, node, disabled=disabled) for node in nodes)
        return replicas_that_fit(capacities, shape) >= shape.replicas
    counts = _sizes(pool, shape, nodes, disabled=disabled)
    if shape.gpus <= max(counts, default=0):
        return True
    if nodes_for(shape.gpus, counts, unequal=False) is not None:
        return True
    return (
        pool.config is not None and pool.config.unequal_gangs and has_exact_sum(shape.gpus, counts)
    )


def _sizes(pool: Pool, shape: Shape, nodes: Iterable[Node], *, disabled: bool) -> dict[int, int]:
    # The number of nodes with GPUs, and with CPU and memory for a replica, by size, largest first.
    capacities = [_empty(pool, node, disabled=disabled) for node in nodes]
    sizes = [
        capacity.whole for capacity in capacities if capacity.whole and capacity.supports(shape)
    ]
    return {size: sizes.count(size) for size in sorted(set(sizes), reverse=True)}


def _empty(pool: Pool, node: Node, *, disabled: bool) -> NodeCapacity:
    gpus = node.gpus - (len(node.disabled_slots) if disabled else 0)
    size = (gpus, node.cpu_milli, node.memory_mib, node.gpu_memory_mib)
    capacity = NodeCapacity(node.ordinal, *size)
    capacity.gpuless_left = pool.free.max_gpuless
    return capacity
