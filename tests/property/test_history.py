"""With equal inputs, a `History` and the scheduler's state agree on the slots that tasks held and
awaited; among events of one time, only the order of events of the same task matters.
"""

from itertools import groupby
from random import Random

import pytest

from tests.histories.inputs import history
from tests.histories.player import HistoryPlayer
from tests.support.histories import history_of
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, Phase, ReplicaState
from yardmaster_core.testing import START_MS, Cell, CycleBegun, EventApplied
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import Placement
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import summary
from yardmaster_simulation.series import Series, windows
from yardmaster_simulation.tables import task_table

PHASES = {"succeeded": Phase.SUCCEEDED, "failed": Phase.FAILED, "cancelled": Phase.CANCELLED}


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_a_history_agrees_with_the_state(seed: int) -> None:
    player = HistoryPlayer()
    player.play(history(seed))
    seen = history_of(player.cell)
    assert_agrees(seen, player.cell.state)
    assert_adds_up(seen)
    assert_order_at_one_time_does_not_matter(player.cell, seen)


def last(series: Series) -> list[int]:
    return list(series.points[-series.width + 1 :]) or [0] * (series.width - 1)


def reserved_on(node: Node) -> list[Placement]:
    return [
        task.reserved.placements[replica]
        for task, replicas in node.reserved.items()
        if task.reserved is not None
        for replica in replicas
    ]


def idle_of_reserved(node: Node) -> int:
    """The GPUs that are reserved and that no task holds, in gpu_milli."""
    found = [0] * node.gpus
    for placement in reserved_on(node):
        for slot in placement.slots:
            found[slot] += placement.gpu_milli
    # What is free is without what is reserved.
    return sum(
        min(milli, milli + free)
        for milli, free in zip(found, node.free.slots, strict=True)
        if milli
    )


def assert_agrees(history: History, state: ClusterState) -> None:
    held: dict[str, int] = {}
    projects: dict[str, int] = {}
    for task in state.tasks.values():
        ours = history.tasks[task.id]
        assert len(ours.attempts) == task.attempt
        assert ours.paused == task.paused or task.phase.final
        assert (ours.run is None) == (task.run is None)
        if ours.outcome is not None or task.phase.final:
            assert ours.outcome is not None
            assert PHASES[ours.outcome] == task.phase
        run = task.run
        for placement, replica in zip(run.placements, run.replicas, strict=True) if run else ():
            if run and replica < ReplicaState.RELEASED:
                milli = placement.gpu_milli * len(placement.slots)
                name = task.job.project.name
                held[run.pool_name] = held.get(run.pool_name, 0) + milli
                projects[name] = projects.get(name, 0) + milli
    for name, pool in history.pools.items():
        nodes = [n for n in state.nodes.values() if n.pool_name == name]
        up = sum(1000 * n.gpus for n in nodes if n.state is NodeState.UP)
        assert last(pool.series)[:2] == [up, held.get(name, 0)]
        up_nodes = [n for n in nodes if n.state is NodeState.UP]
        assert last(pool.series)[4] == sum(map(idle_of_reserved, up_nodes))
    for name, project in history.projects.items():
        assert last(project.series)[0] == projects.get(name, 0)
    for name, node in state.nodes.items():
        free = history._nodes[name].free if name in history._nodes else None
        assert (free is not None) == (node.state is NodeState.UP)
        if free is not None and node.pool_name is not None:
            reserved = reserved_on(node)
            idle = sum(node.free.slots) + 1000 * len(node.disabled_slots)
            idle += sum(p.gpu_milli * len(p.slots) for p in reserved)
            assert sum(free.slots) == idle
            assert free.cpu_milli == node.free.cpu_milli + sum(p.cpu_milli for p in reserved)
            assert free.memory_mib == node.free.memory_mib + sum(p.memory_mib for p in reserved)


def assert_adds_up(history: History) -> None:
    """GPUs over time are those of the tasks, no wait is negative; all times are in the run."""
    edges = windows(START_MS, history.now_ms, 1)
    held = sum(pool.series.sums(1, edges)[0] for pool in history.pools.values())
    asked = sum(pool.series.sums(2, edges)[0] for pool in history.pools.values())
    later_ms = edges[1] - history.now_ms
    open_now = sum(
        placement.gpu_milli
        * len(placement.slots)
        * (history.now_ms + later_ms - task.run.allocated_ms)
        for task in history.tasks.values()
        if task.run is not None
        for placement, state in zip(task.run.placements, task.run.replicas, strict=True)
        if state < 3
    )
    assert held == sum(task.gpu_milli_ms for task in history.tasks.values()) + open_now
    by_project = sum(p.series.sums(0, edges)[0] for p in history.projects.values())
    assert held == by_project
    assert asked == sum(p.series.sums(1, edges)[0] for p in history.projects.values())
    for pool in history.pools.values():
        assert min(pool.series.points, default=0) >= 0
    for task in history.tasks.values():
        assert task.wait_ms >= 0
        for run in task.attempts:
            assert 0 <= run.lost_ms <= run.ran_ms
            if run.closed_ms is not None:
                assert run.allocated_ms + run.ran_ms <= run.closed_ms
        busy_ms = sum(
            (run.closed_ms if run.closed_ms is not None else history.now_ms) - run.allocated_ms
            for run in task.attempts
        )
        end_ms = task.ended_ms if task.ended_ms is not None else history.now_ms
        assert task.wait_ms + busy_ms <= end_ms - task.job.submitted_ms
    figures = summary(history)
    for share in (figures.utilisation, figures.fragmentation, figures.fairness):
        assert share is None or 0 <= share <= 1 + 1e-9


def assert_order_at_one_time_does_not_matter(cell: Cell, history: History) -> None:
    events: list[tuple[int, Event]] = []
    now_ms = 0
    for step in cell.steps:
        match step:
            case CycleBegun(_, now_ms, _):
                pass
            case EventApplied(event, _):
                events.append((now_ms, event))
    chance = Random(len(events))
    other = History()
    # Events of nodes and jobs keep their places; between them, the events of each task keep
    # their order.
    for (now_ms, about_tasks), some in groupby(events, lambda e: (e[0], hasattr(e[1], "task_id"))):
        together = [event for _, event in some]
        if about_tasks:
            places: dict[str, float] = {}
            for event in together:
                places.setdefault(event.task_id, chance.random())  # type: ignore[attr-defined]
            together.sort(key=lambda event: places[event.task_id])  # type: ignore[attr-defined]
        for event in together:
            other.see(now_ms, event)
    assert summary(other) == summary(history)
    assert task_table({}, other).equals(task_table({}, history))
