"""The policy `quota`: slots that are reserved for tasks beyond what their projects deserve."""

from typing import Any

from tests.histories.properties import CheckedPlayer
from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import all_of, only, started, stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import DropCode, WaitCode
from yardmaster_schemas.resources import Resources


def moved_for_a_task_beyond_its_share(**options: Any) -> QuotaCell:
    """Return a cell in which a task of `r` leaves n0 slowly for a task of `over`, with which that
    project holds 7 GPUs of 3 that it deserves.
    """
    cell = QuotaCell({"n0": 4, "n1": 4}, **options)
    for project, deserved in (("over", 3), ("within", 4), ("r", 1)):
        cell.entitle_to(project, deserved)
    cell.submit("first", project="over", gpus=3)
    cell.run()
    cell.submit("filler", project="r", gpus=1)
    cell.run()
    cell.submit("r", project="r", gpus=1, grace_s=600)
    cell.run()
    cell.cancel("filler")
    cell.run()
    assert [node for node, _ in cell.slots_of("r")] != [node for node, _ in cell.slots_of("first")]
    cell.submit("more", project="over", gpus=4)
    decided = cell.cycle(after_s=1)
    assert stopped(decided) == ["r"]
    assert cell.task("more").reserved is not None
    return cell


def test_slots_reserved_beyond_what_is_deserved_go_to_a_project_within_what_it_deserves() -> None:
    cell = moved_for_a_task_beyond_its_share()
    cell.submit("due", project="within", gpus=4)
    decided = cell.cycle(after_s=1)
    drop = only(decided, dec.ReservationDroppedV1)
    due, more = cell.task("due"), cell.task("more")
    assert (drop.task_id, drop.code, drop.for_task) == (more.id, DropCode.PASSED, due.id)
    assert (drop.about, drop.numbers["used_milli"], drop.numbers["deserved_milli"]) == (
        "over",
        7000,
        3000,
    )
    assert stopped(decided) == []
    assert [event.task_id for event in all_of(decided, dec.SlotsReservedV1)] == [due.id]
    assert_sound(cell.state)
    assert "due" in started(cell.run())
    assert cell.phase("more") == "pending"
    assert stopped(cell.run()) == []


def test_slots_are_reclaimed_while_a_task_that_cannot_be_preempted_still_holds_them() -> None:
    """Without the preemptible tasks alone, the task would not fit: more is free once the other one
    is gone.
    """
    cell = QuotaCell({"n0": 4})
    for project in ("over", "fixed", "due"):
        cell.entitle_to(project, 4)
    cell.submit("fixed", project="fixed", gpus=4, preemptible=False)
    cell.run()
    cell.submit("over", project="over", gpus=4)
    cell.submit("due", project="due", gpus=4)
    cell.cycle(after_s=1)
    cell.cancel("fixed")
    cell.run_until_idle()
    assert cell.task("over").reserved is not None
    cell.entitle_to("over", 0)
    decided = cell.run_until_idle()
    drop = only(decided, dec.ReservationDroppedV1)
    assert (drop.task_id, drop.for_task) == (cell.task("over").id, cell.task("due").id)
    assert_sound(cell.state)


def test_a_task_that_must_not_preempt_yet_takes_over_slots_reserved_for_one_behind_it() -> None:
    """Else the one behind it would start although the first one comes before it and fits."""
    cell = QuotaCell({"n0": 3}, preemption_delay_s=20)
    for project in ("p", "q"):
        cell.entitle_to(project, 3)
    cell.submit("low", project="q", gpus=3)
    cell.run()
    cell.entitle_to("q", 0)
    cell.submit("behind", project="p", gpus=3, priority=40, min_runtime_s=30)
    cell.cycle(after_s=10)
    cell.submit("first", project="p", gpus=1, priority=3)
    cell.cycle()
    assert cell.wait_code("first") == cell.wait_code("behind") == WaitCode.PREEMPTION_DELAY
    decided = cell.cycle(after_s=11)
    assert stopped(decided) == ["low"]
    drop = only(decided, dec.ReservationDroppedV1)
    assert (drop.task_id, drop.for_task) == (cell.task("behind").id, cell.task("first").id)
    assert started(cell.run()) == ["first"]
    assert_sound(cell.state)


def test_a_task_beyond_the_share_takes_over_no_slots_reclaimed_for_one_within_it() -> None:
    """Else the others would reclaim them again, without end."""
    cell = QuotaCell({}, over_quota="weight")
    cell.node("n0", gpus=3, cpu_milli=4000)
    cell.entitle_to("p", 3, deserved_cpu_milli=0)
    cell.entitle_to("q", 0)
    three = Resources(gpus=3, gpu_milli=1000, cpu_milli=3000)
    cell.submit("over", project="q", resources=three)
    cell.run()
    cell.submit("within", project="p", gpus=3, priority=60)
    assert stopped(cell.cycle(after_s=1)) == ["over"]
    one = Resources(gpus=1, gpu_milli=1000, cpu_milli=3000)
    cell.submit("first", project="p", resources=one, priority=40)
    assert not all_of(cell.cycle(after_s=1), dec.ReservationDroppedV1)
    assert "within" in started(cell.run())


def test_reserved_slots_and_running_tasks_are_reclaimed_together() -> None:
    """A task that needs more than the reserved slots also gets those of a running task."""
    cell = QuotaCell({"n0": 8})
    for project, deserved in (("over", 2), ("within", 6)):
        cell.entitle_to(project, deserved)
    cell.submit("low", project="over", gpus=4, priority=60, grace_s=600)
    cell.submit("rest", project="over", tasks=4, priority=20)
    cell.run()
    cell.submit("high", project="over", gpus=4, priority=10)
    assert stopped(cell.cycle(after_s=1)) == ["low"]
    cell.submit("due", project="within", gpus=6)
    decided = cell.cycle(after_s=1)
    assert only(decided, dec.ReservationDroppedV1).task_id == cell.task("high").id
    assert len(stopped(decided)) == 2
    assert all_of(decided, dec.SlotsReservedV1)[0].victims == 2
    assert_sound(cell.state)
    cell.run()
    assert (cell.held("within"), cell.held("over")) == (6, 2)


def test_slots_reserved_within_what_is_deserved_stay() -> None:
    cell = QuotaCell({"n0": 4})
    for project in ("a", "b"):
        cell.entitle_to(project, 2)
    cell.submit("c", project="c", gpus=4, grace_s=600)
    cell.run()
    cell.submit("of a", project="a", gpus=2)
    assert stopped(cell.cycle(after_s=1)) == ["c"]
    cell.submit("of b", project="b", gpus=3)
    assert all_of(cell.cycle(after_s=1), dec.ReservationDroppedV1) == []
    assert cell.task("of a").reserved is not None


def test_no_task_is_moved_beyond_a_share_while_a_task_within_its_share_waits() -> None:
    """The task of `within` waits for tasks that are protected, and reclaims slots later."""
    cell = QuotaCell({"n0": 4, "n1": 4})
    for project, deserved in (("over", 3), ("within", 4), ("r", 1)):
        cell.entitle_to(project, deserved)
    cell.submit("first", project="over", gpus=3, min_runtime_s=3600)
    cell.run()
    cell.submit("filler", project="r", gpus=1)
    cell.run()
    cell.submit("r", project="r", gpus=1)
    cell.run()
    cell.cancel("filler")
    cell.run()
    cell.submit("due", project="within", gpus=4, avoid_nodes=("n1",))
    cell.run()
    assert cell.wait_of("due") is WaitCode.VICTIMS_PROTECTED
    cell.submit("more", project="over", gpus=4)
    assert stopped(cell.run()) == []
    cell.cancel("due")
    assert stopped(cell.run()) == ["r"], "nothing waits within its share any more"
    assert cell.phase("more") == "running"


def test_running_tasks_of_a_department_are_reclaimed_before_slots_that_are_reserved_in_it() -> None:
    """Without these slots, the department holds no more than it deserves."""
    player = CheckedPlayer()
    cell = player.cell
    cell.pool("main", policy="quota")
    cell.configure_department("d")
    deserves = {"main": Quota(deserved_milli=1000, deserved_cpu_milli=2000)}
    cell.configure_department("e", parent="d", rank=50, quotas=deserves)
    cell.entitle("r", department="f", quotas={"main": Quota(deserved_milli=2000)})
    cell.entitle("s", department="e")
    player.join(name="n1")
    player.submit(name="stops", spec={"gpus": 2})
    cpus = Resources(cpu_milli=2000)
    player.submit(name="cpus", project="s", spec={"resources": cpus, "tasks": 4})
    player.submit(name="first", spec={"priority": 40})
    player.submit(name="part", project="r", spec={})
    request = {"resources": Resources(gpus=1, gpu_milli=1000, cpu_milli=3000)}
    player.urgent(name="waits", spec=request, low_name="second", low={})
    assert cell.task("second").reserved is not None
    player.urgent(name="due", project="r", spec=request, low_name="", low=None)
    due, second = cell.task("due"), cell.task("second")
    assert (due.reserved is not None, second.reserved) == (True, None)


def test_what_is_left_of_reclaimed_slots_goes_to_the_first_task_that_waits_to_preempt() -> None:
    """With `order: kai` it still waits for its turn to preempt when another project reclaims the
    slots that were reserved for a gang of its project.
    """
    cell = QuotaCell({"n0": 2, "n1": 1}, order="kai", over_quota="weight")
    cell.entitle_to("p", 0)
    cell.entitle_to("r", 1)
    cell.submit("runs", project="p", priority=60, tasks=2, gpus=1, grace_s=600)
    cell.run()
    cell.submit("gang", project="p", priority=10, gpus=2)
    cell.cycle(after_s=1)
    assert cell.task("gang").reserved is not None
    cell.submit("last", project="p", priority=70, gpus=1)
    cell.cycle(after_s=1)
    cell.entitle_to("p", 0, preempt_min_runtime_s=600)
    cell.submit("first", project="p", priority=50, gpus=1)
    cell.submit("claim", project="r", gpus=1)
    decided = cell.cycle(after_s=1)
    assert only(decided, dec.ReservationDroppedV1).task_id == cell.task("gang").id
    assert started(decided) == ["first"]


def test_the_check_of_the_order_knows_what_owners_of_reserved_slots_lost() -> None:
    """The tasks of `q` that come later lose what was reserved for them, and wait again."""
    player = CheckedPlayer()
    cell = player.cell
    cell.pool("main", policy="quota", over_quota="weight")
    player.join(name="n1", gpus=4)
    player.submit(name="never", project="q", spec={"priority": 20, "gpus": 2, "replicas": 3})
    player.submit(name="runs", project="s", spec={"tasks": 4, "grace_s": 600})
    later = {"priority": 60, "tasks": 2, "min_runtime_s": 600}
    player.submit(name="later", project="q", spec=later)
    assert cell.task("later").reserved is not None
    player.submit(name="first", project="q", spec={"priority": 30, "tasks": 2}, at_once=False)
    player.stop_replicas()
    assert started(player.cycle()) == ["first", "first.1"]
    assert (cell.task("later").reserved, cell.task("later").run) == (None, None)
