"""Rows of nodes, pools, departments and projects, their counters, and why tasks wait in pools."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from yardmaster_projections.rows.row import Facet, Row
from yardmaster_projections.wire_types import PAIRS
from yardmaster_schemas.api import NodeState
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    Enrollment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.reasons import Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow(Row):
    """A node: its enrollment, what it offered when it joined, and the tasks that hold its slots or
    have reserved them.
    """

    KIND: ClassVar[str] = "node"
    WATCHED: ClassVar[bool] = True

    name: str
    #: Set by an operator; a node that has not joined may be cordoned too.
    cordoned: bool = False
    deadline_at_ms: int | None = None
    reason: str | None = None
    #: Slots on which no new task starts, and the reason.
    disabled: tuple[int, ...] = ()
    disabled_reason: str | None = None
    #: The limits of what the node may claim; None: the node was not enrolled, or was `revoked`.
    enrollment: Enrollment | None = None
    enrollment_revision: int = 0
    revoked: bool = False
    #: Whether the node gets no new tasks, because its enrollment does not cover its offer.
    barred: bool = False
    joined: NodeJoinedV1 | None = None
    joined_at_ms: int = 0
    left: bool = False
    lost: bool = False
    #: (task, replica) -> placement; removed only by SlotsReleased and NodeLost.
    held: Annotated[Mapping[tuple[str, int], Placement], PAIRS] = field(default_factory=dict)
    #: (task, replica) -> placement that is reserved for this replica; removed when the task starts
    #: or the reservation is dropped.
    reserved: Annotated[Mapping[tuple[str, int], Placement], PAIRS] = field(default_factory=dict)
    #: The new offer of a node that joined again while tasks of its former incarnation held slots.
    rejoined: NodeJoinedV1 | None = None

    @property
    def key(self) -> str:
        """The node's name."""
        return self.name

    @property
    def offer(self) -> NodeJoinedV1 | Enrollment | None:
        """The node's offer, else its enrollment; None for a node that only a request names."""
        return self.joined or self.enrollment

    @property
    def state(self) -> NodeState:
        """The state that the API shows."""
        if self.revoked:
            return NodeState.REVOKED
        if self.lost:
            return NodeState.LOST
        if self.left:
            return NodeState.GONE
        if self.joined is None and self.enrollment is not None:
            return NodeState.ENROLLED
        if self.barred:
            return NodeState.BARRED
        if self.deadline_at_ms is not None:
            return NodeState.DRAINING if self.held else NodeState.DRAINED
        return NodeState.CORDONED if self.cordoned else NodeState.READY

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Pool and state, once the node is enrolled or has joined."""
        offer = self.offer
        if offer is None:
            return ()
        return (("pool", offer.pool), ("state", self.state), ("listed", "yes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow(Row):
    """The time of the last heartbeat of a node."""

    KIND: ClassVar[str] = "seen"

    node: str
    at_ms: int

    @property
    def key(self) -> str:
        """The node's name."""
        return self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow(Row):
    """A configured pool."""

    KIND: ClassVar[str] = "pool"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: PoolConfig

    @property
    def key(self) -> str:
        """The pool's name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentRow(Row):
    """A configured department."""

    KIND: ClassVar[str] = "department"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: DepartmentConfig

    @property
    def key(self) -> str:
        """The department's name."""
        return self.name

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The department's parent, if it has one."""
        return () if self.config.parent is None else (("parent", self.config.parent),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow(Row):
    """A configured project."""

    KIND: ClassVar[str] = "project"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: ProjectConfig

    @property
    def key(self) -> str:
        """The project's name."""
        return self.name

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The project's name, by which visibility is checked, and its department."""
        return (("project", self.name), ("department", self.config.department))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersRow(Row):
    """Counters of a project (`project/x`) or a pool (`pool/y`); mappings are by pool, in gpu_milli.

    A pending task counts in every pool it may use; `waiting_milli` counts it once.
    """

    KIND: ClassVar[str] = "counters"

    name: str
    used_milli: Mapping[str, int] = field(default_factory=dict)
    pending_milli: Mapping[str, int] = field(default_factory=dict)
    waiting_milli: int = 0
    waiting: int = 0
    running: int = 0
    nodes: int = 0
    gpu_milli: int = 0
    #: For a pool: the names of the sections that ever had a job in the queue (see `rows.queue`).
    sections: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The kind and the name of the counted object: `project/x` or `pool/y`."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow(Row):
    """The reason why pending tasks of a shape and priority are not placed in a pool."""

    KIND: ClassVar[str] = "wait"

    pool: str
    shape: str
    priority: int
    wait: Wait
    since_ms: int
    cycle: int

    @property
    def key(self) -> str:
        """Pool, shape and priority."""
        return f"{self.pool}/{self.shape}/{self.priority}"
