"""The policy `quota`: limits and deserved amounts where configuration, nodes and moves change."""

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsReservedV1,
)
from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources

CPUS = Resources(cpu_milli=2000)


def test_a_limit_of_cpus_holds_where_more_gpus_are_used_than_the_limit() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 0)
    cell.submit("gpus", gpus=2, project="a")
    cell.run()
    cell.entitle_to("a", 0, limit=1, limit_cpu_milli=1000)
    cell.submit("cpus", resources=CPUS, project="a")
    cell.run()
    assert cell.wait_of("cpus") is WaitCode.EXCEEDS_LIMIT


def test_what_is_deserved_of_cpus_holds_where_more_gpus_are_used_than_deserved() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2)
    cell.submit("gpus", gpus=2, project="a", preemptible=False)
    cell.run()
    cell.entitle_to("a", 1, deserved_cpu_milli=1000)
    cell.submit("cpus", resources=CPUS, project="a", preemptible=False)
    cell.run()
    assert cell.wait_of("cpus") is WaitCode.EXCEEDS_DESERVED


def test_a_queue_with_unlimited_cpus_loses_none_when_nodes_are_cordoned() -> None:
    cell = QuotaCell({})
    for name in ("n1", "n2"):
        cell.node(name, 0, cpu_milli=4000)
    cell.entitle_to("a", 0)
    cell.entitle_to("b", 0)
    cell.submit("as", resources=CPUS, project="a", tasks=4)
    cell.run()
    cell.cordon("n2")
    cell.submit("b", resources=CPUS, project="b")
    stops = [each for each in cell.cycle() if isinstance(each, PreemptionRequestedV1)]
    assert not stops


def test_a_higher_limit_of_a_department_wakes_the_departments_below() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("top", 4, department=True, limit=1)
    cell.entitle_to("low", department=True, parent="top")
    cell.entitle_to("a", of="low")
    cell.submit("one", project="a", department="low", tasks=3)
    cell.run()
    assert cell.held("a") == 1
    cell.entitle_to("top", 4, department=True, limit=2)
    cell.run()
    assert cell.held("a") == 2


def test_a_department_that_leaves_another_wakes_the_tasks_at_its_limit() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("top", 4, department=True, limit=2)
    cell.entitle_to("low", department=True, parent="top")
    cell.entitle_to("a", of="low")
    cell.entitle_to("b", of="top")
    cell.submit("a", project="a", department="low", gpus=2)
    cell.submit("b", project="b", department="top", gpus=2)
    cell.run()
    assert cell.held("b") == 0
    cell.entitle_to("low", department=True)
    cell.run()
    assert cell.held("b") == 2


def test_a_project_that_joins_a_department_may_take_reserved_slots_of_others_there() -> None:
    cell = QuotaCell({"n1": 2})
    cell.entitle_to("e", department=True)
    cell.entitle_to("d", 2, department=True, limit=1)
    cell.entitle_to("a")
    cell.entitle_to("b", of="e")
    cell.submit("b", project="b", department="e", tasks=2)
    cell.run()
    cell.cancel("b", 0)
    cell.submit("a", project="a")
    assert [e.task_id for e in cell.cycle() if isinstance(e, SlotsReservedV1)] == [
        cell.task("a").id
    ]
    cell.entitle_to("b", of="d")
    dropped = [e for e in cell.cycle() if isinstance(e, ReservationDroppedV1)]
    assert [each.task_id for each in dropped] == [cell.task("a").id]


def test_a_task_that_is_moved_counts_once_towards_limits() -> None:
    cell = QuotaCell({"n1": 2, "n2": 2}, placement="worst_fit")
    cell.entitle_to("a", 4, limit=4)
    cell.submit("x", project="a", tasks=2)
    cell.run()
    cell.submit("y", gpus=2, project="a")
    decided = cell.cycle()
    moved = [e for e in decided if isinstance(e, PreemptionRequestedV1)]
    assert [each.stop.rule for each in moved] == ["moved"]
    # A change of the configuration has the limits of all reservations checked.
    cell.entitle_to("a", 4, limit=4, rank=200)
    assert not [e for e in cell.cycle() if isinstance(e, ReservationDroppedV1)]
    cell.run()
    assert cell.held("a") == 4


def test_a_project_whose_preemptible_tasks_have_ended_has_none_to_lose() -> None:
    """A cell restored from a snapshot does not know that it ever had some."""
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2)
    cell.entitle_to("b", 2, reclaim_min_runtime_s=600)
    cell.entitle_to("c", 2)
    cell.submit("ended", project="a")
    cell.run()
    cell.ends("ended", done=True)
    cell.submit("non_preemptible", project="a", preemptible=False, tasks=2)
    cell.submit("protected", project="b", tasks=2)
    cell.run()
    cell.entitle_to("a", 0)
    cell.submit("c", project="c")
    cell.run()
    assert cell.wait_of("c") is WaitCode.INSUFFICIENT_FREE


def test_a_task_that_starts_in_the_same_cycle_is_no_protected_victim() -> None:
    cell = QuotaCell({"n1": 3}, order="kai")
    cell.entitle_to("a", 0, reclaim_min_runtime_s=600)
    cell.entitle_to("b", 0, reclaim_min_runtime_s=600)
    cell.entitle_to("c", 3)
    cell.submit("a", project="a")
    cell.run()
    cell.submit("b", project="b")
    cell.submit("c", project="c", gpus=3)
    cell.cycle()
    assert cell.held("b") == 1
    group = cell.task("c").group
    assert group is not None
    wait = group.waits["main"][0]
    assert (wait.code, wait.numbers["victims"]) == (WaitCode.VICTIMS_PROTECTED, 1)


def test_no_preemption_in_a_project_takes_it_further_above_its_share() -> None:
    cell = QuotaCell({"n1": 4}, actions=["allocate", "preempt"])
    cell.entitle_to("a", 0)
    cell.entitle_to("b", 0)
    cell.submit("low", gpus=2, project="a", priority=60)
    cell.submit("b", project="b")
    cell.run()
    # Then the shares are 2 and 2.
    cell.submit("more", gpus=2, project="b")
    cell.submit("high", gpus=3, project="a", priority=10)
    cell.run()
    assert cell.slots_of("low")
    assert cell.wait_of("high") is WaitCode.INSUFFICIENT_FREE


def test_a_project_above_its_share_may_exchange_its_tasks() -> None:
    cell = QuotaCell({"n1": 4}, actions=["allocate", "preempt"])
    cell.entitle_to("a", 0)
    cell.entitle_to("b", 0)
    cell.submit("low", project="a", priority=60, tasks=4)
    cell.run()
    cell.submit("b", gpus=2, project="b")
    cell.submit("high", gpus=2, project="a", priority=10)
    cell.run()
    assert cell.slots_of("high")
    assert cell.held("a") == 4
