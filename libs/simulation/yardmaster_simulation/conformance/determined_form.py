"""The form of Determined's scenarios: one planning pass, or one task to place."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field

from yardmaster_schemas.fields import MAX_SLOTS

Count = Annotated[int, Field(ge=0)]
Slots = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
#: Each that is taken is told to the core as a replica.
Places = Annotated[int, Field(ge=0, le=10_000)]
WORST_PRIORITY: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A node; slots that no task of the scenario holds are used by something that stays."""

    id: str
    slots: Slots
    slots_used: Count = 0
    max_zero_slot: Places = 100
    zero_slot_used: Places = 0
    enabled: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A job, or a project of jobs of one task."""

    id: str
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1
    max_slots: Count | None = None
    priority: Annotated[int, Field(ge=1, le=WORST_PRIORITY)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Slots of one agent that a task holds."""

    agent: str
    slots_held: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task that waits or runs."""

    id: str
    group: str
    slots: Count
    state: Literal["pending", "allocated"]
    created_order: int
    non_preemptible: bool = False
    on: tuple[Held, ...] = ()
    blocked_agents: tuple[str, ...] = ()
    single_agent: bool = False

    @property
    def waits(self) -> bool:
        """Whether it holds nothing yet."""
        return self.state == "pending"

    @property
    def likeness(self) -> tuple[object, ...]:
        """Tasks of one group that agree in it may be one job."""
        return (
            *(self.slots, self.non_preemptible, self.single_agent),
            tuple(sorted(self.blocked_agents)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the pool is scheduled; what a scenario leaves out is the policy's default."""

    fitting_policy: Literal["best", "worst"] = "best"
    allow_heterogeneous_fits: bool = False
    preemption: bool | None = None
    backfill: bool | None = None
    variant: Literal["max_min", "demand_proportional"] | None = None
    queue_positions: dict[str, Decimal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who starts and who is asked to stop."""

    to_allocate: tuple[str, ...]
    to_release: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningPass:
    """A cluster, and what one pass over it decided."""

    id: str
    policy: Literal["priority", "fair_share"]
    options: Options
    agents: tuple[Agent, ...]
    groups: tuple[Group, ...]
    tasks: tuple[Task, ...]
    expected: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """A task that asks for a place."""

    slots: Count
    single_agent: bool = False
    blocked_agents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task goes: any of these, each saying as much as the scenario knows."""

    agents: tuple[str, ...] | None = None
    agents_any_order: tuple[str, ...] | None = None
    first_agent: str | None = None
    count: Count | None = None

    def __post_init__(self) -> None:
        if (self.agents, self.agents_any_order, self.first_agent, self.count) == (None,) * 4:
            raise ValueError("it says nothing of where the task goes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A cluster, and where one task goes on it."""

    id: str
    options: Options
    agents: tuple[Agent, ...]
    task: FitTask
    expected: Place
