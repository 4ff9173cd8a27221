"""The policy `quota`: no two projects reclaim slots from each other in turn."""

import pytest

from tests.histories.properties import CheckedPlayer
from tests.histories.static_problems import StaticCell, problem
from tests.unit.core.scheduling.reading import started, stopped
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.resources import Resources


def entitle(cell: Cell, project: str, deserved: int, weight: int = 1) -> None:
    quota = Quota(deserved_milli=deserved * 1000, over_quota_weight=weight)
    cell.entitle(project, quotas={"main": quota})


def part(milli: int) -> Resources:
    return Resources(gpus=1, gpu_milli=milli)


def test_projects_come_to_rest_when_a_lost_node_leaves_less_than_they_deserve() -> None:
    cell = StaticCell(policy="quota")
    cell.node("n0", gpus=4)
    cell.node("n1", gpus=1)
    for project, deserved in (("p", 1), ("q", 3), ("r", 1)):
        entitle(cell, project, deserved)
    heard_ms = cell.now_ms
    cell.cycle()
    cell.cycle(after_s=61, silent={"n1": heard_ms})
    cell.submit("q4", project="q", gpus=4)
    cell.step()
    cell.submit("p3", project="p", gpus=3)
    cell.submit("p1", project="p", gpus=1)
    assert cell.come_to_rest(100)
    assert cell.preempted == 1
    assert [cell.phase(name) for name in ("q4", "p3", "p1")] == ["pending", "running", "running"]


def test_projects_come_to_rest_when_shares_name_nodes_of_another_type() -> None:
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("na", gpus=4, node_type="a")
    cell.node("nb", gpus=4, node_type="b")
    for project, deserved, weight in (("p", 1, 0), ("q", 0, 4), ("t", 0, 3)):
        entitle(cell, project, deserved, weight)
    cell.submit("t", project="t", gpus=1, tasks=8, node_types=("b",))
    cell.submit("q4", project="q", gpus=4, node_types=("a",))
    cell.step()
    cell.submit("p3", project="p", gpus=3, node_types=("a",))
    cell.submit("p1", project="p", gpus=1, node_types=("a",))
    assert cell.come_to_rest(100)
    assert cell.preempted == 1


def test_a_share_still_takes_a_task_whose_project_could_not_take_it_back() -> None:
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n0", gpus=4)
    entitle(cell, "p", 1)
    entitle(cell, "q", 1)
    cell.submit("q4", project="q", gpus=4)
    cell.step()
    cell.submit("p2", project="p", gpus=2)
    assert cell.come_to_rest(100)
    assert cell.phase("p2") == "running"


def test_a_share_takes_nothing_that_an_exchange_of_tasks_in_the_project_brings_back() -> None:
    """The gang of `p` would preempt two tasks of its project, and these would reclaim."""
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n0", gpus=3)
    for project, milli, weight in (("p", 1500, 0), ("q", 1000, 1)):
        quota = Quota(deserved_milli=milli, over_quota_weight=weight)
        cell.entitle(project, quotas={"main": quota})
    cell.submit("q-fixed", project="q", tasks=2, preemptible=False, resources=part(500))
    cell.submit("q-gang", project="q", replicas=2, resources=part(700))
    cell.submit("q-more", project="q", resources=part(500))
    assert cell.come_to_rest(100)
    cell.submit("p-small", project="p", tasks=2, resources=part(300))
    cell.submit("p-gang", project="p", replicas=3, priority=10, resources=part(300))
    cell.submit("p-more", project="p", priority=60, resources=part(300))
    assert cell.come_to_rest(100)
    assert cell.preempted == 1
    assert cell.phase("p-gang") == "running"


@pytest.mark.parametrize("seed", [1065, 19403, 30152])
def test_a_static_problem_with_exchanges_comes_to_rest(seed: int) -> None:
    cell, rests = problem(seed, "quota")
    assert rests, cell.log[-12:]


def test_a_share_leaves_no_more_than_deserved_only_if_no_exchange_brings_it_back() -> None:
    """The tasks of `p` that come first would preempt larger ones of `p`, one after another, and the
    last of them would fit within what `p` deserves then.
    """
    cell = StaticCell(policy="quota", over_quota="weight", placement="worst_fit")
    for name, node_type in (("n0", "a"), ("n1", "a"), ("n2", "b")):
        cell.node(name, gpus=1, node_type=node_type)
    for project, milli, weight in (("p", 900, 0), ("q", 0, 1), ("r", 1000, 0)):
        quota = Quota(deserved_milli=milli, over_quota_weight=weight)
        cell.entitle(project, quotas={"main": quota})
    cell.submit("r", project="r", tasks=2, resources=part(500), node_types=("a",), priority=1)
    cell.step()
    cell.submit("p-low", project="p", tasks=2, resources=part(450), node_types=("a",), priority=60)
    cell.step()
    cell.submit("p-first", project="p", tasks=3, resources=part(300), priority=10)
    assert cell.come_to_rest(100)
    cell.submit("q", project="q", gpus=1, node_types=("b",))
    assert cell.come_to_rest(100)
    assert cell.preempted == 0


def test_a_share_counts_tasks_that_stop_for_an_earlier_claim_of_the_cycle() -> None:
    """Else it takes the large task of `q`, and the halves take back what they lost."""
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("na", gpus=1, node_type="a")
    cell.node("nb", gpus=2, node_type="b")
    entitle(cell, "p", 1)
    entitle(cell, "q", 1, weight=0)
    cell.submit("q-half", project="q", tasks=2, resources=part(500), node_types=("a",))
    cell.submit("q-large", project="q", gpus=2, node_types=("b",), priority=10)
    assert cell.come_to_rest(100)
    cell.submit("p-first", project="p", gpus=1, node_types=("a",))
    cell.submit("p-second", project="p", gpus=1, node_types=("b",))
    assert cell.come_to_rest(100)
    assert [cell.phase(name) for name in ("p-first", "q-large")] == ["running", "running"]
    assert cell.preempted == 2


def test_a_share_takes_no_task_that_holds_only_what_its_queue_deserves() -> None:
    """`q` deserves CPUs without a limit, so it would take those of its task without GPUs back."""
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n0", gpus=3, cpu_milli=8000)
    entitle(cell, "q", 0)
    entitle(cell, "s", 0, 2)
    cell.submit("g", project="q", resources=Resources(gpus=2, gpu_milli=750))
    cell.submit("c", project="q", resources=Resources(cpu_milli=2000), tasks=2)
    cell.step()
    whole = Resources(gpus=1, gpu_milli=1000, cpu_milli=3000)
    cell.submit("s", project="s", resources=whole, tasks=4)
    assert cell.come_to_rest(100)
    assert cell.preempted == 0


def of_each_kind(cell: StaticCell, project: str) -> None:
    """Submit a task with a GPU, and one of lower priority without; each needs most of the CPUs."""
    gpu = Resources(gpus=1, gpu_milli=1000, cpu_milli=2000)
    cell.submit(f"{project}-gpu", project=project, resources=gpu, priority=10)
    cell.submit(f"{project}-cpu", project=project, resources=Resources(cpu_milli=2000))


@pytest.mark.parametrize("limit_cpu_milli", [None, 2000])
def test_a_task_takes_no_slots_of_its_project_that_another_one_would_reclaim_from_it(
    limit_cpu_milli: int | None,
) -> None:
    """The projects deserve no GPUs, so the tasks without GPUs reclaim from those with GPUs."""
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n0", gpus=3, cpu_milli=3000)
    for project in ("p", "q"):
        quota = Quota(deserved_milli=0, limit_cpu_milli=limit_cpu_milli)
        cell.entitle(project, quotas={"main": quota})
    of_each_kind(cell, "q")
    assert cell.come_to_rest(100)
    of_each_kind(cell, "p")
    assert cell.come_to_rest(100)
    assert cell.phase("p-cpu") == "running"
    assert cell.preempted == 1
    cell.cancel("q-gpu")
    cell.cancel("q-cpu")
    assert cell.come_to_rest(100)
    assert cell.phase("p-gpu") == "running"


def test_a_task_preempts_another_one_of_its_project_while_no_other_project_waits() -> None:
    """Also if the project then holds more than it deserves."""
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n0", gpus=3, cpu_milli=3000)
    entitle(cell, "p", 0)
    cell.submit("p-first", project="p", resources=Resources(cpu_milli=2000))
    cell.step()
    of_each_kind(cell, "p")
    assert cell.come_to_rest(100)
    assert cell.phase("p-gpu") == "running"


def test_slots_that_another_project_leaves_let_a_task_preempt_one_that_has_just_started() -> None:
    player = CheckedPlayer()
    cell = player.cell
    actions = ["allocate", "consolidation", "preempt"]
    cell.pool("main", policy="quota", over_quota="weight", actions=actions)
    entitle(cell, "p", 2)
    entitle(cell, "q", 1)
    player.join(name="n1", gpus=3)
    player.submit(name="qlow", project="q", spec={"priority": 60, "tasks": 2, "grace_s": 600})
    for name, gpus in (("pfirst", 3), ("qfirst", 2)):
        halves = {"resources": Resources(gpus=gpus, gpu_milli=500), "priority": 10}
        player.submit(name=name, project=name[0], spec=halves, at_once=False)
    player.submit(name="plow", project="p", spec={"priority": 60}, at_once=False)
    decided = player.cycle()
    assert (started(decided), stopped(decided)) == (["plow"], ["qlow.1", "qlow"])
    assert stopped(player.cycle()) == ["plow"]


def test_what_a_victim_held_beyond_the_request_goes_first_to_the_most_deprived_queue() -> None:
    cell = StaticCell(policy="quota")
    cell.node("n0", gpus=4)
    for project, department, deserved in (("p", "f", 2), ("q", "f", 0), ("r", "g", 2)):
        quotas = {"main": Quota(deserved_milli=deserved * 1000)}
        cell.entitle(project, department=department, quotas=quotas)
    cell.submit("protected", project="q", gpus=1, min_runtime_s=86_400)
    cell.submit("small", project="p", gpus=1)
    cell.submit("large", project="p", gpus=2, priority=4)
    cell.step()
    cell.submit("first", project="r", gpus=1)
    cell.come_to_rest(100)
    assert cell.phase("small") == "pending"
    cell.submit("others", project="r", gpus=1, tasks=3)
    assert cell.come_to_rest(100)
    assert cell.preempted == 2
    assert cell.phase("small") == "running"
