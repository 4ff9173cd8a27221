"""A pool with `fair_share` becomes idle at its shares, whatever its history."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_shares import exact_parts
from tests.support.shares_by_demands import VARIANTS
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.policies.fair_share.demand_runs import Demand
from yardmaster_core.testing import Cell

jobs = st.lists(
    st.fixed_dictionaries(
        {
            "tasks": st.integers(1, 8),
            "weight": st.integers(1, 4),
            "max_slots_milli": st.sampled_from([None, None, 2000, 5000]),
        }
    ),
    min_size=1,
    max_size=5,
)
variants = st.sampled_from(list(VARIANTS))
nodes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def come_to_rest(cell: Cell) -> None:
    """Agents obey until no cycle makes a decision."""
    for _ in range(40):
        moved = bool(cell.run_until_idle())
        for task in cell.state.tasks.values():
            run, name = task.run, task.job.id.rstrip("0")
            if run is None:
                continue
            if not run.started:
                cell.starts(name, task.index)
            elif run.stop is not None:
                cell.ends(name, task.index)
            else:
                continue
            moved = True
        if not moved:
            assert_sound(cell.state)
            return
    raise AssertionError("the pool does not become idle")


def arrive(cell: Cell, asked: list[dict[str, Any]], first: int = 0) -> None:
    for number, spec in enumerate(asked):
        cell.submit(f"job{chr(ord('a') + first + number)}", **spec)


@settings(max_examples=40, deadline=None)
@given(variant=variants, gpus=nodes, early=jobs, late=jobs, leaver=st.integers(0, 4))
def test_every_claimant_ends_with_its_share_of_the_division(
    variant: str,
    gpus: list[int],
    early: list[dict[str, Any]],
    late: list[dict[str, Any]],
    leaver: int,
) -> None:
    cell = Cell(policy="fair_share", variant=variant)
    for number, count in enumerate(gpus):
        cell.node(f"n{number}", gpus=count)
    arrive(cell, early)
    come_to_rest(cell)
    arrive(cell, late, len(early))
    come_to_rest(cell)
    gone = f"job{chr(ord('a') + leaver % len(early))}"
    cell.cancel(gone)
    come_to_rest(cell)
    left = [job for job in cell.state.jobs.values() if not job.tasks[0].cancelled]
    demands = []
    for job in left:
        demand = len(job.tasks) * 1000
        if job.max_slots_milli is not None:
            demand = min(demand, job.max_slots_milli)
        # After rounding, a fraction stays with the claimant that holds it.
        demands.append(Demand(job.weight, demand, 0, 1000, held=job.used_milli))
    offers = VARIANTS[variant](sum(gpus) * 1000, demands)
    assert [job.used_milli for job in left] == offers
    assert sum(offers) == min(sum(gpus) * 1000, sum(demand.milli for demand in demands))


@settings(max_examples=40, deadline=None)
@given(
    variant=variants,
    among=st.sampled_from(["job", "project"]),
    gpus=nodes,
    asked=st.lists(
        st.fixed_dictionaries(
            {
                "tasks": st.integers(1, 4),
                "gpus": st.integers(1, 4),
                "replicas": st.sampled_from([1, 1, 2]),
                "preemptible": st.sampled_from([True, True, True, False]),
                "project": st.sampled_from(["p", "q"]),
                "weight": st.integers(1, 3),
            }
        ),
        min_size=2,
        max_size=6,
    ),
    restarts=st.booleans(),
)
def test_pools_with_gangs_and_fixed_tasks_become_idle_with_no_claimant_above_its_share_for_others(
    variant: str, among: str, gpus: list[int], asked: list[dict[str, Any]], restarts: bool
) -> None:
    cell = Cell(policy="fair_share", variant=variant, among=among)
    for number, count in enumerate(gpus):
        cell.node(f"n{number}", gpus=count)
    for number, spec in enumerate(asked):
        arrive(cell, [spec], number)
        come_to_rest(cell)
        if restarts:
            cell.restart()
    cell.state.wake_index.wake_all(cell.state.pools["main"])
    cell.state.pools["main"].index.input_changed(from_next_cycle=False)
    moved = [event for event in cell.cycle() if event.TYPE != "TaskUnschedulable"]
    assert moved == [], (
        "an idle pool makes no decisions even when every pending task is considered again"
    )


tasks_of_several = st.lists(
    st.fixed_dictionaries(
        {"tasks": st.integers(1, 6), "gpus": st.integers(1, 4), "weight": st.integers(1, 4)}
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(gpus=st.integers(4, 16), early=tasks_of_several, late=tasks_of_several)
def test_in_an_idle_pool_no_claimant_is_a_whole_task_below_its_weighted_share(
    gpus: int, early: list[dict[str, Any]], late: list[dict[str, Any]]
) -> None:
    """On one node, where all slots are equal."""
    cell = Cell(policy="fair_share")
    cell.node("n1", gpus=gpus)
    arrive(cell, early)
    come_to_rest(cell)
    arrive(cell, late, len(early))
    come_to_rest(cell)
    jobs = list(cell.state.jobs.values())
    sizes = [job.shape.total_gpu_milli for job in jobs]
    demands = [
        Demand(job.weight, len(job.tasks) * size) for job, size in zip(jobs, sizes, strict=True)
    ]
    parts = exact_parts(gpus * 1000, demands)
    for job, size, exact in zip(jobs, sizes, parts, strict=True):
        assert job.used_milli > exact - size, f"{job.id} holds {job.used_milli} of {exact}"
