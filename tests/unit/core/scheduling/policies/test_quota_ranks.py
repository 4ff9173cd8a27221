"""The ranks of projects under `quota`: the listed queue begins with the most deprived project."""

from random import Random
from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from yardmaster_schemas.events.decisions import MAX_RANK, ClaimantsRankedV1

NAMES = [f"j{chr(97 + number // 6)}{chr(97 + number % 6)}" for number in range(36)]


def ranked(decided: list[Any]) -> dict[str, tuple[int, ...]]:
    events = [event for event in decided if isinstance(event, ClaimantsRankedV1)]
    return {each.claimant: each.rank for event in events for each in event.ranks}


def listed(cell: QuotaCell) -> list[str]:
    """The projects with a rank, in the order of their ranks."""
    ranks = {
        name: project.ranks["main"]
        for name, project in cell.state.projects.items()
        if "main" in project.ranks
    }
    return sorted(ranks, key=lambda name: ranks[name])


def test_the_project_that_holds_the_smallest_part_of_its_share_comes_first() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 4)
    cell.entitle_to("b", 4)
    cell.submit("large", project="a", gpus=3)
    cell.submit("small", project="b", gpus=1)
    cell.run()
    cell.submit("more", project="a", gpus=8)
    cell.submit("other", project="b", gpus=8)
    cell.run()
    assert listed(cell) == ["b", "a"]


def test_departments_are_compared_before_their_projects_and_ranks_before_parts() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("e", 4, department=True)
    cell.entitle_to("d", 4, department=True, rank=200)
    cell.entitle_to("empty", 2, of="e")
    cell.entitle_to("a", 2)
    cell.entitle_to("b", 2, rank=101)
    cell.submit("held", project="a", gpus=2)
    cell.submit("of b", project="b", gpus=1)
    cell.run()
    for project in ("empty", "a", "b"):
        cell.submit(f"waits {project}", project=project, gpus=8)
    cell.run()
    # `d` has the higher rank; in it `b` deserves one more GPU, `a` none.
    assert listed(cell) == ["b", "a", "empty"]


def test_a_project_above_its_share_comes_last() -> None:
    cell = QuotaCell({"n1": 8}, max_moves=0)
    cell.entitle_to("a", 1)
    cell.entitle_to("b", 7, rank=0)
    # It cannot be reclaimed yet.
    cell.submit("borrowed", project="a", gpus=6, min_runtime_s=3600)
    cell.run()
    cell.submit("more", project="a", gpus=8)
    cell.submit("due", project="b", gpus=7)
    cell.run()
    assert listed(cell) == ["b", "a"]


def test_a_rank_is_recorded_while_tasks_are_pending_and_only_when_it_changes() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 4)
    cell.entitle_to("b", 4)
    cell.submit("starts", project="a", gpus=8)
    assert ranked(cell.run()) == {}
    for number in range(3):
        cell.submit(f"also {number}", project="a", gpus=4)
        found = ranked(cell.run())
        assert set(found) == (set() if number else {"a"})
    for number in range(3):
        cell.cancel(f"also {number}")
    cell.cancel("starts")
    assert ranked(cell.run())["a"] == ()
    assert listed(cell) == []


def test_a_change_of_less_than_a_permille_records_nothing() -> None:
    cell = QuotaCell({f"n{number}": 8 for number in range(200)})
    cell.entitle_to("a", 1500)
    cell.submit("large", project="a", gpus=8, tasks=199)
    cell.submit("small", project="a", gpus=1, tasks=5)
    cell.submit("waits", project="a", gpus=8)
    cell.run()
    before = cell.state.projects["a"].ranks["main"]
    assert 998 in before
    cell.submit("also small", project="a", gpus=1)
    assert ranked(cell.run()) == {}
    assert cell.held("a") == 1598


@pytest.mark.parametrize("seed", range(3))
def test_the_same_ranks_are_recorded_after_restarts(seed: int) -> None:
    histories = [history(seed, restarts=restarts) for restarts in (False, True)]
    assert histories[0] == histories[1]
    assert sum(map(len, histories[0])) > 10


def history(seed: int, *, restarts: bool) -> list[dict[str, tuple[int, ...]]]:
    """The ranks that each cycle of a random history records."""
    random = Random(seed)
    cell = QuotaCell({"n1": 8, "n2": 4})
    cell.entitle_to("e", 4, department=True)
    cell.entitle_to("inner", 2, department=True, parent="e")
    owners = {"a": "d", "b": "d", "c": "e", "f": "inner"}
    for name, of in owners.items():
        cell.entitle_to(name, random.randrange(4), of=of)
    found = []
    for number, name in enumerate(NAMES):
        project = random.choice(list(owners))
        cell.submit(
            name,
            project=project,
            gpus=random.choice((0, 1, 2, 5)),
            priority=random.choice((10, 50)),
            preemptible=random.random() < 0.6,
        )
        if random.random() < 0.3:
            cell.cancel(random.choice(NAMES[: number + 1]))
        if random.random() < 0.1:
            cell.entitle_to(project, random.randrange(4), of=owners[project])
        if random.random() < 0.1:
            cell.node(f"m{number}", 2)
        found.append(ranked(cell.cycle()))
        found.append(ranked(cell.run()))
        if restarts:
            cell.restart()
        levels = {name: len(p.ranks.get("main", ())) for name, p in cell.state.projects.items()}
        assert max(levels.values()) <= MAX_RANK
    return found
