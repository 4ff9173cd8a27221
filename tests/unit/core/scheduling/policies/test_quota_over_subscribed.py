"""`over_subscribed` of `quota`: a department whose projects deserve more than it does."""

from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import started, stopped, waits
from yardmaster_schemas.reasons import WaitCode


def cell_of(**options: Any) -> QuotaCell:
    """Return 4 GPUs: department `d` deserves 2 of them, and its projects 2 each; `b` the others."""
    cell = QuotaCell({"n1": 4}, **options)
    cell.entitle_to("d", 2, department=True)
    cell.entitle_to("e", 2, department=True)
    cell.entitle_to("a1", 2)
    cell.entitle_to("a2", 2)
    cell.entitle_to("b", 2, of="e")
    for name in ("b", "a1", "a2"):
        cell.submit(f"{name}jobs", project=name, department="e" if name == "b" else "d", tasks=8)
        cell.run()
    return cell


def test_the_project_that_came_first_keeps_what_it_deserves() -> None:
    cell = cell_of()
    assert [cell.held(name) for name in ("a1", "a2", "b")] == [2, 0, 2]


def test_in_proportion_each_gets_its_part() -> None:
    cell = cell_of(over_subscribed="proportional")
    assert [cell.held(name) for name in ("a1", "a2", "b")] == [1, 1, 2]


def test_what_one_does_not_request_goes_to_the_other() -> None:
    cell = cell_of(over_subscribed="proportional")
    cell.cancel("a2jobs")
    cell.run()
    assert [cell.held(name) for name in ("a1", "a2", "b")] == [2, 0, 2]


def test_tasks_that_cannot_be_preempted_hold_no_more_than_the_part() -> None:
    cell = QuotaCell({"n1": 4}, over_subscribed="proportional")
    cell.entitle_to("d", 2, department=True)
    cell.entitle_to("a1", 2)
    cell.entitle_to("a2", 2)
    for name in ("one", "two"):
        cell.submit(name, project="a1", preemptible=False)
        cell.run()
    wait = waits(cell, "two")
    assert (wait.code, wait.about) == (WaitCode.AT_DESERVED, "a1")
    assert wait.numbers["deserved_milli"] == 1000


@pytest.mark.parametrize(("third", "parts"), [(1, [2, 1, 1]), (4, [1, 1, 2])])
def test_parts_are_whole_gpus(third: int, parts: list[int]) -> None:
    cell = QuotaCell({"n1": 4}, over_subscribed="proportional")
    cell.entitle_to("d", 4, department=True)
    for name, deserved in (("a1", 2), ("a2", 2), ("a3", third)):
        cell.entitle_to(name, deserved)
        cell.submit(f"{name}jobs", project=name, tasks=8)
        cell.run()
    assert [cell.held(name) for name in ("a1", "a2", "a3")] == parts
    assert stopped(cell.run()) == []


def test_a_task_starts_when_a_sibling_deserves_less_and_so_its_project_more() -> None:
    cell = QuotaCell({"n1": 4}, over_subscribed="proportional")
    cell.entitle_to("d", 2, department=True)
    cell.entitle_to("a1", 2)
    cell.entitle_to("a2", 2)
    cell.submit("pair", project="a1", preemptible=False, gpus=2)
    cell.run()
    assert waits(cell, "pair").code is WaitCode.EXCEEDS_DESERVED
    cell.entitle_to("a2", 0)
    assert started(cell.run()) == ["pair"]


def test_a_task_starts_when_a_sibling_raises_what_their_department_deserves() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a1", 2)
    cell.entitle_to("a2", 4)
    cell.submit("held", project="a1", preemptible=False, gpus=2)
    cell.run()
    # The department has no quota: it deserves 4, and its tasks would hold 5.
    cell.entitle_to("a1", 0)
    cell.submit("three", project="a2", preemptible=False, gpus=3)
    cell.run()
    wait = waits(cell, "three")
    assert (wait.code, wait.about) == (WaitCode.AT_DESERVED, "d")
    cell.entitle_to("a1", 1)
    assert started(cell.run()) == ["three"]
