"""A cycle's pass over the awake groups: the order over several pools, and which groups are
reconsidered.
"""

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import PoolOrder


def test_no_task_starts_and_is_preempted_in_the_same_cycle() -> None:
    """A task that must wait for the result of a pool that it prefers is not overtaken in the other
    pool.
    """
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=2)
    cell.submit("picky", gpus=2, priority=10, pools=("side", "main"))
    cell.submit("low", gpus=2, priority=60)
    decided = cell.cycle()
    assert started(decided) == ["picky"]
    assert all_of(decided, dec.PreemptionRequestedV1) == []


def test_jobs_that_prefer_each_others_pools_do_not_wait_for_each_other() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1, pool="side")
    cell.submit("one", pools=("side", "main"), tasks=2)
    cell.submit("two", pools=("main", "side"), tasks=2)
    cell.submit("three", priority=60)
    assert started(cell.cycle()) == ["one", "one.1"], "the earlier submission has both"
    assert [waits(cell, "two", pool).code for pool in ("main", "side")] == ["insufficient_free"] * 2
    assert waits(cell, "three").code == "insufficient_free"
    assert_sound(cell.state)


def test_a_group_whose_tasks_have_all_started_keeps_no_other_pool_waiting() -> None:
    cell = Cell()
    cell.pool("side", pool_order=PoolOrder.STRICT)
    cell.node("n1", gpus=4)
    cell.submit("low", gpus=2, priority=80)
    cell.submit("hi", priority=20, pools=("side", "main"))
    cell.submit("big", gpus=3, replicas=2, priority=1, pools=("side", "main"))
    cell.submit("two", tasks=2, priority=1, pools=("main", "side"))
    assert sorted(started(cell.cycle())) == ["hi", "two", "two.1"]
    assert waits(cell, "low").code == "insufficient_free"
    assert_sound(cell.state)


def test_no_task_passes_the_first_of_groups_that_wait_for_each_others_pools() -> None:
    """In `main`, by priority, `hi` comes first and waits for `side`; there, by submission, `two`
    comes first and waits for `main`.
    """
    cell = Cell()
    cell.pool("side", policy="fifo", pool_order=PoolOrder.STRICT)
    cell.node("n1", gpus=1)
    cell.submit("two", priority=60, preemptible=False, pools=("main", "side"))
    cell.submit("low", priority=80, preemptible=False)
    cell.submit("hi", priority=20, pools=("side", "main"))
    assert started(cell.cycle()) == ["hi"]
    assert cell.run_until_idle() == []
    assert_sound(cell.state)


@pytest.mark.parametrize(("in_main", "nodes"), [(1, ("n2", "n2")), (2, ("n1", "n2"))])
def test_groups_that_wait_for_each_others_pools_start_where_they_fit(
    in_main: int, nodes: tuple[str, str]
) -> None:
    """If each fits in the pool that it prefers, the order decides before the preference."""
    cell = Cell()
    cell.pool("side", policy="fifo")
    cell.node("n1", gpus=in_main)
    cell.node("n2", gpus=3, pool="side")
    cell.submit("two", gpus=2, priority=60, pools=("main", "side"))
    cell.submit("hi", priority=20, pools=("side", "main"))
    assert sorted(started(cell.cycle())) == ["hi", "two"]
    assert (cell.slots_of("hi")[0][0], cell.slots_of("two")[0][0]) == nodes
    assert_sound(cell.state)


def test_tasks_that_do_not_all_start_in_a_later_pool_preempt_in_the_first_one() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=2, pool="side")
    cell.submit("low", priority=60)
    running(cell, "low")
    cell.submit("hi", priority=20, tasks=3, pools=("main", "side"))
    decided = cell.cycle()
    assert sorted(started(decided)) == ["hi", "hi.1"]
    assert len(all_of(decided, dec.PreemptionRequestedV1)) == 1
    assert_sound(cell.state)


def test_a_group_behind_a_task_is_reconsidered_when_that_stops_waiting_late_in_the_cycle() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=2)
    cell.submit("held", preemptible=False)
    cell.cycle()
    cell.submit("picky", gpus=2, priority=1, pools=("side", "main"))
    cell.submit("low", priority=60)
    cell.cycle()
    assert waits(cell, "low").code == "behind_task"
    cell.pool("side")
    cell.node("n2", gpus=2, pool="side")
    assert sorted(started(cell.cycle())) == ["low", "picky"]
    assert_sound(cell.state)


def test_a_cycle_that_is_cut_at_its_limit_continues_in_the_next() -> None:
    cell = Cell()
    cell.node("n1", gpus=8)
    cell.submit("job", tasks=5)
    done = []
    for _ in range(3):
        done += [len(cell.cycle(limit=2))]
    assert (done, cell.complete) == ([2, 2, 1], True)
    assert len([t for t in cell.state.tasks.values() if t.run is not None]) == 5


def test_the_victims_of_one_task_are_decided_together_or_not_at_all() -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    cell.submit("low", tasks=3, priority=90)
    cell.cycle()
    cell.submit("top", gpus=3, priority=1)
    assert kinds(cell.cycle(limit=2)) == [*["PreemptionRequested"] * 3, "SlotsReserved"]
    assert kinds(cell.run_until_idle()) == []


def test_pending_groups_sleep_until_an_event_wakes_them() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("held", priority=1, preemptible=False)
    running(cell, "held")
    for number in range(30):
        cell.submit(f"w{number}x", priority=10 + number)
    cell.cycle()
    pool = cell.state.pools["main"]
    assert not pool.awake
    cell.submit("cpu", gpus=0)
    assert kinds(cell.cycle()) == ["SlotsAllocated"]
    assert not pool.awake, "a new task of another kind wakes no group"
    cell.ends("held")
    assert started(cell.cycle()) == ["w0x"]
    assert not pool.awake


def test_a_task_with_reserved_slots_is_not_considered_until_they_are_free() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("top", priority=1)
    cell.cycle()
    assert not cell.state.pools["main"].awake
    cell.never_starts("low")
    assert started(cell.cycle()) == ["top"]
    cell.run_until_idle()
    assert not cell.state.pools["main"].awake


def test_a_group_that_no_longer_waits_for_its_victims_lets_others_pass() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("held", priority=1, preemptible=False)
    cell.submit("low", priority=90)
    cell.cycle()
    cell.submit("top", priority=5)
    cell.submit("mid", priority=50)
    cell.cycle()
    assert waits(cell, "mid").code == "insufficient_free"
    cell.cancel("top")
    cell.never_starts("held")
    assert started(cell.cycle()) == ["mid"]
    cell.never_starts("low")
    assert started(cell.run_until_idle()) == ["low"]
    assert_sound(cell.state)


def promised() -> Cell:
    """Return a cell in which the slots that `low` releases and an idle slot are reserved for `top`;
    `equal` waits despite the idle slot.
    """
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", priority=90)
    running(cell, "low")
    cell.submit("top", gpus=2, priority=5)
    cell.cycle()
    cell.submit("equal", priority=5)
    cell.cycle()
    assert waits(cell, "top").code == "waiting_for_victims"
    assert waits(cell, "equal").code == "insufficient_free"
    return cell


def test_slots_reserved_for_a_cancelled_task_go_to_others_at_once() -> None:
    cell = promised()
    cell.cancel("top")
    assert started(cell.cycle()) == ["equal"]


def test_slots_reserved_for_a_paused_task_go_to_others_at_once() -> None:
    cell = promised()
    cell.pause("top")
    assert started(cell.cycle()) == ["equal"]


def test_slots_reserved_for_a_task_that_starts_elsewhere_go_to_others_at_once() -> None:
    cell = promised()
    cell.node("n2", gpus=2)
    assert started(cell.cycle()) == ["top", "equal"]


def test_slots_reserved_for_a_task_that_reached_a_limit_go_to_others_at_once() -> None:
    cell = promised()
    cell.set_max_slots("top", 1)
    assert started(cell.cycle()) == ["equal"]
