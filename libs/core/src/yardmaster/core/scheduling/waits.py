"""Why a shape finds no room in a pool: first what could never be, then what is not so now.

The first check that fails is the reason. What depends on the pool's nodes alone (never, or nodes
that are not available) is kept until the set of nodes changes, so that failing again costs nothing
that grows with the pool.
"""

from yardmaster.core.scheduling.entities import Node, NodeState, Pool
from yardmaster.core.scheduling.indexes import Room
from yardmaster.core.scheduling.placement import places_in
from yardmaster.core.scheduling.shapes import WHOLE, Shape
from yardmaster.schemas.reasons import Wait, WaitCode


def no_room(pool: Pool, shape: Shape) -> Wait:
    """The reason that `shape`, which did not fit, gets."""
    key = ("no_room", shape.id)
    kept = pool.policy_cache.get(key)
    if kept is None or kept[0] != pool.topology:
        kept = (pool.topology, _lasting(pool, shape))
        pool.policy_cache[key] = kept
    lasting: Wait | None = kept[1]
    if lasting is not None:
        return lasting
    asked = shape.total_gpu_milli
    free = pool.idle.free_milli
    if asked > free:
        numbers = {"asked_milli": asked, "free_milli": free, "short_milli": asked - free}
        return Wait(code=WaitCode.INSUFFICIENT_FREE, numbers=numbers, about="gpus")
    numbers = {
        "asked_milli": asked,
        "free_milli": free,
        "largest_milli": pool.idle.largest(shape),
        "replicas": shape.replicas,
    }
    if not asked:
        numbers = {"asked_milli": 0, "free_milli": free, "short_milli": 0}
        return Wait(code=WaitCode.INSUFFICIENT_FREE, numbers=numbers, about="cpus")
    return Wait(code=WaitCode.FRAGMENTED, numbers=numbers)


def _lasting(pool: Pool, shape: Shape) -> Wait | None:
    nodes = [node for _, node in sorted(pool.nodes.items())]
    fitting = [n for n in nodes if not shape.node_types or n.node_type in shape.node_types]
    if not fitting:
        numbers = {"nodes": len(nodes), "left_by_pool": len(nodes), "left_by_type": 0}
        return Wait(code=WaitCode.NO_MATCHING_NODE, numbers=numbers)
    for resource, asked, offered in (
        ("gpus", shape.gpus, [n.gpus for n in fitting]),
        ("cpus", shape.cpu_milli, [n.cpu_milli for n in fitting]),
        ("memory", shape.memory_mib, [n.memory_mib for n in fitting]),
    ):
        if asked > max(offered):
            numbers = {"asked": asked, "largest": max(offered)}
            return Wait(code=WaitCode.EXCEEDS_EVERY_NODE, numbers=numbers, about=resource)
    whole = places_in((_empty(n) for n in fitting), shape)
    if whole < shape.replicas:
        numbers = {
            "asked_milli": shape.total_gpu_milli,
            "pool_milli": sum(n.gpus for n in fitting) * WHOLE,
            "replicas": shape.replicas,
            "places": whole,
        }
        return Wait(code=WaitCode.EXCEEDS_POOL, numbers=numbers)
    usable = [n for n in fitting if n.usable]
    if places_in((_empty(n) for n in usable), shape) < shape.replicas:
        numbers = {
            "nodes": len(fitting),
            "cordoned": sum(1 for n in fitting if n.cordoned or n.barred),
            "lost": sum(1 for n in fitting if n.state is not NodeState.UP),
        }
        return Wait(code=WaitCode.NODES_UNAVAILABLE, numbers=numbers)
    return None


def _empty(node: Node) -> Room:
    return Room(node.ordinal, node.gpus, node.cpu_milli, node.memory_mib)
