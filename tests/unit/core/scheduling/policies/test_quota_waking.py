"""Under `quota`, an event considers the groups that it may help, whatever the number of others."""

from typing import Any

import pytest
from pydantic_core import from_json

from tests.unit.core.scheduling.planner.test_growth import counted
from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import all_of, only, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner.pool_pass import PoolPass
from yardmaster_core.testing import Cell
from yardmaster_schemas import plain
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.reasons import DropCode, PolicyStop, WaitCode
from yardmaster_schemas.resources import Resources


def full(projects: int, **options: Any) -> Cell:
    """Return a cell in which each project holds the GPU that it deserves and waits for more, also
    for 4 GPUs at once.
    """
    cell = Cell(policy="quota", **options)
    for number in range(projects):
        cell.entitle(f"p{number}", quotas={"main": req.Quota(deserved_milli=1000)})
        cell.node(f"n{number}", gpus=1)
        cell.submit(f"h{number}x", project=f"p{number}", gpus=1)
    cell.node("big", gpus=4)
    cell.entitle("z", quotas={"main": req.Quota(deserved_milli=4000)})
    cell.submit("big", project="z", gpus=4, preemptible=False)
    cell.cycle()
    for number in range(projects):
        cell.starts(f"h{number}x")
        cell.submit(f"w{number}x", project=f"p{number}", gpus=1, tasks=2)
        cell.submit(f"x{number}x", project=f"p{number}", gpus=4)
    cell.run_until_idle()
    return cell


@pytest.mark.parametrize("projects", [4, 16])
def test_one_end_considers_as_many_groups_in_a_larger_cell(
    projects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = full(projects)
    considered = counted(monkeypatch, PoolPass, "_consider")
    cell.ends("h1x")
    decided = cell.run_until_idle()
    # Its project is the most deprived one.
    assert started(decided) == ["w1x"]
    assert considered[0] <= 4
    assert_sound(cell.state)


@pytest.mark.parametrize("projects", [4, 16])
def test_a_submit_behind_equal_tasks_considers_no_group(
    projects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = full(projects)
    considered = counted(monkeypatch, PoolPass, "_consider")
    cell.submit("more", project="p1", gpus=1)
    cell.run_until_idle()
    assert considered == [0]


def test_a_released_gpu_lets_a_task_preempt_one_of_its_project_on_the_same_node() -> None:
    cell = Cell(policy="quota", actions=["allocate", "preempt"])
    for project in ("p", "q"):
        cell.entitle(project, quotas={"main": req.Quota(deserved_milli=1000)})
    for name in ("n1", "n2"):
        cell.node(name, gpus=2)
    for name, project in (("a1", "p"), ("b1", "q"), ("a2", "p"), ("b2", "q")):
        cell.submit(name, project=project, gpus=1, priority=50)
        cell.cycle()
        cell.starts(name)
    assert cell.slots_of("a1")[0][0] == cell.slots_of("b1")[0][0]
    cell.submit("two", project="p", gpus=2, priority=10)
    assert not all_of(cell.run_until_idle(), dec.PreemptionRequestedV1)
    cell.ends("b1")
    (stop,) = all_of(cell.run_until_idle(), dec.PreemptionRequestedV1)
    assert stop.task_id == cell.task("a1").id
    assert isinstance(stop.stop, PolicyStop)
    assert stop.stop.for_task == cell.task("two").id


def test_a_task_starts_in_the_pool_that_it_prefers_if_both_have_released_slots() -> None:
    cell = Cell(policy="quota")
    cell.pool("a", policy="quota")
    cell.node("n1", gpus=1, pool="a")
    cell.node("n2", gpus=1)
    cell.submit("first", gpus=1, pools=("a",), preemptible=False, project="q")
    cell.submit("second", gpus=1, preemptible=False, project="q")
    quota = req.Quota(deserved_milli=1000)
    cell.entitle("q", quotas={"main": quota, "a": quota})
    cell.cycle()
    for name in ("first", "second"):
        cell.starts(name)
    cell.submit("both", gpus=1, pools=("main", "a"))
    cell.run_until_idle()
    for name in ("first", "second"):
        cell.ends(name)
    cell.run_until_idle()
    assert cell.slots_of("both")[0][0] == "n2"


def test_a_restored_cell_considers_the_same_groups() -> None:
    cell = full(4)
    cell.ends("h1x")
    cell.cycle()
    restored = cell.machine.load("main", from_json(plain.encode(cell.machine.dump(cell.state))))
    for state in (cell.state, restored):
        cell.machine.begin_cycle(state, cell.cycles + 1, cell.now_ms)
    ours, theirs = (cell.machine.decide(s, limit=100) for s in (cell.state, restored))
    assert ours == theirs
    kept = [state.pools["main"].index.dump() for state in (cell.state, restored)]
    assert kept[0]["changed_nodes"] == kept[1]["changed_nodes"] != []


def test_a_wait_counts_the_sets_of_victims_that_were_tried() -> None:
    cell = Cell(policy="quota", actions=["allocate", "consolidation"])
    for name in ("n1", "n2"):
        cell.node(name, gpus=2, node_type=name)
        cell.submit(name, gpus=1, node_types=(name,))
    cell.cycle()
    for name in ("n1", "n2"):
        cell.starts(name)
    # On either node it fits only if the task there is moved, which the other node does not suit.
    cell.submit("wait", gpus=2)
    cell.run_until_idle()
    assert waits(cell, "wait").numbers["tries"] == 2


def test_what_a_victim_releases_beyond_a_request_goes_to_the_next_task_of_the_order() -> None:
    cell = Cell(policy="quota", actions=["allocate", "reclaim"], over_quota="weight")
    deserved = {"low": 0, "other": 0, "q": 2000}
    for project, milli in deserved.items():
        weight = 0 if project == "other" else 1
        quota = req.Quota(deserved_milli=milli, over_quota_weight=weight)
        cell.entitle(project, quotas={"main": quota})
    cell.node("n1", gpus=2)
    cell.submit("low", project="low", gpus=2)
    cell.cycle()
    cell.starts("low")
    cell.submit("other", project="other", gpus=1)
    assert not all_of(cell.run_until_idle(), dec.PreemptionRequestedV1)
    cell.submit("array", project="q", gpus=1, tasks=2)
    decided = cell.cycle()
    reserved = [event.task_id for event in all_of(decided, dec.SlotsReservedV1)]
    assert reserved == [task.id for task in cell.task("array").job.tasks]
    assert_sound(cell.state)


def test_a_new_task_does_not_pass_one_of_its_project_while_another_project_comes_first() -> None:
    """The released GPUs fit the tasks of both projects; only the new task woke."""
    cell = Cell(policy="quota", actions=["allocate"])
    for project in ("q", "p"):
        cell.entitle(project, quotas={"main": req.Quota(deserved_milli=1000)})
    cell.node("n1", gpus=2)
    cell.submit("low", project="z", gpus=2)
    cell.cycle()
    cell.starts("low")
    cell.submit("other", project="q", gpus=2)
    cell.submit("first", project="p", gpus=2, priority=10)
    assert started(cell.run_until_idle()) == []
    # With it, the project would hold what it deserves, so it would come before the other project.
    cell.submit("later", project="p", gpus=1, priority=50)
    cell.ends("low")
    assert started(cell.run_until_idle()) == ["other"]
    assert_sound(cell.state)


def test_a_task_passes_one_that_no_victims_can_help_any_more() -> None:
    """The reason of the first one, that its victims are protected, no longer holds."""
    cell = Cell(policy="quota")
    cell.node("n1", gpus=3)
    protected: dict[str, Any] = {"preempt_min_runtime_s": 600, "reclaim_min_runtime_s": 600}
    cell.entitle("p", quotas={"main": req.Quota(deserved_milli=1000)}, **protected)
    cell.entitle("q", quotas={"main": req.Quota(deserved_milli=2000)})
    half = Resources(gpus=1, gpu_milli=500)
    cell.submit("busy", project="p", gpus=1, priority=60)
    cell.submit("small", project="q", gpus=1)
    cell.submit("part", project="q", resources=half, preemptible=False)
    cell.cycle()
    for name in ("busy", "small", "part"):
        cell.starts(name)
    cell.submit("gang", project="p", gpus=2, priority=10)
    cell.run_until_idle()
    cell.submit("behind", project="p", resources=half, priority=60)
    cell.run_until_idle()
    assert cell.wait_code("gang") == "victims_protected"
    assert cell.wait_code("behind") == "behind_task"
    cell.submit("fixed", project="q", gpus=1, preemptible=False)
    assert stopped(cell.run_until_idle()) == ["small"]
    cell.ends("small")
    assert started(cell.run_until_idle()) == ["fixed", "behind"]


def waits_before_reserved_slots(projects: int = 1, **options: Any) -> QuotaCell:
    """Return a cell in which each project has a task `behind` with 2 reserved GPUs, for which a
    task stops slowly, and waits for all 3 GPUs of that node; a task of `q` holds the other one.

    With 3 GPUs instead of the reserved ones a project holds no more than its share; with 5 it
    would, so it reclaims nothing.
    """
    cell = QuotaCell({"z": 4}, **options)
    cell.entitle_to("q", projects)
    cell.entitle_to("z", 4)
    cell.submit("z", project="z", gpus=4, preemptible=False)
    cell.run()
    for number in range(projects):
        cell.entitle_to(f"p{number}", 3)
        cell.node(f"n{number}", gpus=3)
        cell.submit(f"other{number}x", project="q", gpus=1, preemptible=False)
        cell.submit(f"slow{number}x", project="z", gpus=2, grace_s=6000)
        cell.run()
    for number in range(projects):
        cell.submit(f"behind{number}x", project=f"p{number}", gpus=2, priority=60)
    cell.cycle(after_s=1)
    assert all(cell.task(f"behind{number}x").reserved for number in range(projects))
    for number in range(projects):
        cell.submit(f"first{number}x", project=f"p{number}", gpus=3, priority=30)
    cell.run_until_idle()
    return cell


@pytest.mark.parametrize("projects", [4, 16])
def test_a_released_gpu_lets_a_task_take_over_slots_of_one_behind_it(
    projects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = waits_before_reserved_slots(projects)
    (owner,) = cell.state.nodes[cell.slots_of("other1x")[0][0]].reserved
    asked = counted(monkeypatch, PoolPass, "_owners_to_pass")
    cell.ends("other1x")
    drop = only(cell.run_until_idle(), dec.ReservationDroppedV1)
    assert (drop.task_id, drop.code) == (owner.id, DropCode.PASSED)
    assert drop.for_task is not None
    assert cell.state.task(drop.for_task).job.project is owner.job.project
    assert asked[0] <= 4
    assert_sound(cell.state)


def test_a_larger_share_lets_a_task_take_over_slots_of_one_behind_it() -> None:
    """No node and no task of the project changes meanwhile."""
    cell = waits_before_reserved_slots(over_quota="weight")
    cell.entitle_to("p0", 2)
    cell.entitle_to("z", 4, over_quota=False)
    cell.entitle_to("w", 0, weight=100)
    cell.submit("rival", project="w", gpus=4)
    cell.run_until_idle()
    cell.ends("other0x")
    assert not all_of(cell.run_until_idle(), dec.ReservationDroppedV1)
    cell.cancel("rival")
    drop = only(cell.run_until_idle(), dec.ReservationDroppedV1)
    assert drop.for_task == cell.task("first0x").id


def test_a_restored_cell_considers_the_same_groups_after_a_node_changed() -> None:
    """Only that node could hold the task, and the tasks that it may preempt are on another one."""
    cells = [waits_for_a_node() for _ in range(2)]
    cells[1].restart()
    for cell in cells:
        cell.ends("fixed")
    first, restored = (cell.cycle() for cell in cells)
    assert first == restored
    assert waits(cells[0], "wide").code is WaitCode.FRAGMENTED


def waits_for_a_node() -> Cell:
    """Fill n1 and n2; `wide` fits on n1 only, and may preempt `low` on n2."""
    cell = Cell(policy="quota", order="kai", max_moves=0, over_quota="weight")
    cell.entitle("r", quotas={"main": req.Quota(deserved_milli=0)})
    cell.entitle("s", quotas={"main": req.Quota(deserved_milli=3000, over_quota_weight=0)})
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    cell.submit("fixed", project="s", gpus=2, preemptible=False)
    cell.submit("other", project="s", gpus=1, preemptible=False)
    cell.submit("low", project="r", gpus=1, priority=60)
    cell.run_until_idle()
    for name in ("fixed", "other", "low"):
        cell.starts(name)
    halves = Resources(gpus=2, gpu_milli=500)
    cell.submit("wide", project="r", resources=halves, priority=40)
    # It requests memory, so that its project is below its share of that.
    memory = Resources(gpus=1, gpu_milli=1000, memory_mib=3000)
    cell.submit("refused", project="r", resources=memory, preemptible=False)
    cell.submit("next", project="s", gpus=1, priority=60)
    # What it requests keeps the shares as they are.
    cell.submit("last", project="s", gpus=2, priority=70, avoid_nodes=("n1",))
    cell.run_until_idle()
    return cell
