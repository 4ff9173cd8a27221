"""The options of `quota`."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.waiting_groups import RESERVE_OLDEST_S
from yardmaster_schemas.fields import CLOSED, Positive

Action = Literal["allocate", "consolidation", "preempt", "reclaim"]

ACTIONS: Final[dict[str, tuple[Action, ...]]] = {
    # rule: actions: order of the document
    "document": ("allocate", "preempt", "consolidation", "reclaim"),
    # rule: actions: order of kai
    "kai": ("allocate", "consolidation", "reclaim", "preempt"),
}

#: The longest half-life: a year.
MAX_HALF_LIFE_S: Final = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """The options of `quota`.

    Attributes:
        order: `document`: tasks that cannot be preempted come first in their project and may
            preempt its other tasks; `kai`: only the priority counts.
        actions: the actions for tasks, in order. Without `allocate`, tasks start only on slots
            that others release.
        over_quota: the rest beyond what is deserved is divided in proportion to what is deserved,
            or by `weight`.
        over_subscribed: if the queues of a department deserve more together than the department,
            the first ones keep what they deserve (`first`), or each deserves less in proportion
            (`proportional`).
        max_moves: the most tasks that are moved for one task; 0: none.
        saturation_permille: a queue above its share must stay less full than the queues that it
            reclaims from. Its fullness is multiplied by this; 1000: it counts as it is.
        preemption_delay_s: how long a task must be pending before it preempts others.
        min_runtime_of: the minimum run time of a task against reclaim is that of its ancestor below
            the lowest common ancestor (`lca`), or of its own queue.
        reserve_oldest_s: how long (s) later tasks of a project pass one that fits in its share but
            does not start; None: without end.
        usage_half_life_s: the half-life of the amounts that projects held in the past; 0: they do
            not count.
        usage_weight_permille: how much these amounts count when GPUs are divided beyond what is
            deserved.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    order: Literal["document", "kai"] = "document"
    actions: tuple[Action, ...] | None = None
    over_quota: Literal["deserved", "weight"] = "deserved"
    over_subscribed: Literal["first", "proportional"] = "first"
    max_moves: int = 16
    saturation_permille: int = 1000
    preemption_delay_s: int = 0
    min_runtime_of: Literal["lca", "queue"] = "lca"
    reserve_oldest_s: Positive | None = RESERVE_OLDEST_S
    usage_half_life_s: int = 0
    usage_weight_permille: int = 1000

    def __post_init__(self) -> None:
        if self.actions is not None and len(set(self.actions)) < len(self.actions):
            raise ValueError("each action once")
        numbers = (self.max_moves, self.saturation_permille, self.preemption_delay_s)
        if min(*numbers, self.usage_half_life_s, self.usage_weight_permille) < 0:
            raise ValueError("numbers of 0 or more")
        if self.usage_half_life_s > MAX_HALF_LIFE_S:
            raise ValueError(f"a half-life of at most {MAX_HALF_LIFE_S} s")

    @property
    def in_order(self) -> tuple[Action, ...]:
        """The actions that can have an effect."""
        return _in_order(self.actions, self.order, bool(self.max_moves))

    @property
    def claiming(self) -> tuple[Action, ...]:
        """The actions for tasks that do not fit."""
        return _claiming(self.in_order)


# Each cycle asks for the actions of each pool several times.
@cache
def _in_order(actions: tuple[Action, ...] | None, order: str, moves: bool) -> tuple[Action, ...]:
    # rule: actions: only those listed
    actions = actions if actions is not None else ACTIONS[order]
    return tuple(action for action in actions if action != "consolidation" or moves)


@cache
def _claiming(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    return tuple(action for action in actions if action != "allocate")


def follows_kai(view: PoolView) -> bool:
    """Whether a pool has `order: kai`."""
    return bool(view.options.order == "kai")
