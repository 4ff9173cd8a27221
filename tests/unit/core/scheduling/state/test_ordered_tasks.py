"""Ordered tasks compared with sorting."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Job, Task, TaskQueue
from yardmaster_core.testing import DETAILS, admitted_spec


def tasks_of(submitted_ms: list[int]) -> list[Task]:
    """One task for each submission time."""
    project = Project("p", Department("d"))
    return [
        Task(Job(f"j{seq}", seq, project, admitted_spec(), when, DETAILS), 0)
        for seq, when in enumerate(submitted_ms)
    ]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 11), st.booleans()), max_size=60),
)
def test_tasks_are_in_order_whatever_joins_and_leaves(
    submitted_ms: list[int], changes: list[tuple[bool, int, bool]]
) -> None:
    tasks = tasks_of(submitted_ms)
    queue = TaskQueue()
    waiting: set[int] = set()
    for comes, number, prune in changes:
        task = tasks[number % len(tasks)]
        if comes and task.queue is None:
            task.queue = queue
            queue.push(task)
            waiting.add(task.job.seq)
        elif not comes and task.queue is queue:
            task.queue = None
            queue.drop()
            waiting.discard(task.job.seq)
        if prune:
            queue.prune()
            first = min((tasks[n] for n in waiting), default=None)
            assert queue.first_entry is first
        expected = sorted(tasks[n] for n in waiting)
        assert queue.live == len(expected)
        assert list(queue.in_order()) == expected
        assert list(queue.in_reverse()) == expected[::-1]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=200),
    st.lists(st.tuples(st.integers(0, 200), st.lists(st.integers(0, 199))), max_size=6),
)
def test_a_reverse_scan_is_repeatable_while_tasks_leave(
    submitted_ms: list[int], rounds: list[tuple[int, list[int]]]
) -> None:
    tasks = tasks_of(submitted_ms)
    queue = TaskQueue()
    for task in tasks:
        task.queue = queue
        queue.push(task)
    line = queue.reverse_scan()
    for far, leave in rounds:
        left = sorted((task for task in tasks if task.queue is queue), reverse=True)
        assert list(islice(line, far)) == left[:far]
        for number in leave:
            tasks[number % len(tasks)].queue = None
    assert list(line) == sorted((task for task in tasks if task.queue is queue), reverse=True)


def test_departed_tasks_are_removed() -> None:
    tasks = tasks_of(list(range(2000)))
    queue = TaskQueue()
    for task in tasks:
        task.queue = queue
        queue.push(task)
        if task.job.seq % 10:
            task.queue = None
            queue.drop()
        queue.prune()
    assert len(queue._appended) + len(queue._inserted) <= 64 + 2 * 200 + 1
    assert len(list(queue.in_order())) == 200
