"""The free capacity of the nodes of a pool, counted from the replicas that hold slots and from the
reservations, without the scheduler's own indexes.

A slot counts as free only as far as it is neither held nor reserved. So of a part that one task
holds and another has reserved, nothing is free, and less is found than there may be.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events.decisions import Placement

#: The most tasks without GPUs on a node, in a pool that does not set it.
GPULESS_PER_NODE = 512
WHOLE = 1000


@dataclass(slots=True)
class FreeOnNode:
    """The free capacity of a node; `slots` in gpu_milli, 0 for a disabled one."""

    node: Node
    slots: list[int]
    cpu_milli: int
    memory_mib: int
    gpuless: int

    def take(self, placement: Placement) -> None:
        """Count a placement on the node as held."""
        if placement.node != self.node.name or placement.incarnation != self.node.incarnation:
            return
        for slot in placement.slots:
            self.slots[slot] -= placement.gpu_milli
        self.cpu_milli -= placement.cpu_milli
        self.memory_mib -= placement.memory_mib
        self.gpuless -= not placement.slots

    def replicas_of(self, task: Task) -> int:
        """How many replicas of a task the node can start."""
        spec = task.job.spec
        asked = spec.resources
        least = spec.replicas_min
        if asked.gpus:
            at_once = [max(0, free) // asked.gpu_milli for free in self.slots]
            while least and sum(min(least, n) for n in at_once) < least * asked.gpus:
                least -= 1
        else:
            least = min(least, max(0, self.gpuless))
        if asked.cpu_milli:
            least = min(least, max(0, self.cpu_milli) // asked.cpu_milli)
        if asked.memory_mib:
            least = min(least, max(0, self.memory_mib) // asked.memory_mib)
        return least


def is_simple(task: Task) -> bool:
    """Whether it is judged here whether a task fits: not on whole nodes, and not by GPU memory."""
    return not task.job.shape.whole_nodes and not task.job.spec.resources.gpu_memory_mib


def may_use(task: Task, node: Node) -> bool:
    """Whether the tasks of a job may be placed on a node, however much is free there."""
    spec = task.job.spec
    return (
        node.usable
        and (not spec.node_types or node.node_type in spec.node_types)
        and node.name not in spec.avoid_nodes
        and (not spec.image or node.runs_images)
    )


def empty(pool: Pool, node: Node) -> FreeOnNode:
    """Return the capacity of a node."""
    assert pool.config is not None
    slots = [0 if slot in node.disabled else WHOLE for slot in range(node.gpus)]
    most = pool.config.gpuless_per_node
    gpuless = GPULESS_PER_NODE if most is None else most
    return FreeOnNode(node, slots, node.cpu_milli, node.memory_mib, gpuless)


def free_on(
    state: ClusterState, pool: Pool, without: Collection[Task] = ()
) -> Iterator[FreeOnNode]:
    """Yield what is free on each usable node of a pool, as if some tasks were gone."""
    for node in pool.nodes.values():
        if not node.usable:
            continue
        free = empty(pool, node)
        for task in state.tasks.values():
            run = task.run
            if run is not None and task not in without:
                for was, placement in zip(run.replicas, run.placements, strict=True):
                    if was < ReplicaState.RELEASED:
                        free.take(placement)
            if task.reserved is not None:
                for placement in task.reserved.placements:
                    free.take(placement)
        yield free


def fits_on_empty_nodes(pool: Pool, task: Task) -> bool:
    """Whether a simple task fits on the usable nodes of a pool when they are empty."""
    nodes = (node for node in pool.nodes.values() if may_use(task, node))
    found = sum(empty(pool, node).replicas_of(task) for node in nodes)
    return found >= task.job.spec.replicas_min


def fits(state: ClusterState, pool: Pool, task: Task, without: Collection[Task] = ()) -> bool:
    """Whether a task fits on what is idle and not reserved, as if some tasks were gone."""
    found = sum(
        free.replicas_of(task) for free in free_on(state, pool, without) if may_use(task, free.node)
    )
    return found >= task.job.spec.replicas_min
