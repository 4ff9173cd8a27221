"""With `priority`, no task passes a pending task that did not fit, except as the options allow."""

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner.wait_reasons import never_fits
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskUnschedulableV1,
)

jobs = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.sampled_from([1, 42, 42, 99]),
            "gpus": st.sampled_from([0, 1, 1, 2, 3]),
            "replicas": st.sampled_from([1, 1, 1, 2]),
            "tasks": st.integers(1, 4),
            "preemptible": st.sampled_from([True, True, True, False]),
            "min_runtime_s": st.sampled_from([0, 0, 0, 60]),
        }
    ),
    min_size=2,
    max_size=3,
)
nodes = st.lists(st.sampled_from([2, 3, 4]), min_size=2, max_size=3)
mostly = st.sampled_from([True, True, True, False])
#: Arriving jobs; then, for each cycle, whether agents obey and which running tasks end.
waves = st.lists(
    st.tuples(
        jobs,
        st.lists(st.tuples(st.booleans(), st.integers(3, 20)), min_size=2, max_size=4),
    ),
    min_size=2,
    max_size=4,
)


def job(priority: int, gpus: int, *, preemptible: bool = True) -> dict[str, Any]:
    each = {"priority": priority, "gpus": gpus, "preemptible": preemptible}
    return {**each, "replicas": 1, "tasks": 1, "min_runtime_s": 0}


def tasks_of(cell: Cell) -> list[Task]:
    return [task for job in cell.state.jobs.values() for task in job.tasks]


def act(cell: Cell, *, obey: bool = True, every: int = 0) -> bool:
    """Agents start allocated tasks; they may end stopping tasks; one of `every` running tasks ends
    by itself (0: none); whether there was anything.
    """
    acted = False
    for number, task in enumerate(tasks_of(cell)):
        run, name = task.run, task.job.id.rstrip("0")
        if run is None:
            continue
        if not run.started:
            cell.starts(name, task.index)
        elif obey if run.stop is not None else every and number % every == 0:
            cell.ends(name, task.index)
        else:
            continue
        acted = True
    return acted


def passes_no_pending_task(
    cell: Cell, decided: list[Event], reserved: set[str], *, preemption: bool, backfill: bool
) -> None:
    """Compare a cycle's starts with the tasks that are pending and those being stopped.

    `reserved`: the tasks that had reserved slots before the cycle; they start on these.
    """
    tasks = tasks_of(cell)
    pool = cell.state.pools["main"]
    for event in decided:
        if not isinstance(event, SlotsAllocatedV1):
            continue
        job = cell.state.task(event.task_id).job
        queue_class = [
            task for task in tasks if task.job.shape.queue_class == job.shape.queue_class
        ]
        ahead = [
            t.id
            for t in queue_class
            if t.group is not None
            and t.job.priority < job.priority
            and not never_fits(pool, t.job.shape)
        ]
        at_once = job.spec.preemptible and not job.spec.min_runtime_s
        may_pass = (preemption and backfill and at_once) or event.task_id in reserved
        assert may_pass or not ahead, f"{event.task_id} starts past {ahead}"
        given = {(p.node, slot) for p in event.placements for slot in p.slots}
        for task in tasks:
            kept = task.reserved.placements if task.reserved is not None else ()
            taken = given & {(p.node, slot) for p in kept for slot in p.slots}
            assert not taken, f"{event.task_id} starts on slots reserved for {task.id}"


def is_rightly_stopped(cell: Cell, decided: list[Event], *, preemption: bool) -> None:
    """Only for a pending job of higher priority, or for an earlier one of the same priority."""
    for event in decided:
        if isinstance(event, PreemptionRequestedV1):
            assert preemption
            victim = cell.state.task(event.task_id).job
            assert event.stop.for_task is not None
            task = cell.state.task(event.stop.for_task)
            place, other = ((job.priority, job.submitted_ms, job.seq) for job in (task.job, victim))
            assert victim.spec.preemptible
            assert place < other, f"{event.task_id} is stopped for {task.id}"
            assert task.run is None


def play(cell: Cell, gpus: list[int], come: list[tuple[list[Any], list[Any]]]) -> Iterator[Any]:
    """Yield the decisions of each cycle while jobs arrive and end, and the tasks that had reserved
    slots before it.
    """
    for number, count in enumerate(gpus):
        cell.node(f"n{number}", gpus=count)
    number = 0
    for asked, cycles in come:
        for spec in asked:
            cell.submit(f"job{chr(ord('a') + number)}", **spec)
            number += 1
        for obey, every in cycles:
            reserved = {task.id for task in tasks_of(cell) if task.reserved is not None}
            yield cell.cycle(), reserved
            act(cell, obey=obey, every=every)


@settings(max_examples=200, deadline=None)
@given(preemption=mostly, backfill=mostly, gpus=nodes, come=waves)
@example(
    preemption=True,
    backfill=True,
    gpus=[2, 3],
    come=[
        ([job(42, 2), job(42, 2, preemptible=False)], [(False, 9)]),
        ([job(1, 2)], [(False, 9)]),
        # It fits on slots that are not being freed for the task before.
        ([job(99, 1)], [(False, 9)]),
    ],
)
def test_no_lower_priority_task_starts_past_a_pending_one_or_on_its_slots(
    preemption: bool, backfill: bool, gpus: list[int], come: list[tuple[list[Any], list[Any]]]
) -> None:
    cell = Cell(policy="priority", preemption=preemption, backfill=backfill)
    for decided, reserved in play(cell, gpus, come):
        passes_no_pending_task(cell, decided, reserved, preemption=preemption, backfill=backfill)
        is_rightly_stopped(cell, decided, preemption=preemption)
    assert_sound(cell.state)


@settings(max_examples=100, deadline=None)
@given(preemption=mostly, backfill=mostly, gpus=nodes, come=waves)
def test_no_task_misses_the_event_it_waits_for(
    preemption: bool, backfill: bool, gpus: list[int], come: list[tuple[list[Any], list[Any]]]
) -> None:
    """An idle pool makes no decisions even when every pending task is considered again."""
    cell = Cell(policy="priority", preemption=preemption, backfill=backfill)
    for _ in play(cell, gpus, come):
        pass
    for _ in range(60):
        decided = cell.cycle()
        if not act(cell) and not decided and not cell.state.cycle_due:
            break
    else:
        raise AssertionError("the pool does not become idle")
    cell.state.wake_index.wake_all(cell.state.pools["main"])
    moved = [event for event in cell.cycle() if not isinstance(event, TaskUnschedulableV1)]
    assert moved == []
    assert_sound(cell.state)
