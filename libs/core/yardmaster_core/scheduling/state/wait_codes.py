"""Sets of wait codes: which pending tasks block others, and which event lets them be considered."""

from typing import Final

from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_schemas.reasons import Wait, WaitClass, WaitCode

#: The tasks did not fit on the free capacity, so they go before tasks of lower priority.
BLOCKING: Final = frozenset(
    {
        WaitCode.INSUFFICIENT_FREE,
        WaitCode.FRAGMENTED,
        WaitCode.WAITING_FOR_VICTIMS,
        WaitCode.VICTIMS_PROTECTED,
        WaitCode.PREEMPTION_DELAY,
    }
)

#: The tasks wait for free slots alone; equivalent groups share these codes.
NO_CAPACITY: Final = frozenset({WaitCode.INSUFFICIENT_FREE, WaitCode.FRAGMENTED})

#: The tasks are considered again at a time that the wait names.
UNTIL: Final = frozenset({WaitCode.VICTIMS_PROTECTED, WaitCode.PREEMPTION_DELAY})

#: The tasks can never fit on the present nodes.
IMPOSSIBLE: Final = frozenset(
    {
        WaitCode.NO_MATCHING_NODE,
        WaitCode.EXCEEDS_EVERY_NODE,
        WaitCode.EXCEEDS_POOL,
        WaitCode.GANG_INDIVISIBLE,
        WaitCode.NO_EXECUTOR,
    }
)

#: The tasks wait for other tasks of higher priority or an earlier position.
BEHIND: Final = frozenset({WaitCode.BEHIND_TASK, WaitCode.BACKFILL_NOT_ALLOWED})

#: In a strict queue the tasks keep the tasks behind them pending.
IN_STRICT_QUEUE: Final = BLOCKING | BEHIND

#: The tasks wait until their project, department or job holds less.
LIMITED: Final = frozenset(
    {
        *(WaitCode.AT_LIMIT, WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_LIMIT),
        *(WaitCode.AT_DESERVED, WaitCode.EXCEEDS_DESERVED),
    }
)


def blocks(shape: Shape, code: WaitCode, *, impossible: bool) -> bool:
    """Whether tasks of `shape` that wait with `code` go before tasks of lower priority.

    With `impossible`, tasks that fit only on cordoned or lost nodes do too, and tasks that fit on
    no node while they have no other pool: nodes may return or join.
    """
    if code in BLOCKING or not impossible:
        return code in BLOCKING
    return code is WaitCode.NODES_UNAVAILABLE or (code in IMPOSSIBLE and len(shape.pools) == 1)


def class_of(waits: dict[str, tuple[Wait, int, int]], pools: tuple[str, ...]) -> WaitClass | None:
    """The class of a group's waits over all its pools; None until each pool considered the group.

    NEVER only if every pool's wait is of that class.
    """
    classes = [waits[name][0].code.wait_class for name in pools if name in waits]
    if len(classes) < len(pools):
        return None
    return max(classes, key=[WaitClass.NEVER, WaitClass.HELD, WaitClass.NOT_NOW].index)
