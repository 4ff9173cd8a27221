"""Metrics of the work: their values follow the tasks, only a leader exposes them, and the number of
their series is limited.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cell_world import World, job, of, submission
from tests.support.logs import exited, joined, released, started, submitted
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_core.testing import Cell
from yardmaster_eventlog.membership import MemoryGroup
from yardmaster_runtime.machine.election import GroupElection
from yardmaster_runtime.service import Ports, candidate
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_scheduler import main as scheduler
from yardmaster_scheduler import work_metrics
from yardmaster_scheduler.work_metrics import MAX_PROJECTS, WorkMetrics, largest_of
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
)
from yardmaster_schemas.resources import Resources

WORK = (
    *("gpus", "tasks_pending", "tasks_running", "queue_seconds", "preemptions", "nodes"),
    *("project_gpus", "project_share"),
)


def families(telemetry: Telemetry) -> Iterator[Metric]:
    return iter(text_string_to_metric_families(telemetry.exposition().decode()))


def values(telemetry: Telemetry, name: str, pool: str = "main") -> dict[str, float]:
    """The samples of a gauge or counter in one pool, by their other labels."""
    return {
        "/".join(v for k, v in sample.labels.items() if k not in ("cell", "pool")): sample.value
        for family in families(telemetry)
        for sample in family.samples
        if sample.name == f"yard_scheduler_{name}" and sample.labels["pool"] == pool
    }


def exposed_work(telemetry: Telemetry) -> set[str]:
    names = {family.name.removeprefix("yard_scheduler_") for family in families(telemetry)}
    return names.intersection(WORK)


@pytest.fixture
async def cell() -> AsyncIterator["MeteredCell"]:
    cell = MeteredCell()
    running = asyncio.create_task(cell.work.run())
    await asyncio.sleep(0)
    yield cell
    running.cancel()


class MeteredCell(Cell):
    """A cell with its metrics."""

    def __init__(self) -> None:
        super().__init__()
        clock = lambda: self.now_ms  # noqa: E731
        telemetry = Telemetry("scheduler", now_ms=clock, stream=io.StringIO())
        self.telemetry = telemetry
        self.work = WorkMetrics(telemetry.for_cell("main"), lambda: self.state)

    def values(self, name: str, pool: str = "main") -> dict[str, float]:
        return values(self.telemetry, name, pool)

    def gpus(self, pool: str = "main") -> tuple[float, float, float]:
        found = self.values("gpus", pool)
        return found["used"], found["free"], found["unavailable"]


async def test_the_states_of_gpus_follow_tasks_and_nodes(cell: MeteredCell) -> None:
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=4)
    cell.submit("whole", gpus=3)
    cell.submit("part", resources=Resources(gpus=1, gpu_milli=500))
    cell.cycle()
    assert cell.gpus() == (3.5, 4.5, 0)
    cell.cordon(cell.slots_of("whole")[0][0])
    cell.cycle()
    used, free, unavailable = cell.gpus()
    assert (used, free + unavailable) == (3.5, 4.5)
    assert 0 < unavailable <= 1, "what the task holds on the cordoned node is still used"
    cell.uncordon(cell.slots_of("whole")[0][0])
    cell.starts("whole")
    cell.cycle()
    assert cell.gpus() == (3.5, 4.5, 0)
    cell.ends("whole")
    cell.cycle()
    assert cell.gpus() == (0.5, 7.5, 0)


async def test_a_disabled_slot_is_used_until_its_task_releases_it_and_then_unavailable(
    cell: MeteredCell,
) -> None:
    cell.node("n1", gpus=2)
    cell.submit("a", gpus=2)
    cell.cycle()
    cell.disable("n1", 0, 1)
    cell.cycle()
    assert cell.gpus() == (2, 0, 0)
    cell.starts("a")
    cell.ends("a")
    cell.cycle()
    assert cell.gpus() == (0, 0, 2)
    cell.disable("n1", 1)
    cell.cycle()
    assert cell.gpus() == (0, 1, 1)


async def test_a_lost_node_is_unavailable_and_a_node_that_left_does_not_count(
    cell: MeteredCell,
) -> None:
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=2)
    cell.submit("a", gpus=4)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    assert cell.values("tasks_running") == {"": 1}
    cell.cycle(after_s=120, silent={"n1": cell.now_ms})
    assert cell.gpus() == (0, 2, 4)
    assert cell.values("nodes") == {"ready": 1, "lost": 1}
    assert cell.values("tasks_running") == {"": 0}
    assert cell.values("tasks_pending") == {"nodes_unavailable": 1}
    cell.leaves("n2")
    cell.cycle()
    assert cell.gpus() == (0, 0, 4)
    assert cell.values("nodes") == {"gone": 1, "lost": 1}


async def test_a_drained_node_is_draining_until_its_last_task_is_gone(cell: MeteredCell) -> None:
    cell.node("n1", gpus=2)
    cell.submit("a", gpus=1)
    cell.cycle()
    cell.starts("a")
    cell.drain("n1", within_s=60)
    cell.cycle()
    assert cell.values("nodes") == {"draining": 1}
    assert cell.gpus() == (1, 0, 1)
    cell.ends("a")
    cell.cycle()
    assert cell.values("nodes") == {"drained": 1}
    assert cell.gpus() == (0, 0, 2)
    cell.uncordon("n1")
    cell.cycle()
    assert cell.values("nodes") == {"ready": 1}
    assert cell.gpus()[0] == 1, "the requeued task has a GPU again"


async def test_nodes_are_counted_under_the_state_that_users_see(cell: MeteredCell) -> None:
    for name in ("ready", "cordoned", "barred", "revoked"):
        cell.node(name, gpus=1)
    cell.cycle()
    for name in ("ready", "cordoned", "revoked", "enrolled"):
        cell.enroll(name, gpus=1)
    cell.cordon("cordoned")
    cell.cycle()
    cell.revoke("revoked")
    cell.run_until_idle()
    expected = dict.fromkeys(("ready", "cordoned", "barred", "revoked", "enrolled"), 1)
    assert cell.values("nodes") == expected
    cell.restart()
    cell.state.digest()
    assert cell.values("nodes") == expected


async def test_pending_tasks_count_under_their_reason_in_the_first_pool_of_their_list(
    cell: MeteredCell,
) -> None:
    cell.pool("big")
    cell.node("n1", gpus=1)
    cell.node("b1", gpus=1, pool="big")
    cell.submit("runs", tasks=3, max_concurrent=1, preemptible=False)
    cell.submit("other", pools=("big", "main"), preemptible=False)
    cell.cycle()
    assert cell.values("tasks_pending") == {"at_max_concurrent": 2}
    cell.submit("wide", pools=("big", "main"), tasks=4)
    cell.submit("held", tasks=2)
    cell.submit("large", gpus=8)
    cell.pause("held")
    cell.cycle()
    assert cell.values("tasks_pending", "big") == {"insufficient_free": 4}
    assert cell.values("tasks_pending") == {
        "at_max_concurrent": 2,
        "paused": 2,
        "exceeds_every_node": 1,
    }
    cell.resume("held")
    cell.cycle()
    assert cell.values("tasks_pending").get("paused") is None
    assert sum(cell.values("tasks_pending").values()) == 5
    cell.cancel("wide")
    cell.cycle()
    assert cell.values("tasks_pending", "big") == {}


async def test_a_restart_is_pending_with_its_back_off_and_counts_again_when_that_is_over(
    cell: MeteredCell,
) -> None:
    cell.node("n1", gpus=1)
    cell.submit("a", max_restarts=2)
    cell.cycle()
    cell.starts("a")
    cell.ends("a", exit_code=1)
    cell.cycle()
    assert cell.values("tasks_pending") == {"restart_backoff": 1}
    cell.cycle(after_s=5)
    assert cell.values("tasks_pending") == {}
    cell.never_starts("a")
    cell.cycle()
    assert cell.values("tasks_pending") == {"start_backoff": 1}


async def test_the_numbers_of_a_restored_state_are_the_same(cell: MeteredCell) -> None:
    cell.node("n1", gpus=2)
    cell.submit("a", tasks=5)
    cell.submit("b", tasks=3, max_concurrent=1, priority=50)
    cell.cycle()
    cell.starts("a", 0)
    cell.cycle()
    before = {name: cell.values(name) for name in WORK}
    assert before["tasks_pending"] == {
        "insufficient_free": 4,
        "at_max_concurrent": 2,
    }
    assert before["tasks_running"] == {"": 1}
    cell.restart()
    cell.state.digest()  # as a restore does, to compare it with the commit
    assert {name: cell.values(name) for name in WORK} == before


async def test_projects_have_their_gpus_and_where_the_policy_divides_among_them_their_share(
    cell: MeteredCell,
) -> None:
    cell.pool("shared", policy="fair_share", among="project")
    cell.node("n1", gpus=4)
    cell.node("s1", gpus=6, pool="shared")
    cell.submit("a", project="alpha", gpus=2)
    cell.submit("b", project="beta", resources=Resources(gpus=1, gpu_milli=250))
    for name, project, tasks in (("c", "alpha", 8), ("d", "beta", 1)):
        cell.submit(name, project=project, pools=("shared",), tasks=tasks)
    cell.run_until_idle()
    assert cell.values("project_gpus") == {"alpha": 2, "beta": 0.25}
    assert cell.values("project_share") == {}, "the policy priority gives no shares"
    assert cell.values("project_gpus", "shared") == {"alpha": 5, "beta": 1}
    assert cell.values("project_share", "shared") == {"alpha": 5, "beta": 1}
    cell.pool("shared", policy="fair_share", among="job")
    cell.run_until_idle()
    assert cell.values("project_share", "shared") == {}, "jobs have the shares, not projects"
    cell.pool("shared", policy="quota")
    cell.run_until_idle()
    assert cell.values("project_share", "shared") == {"alpha": 5, "beta": 1}


async def test_projects_beyond_the_limit_are_one_series(
    cell: MeteredCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_metrics, "MAX_PROJECTS", 2)
    cell.pool("shared", policy="fair_share", among="project")
    cell.node("s1", gpus=10, pool="shared")
    for name, tasks in (("a", 1), ("b", 4), ("other", 3), ("d", 2)):
        cell.submit(name, project=name, pools=("shared",), tasks=tasks)
    cell.node("m1", gpus=1)
    cell.submit("c", project="c")
    cell.run_until_idle()
    assert cell.values("project_gpus") == {"other": 1}, "the limit is that of the cell"
    assert cell.values("project_gpus", "shared") == {"b": 4, "other": 6}
    assert cell.values("project_share", "shared") == {"b": 4, "other": 6}


def test_the_limit_keeps_the_projects_that_hold_most() -> None:
    held = {("main", f"p{number}"): number for number in range(MAX_PROJECTS + 500)}
    kept = largest_of(held, {("main", "only-a-share"): 10**9})
    assert kept == {("main", f"p{number}") for number in range(500, MAX_PROJECTS + 500)}


async def test_reading_looks_at_no_task_and_no_queue(cell: MeteredCell) -> None:
    cell.node("n1", gpus=1)
    cell.submit("a", tasks=500)
    cell.cycle()
    cell.state.pools["main"].groups = None  # type: ignore[assignment]
    cell.state.tasks = cell.state.jobs = None  # type: ignore[assignment]
    assert cell.values("tasks_pending") == {"insufficient_free": 499}


# --- a leader's decisions, and takeovers


class Replica:
    """A process of the scheduler service that leads or stands by."""

    def __init__(self, world: World, group: MemoryGroup) -> None:
        self.member = group.member()
        self.ports: Ports = replace(
            world.ports("scheduler"),
            elections=lambda partition: GroupElection(
                self.member, partition, world.clock, pause_s=6.0
            ),
        )

    async def run(self) -> None:
        await scheduler.run(self.ports, RuntimeSettings())

    @property
    def telemetry(self) -> Telemetry:
        return self.ports.telemetry


async def quota(world: World) -> None:
    await candidate(QuotaMachine(check), world.ports("quota"), RuntimeSettings()).run()


@asynccontextmanager
async def running(*work: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        yield tasks
        for task in tasks:
            task.cancel()


async def test_queue_times_and_preemptions_are_counted_once_per_decision(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create(node_timeout_s=36_000)
    leader = Replica(world, MemoryGroup())

    def queue_times() -> tuple[float, float, float]:
        buckets = values(leader.telemetry, "queue_seconds_bucket", "default")
        return buckets["15.0"], buckets["60.0"], buckets["300.0"]

    async def allocations(number: int) -> None:
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == number)
        await world.run_for_half_a_second()

    async with running(quota(world), leader.run()):
        await world.claim(joined("n1", 1))
        await world.request(submission(0))
        await allocations(1)
        assert queue_times() == (1, 1, 1)
        low, high = f"{job(0)}.0", f"{job(1)}.0"
        await world.claim(started(low, "n1"))
        world.clock.advance(3600)
        one_gpu = Resources(gpus=1, gpu_milli=1000)
        await world.request(submitted(job(1), priority=1, resources=one_gpu))
        await world.happens(lambda e: len(of(PreemptionRequestedV1, e)) == 1)
        await world.run_for_half_a_second()
        preemptions = values(leader.telemetry, "preemptions_total", "default")
        assert preemptions == {"priority/better_priority": 1}
        world.clock.advance(45)
        await world.claim(exited(low, "n1"), released(low, "n1"))
        await allocations(2)
        assert queue_times() == (1, 2, 2)
        world.clock.advance(200)
        await world.claim(started(high, "n1"), exited(high, "n1"), released(high, "n1"))
        await allocations(3)
        assert queue_times() == (1, 2, 3), "from the requeue, not from the submission"
        assert values(leader.telemetry, "queue_seconds_count", "default") == {"": 3}
    await world.prove()


async def test_the_queue_time_of_a_requeued_task_survives_a_snapshot() -> None:
    cell = MeteredCell()
    cell.node("n1", gpus=1)
    cell.submit("a", max_restarts=1)
    cell.cycle()
    cell.starts("a")
    cell.cycle(after_s=1000)
    cell.ends("a", exit_code=1)
    cell.cycle()
    requeued_ms = cell.now_ms
    cell.restart()
    assert cell.task("a").queued_ms == requeued_ms


async def test_only_the_leader_exposes_them_and_the_next_leader_has_the_same_values(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create(node_timeout_s=3600)
    group = MemoryGroup()
    first, second = Replica(world, group), Replica(world, group)
    async with running(quota(world), first.run()):
        await world.claim(joined("n1", 2))
        await world.request(*(submission(n) for n in range(3)))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
        await world.run_for_half_a_second()
        gauges = ("gpus", "tasks_pending", "tasks_running", "nodes", "project_gpus")
        before = {name: values(first.telemetry, name, "default") for name in gauges}
        assert before["gpus"] == {"used": 2, "free": 0, "unavailable": 0}
        assert before["tasks_pending"] == {"insufficient_free": 1}
        async with running(second.run()):
            await world.run_for_half_a_second()
            assert exposed_work(second.telemetry) == set(), "a standby exposes none"
            group.expire(first.member)
            for _ in range(40):
                await world.run_for_half_a_second()
                if exposed_work(second.telemetry):
                    break
            assert exposed_work(first.telemetry) == set(), "a fenced leader exposes none"
            assert {name: values(second.telemetry, name, "default") for name in gauges} == before
            assert values(second.telemetry, "queue_seconds_count", "default") == {}
            await world.claim(started(f"{job(0)}.0", "n1"))
            await world.run_for_half_a_second()
            assert values(second.telemetry, "tasks_running", "default") == {"": 1}
            samples = [s for family in families(second.telemetry) for s in family.samples]
            ours = [s for s in samples if s.name.removeprefix("yard_scheduler_") in WORK]
            assert ours
            assert {sample.labels["cell"] for sample in ours} == {"main"}


async def test_no_service_exposes_the_time_at_which_a_series_was_created(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.create()
    leader = Replica(world, MemoryGroup())
    async with running(quota(world), leader.run()):
        await world.claim(joined("n1", 1))
        await world.request(submission(0))
        await world.happens(lambda e: bool(of(SlotsAllocatedV1, e)))
        names = {s.name for family in families(leader.telemetry) for s in family.samples}
    assert "yard_scheduler_queue_seconds_bucket" in names
    assert "yard_scheduler_cycles_total" in names
    assert not [name for name in names if name.endswith("_created")]
