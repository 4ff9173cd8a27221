"""The cost of a cycle follows what changed: counted in steps, never in time."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, running, started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner import lifecycle, victim_search
from yardmaster_core.scheduling.planner.group_queue import GroupQueue
from yardmaster_core.scheduling.planner.pool_pass import PoolPass
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


@pytest.mark.parametrize("projects", [2, 20])
@pytest.mark.parametrize("preemption", [True, False])
def test_the_end_of_a_task_wakes_no_number_of_groups_that_grows_with_the_projects(
    monkeypatch: pytest.MonkeyPatch, projects: int, preemption: bool
) -> None:
    cell = Cell(preemption=preemption)
    cell.node("n1", gpus=1)
    cell.submit("ends", gpus=1)
    running(cell, "ends")
    for number in range(projects):
        cell.submit(f"high{number}x", gpus=1, project=f"p{number}", priority=60)
        cell.submit(f"low{number}x", gpus=1, project=f"p{number}", priority=70)
    cell.cycle()
    cell.ends("ends", done=True)
    woken = counted(monkeypatch, WakeIndex, "wake")
    queued = counted(monkeypatch, GroupQueue, "push_next")
    assert started(cell.cycle()) == ["high0x"]
    assert woken[0] == 0
    # The first group of each priority that did not fit, and the next one of the first.
    assert queued[0] == (3 if preemption else 2)
    assert_sound(cell.state)


def test_of_equal_groups_each_gets_slots_after_the_one_before() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("ends", gpus=4)
    running(cell, "ends")
    for name in "abcde":
        cell.submit(name, gpus=1, project=name, priority=60)
    cell.submit("f", gpus=1, project="a", priority=60)
    cell.cycle()
    cell.ends("ends", done=True)
    cell.cancel("a")
    assert started(cell.cycle()) == ["b", "c", "d", "e"]
    assert cell.wait_code("f") == "insufficient_free"
    assert_sound(cell.state)


def test_an_incomplete_cycle_leaves_the_equal_groups_awake() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("ends", gpus=4)
    running(cell, "ends")
    for name in "abc":
        cell.submit(name, gpus=1, project=name, priority=60)
    cell.cycle()
    cell.ends("ends", done=True)
    found = [started(cell.cycle(limit=2)) for _ in range(3)]
    assert [name for names in found for name in names] == ["a", "b", "c"]
    assert found[0] != ["a", "b", "c"]


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


@pytest.mark.parametrize("stops", [4, 16])
def test_the_reservations_of_a_pool_are_looked_at_once_for_all_overdue_stops(
    monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    cell = Cell()
    for number in range(stops):
        cell.node(f"n{number}", gpus=1)
    cell.submit("low", tasks=stops, priority=60, grace_s=0)
    cell.cycle()
    for index in range(stops):
        cell.starts("low", index)
    cell.cycle()
    cell.submit("high", tasks=stops, priority=1)
    assert len(all_of(cell.cycle(), dec.SlotsReservedV1)) == stops
    looks = counted(monkeypatch, lifecycle, "drop_of")
    decided = cell.cycle(after_s=60)
    assert len(all_of(decided, dec.StopOverdueV1)) == stops
    assert len(all_of(decided, dec.ReservationDroppedV1)) == stops
    # Once for all, once for each node, and once for each task about which the cycle decides.
    assert looks[0] <= 4 * stops
    assert_sound(cell.state)


@pytest.mark.parametrize("projects", [4, 16])
def test_changed_quotas_wake_each_group_once_for_all_changes_of_a_cycle(
    monkeypatch: pytest.MonkeyPatch, projects: int
) -> None:
    cell = Cell(policy="quota")
    cell.node("n1", gpus=projects)
    names = [f"p{number}" for number in range(projects)]
    for name in names:
        cell.entitle(name, limit_milli=0)
        cell.submit(f"{name}job", project=name)
    cell.cycle()
    for name in names:
        cell.entitle(name, limit_milli=1000)
    woken = counted(monkeypatch, WakeIndex, "wake")
    assert len(started(cell.cycle())) == projects
    # As a group of a changed project, as one at a limit, and when a task leaves it.
    assert woken[0] <= 4 * projects
    assert_sound(cell.state)


def test_changed_quotas_count_after_a_cycle_that_stopped_at_its_limit() -> None:
    cell = Cell(policy="quota")
    cell.node("n1", gpus=4)
    for name in "abcd":
        cell.entitle(name, limit_milli=0)
        cell.submit(name, project=name)
    cell.cycle()
    for name in "abcd":
        cell.entitle(name, limit_milli=1000)
    found = started(cell.cycle(limit=1))
    while not cell.complete:
        cell.restart()
        found += started(cell.cycle(limit=1))
    assert found == ["a", "b", "c", "d"]


@pytest.mark.parametrize("groups", [4, 16])
def test_tasks_behind_many_groups_on_reserved_slots_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    cell = Cell()
    cell.node("n1", gpus=2 * groups)
    cell.submit("low", tasks=2 * groups, priority=60)
    cell.cycle()
    for index in range(2 * groups):
        cell.starts("low", index)
    cell.submit("mid", tasks=groups, priority=40, preemptible=False)
    assert len(all_of(cell.cycle(), dec.SlotsReservedV1)) == groups
    for index in range(2 * groups):
        cell.ends("low", index, done=True)
    for number in range(groups):
        cell.submit(f"high{number}x", priority=10 + number)
    looks = counted(monkeypatch, PoolPass, "_owners_to_pass")
    assert len(started(cell.cycle())) == 2 * groups
    assert looks == [1]
    assert_sound(cell.state)
