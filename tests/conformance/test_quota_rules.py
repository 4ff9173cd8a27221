"""The rules of the policy `quota` that the admission decides, through both state machines.

And rules that a scenario's steps cannot express: settings that change while tasks run, and starts
that fail.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.cell_world import World, job, of
from tests.support.logs import joined, submitted
from yardmaster_core.scheduling.state.shapes import SEPARATE_AFTER
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import SlotsAllocatedV1
from yardmaster_schemas.events.requests import (
    CellChangeRequestedV1,
    CellConfig,
    Kind,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
    Quota,
)
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.resources import Resources

ONE_GPU = Resources(gpus=1, gpu_milli=1000)
QUOTAS = {"a100": Quota(deserved_milli=4000), "h100": Quota(deserved_milli=4000)}


@asynccontextmanager
async def world_of(
    folder: Path, of_cell: tuple[str, ...] = (), **project: Any
) -> AsyncIterator[World]:
    """A cell with the pools a100 (nodes of type `pcie` and `sxm`) and h100 (one of type `sxm`), the
    default pools `of_cell`, and the project nlp.
    """
    world = World(folder)
    await world.create()
    policy = PolicyRef(name="quota", options={"over_quota": "weight"})
    config = ProjectConfig(department="research", **{"quotas": QUOTAS, **project})
    async with world.running():
        await world.request(
            *(
                PoolChangeRequestedV1(pool=pool, config=PoolConfig(policy=policy))
                for pool in ("a100", "h100")
            ),
            CellChangeRequestedV1(config=CellConfig(default_pools=of_cell)),
            ProjectChangeRequestedV1(project="nlp", config=config),
        )
        nodes = (("n1", "a100", "pcie"), ("n2", "a100", "sxm"), ("n3", "h100", "sxm"))
        await world.claim(
            *(
                replace(joined(node, 1, pool=pool), node_type=node_type)
                for node, pool, node_type in nodes
            )
        )
        yield world
    await world.prove()


async def started(world: World, *specs: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Submit jobs; return pool and node of those that start, by the position of their spec."""
    await world.request(
        *(submitted(job(number), resources=ONE_GPU, **spec) for number, spec in enumerate(specs))
    )
    await world.run_for_half_a_second()
    return {
        int(event.task_id[3:12]): (event.pool, event.placements[0].node)
        for event in of(SlotsAllocatedV1, await world.decisions())
    }


async def test_a_job_without_pools_uses_the_default_list_of_its_project(tmp_path: Path) -> None:
    async with world_of(tmp_path, ("a100",), default_pools=("h100", "a100")) as world:
        # The first pool of the list; when it is full, the next one.
        assert await started(world, {}, {}) == {0: ("h100", "n3"), 1: ("a100", "n1")}


async def test_a_job_of_a_project_without_a_list_uses_that_of_the_cell(tmp_path: Path) -> None:
    async with world_of(tmp_path, ("h100", "a100")) as world:
        assert await started(world, {}, {}) == {0: ("h100", "n3"), 1: ("a100", "n1")}


async def test_a_job_uses_only_pools_that_its_project_may_use(tmp_path: Path) -> None:
    async with world_of(tmp_path, pools=("a100",)) as world:
        found = await started(world, {"pools": ("h100", "a100")}, {"pools": ("a100",)})
        assert found == {1: ("a100", "n1")}


async def test_interactive_and_training_jobs_have_their_own_node_types(tmp_path: Path) -> None:
    types = {Kind.INTERACTIVE: ("sxm",), Kind.TRAINING: ("pcie",)}
    async with world_of(tmp_path, ("a100",), kind_node_types=types) as world:
        found = await started(
            world,
            {"kind": Kind.INTERACTIVE},
            {"kind": Kind.TRAINING},
            # Another one has no node of its type left.
            {"kind": Kind.INTERACTIVE},
        )
        assert found == {0: ("a100", "n2"), 1: ("a100", "n1")}


async def test_a_job_may_name_some_of_the_node_types_of_its_kind_and_no_others(
    tmp_path: Path,
) -> None:
    types = {Kind.INTERACTIVE: ("sxm",), Kind.TRAINING: ("pcie", "sxm")}
    async with world_of(tmp_path, ("a100",), kind_node_types=types) as world:
        found = await started(
            world,
            {"kind": Kind.INTERACTIVE, "node_types": ("pcie",)},
            {"kind": Kind.TRAINING, "node_types": ("sxm",)},
        )
        assert found == {1: ("a100", "n2")}


async def test_a_pool_without_a_quota_runs_preemptible_tasks_only(tmp_path: Path) -> None:
    async with world_of(tmp_path, quotas={"a100": Quota(deserved_milli=1000)}) as world:
        found = await started(
            world,
            {"kind": Kind.INTERACTIVE, "pools": ("h100", "a100")},
            {"kind": Kind.TRAINING, "pools": ("h100", "a100")},
        )
        assert found == {0: ("a100", "n1"), 1: ("h100", "n3")}


# One state machine


def test_a_limit_that_was_lowered_stops_no_task_without_that_resource() -> None:
    cell = Cell(policy="quota")
    cell.node("n1", gpus=4)
    cell.entitle("p", quotas={"main": Quota(limit_cpu_milli=2000)})
    cell.submit("cpus", resources=Resources(gpus=0, gpu_milli=0, cpu_milli=2000))
    cell.cycle()
    cell.entitle("p", quotas={"main": Quota(limit_cpu_milli=1000)})
    cell.submit("gpus", gpus=1)
    cell.submit("more", resources=Resources(gpus=0, gpu_milli=0, cpu_milli=1))
    cell.cycle()
    assert cell.phase("gpus") == "starting"
    assert cell.wait_code("more") == "at_limit"


def test_tasks_that_cannot_be_preempted_stay_within_the_sum_over_pools() -> None:
    cell = Cell(policy="quota")
    cell.pool("side", policy="quota")
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2, pool="side")
    cell.entitle("p", quotas=dict.fromkeys(("main", "side"), Quota(deserved_milli=2000)))
    cell.submit("first", gpus=2, preemptible=False)
    cell.cycle()
    lower = {"main": Quota(deserved_milli=1000), "side": Quota(deserved_milli=2000)}
    cell.entitle("p", quotas=lower)
    cell.submit("one", gpus=1, preemptible=False, pools=("side",))
    cell.cycle()
    cell.submit("more", gpus=1, preemptible=False, pools=("side",))
    cell.cycle()
    assert cell.phase("one") == "starting"
    assert cell.wait_code("more", "side") == "at_deserved"


def test_a_task_whose_starts_failed_comes_after_all_others() -> None:
    cell = Cell(policy="quota")
    cell.node("n1", gpus=1)
    cell.entitle("p", quotas={"main": Quota(deserved_milli=1000)})
    cell.submit("fails", project="p")
    cell.cycle()
    for number in range(1, SEPARATE_AFTER + 1):
        cell.never_starts("fails", failure=StartFailure.OTHER)
        cell.cycle()
        if number == SEPARATE_AFTER:
            cell.submit("other", project="q")
        cell.cycle(after_s=60)
    assert cell.phase("other") == "starting"
    assert cell.phase("fails") == "pending"
