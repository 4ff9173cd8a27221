"""Nodes: machines with slots, and what is free on them."""

from typing import Final

from yardmaster_core.fencing import least_timeout_s
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events.node_events import ExecutorKind, FractionLimits, NodeJoinedV1
from yardmaster_schemas.events.requests import PoolConfig

#: Number of ended incarnations that the state remembers for each node, the newest.
MAX_DEAD_INCARNATIONS: Final = 64
#: The timeout of nodes in a pool that is not configured.
DEFAULT_NODE_TIMEOUT_S: Final = 60


class Node:
    """A machine with slots."""

    __slots__ = (
        *("address", "barred", "boot_id", "cordoned", "cpu_milli", "dead", "disabled", "drain_ms"),
        *("executors", "free", "future", "gpu_memory_mib", "gpus", "hash", "incarnation", "labels"),
        "max_free",
        *("memory_mib", "name", "node_type", "open", "ordinal", "pending", "pool_name"),
        *("port_first", "port_last", "ports", "reserved", "reserved_idle_milli"),
        *("revoked_ms", "schema_version"),
        *("fraction_limits", "silent_ms", "state", "stops_disabled"),
    )

    def __init__(self, name: str, ordinal: int) -> None:
        self.name = name
        self.ordinal = ordinal
        self.state = NodeState.ABSENT
        self.pool_name: str | None = None
        self.incarnation = ""
        #: Ended incarnations, oldest first.
        self.dead: list[str] = []
        self.boot_id = ""
        self.schema_version = 0
        self.node_type = ""
        self.labels: dict[str, str] = {}
        self.executors: tuple[ExecutorKind, ...] = (ExecutorKind.PROCESS,)
        self.fraction_limits = FractionLimits.NONE
        self.address = ""
        self.gpus = self.cpu_milli = self.memory_mib = 0
        #: The memory of each GPU; 0: unknown.
        self.gpu_memory_mib = 0
        self.port_first = self.port_last = 0
        #: Ports of gangs whose first replica is on this node, with the number of such gangs.
        self.ports: dict[int, int] = {}
        #: The node's capacity in the index of the same name in its pool.
        self.free = NodeCapacity(ordinal, 0, 0, 0)
        self.future = NodeCapacity(ordinal, 0, 0, 0)
        self.max_free = NodeCapacity(ordinal, 0, 0, 0)
        self.cordoned = False
        #: Deadline of a drain; 0: none.
        self.drain_ms = 0
        #: Slots that an operator disabled, including slots that the node does not have.
        self.disabled: tuple[int, ...] = ()
        #: Whether tasks on disabled slots are stopped.
        self.stops_disabled = False
        #: Whether its enrollment does not cover it (derived, see enrollment.py).
        self.barred = False
        #: When its enrollment was revoked while it was up; 0: it was not.
        self.revoked_ms = 0
        #: When the node was last heard of, once silence was observed; 0: it is not silent.
        self.silent_ms = 0
        #: A join that waits until the old incarnation is declared lost.
        self.pending: NodeJoinedV1 | None = None
        #: Replicas placed on the node that are not closed: (task id, replica) -> task.
        self.open: dict[tuple[str, int], Task] = {}
        #: Pending tasks with reserved slots on the node, and which of their replicas (derived).
        self.reserved: dict[Task, list[int]] = {}
        #: The part of its reserved gpu_milli that no task holds, while it takes tasks (derived).
        self.reserved_idle_milli = 0
        self.hash = 0

    @property
    def usable(self) -> bool:
        """Whether new tasks may be placed on the node."""
        return self.state is NodeState.UP and not self.cordoned and not self.barred

    @property
    def runs_images(self) -> bool:
        """Whether its agent runs containers."""
        return ExecutorKind.CONTAINER in self.executors

    @property
    def disabled_slots(self) -> tuple[int, ...]:
        """The disabled slots that the node has."""
        return tuple(slot for slot in self.disabled if slot < self.gpus)

    def timeout_s(self, config: PoolConfig | None) -> int:
        """The longest silence of the node, and the longest time to keep tasks that must stop (s).

        `config` is its pool's. The pool's timeout may have been shortened after agents received a
        fence, so the result is never shorter than the fences of the node's tasks require.
        """
        timeout_s = config.node_timeout_s if config is not None else DEFAULT_NODE_TIMEOUT_S
        fence_s = max((task.run.fence_s for task in self.open.values() if task.run), default=0)
        return max(timeout_s, least_timeout_s(fence_s)) if fence_s else timeout_s

    @property
    def revoked(self) -> bool:
        """Whether the node is up although its enrollment is revoked."""
        return self.revoked_ms > 0 and self.state is NodeState.UP

    def forfeit_ms(self, config: PoolConfig | None) -> int | None:
        """When a revoked node counts as lost, even if it holds slots (ms since the epoch).

        None: time alone does not make it lost.

        `config` is its pool's. A task with a fence may run for as long as heartbeats are
        acknowledged, which a revocation does not end. A node with such tasks is lost once it has
        released them, or by its silence.
        """
        if not self.revoked:
            return None
        if not self.open:
            return self.revoked_ms
        if any(task.run.fence_s for task in self.open.values() if task.run):
            return None
        return self.revoked_ms + self.timeout_s(config) * 1000

    @property
    def empty_ms(self) -> int:
        """The time by which the node must be empty (ms since the epoch); 0: there is none."""
        return self.revoked_ms or self.drain_ms

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        return (
            *("node", self.name, self.ordinal, int(self.state), self.pool_name),
            *(self.incarnation, self.gpus, self.cpu_milli, self.memory_mib, self.node_type),
            *(self.cordoned, self.drain_ms, self.silent_ms, self.free.slots, self.free.cpu_milli),
            *(self.free.memory_mib, self.pending and self.pending.incarnation, self.dead),
            *(self.barred, self.revoked_ms),
            # Only where they apply, as they rarely do.
            *((self.disabled, self.stops_disabled) if self.disabled else ()),
            *(("gpu_memory_mib", self.gpu_memory_mib) if self.gpu_memory_mib else ()),
            *(("executors", self.executors) if self.executors != (ExecutorKind.PROCESS,) else ()),
            *(
                ("fraction_limits", self.fraction_limits)
                if self.fraction_limits is not FractionLimits.NONE
                else ()
            ),
        )
