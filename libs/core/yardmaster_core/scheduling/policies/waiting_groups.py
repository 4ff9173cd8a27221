"""The groups that wait for capacity, by submission, and the task that later ones must not pass.

Under `quota` and `starved_first` later tasks of an owner pass one that does not fit. With
`reserve_oldest_s` they stop to do so once the first one has waited for that time. Then what the
owner's tasks release is left to it.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.state.ordered_tasks import QueueKey
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import NUMBERS, Wait, WaitCode

#: The place of a group, a serial number that keeps groups from being compared, and the group.
Entry = tuple[Any, int, Group]
#: The default of `reserve_oldest_s`: a day.
RESERVE_OLDEST_S: Final = 86_400


def by_submission(group: Group) -> QueueKey:
    """Return the place of a group by the submission of its first task."""
    return group.queue.first.key


class WaitingGroups:
    """The groups for which `waits` is true, by `place`, which follows from their first task.

    An entry is stale when its group waits no longer or has another first task. Stale entries are
    removed at the front, and everywhere once they may be the majority.
    """

    def __init__(
        self, waits: Callable[[Group], bool], place: Callable[[Group], Any] = by_submission
    ) -> None:
        self._waits = waits
        self._place = place
        self._entries: list[Entry] = []
        self._added = 0
        self._clean_up_at = 64

    def add(self, group: Group) -> None:
        """Add a group if it waits."""
        if not self._waits(group):
            return
        heappush(self._entries, (self._place(group), self._added, group))
        self._added += 1
        if self._added > self._clean_up_at:
            self._entries[:] = filter(self._is_current, self._entries)
            heapify(self._entries)
            self._clean_up_at = self._added + 64 + len(self._entries)

    def first(self, accepted: Callable[[Group], bool] | None = None) -> Task | None:
        """Return the task in the first place, of the groups that `accepted` accepts; or None.

        Each group that is not accepted and comes before the result costs a step.
        """
        passed: dict[Group, Entry] = {}
        found = None
        entries = self._entries
        while entries:
            entry = entries[0]
            if self._is_current(entry):
                if accepted is None or accepted(entry[2]):
                    found = entry[2].queue.first
                    break
                passed[entry[2]] = entry
            heappop(entries)
        for entry in passed.values():
            heappush(entries, entry)
        return found

    def leading(self, accepted: Callable[[Group], bool]) -> list[Group]:
        """Return the groups in order, up to the first one that `accepted` does not accept."""
        found: dict[Group, Entry] = {}
        entries = self._entries
        while entries:
            entry = entries[0]
            if self._is_current(entry):
                if not accepted(entry[2]):
                    break
                found[entry[2]] = entry
            heappop(entries)
        for entry in found.values():
            heappush(entries, entry)
        return list(found)

    def _is_current(self, entry: Entry) -> bool:
        place, _, group = entry
        return self._waits(group) and self._place(group) == place


def waits_for_its_owner(group: Group, pool: str) -> bool:
    """Whether tasks of its owner that end may let the first task of a group start: it waits for
    capacity, or for a limit or quota of its project alone.

    Nodes that are cordoned or lost are no reason to hold up others.
    """
    record = group.waits.get(pool)
    if record is None or not group.queue.live or group.shape.start_failed:
        return False
    code = record[0].code
    if code in {WaitCode.AT_LIMIT, WaitCode.AT_DESERVED}:
        return record[0].about == group.shape.project
    return code in BLOCKING and code is not WaitCode.NODES_UNAVAILABLE


def reserved_from_ms(task: Task, after_s: int) -> int:
    """Return the moment (ms since the epoch) from which later tasks of its owner wait behind a task
    that is pending: `after_s` (s) after it was submitted or requeued.
    """
    return task.queued_ms + after_s * 1000


def with_reservation(task: Task, after_s: int, wait: Wait) -> Wait:
    """Return a wait reason about capacity with the moment from which later tasks wait behind the
    task.
    """
    if "reserved_from_at_ms" not in NUMBERS[wait.code]:
        return wait
    numbers = {**wait.numbers, "reserved_from_at_ms": reserved_from_ms(task, after_s)}
    return replace(wait, numbers=numbers)


def wait_behind(task: Task, ahead: Task) -> Wait:
    """Return the wait reason of a task that must not pass the task `ahead`."""
    numbers = {
        "submitted_at_ms": task.job.submitted_ms,
        "submitted_ahead_at_ms": ahead.job.submitted_ms,
    }
    return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers, about=ahead.id)


def may_use_equal_nodes(view: PoolView, one: Group, other: Group) -> bool:
    """Whether tasks of both groups may use GPUs of the same node that takes tasks."""
    future = view.pool.future
    return bool(
        view.pool.least_milli(one.shape)
        and view.pool.least_milli(other.shape)
        and future.available & future.matching(one.shape) & future.matching(other.shape)
    )
