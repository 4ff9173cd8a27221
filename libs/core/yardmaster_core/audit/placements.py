"""Checks of an allocation: the gang is complete (S5), and each replica may be on its node (S3)."""

from typing import Final

from yardmaster_core.audit.cluster import Cluster, Job
from yardmaster_schemas.events.decisions import Placement, SlotsAllocatedV1
from yardmaster_schemas.events.node_events import ExecutorKind
from yardmaster_schemas.events.requests import Layout

SLOT_MILLI: Final = 1000


def gang_fault(cluster: Cluster, body: SlotsAllocatedV1, job: Job) -> str | None:
    """Return how an allocation differs from its job's request, or None.

    The text continues a message that starts with the name of the attempt.
    The allocation is not in `cluster` yet. A task on several whole nodes must have all GPUs of each
    node, and equally many on each node unless its pool allows unequal gangs.
    """
    spec = job.spec
    replicas = [p.replica for p in body.placements]
    if spec.layout is Layout.WHOLE_NODES and len(replicas) > 1:
        return _whole_nodes_fault(cluster, body, job)
    if replicas != list(range(len(replicas))) or not (
        spec.replicas_min <= len(replicas) <= spec.replicas_max
    ):
        return (
            f": expected {spec.replicas_min} to {spec.replicas_max} replicas from 0 on, "
            f"found {replicas[:16]}"
        )
    requested = spec.resources
    for p in body.placements:
        given = (len(set(p.slots)), p.gpu_milli, p.cpu_milli, p.memory_mib, p.gpu_memory_mib)
        gpu_memory_mib = requested.gpu_memory_mib
        fractions = (
            _fractions(cluster, p, gpu_memory_mib) if gpu_memory_mib else {requested.gpu_milli}
        )
        milli = p.gpu_milli if p.gpu_milli in fractions else min(fractions, default=0)
        wanted = (
            *(requested.gpus, milli),
            *(requested.cpu_milli, requested.memory_mib, gpu_memory_mib),
        )
        if given != wanted or len(p.slots) != requested.gpus:
            return (
                f" replica {p.replica}: expected (slots, gpu_milli, cpu_milli, "
                f"memory_mib, gpu_memory_mib) {wanted}, found {given}"
            )
    return None


def _fractions(cluster: Cluster, p: Placement, gpu_memory_mib: int) -> set[int]:
    """Return `gpu_memory_mib` as gpu_milli of one GPU of the node, rounded up to 10 gpu_milli.

    One value for each size of a GPU that the node's agents reported.
    """
    node = cluster.nodes.get(p.node)
    if node is None:
        return {p.gpu_milli}  # reported by `place_fault` as an unknown node
    return {
        -(-gpu_memory_mib * 100 // memory_mib) * 10
        for memory_mib in node.gpu_memories_mib
        if memory_mib >= gpu_memory_mib
    }


def _whole_nodes_fault(cluster: Cluster, body: SlotsAllocatedV1, job: Job) -> str | None:
    """Return what `gang_fault` returns, for a task on several whole nodes."""
    requested, placed = job.spec.resources, body.placements
    gpus = [len(set(p.slots)) for p in placed]
    config = cluster.pools.get(body.pool)
    replicas = [p.replica for p in placed]
    if replicas != list(range(len(placed))):
        return f": expected replicas from 0 on, found {replicas[:16]}"
    if sum(gpus) != requested.gpus or any(p.gpu_milli != SLOT_MILLI for p in placed):
        return f": expected {requested.gpus} whole GPUs in all, found {gpus[:16]}"
    if len(set(gpus)) > 1 and not (config is not None and config.unequal_gangs):
        return f": expected the same number of GPUs on each node, found {gpus[:16]}"
    for p in placed:
        given, wanted = (
            (p.cpu_milli, p.memory_mib),
            (requested.cpu_milli, requested.memory_mib),
        )
        if given != wanted:
            return f" replica {p.replica}: expected (cpu_milli, memory_mib) {wanted}, found {given}"
    used = [p.node for p in placed if not _has_whole_node(cluster, p)]
    return f": expected idle nodes, each whole, found {sorted(used)[:16]}" if used else None


def _has_whole_node(cluster: Cluster, p: Placement) -> bool:
    """Whether a placement takes all enabled slots of a node on which no other task has a slot."""
    node = cluster.nodes.get(p.node)
    if node is None:
        return True  # reported by `place_fault` as an unknown node
    every = range(node.gpus)
    return set(p.slots) == set(every).difference(cluster.disabled.get(p.node, ())) and not any(
        cluster.slots.get((p.node, slot)) for slot in every
    )


def place_fault(cluster: Cluster, job: Job, pool: str, p: Placement) -> str | None:
    """Return why a replica may not be on its node, or None; `cluster` has the placement already."""
    node = cluster.nodes.get(p.node)
    if node is None or not node.up or node.incarnation != p.incarnation or node.pool != pool:
        found = "unknown" if node is None else f"{node.incarnation} of pool {node.pool}"
        state = "" if node is None or node.up else ", gone"
        return f"node {p.node}: expected {p.incarnation} of pool {pool}, is {found}{state}"
    if beyond := cluster.beyond_enrollment(p.node):
        return beyond
    if any(slot >= node.gpus for slot in p.slots):
        return f"node {p.node} has {node.gpus} slots, given are {list(p.slots)[:16]}"
    if out := sorted(set(p.slots).intersection(cluster.disabled.get(p.node, ()))):
        return f"node {p.node}: slots {out[:16]} are disabled"
    if job.spec.image and ExecutorKind.CONTAINER not in node.executors:
        return f"node {p.node} runs no containers, which the job's image needs"
    if p.node in job.spec.avoid_nodes:
        return f"node {p.node} is in the job's avoid_nodes"
    if over := [s for s in p.slots if cluster.slots[p.node, s] > SLOT_MILLI]:
        held = cluster.slots[p.node, over[0]]
        others = sorted(
            f"{task}/{replica}"
            for task, replica in cluster.on_node[p.node]
            if (a := cluster.task(task).attempt) and over[0] in a.open[replica].slots
        )
        return (
            f"node {p.node} slot {over[0]}: expected at most {SLOT_MILLI} gpu_milli open, "
            f"found {held} ({', '.join(others)})"
        )
    of_gpu_mib = max(node.gpu_memories_mib)
    for slot in p.slots:
        if p.gpu_memory_mib and (held_mib := cluster.gpu_memory[p.node, slot]) > of_gpu_mib:
            return f"node {p.node} slot {slot}: {held_mib} of {of_gpu_mib} MiB of the GPU requested"
    if cluster.cpu[p.node] > node.cpu_milli:
        return f"node {p.node}: {cluster.cpu[p.node]} of {node.cpu_milli} cpu_milli open"
    if cluster.memory[p.node] > node.memory_mib:
        return f"node {p.node}: {cluster.memory[p.node]} of {node.memory_mib} MiB open"
    return _too_many_gpuless(cluster, pool, p)


def _too_many_gpuless(cluster: Cluster, pool: str, p: Placement) -> str | None:
    """Return how a node exceeds the pool's `gpuless_per_node`, or None."""
    config = cluster.pools.get(pool)
    if p.slots or config is None or config.gpuless_per_node is None:
        return None
    there = sum(
        1
        for task, replica in cluster.on_node[p.node]
        if (a := cluster.task(task).attempt) and not a.open[replica].slots
    )
    if there <= config.gpuless_per_node:
        return None
    return f"node {p.node}: {there} tasks without GPUs open, at most {config.gpuless_per_node}"
