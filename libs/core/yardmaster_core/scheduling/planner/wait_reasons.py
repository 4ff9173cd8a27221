"""Why a shape finds no room in a pool: first what could never be, then what is not so now.

The first check that fails is the reason. What depends on the pool's nodes alone (never, or nodes
that are not available) is kept until the set of nodes changes, so that failing again costs nothing
that grows with the pool.
"""

from collections.abc import Iterable, Mapping, Sequence

from yardmaster_core.scheduling.planner.placement import nodes_for, places_in
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_schemas.reasons import Wait, WaitCode


def no_capacity(pool: Pool, shape: Shape) -> Wait:
    """The reason that `shape`, which did not fit, gets."""
    key = ("no_capacity", shape.fit)
    kept = pool.policy_cache.get(key)
    if kept is None or kept[0] != pool.topology:
        kept = (pool.topology, _lasting(pool, shape))
        pool.policy_cache[key] = kept
    lasting: Wait | None = kept[1]
    return lasting if lasting is not None else _not_now(pool, shape)


def _not_now(pool: Pool, shape: Shape) -> Wait:
    index = pool.free
    asked = shape.total_gpu_milli
    free = index.free_for(shape)
    blocked = sum(1 for name in shape.avoid_nodes if name in index.named)
    if asked > free or not asked:
        about = "gpus" if asked else "gpuless" if index.lacks_gpuless(shape) else "cpus"
        numbers = {"asked_milli": asked, "free_milli": free, "short_milli": max(0, asked - free)}
        return Wait(
            code=WaitCode.INSUFFICIENT_FREE,
            numbers=_with_blocked(numbers, shape, blocked),
            about=about,
        )
    numbers = {"asked_milli": asked, "free_milli": free, "largest_milli": index.largest(shape)}
    if shape.whole_nodes:
        idle = index.candidates(shape) & index.idle
        counts = [found & idle for found in index.whole]
        numbers["idle_milli"] = sum(n * found.bit_count() * WHOLE for n, found in enumerate(counts))
    else:
        numbers["replicas"] = shape.replicas
    return Wait(code=WaitCode.FRAGMENTED, numbers=_with_blocked(numbers, shape, blocked))


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


#: A code, its numbers and what it is about.
_Never = tuple[WaitCode, dict[str, int], str | None]


def _exceeds_every_node(pool: Pool, shape: Shape, fitting: Sequence[Node]) -> _Never | None:
    """Whether one replica is more than any node."""
    config = pool.config
    offers = [
        ("gpus", shape.gpus, [n.gpus for n in fitting]),
        ("cpus", shape.cpu_milli, [n.cpu_milli for n in fitting]),
        ("memory", shape.memory_mib, [n.memory_mib for n in fitting]),
    ]
    for resource, asked, offered in offers[1:] if shape.whole_nodes else offers:
        if asked > max(offered):
            numbers = {"asked": asked, "largest": max(offered)}
            return WaitCode.EXCEEDS_EVERY_NODE, numbers, resource
    if not shape.gpus and config is not None and config.gpuless_per_node == 0:
        return WaitCode.EXCEEDS_EVERY_NODE, {"asked": 1, "largest": 0}, "gpuless"
    return None


def _exceeds_pool(pool: Pool, shape: Shape, fitting: Sequence[Node]) -> _Never | None:
    """Whether all replicas are more than the nodes hold together, with or without the slots that
    are disabled: fewer may be divisible where more are not.
    """
    if any(_possible(pool, shape, fitting, disabled=d) for d in (False, True)):
        return None
    numbers = {
        "asked_milli": shape.total_gpu_milli,
        "pool_milli": sum(n.gpus for n in fitting) * WHOLE,
    }
    if not shape.whole_nodes:
        capacities = (_empty(pool, n, disabled=False) for n in fitting)
        numbers |= {"replicas": shape.replicas, "places": places_in(capacities, shape)}
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
    """Whether the task would fit on these nodes, or on some of them while others are in use;
    `disabled`: without their disabled slots.
    """
    if not shape.whole_nodes:
        capacities = (_empty(pool, node, disabled=disabled) for node in nodes)
        return places_in(capacities, shape) >= shape.replicas
    counts = _sizes(pool, shape, nodes, disabled=disabled)
    if shape.gpus <= max(counts, default=0):
        return True
    if nodes_for(shape.gpus, counts, unequal=False) is not None:
        return True
    return (
        pool.config is not None and pool.config.unequal_gangs and has_exact_sum(shape.gpus, counts)
    )


def has_exact_sum(gpus: int, counts: Mapping[int, int]) -> bool:
    """Whether some of so many nodes of each size have just that many GPUs together."""
    # Bit n is set when some of the nodes have n GPUs together. If those alone are idle, one after
    # another fits, also where it does not with more of them.
    sums = 1
    for size, count in counts.items():
        for _ in range(min(count, gpus // size)):
            sums |= sums << size
        sums &= (2 << gpus) - 1
    return bool(sums >> gpus & 1)


def _sizes(pool: Pool, shape: Shape, nodes: Iterable[Node], *, disabled: bool) -> dict[int, int]:
    # How many nodes with GPUs, and with CPU and memory for a replica, there are of a size, largest
    # first.
    capacities = [_empty(pool, node, disabled=disabled) for node in nodes]
    sizes = [
        capacity.whole for capacity in capacities if capacity.whole and capacity.supports(shape)
    ]
    return {size: sizes.count(size) for size in sorted(set(sizes), reverse=True)}


def _empty(pool: Pool, node: Node, *, disabled: bool) -> NodeCapacity:
    gpus = node.gpus - (len(node.disabled_slots) if disabled else 0)
    capacity = NodeCapacity(node.ordinal, gpus, node.cpu_milli, node.memory_mib)
    capacity.gpuless_left = pool.free.max_gpuless
    return capacity
