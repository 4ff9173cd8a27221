"""The cost of a cycle follows what changed: counted in steps, never in time."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, running
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner import victim_search
from yardmaster_core.scheduling.state.wake_index import WakeIndex
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Count the calls of a function from now on."""
    calls = [0]
    function = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_a_gang_preempts_exactly_the_scattered_victims_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell(placement="random")
    for number in range(8):
        cell.node(f"n{number}", gpus=4)
    for number in range(8):
        cell.submit(f"low{number}", tasks=4, gpus=1, priority=60)
    cell.cycle()
    cell.submit("gang", replicas=4, gpus=4, priority=1)
    placed = counted(monkeypatch, victim_search, "place")
    decided = cell.cycle()
    stops = all_of(decided, dec.PreemptionRequestedV1)
    (reserved,) = all_of(decided, dec.SlotsReservedV1)
    nodes = {placement.node for placement in reserved.placements}
    assert (len(stops), reserved.victims, len(nodes)) == (16, 16, 4)
    assert {node for event in stops for node in event.nodes} == nodes
    assert placed == [0], "the whole gang is not placed again for each victim"
    assert_sound(cell.state)


def test_the_end_of_a_gang_wakes_the_pending_groups_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell()
    for number in range(4):
        cell.node(f"n{number}", gpus=2)
    cell.submit("gang", replicas=8, gpus=1, preemptible=False)
    running(cell, "gang")
    for number in range(5):
        cell.submit(f"p{number}", gpus=1, priority=70 + number)
    cell.cycle()
    cell.ends("gang")
    woken = counted(monkeypatch, WakeIndex, "wake_blocked")
    cell.cycle()
    # Of the applied inputs; a draft applies none.
    assert woken == [1]


def test_the_loss_of_many_nodes_wakes_every_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell()
    for number in range(6):
        cell.node(f"n{number}", gpus=1)
        cell.submit(f"low{number}", gpus=1)
    cell.cycle()
    cell.submit("wait", gpus=1)
    cell.cycle()
    heard_ms = cell.now_ms
    woken = counted(monkeypatch, WakeIndex, "wake_all")
    cell.cycle(after_s=100, silent={f"n{number}": heard_ms for number in range(6)})
    assert woken == [2], "once while deciding, once while applying"
    assert_sound(cell.state)


def test_groups_whose_victims_become_preemptible_at_one_time_are_woken_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", gpus=1, priority=60, min_runtime_s=600)
    running(cell, "low")
    for number in range(6):
        cell.submit(f"p{number}", gpus=1, priority=10 + number)
    cell.cycle()
    waits = Counter(cell.wait_code(f"p{number}") for number in range(6))
    assert waits == {"victims_protected": 6}
    woken = counted(monkeypatch, WakeIndex, "wake")
    cell.machine.begin_cycle(cell.state, cell.cycles + 1, cell.now_ms + 601_000, cell.rules)
    assert woken == [6]


def test_deadlines_that_no_longer_apply_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start leaves a deadline for the longest time that a start may take."""
    monkeypatch.setattr("yardmaster_core.scheduling.planner.cycle_boundaries.FEW", 8)
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("held", time_limit_s=250)
    running(cell, "held")
    for number in range(60):
        cell.submit(f"j{number:02d}x")
        running(cell, f"j{number:02d}x")
        cell.ends(f"j{number:02d}x")
        cell.cycle()
        assert len(cell.state.deadlines) <= 8 + 2 * 4
    due_ms = cell.machine.due_ms(cell.state)
    assert due_ms is not None
    (stop,) = all_of(cell.cycle(after_s=(due_ms - cell.now_ms) / 1000), dec.StopRequestedV1)
    assert stop.task_id == cell.task("held").id, "the time limit of a running task is kept"
