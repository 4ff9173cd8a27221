"""How many tasks are pending, by pool and reason, and how many are running, by pool.

Derived, and read only by metrics: no decision depends on these numbers, and neither snapshots nor
digests contain them. They change where tasks and reasons change, so that reading them costs the
same for ten pending tasks and for a million.

A queued task counts under the recorded wait of its group, in the first pool of its list. The state
counts it when it joins or leaves a queue and when a wait is recorded or restored, so that these
numbers are exact also while a draft is open. A task that something else keeps from its queue (a
pause, a back-off, `max_concurrent`) counts under that reason, and a running task under its pool;
these two are counted when the state's digest is, for the tasks that changed since.
"""

from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.tasks import CountedAs, Group, Task
from yardmaster_schemas.reasons import Wait, WaitCode


class TaskCounts:
    """The numbers of pending and running tasks of a cell."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        #: Only keys whose number is not 0.
        self.tasks: dict[CountedAs, int] = {}

    def add(self, key: CountedAs, tasks: int) -> None:
        """Add `tasks` (or subtract) to the tasks under `key`."""
        left = self.tasks.get(key, 0) + tasks
        if left:
            self.tasks[key] = left
        else:
            self.tasks.pop(key, None)

    def add_queued(self, group: Group, tasks: int, *, reserved: bool) -> None:
        """Count tasks that joined `group` (negative: left it), with or without reserved slots."""
        pool = group.shape.pools[0]
        code = WaitCode.WAITING_FOR_VICTIMS if reserved else _code(group.waits.get(pool))
        self.add((pool, code), tasks)

    def move_queued(
        self,
        group: Group,
        before: tuple[Wait, int, int] | None,
        after: tuple[Wait, int, int] | None,
    ) -> None:
        """Count that the wait of `group` in its first pool changed."""
        tasks = group.queue.live
        if tasks:
            pool = group.shape.pools[0]
            self.add((pool, _code(before)), -tasks)
            self.add((pool, _code(after)), tasks)

    def update(self, task: Task, now_ms: int) -> None:
        """Count `task` again, which changed, unless its queue counts it."""
        key = _key(task, now_ms)
        if key != task.counted_as:
            if task.counted_as is not None:
                self.add(task.counted_as, -1)
            if key is not None:
                self.add(key, 1)
            task.counted_as = key


def _code(record: tuple[Wait, int, int] | None) -> WaitCode:
    return WaitCode.NOT_CONSIDERED if record is None else record[0].code


def _key(task: Task, now_ms: int) -> CountedAs | None:
    if task.phase is Phase.RUNNING:
        return (task.run.pool_name, Phase.RUNNING) if task.run is not None else None
    if task.phase is not Phase.PENDING or task.group is not None:
        return None
    pool = task.job.spec.pools[0]
    if task.paused:
        return pool, WaitCode.PAUSED
    if task.held_until_ms > now_ms:
        failed = task.failed_starts > 0
        return pool, WaitCode.START_BACKOFF if failed else WaitCode.RESTART_BACKOFF
    if not task.released:
        return pool, WaitCode.AT_MAX_CONCURRENT
    return pool, WaitCode.NOT_CONSIDERED
