"""`pool_order: strict`: victims in an earlier pool come before idle capacity in a later one."""

import pytest

from tests.unit.core.scheduling.reading import all_of, running, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import PoolOrder, Quota


def two_pools(order: PoolOrder = PoolOrder.STRICT) -> Cell:
    """Return a cell in which `low` uses the only GPU of `main`; that of `side` is idle."""
    cell = Cell(pool_order=order)
    cell.pool("side")
    cell.node("m1", gpus=1)
    cell.node("s1", gpus=1, pool="side")
    cell.submit("low", priority=60, grace_s=600)
    running(cell, "low")
    return cell


def test_a_task_preempts_in_its_first_pool_while_a_later_one_is_idle() -> None:
    cell = two_pools()
    cell.submit("hi", priority=10, pools=("main", "side"))
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == ([], ["low"])
    cell.ends("low")
    cell.cycle()
    assert cell.slots_of("hi") == [("m1", (0,))]
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["fair_share", "fitgpp", "priority"])
def test_the_order_applies_under_every_policy(policy: str) -> None:
    cell = Cell()
    cell.pool("main", policy=policy, pool_order=PoolOrder.STRICT)
    cell.pool("side")
    cell.node("m1", gpus=2)
    cell.node("s1", gpus=2, pool="side")
    cell.submit("low", priority=60, tasks=2)
    running(cell, "low")
    cell.starts("low", 1)
    preemptible = policy != "fitgpp"
    pools = ("main", "side")
    cell.submit("hi", project="q", priority=10, preemptible=preemptible, pools=pools)
    decided = cell.cycle()
    assert (started(decided), len(stopped(decided))) == ([], 1)
    assert [e.pool for e in all_of(decided, dec.SlotsReservedV1)] == ["main"]


@pytest.mark.parametrize("order", PoolOrder)
@pytest.mark.parametrize("project", ["p", "q"])
def test_the_order_applies_to_reclaim_and_preemption_of_the_policy_quota(
    project: str, order: PoolOrder
) -> None:
    cell = Cell(policy="quota", pool_order=order)
    cell.pool("side", policy="quota")
    quotas = {name: Quota(deserved_milli=1000) for name in ("main", "side")}
    cell.entitle("p", quotas=quotas)
    cell.entitle("q", quotas=quotas)
    cell.node("m1", gpus=2)
    cell.node("s1", gpus=2, pool="side")
    cell.submit("low", priority=60, tasks=2)
    running(cell, "low")
    cell.starts("low", 1)
    cell.submit("hi", project=project, priority=10, pools=("main", "side"))
    decided = cell.cycle()
    strict = order is PoolOrder.STRICT
    assert (started(decided), len(stopped(decided))) == ([] if strict else ["hi"], strict)


def test_without_victims_in_its_first_pool_it_uses_the_later_one() -> None:
    cell = two_pools()
    cell.submit("equal", priority=60, pools=("main", "side"))
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["equal"], [])
    assert cell.slots_of("equal") == [("s1", (0,))]


def test_a_task_that_may_not_use_its_first_pool_uses_the_later_one() -> None:
    cell = two_pools()
    cell.submit("large", gpus=2, priority=10, pools=("main", "side"))
    cell.node("s2", gpus=2, pool="side")
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["large"], [])


def test_idle_capacity_of_the_first_pool_comes_before_its_victims() -> None:
    cell = two_pools()
    cell.node("m2", gpus=1)
    cell.submit("hi", priority=10, pools=("main", "side"))
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["hi"], [])
    assert cell.slots_of("hi") == [("m2", (0,))]


def test_a_task_gets_slots_that_are_released_in_its_first_pool() -> None:
    cell = two_pools()
    cell.cancel("low")
    cell.cycle()
    cell.submit("next", priority=60, pools=("main", "side"))
    decided = cell.cycle()
    assert started(decided) == []
    assert [e.pool for e in all_of(decided, dec.SlotsReservedV1)] == ["main"]


def test_a_task_with_reserved_slots_waits_for_them_while_a_later_pool_becomes_idle() -> None:
    cell = two_pools()
    cell.submit("hi", priority=10, pools=("main", "side"))
    cell.cycle()
    cell.node("s2", gpus=8, pool="side")
    assert started(cell.run_until_idle()) == []
    assert waits(cell, "hi").code == "waiting_for_victims"
    cell.node("m2", gpus=1)
    assert started(cell.cycle()) == ["hi"], "but it starts on idle slots of the same pool"
    assert cell.slots_of("hi") == [("m2", (0,))]
    assert_sound(cell.state)


def test_slots_of_a_later_pool_are_left_for_idle_ones_of_an_earlier_pool() -> None:
    cell = two_pools()
    cell.submit("held", preemptible=False, pools=("side",))
    running(cell, "held")
    cell.submit("equal", priority=60, pools=("main", "side"))
    cell.cancel("held")
    decided = cell.run_until_idle()
    assert [e.pool for e in all_of(decided, dec.SlotsReservedV1)] == ["side"]
    cell.node("m2", gpus=1)
    assert started(cell.cycle()) == ["equal"]
    assert cell.slots_of("equal") == [("m2", (0,))]


def test_the_order_of_a_later_pool_changes_nothing() -> None:
    cell = two_pools(PoolOrder.IDLE_FIRST)
    cell.pool("side", pool_order=PoolOrder.STRICT)
    cell.submit("hi", priority=10, pools=("main", "side"))
    decided = cell.cycle()
    assert (started(decided), stopped(decided)) == (["hi"], [])


@pytest.mark.parametrize("tasks", [2, 3])
def test_the_tasks_of_an_array_take_victims_first_and_then_the_later_pool(tasks: int) -> None:
    cell = two_pools()
    cell.submit("hi", priority=10, tasks=tasks, pools=("main", "side"))
    decided = cell.run_until_idle()
    assert (started(decided), stopped(decided)) == (["hi.1"], ["low"])
    assert cell.slots_of("hi", 1) == [("s1", (0,))]
    assert_sound(cell.state)


def test_groups_that_wait_for_each_other_keep_to_the_order_of_their_pools() -> None:
    cell = Cell(pool_order=PoolOrder.STRICT)
    cell.pool("side", pool_order=PoolOrder.STRICT)
    cell.node("m1", gpus=1)
    cell.node("s1", gpus=1, pool="side")
    cell.submit("low", priority=60)
    cell.submit("other", priority=60, pools=("side",))
    running(cell, "low")
    running(cell, "other")
    cell.submit("one", priority=10, pools=("side", "main"))
    cell.submit("two", priority=10, pools=("main", "side"))
    decided = cell.run_until_idle()
    reserved = {e.task_id: e.pool for e in all_of(decided, dec.SlotsReservedV1)}
    assert reserved == {cell.task("one").id: "side", cell.task("two").id: "main"}
    assert sorted(stopped(decided)) == ["low", "other"]


def test_a_task_waits_for_the_result_of_its_first_pool_although_a_later_one_is_idle() -> None:
    """Each pool first considers a task that waits for the other pool."""
    cell = Cell(policy="fifo")
    cell.pool("side", pool_order=PoolOrder.STRICT)
    cell.node("m1", gpus=1)
    cell.node("s1", gpus=1, pool="side")
    cell.submit("low", priority=60, pools=("side",))
    running(cell, "low")
    cell.entitle("q", limit_milli=1000)
    cell.submit("hi", priority=20, pools=("side", "main"))
    cell.submit("first", gpus=2, priority=10, project="q", pools=("main", "side"))
    decided = cell.run_until_idle()
    assert (started(decided), stopped(decided)) == ([], ["low"])
    assert_sound(cell.state)


def test_no_later_task_takes_the_second_pool_of_an_array_while_it_starts_in_the_first_one() -> None:
    """GPUs of both pools are released at once, and nothing wakes the tasks that then fit."""
    cell = Cell(policy="quota", actions=["allocate"])
    cell.pool("side", policy="quota", actions=["allocate"])
    cell.node("m1", gpus=1)
    cell.node("s1", gpus=1, pool="side")
    cell.submit("low")
    cell.submit("other", pools=("side",))
    running(cell, "low")
    cell.starts("other")
    cell.submit("array", priority=10, tasks=2, pools=("side", "main"))
    cell.submit("later", priority=20)
    assert started(cell.run_until_idle()) == []
    cell.ends("low")
    cell.ends("other")
    assert started(cell.run_until_idle()) == ["array", "array.1"]
    assert cell.slots_of("array") == [("s1", (0,))]
    assert_sound(cell.state)


def test_a_task_that_may_start_once_one_leaves_for_another_pool_preempts_who_passed_it() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2, pool="side")
    cell.submit("held", priority=1)
    cell.submit("ends", gpus=2, priority=1, pools=("side",))
    running(cell, "held")
    running(cell, "ends")
    cell.submit("wide", gpus=2, priority=20, pools=("main", "side"))
    cell.submit("behind", priority=42, preemptible=False)
    assert started(cell.cycle()) == []
    assert cell.wait_code("behind") == "backfill_not_allowed"
    cell.ends("ends", done=True)
    cell.submit("backfilled", priority=60)
    assert started(cell.cycle()) == ["backfilled", "wide"]
    assert cell.run_until_idle() == []
    cell.starts("backfilled")
    assert stopped(cell.cycle()) == ["backfilled"]
    assert cell.task("behind").reserved is not None
    assert_sound(cell.state)
