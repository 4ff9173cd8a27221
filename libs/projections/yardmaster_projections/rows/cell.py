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
    Enrolment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.reasons import Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow(Row):
    """A node: what it may offer, what it offered when it joined, and who holds its slots."""

    KIND: ClassVar[str] = "node"
    WATCHED: ClassVar[bool] = True

    name: str
    #: What an operator wants of it, joined or not.
    cordoned: bool = False
    deadline_at_ms: int | None = None
    reason: str | None = None
    #: Slots on which nothing new starts, and why.
    disabled: tuple[int, ...] = ()
    disabled_reason: str | None = None
    #: What it may claim; None: it was not enrolled, or was `revoked`.
    enrolment: Enrolment | None = None
    enrolment_revision: int = 0
    revoked: bool = False
    #: It gets nothing new, since its enrolment does not cover what it offers.
    barred: bool = False
    joined: NodeJoinedV1 | None = None
    joined_at_ms: int = 0
    left: bool = False
    lost: bool = False
    #: (task, replica) -> where; closed by SlotsReleased and NodeLost alone.
    held: Annotated[Mapping[tuple[str, int], Placement], PAIRS] = field(default_factory=dict)
    #: The node joined anew while its old life still held slots.
    rejoined: NodeJoinedV1 | None = None

    @property
    def key(self) -> str:
        """The node's name."""
        return self.name

    @property
    def offer(self) -> NodeJoinedV1 | Enrolment | None:
        """What it offered, else what it may; a node with neither is only talked about."""
        return self.joined or self.enrolment

    @property
    def state(self) -> NodeState:
        """What may be expected of it."""
        if self.revoked:
            return NodeState.REVOKED
        if self.lost:
            return NodeState.LOST
        if self.left:
            return NodeState.GONE
        if self.joined is None and self.enrolment is not None:
            return NodeState.ENROLLED
        if self.barred:
            return NodeState.BARRED
        if self.deadline_at_ms is not None:
            return NodeState.DRAINING
        return NodeState.CORDONED if self.cordoned else NodeState.READY

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Pool and state, once it is enrolled or joined."""
        offer = self.offer
        if offer is None:
            return ()
        return (("pool", offer.pool), ("state", self.state), ("listed", "yes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow(Row):
    """When a node's heartbeat was last heard."""

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
        """Itself, as what is visible, and its department."""
        return (("project", self.name), ("department", self.config.department))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersRow(Row):
    """Sums that lists show, by pool, in gpu_milli: of a project (`project/x`) or a pool (`pool/y`).

    A waiting task counts in every pool it may use; `waiting_milli` counts it once.
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

    @property
    def key(self) -> str:
        """What it sums up."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow(Row):
    """Why the waiting tasks of a shape and priority are not placed in a pool."""

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
