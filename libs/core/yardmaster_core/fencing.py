"""How long an agent may be cut off before it kills: what `fence: kill` means in seconds.

A task of such a pool never runs twice at once, because two clocks are started by one heartbeat and
the agent's runs out first:

- The *agent* (and, should it be dead or stopped, the runner of each task) kills what it runs
  `fence_s` after it *sent* the last heartbeat that the log acknowledged; see its `lease`.
- The *leader* counts a node as lost when it heard nothing of it for `node_timeout_s`, from the
  moment in which it *read* the last heartbeat, and only for as long as it was seen to read the
  topic to its end; see the scheduler's `silence`. A new leader begins to count anew.

A heartbeat is sent before it is read, both measure elapsed time (never the time of day, which may
jump), so what is left for the agent between the two is at least the difference. That pays for the
runner, which fires a second after the agent (`runner.LATER_S`), for killing, and for clocks that
run at rates up to 1 % apart (crystals differ by 0.01 %, time daemons slew by 0.05 %).

Not covered: a machine that was suspended, and what survives SIGKILL because it hangs in the kernel.
"""

from typing import Final

from yardmaster_schemas.events.requests import Fence, PoolConfig

#: Between the agent's kill and the loss of its node, clock rates aside.
MARGIN_S: Final = 5
#: What clocks may differ by, in percent of the timeout.
RATE_PERCENT: Final = 1
#: A shorter fence would kill for a heartbeat or two that came late.
LEAST_FENCE_S: Final = 5


def fence_of(config: PoolConfig) -> int | None:
    """After how long without an acknowledged heartbeat a pool's attempts are killed; None: never.

    At most 0 where the timeout is too short for a fence: such a configuration is not admitted.
    """
    if config.fence is not Fence.KILL:
        return None
    return (config.node_timeout_s - MARGIN_S) * (100 - RATE_PERCENT) // 100


def least_timeout_s(fence_s: int) -> int:
    """The shortest time after which a node that runs attempts with this fence may be lost."""
    return MARGIN_S - (-fence_s * 100 // (100 - RATE_PERCENT))


#: The shortest `node_timeout_s` that a pool with `fence: kill` may have.
LEAST_TIMEOUT_S: Final = least_timeout_s(LEAST_FENCE_S)
