"""The form of Determined's scenarios: one planning pass, or one task to place."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field

from yardmaster_schemas.fields import MAX_SLOTS

Count = Annotated[int, Field(ge=0)]
Slots = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
#: A number of tasks without slots on an agent. It is limited, because each used place becomes a
#: replica in the core.
Places = Annotated[int, Field(ge=0, le=10_000)]
WORST_PRIORITY: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A Determined agent, which becomes a node.

    If its tasks hold fewer slots than `slots_used`, a synthetic non-preemptible task (a filler)
    holds the rest. In the same way, `zero_slot_used` counts its tasks without slots, of which it
    may run `max_zero_slot`.
    """

    id: str
    slots: Slots
    slots_used: Count = 0
    max_zero_slot: Places = 100
    zero_slot_used: Places = 0
    enabled: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A job, or a project whose jobs have one task each."""

    id: str
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1
    max_slots: Count | None = None
    priority: Annotated[int, Field(ge=1, le=WORST_PRIORITY)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The slots that a task holds on one agent; a task without slots holds one place instead."""

    agent: str
    slots_held: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A pending or running task."""

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
        """Whether the task is pending."""
        return self.state == "pending"

    @property
    def likeness(self) -> tuple[object, ...]:
        """The properties that must be equal for tasks to form one job."""
        return (
            *(self.slots, self.non_preemptible, self.single_agent),
            tuple(sorted(self.blocked_agents)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the pool is scheduled; None means the policy's default."""

    fitting_policy: Literal["best", "worst"] = "best"
    allow_heterogeneous_fits: bool = False
    preemption: bool | None = None
    backfill: bool | None = None
    impossible_block: bool | None = None
    variant: Literal["max_min", "demand_proportional"] | None = None
    release: Literal["for_others", "at_once"] | None = None
    queue_positions: dict[str, Decimal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tasks that start and the tasks that are preempted."""

    to_allocate: tuple[str, ...]
    to_release: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningPass:
    """A cluster, and the decisions of one planning pass on it."""

    id: str
    policy: Literal["priority", "fair_share"]
    options: Options
    agents: tuple[Agent, ...]
    groups: tuple[Group, ...]
    tasks: tuple[Task, ...]
    expected: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """A task to place."""

    slots: Count
    single_agent: bool = False
    blocked_agents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The expected placement; at least one field is set, and every set field must hold."""

    agents: tuple[str, ...] | None = None
    agents_any_order: tuple[str, ...] | None = None
    first_agent: str | None = None
    count: Count | None = None

    def __post_init__(self) -> None:
        if (self.agents, self.agents_any_order, self.first_agent, self.count) == (None,) * 4:
            raise ValueError("no field of the expected placement is set")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A cluster, and the placement of one task on it."""

    id: str
    options: Options
    agents: tuple[Agent, ...]
    task: FitTask
    expected: Place
