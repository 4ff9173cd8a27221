"""The demand of each claimant of a pool is kept, and counted again when it changes."""

from typing import Any

import pytest

from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.plan import plan
from yardmaster_core.scheduling.policies import REGISTRY
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import (
    DemandTracker,
)
from yardmaster_core.scheduling.policies.fair_share.index import FairShareIndex
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Job
from yardmaster_core.testing import Cell, job_id
from yardmaster_schemas.events import requests as req


def shared(gpus: int = 8, **options: Any) -> Cell:
    """Return a cell with one node in a pool with shares."""
    cell = Cell(policy="fair_share", **options)
    cell.node("n1", gpus=gpus)
    cell.cycle()
    return cell


def stale(cell: Cell, pool: str = "main") -> list[str]:
    """Return the names of the jobs marked for counting."""
    return sorted(_name(piece) for piece in tracker(cell, pool).stale)


def index_of(cell: Cell, pool: str = "main") -> FairShareIndex:
    """Return the index of a pool."""
    index = cell.state.pools[pool].index
    assert isinstance(index, FairShareIndex)
    return index


def tracker(cell: Cell, pool: str = "main") -> DemandTracker:
    """Return the demands as the last cycle left them."""
    found = index_of(cell, pool).demands
    assert found is not None
    return found


def _name(thing: Job | Project | Group) -> str:
    assert not isinstance(thing, Group)
    return thing.id.rstrip("0") if isinstance(thing, Job) else thing.name


def kept(cell: Cell, pool: str = "main") -> DemandTracker:
    """Return the updated demands of the pool's claimants."""
    return index_of(cell, pool).current_demands(cell.state)


def demands(cell: Cell, pool: str = "main") -> dict[str, int]:
    """Return the demand of each claimant, in GPUs."""
    rows = kept(cell, pool).rows
    return {_name(claimant): kind.demand.milli // 1000 for claimant, (_, kind) in rows.items()}


def kinds(cell: Cell) -> list[int]:
    """Return the number of claimants of each kind."""
    return sorted(len(kind.ages) for kind in kept(cell).kinds.values())


def many(cell: Cell, count: int) -> None:
    """Submit that many jobs of one GPU, named a, b, c, ..."""
    for number in range(count):
        cell.submit(chr(ord("a") + number))


# Kinds


def test_any_number_of_jobs_with_equal_demands_are_of_one_kind() -> None:
    cell = shared(4)
    many(cell, 10)
    cell.cycle()
    assert kinds(cell) == [4, 6], "running and pending jobs"
    assert_sound(cell.state)


def test_a_kind_without_claimants_is_forgotten() -> None:
    cell = shared(4)
    many(cell, 4)
    cell.cycle()
    assert kinds(cell) == [4]
    cell.set_weight("a", 3)
    cell.cycle()
    assert kinds(cell) == [1, 3]
    cell.set_weight("a", 1)
    cell.cycle()
    assert kinds(cell) == [4]


def test_thousands_of_simultaneous_changes_give_the_same_as_one_by_one() -> None:
    cell = shared(600)
    for number in range(700):
        cell.submit(f"x{number}y")
    cell.cycle()
    assert kinds(cell) == [100, 600]
    for number in range(0, 600, 2):
        cell.starts(f"x{number}y")
        cell.ends(f"x{number}y")
    cell.cycle()
    assert kinds(cell) == [400]
    assert_sound(cell.state)


# Counting again


def test_only_changed_claimants_are_counted_again() -> None:
    cell = shared(4)
    many(cell, 8)
    cell.run_until_idle()
    kept(cell)
    assert stale(cell) == []
    cell.submit("late")
    for event, record in cell._inputs:
        cell.machine.apply(cell.state, event, record)
    assert stale(cell) == ["late"]
    cell._inputs.clear()
    assert demands(cell)["late"] == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda cell: cell.set_weight("a", 2), ["a"]),
        (lambda cell: cell.set_max_slots("b", 1), ["b"]),
        (lambda cell: cell.cancel("h"), ["h"]),
        (lambda cell: cell.pause("g"), ["g"]),
        (lambda cell: cell.starts("a"), []),
        (lambda cell: cell.exits("a"), ["a"]),
    ],
    ids=["weight", "max slots", "cancel", "pause", "start", "exit"],
)
def test_each_change_of_a_demand_marks_it(change: Any, expected: list[str]) -> None:
    cell = shared(4)
    many(cell, 8)
    cell.run_until_idle()
    if expected == ["a"]:
        cell.starts("a")
        cell.run_until_idle()
    kept(cell)
    change(cell)
    for event, record in cell._inputs:
        cell.machine.apply(cell.state, event, record)
    assert stale(cell) == expected


def test_demands_changed_by_a_draft_are_counted_again_after_its_roll_back() -> None:
    cell = shared(4)
    many(cell, 8)
    state = cell.machine.begin_cycle(cell.state, 5, cell.now_ms)
    for event, record in cell._inputs:
        state = cell.machine.apply(state, event, record)
    cell._inputs.clear()
    with Draft(state, 1000) as draft:
        plan(draft, REGISTRY)
        assert kinds(cell) == [4, 4], "four start"
        assert stale(cell) == []
    assert stale(cell) == ["a", "b", "c", "d"]
    assert kinds(cell) == [8], "none has"


def test_tasks_stopped_by_a_draft_are_counted_again_after_its_roll_back() -> None:
    cell = shared(4)
    cell.submit("old", tasks=4)
    cell.cycle()
    for index in range(4):
        cell.starts("old", index)
    cell.run_until_idle()
    cell.submit("new", tasks=4)
    state = cell.machine.begin_cycle(cell.state, 9, cell.now_ms)
    for event, record in cell._inputs:
        state = cell.machine.apply(state, event, record)
    cell._inputs.clear()
    job = state.jobs[job_id("old")]
    with Draft(state, 1000) as draft:
        plan(draft, REGISTRY)
        assert kept(cell).rows[job][1].retained == 2000, "two of four are stopping"
    assert kept(cell).rows[job][1].retained == 4000


# Results that depend on more than one job


def test_a_claimant_that_could_not_fit_counts_once_a_fitting_node_joins() -> None:
    cell = shared(4)
    cell.submit("small")
    cell.submit("large", gpus=8)
    cell.cycle()
    assert demands(cell) == {"small": 1}
    cell.node("n2", gpus=8)
    cell.cycle()
    assert demands(cell) == {"small": 1, "large": 8}
    assert_sound(cell.state)


def test_a_claimant_behind_a_non_preemptible_task_counts_once_that_is_gone() -> None:
    cell = shared(8)
    cell.submit("fixed", gpus=8, preemptible=False)
    cell.cycle()
    cell.submit("large", gpus=8)
    cell.cycle()
    assert demands(cell) == {"fixed": 8}
    cell.starts("fixed")
    cell.ends("fixed")
    cell.cycle()
    assert demands(cell) == {"large": 8}
    assert_sound(cell.state)


def test_a_claimant_above_a_limit_counts_once_the_limit_leaves_more() -> None:
    cell = shared(8)
    cell.pool("spare", policy="fair_share")
    cell.node("s1", gpus=8, pool="spare")
    cell.entitle("p", limit_milli=6000)
    cell.cycle()
    cell.submit("there", gpus=4, pools=("spare",))
    cell.cycle()
    cell.submit("here", gpus=4)
    cell.cycle()
    assert demands(cell) == {}, "4 of 6 are held in the other pool"
    cell.starts("there")
    cell.cycle()
    cell.exits("there")
    cell.cycle()
    assert demands(cell) == {"here": 4}, "stopping tasks do not count"
    assert_sound(cell.state)


def test_a_limit_over_two_pools_is_checked_again_when_the_other_pool_releases_some() -> None:
    cell = shared(8)
    cell.pool("spare", policy="fair_share")
    cell.node("s1", gpus=2, pool="spare")
    cell.submit("both", tasks=8, max_slots_milli=4000, pools=("spare", "main"))
    cell.run_until_idle()
    assert (demands(cell), demands(cell, "spare")) == ({"both": 2}, {"both": 2})
    for index in range(2):
        cell.starts("both", index)
    cell.run_until_idle()
    cell.ends("both", 0)
    cell.cordon("s1")
    cell.run_until_idle()
    assert demands(cell) == {"both": 3}
    assert_sound(cell.state)


def test_a_new_or_removed_project_limit_counts_all_claimants_again() -> None:
    cell = shared(8)
    many(cell, 4)
    cell.cycle()
    assert kinds(cell) == [4]
    cell.entitle("p", quotas={"main": req.Quota(limit_milli=2000)})
    cell.cycle()
    assert index_of(cell).demands is not None
    assert_sound(cell.state)
    cell.entitle("p")
    cell.cycle()
    assert_sound(cell.state)


@pytest.mark.parametrize("variant", ["demand_proportional", "max_min"])
def test_a_projects_demand_is_the_sum_of_its_groups_and_its_limited_jobs(variant: str) -> None:
    cell = shared(8, among="project", variant=variant)
    cell.submit("one", tasks=3)
    cell.submit("two", tasks=2, gpus=2)
    cell.submit("bound", tasks=9, max_slots_milli=2000)
    cell.cycle()
    assert demands(cell) == {"p": 3 + 4 + 2}
    cell.cancel("bound")
    cell.run_until_idle()
    assert demands(cell) == {"p": 3 + 4 + 1}, "one of the bounded stops"
    assert_sound(cell.state)


def test_a_projects_reclaimable_tasks_are_kept_once_it_was_above_its_share() -> None:
    cell = shared(4, among="project")
    cell.submit("old", tasks=4)
    cell.run_until_idle()
    index_ = index_of(cell)
    assert not index_.reclaimable
    for index in range(4):
        cell.starts("old", index)
    cell.submit("new", tasks=4, project="q")
    cell.run_until_idle()
    (line,) = index_.reclaimable.values()
    assert [task.index for task in line.in_order()] == [0, 1], (
        "the latest submissions were preempted"
    )
    for index in (2, 3):
        cell.ends("old", index)
    cell.run_until_idle()
    assert_sound(cell.state)


# Restarts


@pytest.mark.parametrize("among", ["job", "project"])
def test_a_restored_cell_has_the_same_demands_as_one_that_kept_running(among: str) -> None:
    cell = shared(4, among=among)
    cell.submit("old", tasks=4)
    cell.submit("fixed", tasks=2, preemptible=False)
    cell.run_until_idle()
    cell.submit("new", tasks=4, weight=2, max_slots_milli=3000)
    cell.cycle()
    lived = kept(cell)
    before = {_name(p): (age, k.demand, k.retained) for p, (age, k) in lived.rows.items()}
    cell.restart()
    assert index_of(cell).demands is None, "it is made when it is wanted"
    restored = kept(cell)
    after = {_name(p): (age, k.demand, k.retained) for p, (age, k) in restored.rows.items()}
    assert after == before
    assert_sound(cell.state)
