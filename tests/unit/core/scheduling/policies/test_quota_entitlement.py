"""The policy `quota`: a victim that may not be reclaimed hides none that may."""

import pytest

from tests.histories.exhaustive import missed_claims
from tests.histories.static_problems import StaticCell, problem
from tests.unit.core.scheduling.reading import stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.resources import Resources


class Departments(StaticCell):
    """D deserves what its project X holds; E has Q, which deserves nothing, and P."""

    def __init__(self, d: int, e: int) -> None:
        super().__init__(policy="quota")
        for name, deserved in (("D", d), ("E", e)):
            self.configure_department(name, quotas=_quota(deserved))
        for name, department, deserved in (("X", "D", d), ("P", "E", d), ("Q", "E", 0)):
            self.entitle(name, department=department, quotas=_quota(deserved))


def _quota(gpus: int) -> dict[str, Quota]:
    return {"main": Quota(deserved_milli=gpus * 1000)}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_task_of_another_department_on_the_same_node_hides_no_victim(nodes: int) -> None:
    cell = Departments(2, 4)
    for number in range(nodes):
        cell.node(f"n{number}", gpus=4 // nodes)
    cell.submit("x", project="X", department="D", gpus=2)
    assert cell.come_to_rest()
    cell.submit("q", project="Q", department="E", gpus=1, tasks=2)
    assert cell.come_to_rest()
    cell.submit("p", project="P", department="E", gpus=1)
    assert cell.come_to_rest()
    assert cell.phase("p") == "running"


def test_tasks_that_may_not_be_reclaimed_use_up_no_tries() -> None:
    nodes = 40
    cell = Departments(4 * nodes, 8 * nodes)
    for number in range(nodes):
        cell.node(f"n{number}", gpus=8)
    cell.submit("x", project="X", department="D", gpus=1, tasks=4 * nodes)
    assert cell.come_to_rest()
    cell.submit("q", project="Q", department="E", gpus=1, tasks=4 * nodes)
    assert cell.come_to_rest()
    cell.submit("p", project="P", department="E", gpus=1, tasks=8)
    assert cell.come_to_rest()
    assert all(cell.phase("p", index) == "running" for index in range(8))


def test_a_part_of_a_gpu_that_frees_too_little_hides_no_larger_task_of_the_project() -> None:
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n1", gpus=2)
    for project, milli in (("p", 1300), ("q", 700)):
        quota = Quota(deserved_milli=milli, over_quota_weight=0)
        cell.entitle(project, quotas={"main": quota})
    cell.submit("whole", project="p", gpus=1, priority=40)
    cell.submit("part", project="p", resources=_part(300), priority=60)
    cell.submit("other", project="q", resources=_part(500))
    assert cell.come_to_rest()
    cell.submit("first", project="p", resources=_part(500), priority=1)
    assert cell.come_to_rest()
    # Without `part`, the project would hold more than its share.
    assert cell.phase("first") == "running"
    assert cell.phase("part") == "running"


def test_a_task_of_one_gpu_takes_parts_of_one_although_the_first_victim_is_on_another() -> None:
    """The task of `s` that comes first holds a part of another GPU, and `s` may lose only one."""
    cell = StaticCell(policy="quota")
    cell.node("n1", gpus=2)
    for project, department, deserved in (("q", "e", 0), ("r", "e", 4), ("s", "d", 1)):
        cell.entitle(project, department=department, quotas=_quota(deserved))
    cell.submit("s-first", project="s", resources=_part(500), priority=10)
    assert cell.come_to_rest()
    cell.submit("q", project="q", resources=_part(500))
    assert cell.come_to_rest()
    cell.submit("s", project="s", resources=_part(500), tasks=2, priority=60)
    assert cell.come_to_rest()
    cell.submit("r", project="r", gpus=1)
    assert cell.come_to_rest()
    assert cell.phase("r") == "running"
    assert cell.phase("q") == "pending"


def test_a_task_of_two_gpus_takes_parts_gpu_by_gpu() -> None:
    """The department of `s` may lose two parts: one of the GPU that it shares with `q`, and the one
    next to a free part.
    """
    cell = StaticCell(policy="quota", over_quota="weight")
    cell.node("n1", gpus=4)
    for project, department, deserved in (("q", "e", 0), ("r", "e", 4), ("s", "d", 1)):
        cell.entitle(project, department=department, quotas=_quota(deserved))
    cell.submit("fixed", project="r", gpus=1, preemptible=False)
    for project, priority in (("s", 80), ("s", 70), ("q", 50), ("s", 90), ("s", 60)):
        name = f"{project}{priority}"
        cell.submit(name, project=project, resources=_part(500), priority=priority)
        assert cell.come_to_rest()
    cell.submit("r", project="r", gpus=2)
    assert cell.come_to_rest()
    assert cell.phase("r") == "running"


def _part(milli: int) -> Resources:
    return Resources(gpus=1, gpu_milli=milli)


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_no_set_of_victims_is_missed_in_small_clusters(first: int) -> None:
    for seed in range(first, first + 40):
        cell, rests = problem(seed, "quota")
        assert rests
        assert not missed_claims(cell.state), seed


def test_no_set_of_victims_is_tried_where_no_node_could_be_free() -> None:
    nodes = 12
    cell = StaticCell(policy="quota", max_moves=0)
    for number in range(nodes):
        cell.node(f"n{number}", gpus=8)
    for project, deserved in (("a", 7 * nodes), ("b", 0), ("p", 8)):
        cell.entitle(project, quotas=_quota(deserved))
    for number in range(nodes):
        cell.submit(f"a{number}x", project="a", gpus=7)
    assert cell.come_to_rest()
    cell.submit("b", project="b", gpus=1, tasks=nodes)
    assert cell.come_to_rest()
    cell.submit("p", project="p", gpus=8)
    for index in range(nodes - 1):
        cell.ends("b", index, done=True)
    assert cell.come_to_rest()
    group = cell.task("p").group
    assert group is not None
    assert "tries" not in group.waits["main"][0].numbers


def test_a_gang_counts_without_the_replicas_that_released_their_slots() -> None:
    cell = Cell(policy="quota")
    for project, deserved in (("p", 4000), ("q", 0)):
        cell.entitle(project, quotas={"main": Quota(deserved_milli=deserved)})
    cell.node("n1", gpus=4)
    cell.submit("low", project="q", gpus=1)
    cell.run_until_idle()
    cell.submit("gang", project="q", gpus=1, replicas=2)
    cell.run_until_idle()
    cell.starts("low")
    cell.starts("gang")
    cell.ends("gang", replica=1, done=True)
    cell.cycle()
    cell.submit("all", project="p", gpus=4)
    assert sorted(stopped(cell.run_until_idle())) == ["gang", "low"]
    assert_sound(cell.state)
