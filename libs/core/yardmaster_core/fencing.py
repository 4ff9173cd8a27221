"""The fence: after how many seconds without contact an agent kills its tasks (`fence: kill`).

No task of a pool with a fence runs twice at the same time, because one heartbeat starts two timers
and the agent's timer expires first:

- The *agent* (or the runner of each task, if the agent is dead or stopped) kills its tasks
  `fence_s` after it *sent* the last heartbeat that the log acknowledged; see the agent's `lease`.
- The *leader* declares a node lost `node_timeout_s` after it *read* the node's last heartbeat. The
  leader counts only time in which it read the topic to its end; see the scheduler's `silence`. A
  new leader starts to count from zero.

A heartbeat is sent before it is read, and both timers measure elapsed time, never the time of day,
which may jump. So the agent has at least the difference of the two timeouts to kill its tasks. This
difference covers the runner, which kills one second after the agent (`runner.LATER_S`), the kill
itself, and clocks whose rates differ by up to 1 % (crystals differ by 0.01 %, time daemons slew by
0.05 %).

The fence does not cover a suspended machine, or a process that survives SIGKILL because it hangs in
the kernel.
"""

from typing import Final

from yardmaster_schemas.events.requests import Fence, PoolConfig

#: Seconds between the agent's kill and the loss of its node, if both clocks have the same rate.
MARGIN_S: Final = 5
#: How much the rates of two clocks may differ, in percent.
RATE_PERCENT: Final = 1
#: A shorter fence would kill tasks because of one or two late heartbeats.
LEAST_FENCE_S: Final = 5


def fence_of(config: PoolConfig) -> int | None:
    """Seconds without an acknowledged heartbeat after which attempts are killed; None: never.

    The result is 0 or less if the node timeout is too short for a fence; quota refuses such a pool.
    """
    if config.fence is not Fence.KILL:
        return None
    return (config.node_timeout_s - MARGIN_S) * (100 - RATE_PERCENT) // 100


def least_timeout_s(fence_s: int) -> int:
    """The shortest `node_timeout_s` for a node whose attempts have this fence."""
    return MARGIN_S - (-fence_s * 100 // (100 - RATE_PERCENT))


#: The shortest `node_timeout_s` that a pool with `fence: kill` may have.
LEAST_TIMEOUT_S: Final = least_timeout_s(LEAST_FENCE_S)
