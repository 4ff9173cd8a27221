"""The warnings of a submission whose job can never fit on any node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.gateway import GatewayCell
from tests.support.toy_cell import until
from tests.support.views import telemetry
from yardmaster_gateway.app import create_app
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.monotonic import MonotonicViews
from yardmaster_gateway.submissions.node_sizes import (
    FRESH_S,
    READ_S,
    STALE_S,
    NodeSizes,
    Size,
    fit_warnings,
)
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import Page, Query, ViewStore
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import SubmittedSpec
from yardmaster_schemas.job_file import parse_job, parts_of

NODE = Size("sxm", 4, 32_000, 262_144, 81_920)
POOLS = {"default": {NODE: 3}, "empty": {}}


def spec(text: str) -> SubmittedSpec:
    run = "" if '"run"' in text else ', "run": {"command": ["a"]}'
    return parts_of(parse_job(f'{{"project": "nlp"{run}, {text}}}')).requested


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            '"resources": {"gpus": 12}',
            "resources.gpus: 12 per replica, the largest node has 4. Try replicas: 3, gpus: 4.",
        ),
        (
            '"resources": {"gpus": 6}',
            "resources.gpus: 6 per replica, the largest node has 4. Try replicas: 2, gpus: 3.",
        ),
        ('"resources": {"gpus": 16}', "resources.gpus: 16 per replica, the largest node has 4"),
        (
            '"resources": {"gpus": 4}, "replicas": 4',
            "replicas: 4, all nodes together hold 3 of them",
        ),
        (
            '"resources": {"cpus": 1000}',
            "resources.cpus: 1000 per replica, the largest node has 32",
        ),
        (
            '"resources": {"memory": "512Gi"}',
            "resources.memory: 524288Mi per replica, the largest node has 262144Mi",
        ),
        (
            '"resources": {"gpu_memory": "100Gi"}',
            "resources.gpu_memory: 102400Mi of a GPU, the largest that is known has 81920Mi",
        ),
        (
            '"resources": {"gpus": 4, "gpu_memory": "30Gi"}, "replicas": 7',
            "replicas: 7, all nodes together hold 6 of them",
        ),
        ('"node_types": ["pcie"]', "node_types: no node of type pcie is in its pools"),
        (
            '"replicas": "auto", "resources": {"gpus": 13}',
            "resources.gpus: 13, all nodes together have 12",
        ),
    ],
)
def test_a_job_that_can_never_fit_gets_a_warning_with_the_shortage_and_an_alternative(
    text: str, warning: str
) -> None:
    assert fit_warnings(spec(text), POOLS) == [warning]


@pytest.mark.parametrize(
    "text",
    [
        '"resources": {"gpus": 4}, "replicas": 3',
        '"resources": {"gpus": 0.5}, "replicas": 24',
        '"resources": {"gpus": 0, "cpus": 0}, "replicas": 4096',
        '"resources": {"gpus": {"count": 3, "fraction": 0.25}}',
        '"replicas": "auto", "resources": {"gpus": 12}',
        '"node_types": ["sxm"]',
    ],
)
def test_a_job_that_may_fit_later_gets_no_warning(text: str) -> None:
    assert fit_warnings(spec(text), POOLS) == []


CONTAINERS = Size("pcie", 4, 32_000, 262_144, containers=True)
IMAGE = '"run": {"image": "team/train:1", "command": ["a"]}'


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (IMAGE, []),
        (f'{IMAGE}, "node_types": ["pcie"]', []),
        (
            f'{IMAGE}, "node_types": ["sxm"]',
            ["node_types: no node of type sxm that runs containers is in its pools"],
        ),
        (
            f'{IMAGE}, "replicas": 2, "resources": {{"gpus": 4}}',
            ["replicas: 2, all nodes together hold 1 of them"],
        ),
    ],
)
def test_only_nodes_that_run_containers_count_for_a_job_with_an_image(
    text: str, warnings: list[str]
) -> None:
    assert fit_warnings(spec(text), {"default": {NODE: 3, CONTAINERS: 1}}) == warnings


def test_a_job_with_an_image_gets_a_warning_where_no_node_runs_containers() -> None:
    assert fit_warnings(spec(IMAGE), POOLS) == ["run.image: no node of its pools runs containers"]


MOUNTS = (
    '"run": {"image": "a", "command": ["a"], "mounts": [{"source": "data", "target": "/data"}, '
    '{"source": "scratch", "target": "/scratch", "read_only": false}]}'
)


@pytest.mark.parametrize(
    ("nodes", "warnings"),
    [
        ([{"data", "scratch:rw"}], []),
        ([{"data:rw", "scratch:rw"}, set()], []),
        ([set()], ["run.mounts: no node of its pools has data, scratch:rw"]),
        ([{"data"}, set()], ["run.mounts: no node of its pools has scratch:rw"]),
        ([{"data", "scratch"}], ["run.mounts: no node of its pools has scratch:rw"]),
        (
            [{"data"}, {"scratch:rw"}],
            ["run.mounts: no node of its pools has all of data, scratch:rw"],
        ),
    ],
)
def test_a_job_gets_a_warning_where_no_node_has_its_mounts(
    nodes: list[set[str]], warnings: list[str]
) -> None:
    sizes = {replace(CONTAINERS, mounts=frozenset(mounts)): 1 for mounts in nodes}
    processes = replace(NODE, mounts=frozenset({"data", "scratch:rw"}))
    assert fit_warnings(spec(MOUNTS), {"default": {processes: 3} | sizes}) == warnings


ADA = '"run_as": {"uid": 1500, "gid": 100}'


def test_a_job_that_names_a_user_gets_a_warning_where_no_node_switches_users() -> None:
    named = spec(f'"run": {{"command": ["a"], {ADA}}}')
    warning = "run.run_as: no node of its pools can switch users (ISOLATION none)"
    assert fit_warnings(named, POOLS) == [warning]
    assert fit_warnings(named, {"default": {NODE: 3, replace(NODE, switches_users=True): 1}}) == []
    in_image = spec(IMAGE[:-1] + f", {ADA}}}")
    only_processes = {replace(NODE, switches_users=True): 3, CONTAINERS: 1}
    warning = warning.replace("no node", "no node that runs containers")
    assert fit_warnings(in_image, {"default": only_processes}) == [warning]
    switching = replace(CONTAINERS, switches_users=True)
    assert fit_warnings(in_image, {"default": {switching: 1}}) == []
    mounting = spec(MOUNTS[:-1] + f", {ADA}}}")
    with_mounts = replace(CONTAINERS, mounts=frozenset({"data", "scratch:rw"}))
    warning = "run.mounts: no node of its pools has data, scratch:rw"
    assert fit_warnings(mounting, {"default": {with_mounts: 1, switching: 1}}) == [warning]


def test_pools_without_nodes_cause_no_warning() -> None:
    assert fit_warnings(spec('"resources": {"gpus": 99}'), {"empty": {}}) == []


@asynccontextmanager
async def reading(sizes: NodeSizes) -> AsyncIterator[None]:
    """Run the reads of the sizes while the context is active."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        work = group.create_task(sizes.run())
        await asyncio.sleep(0)
        yield
        work.cancel()


async def submit(cell: GatewayCell, gpus: int, **more: Any) -> list[str]:
    body = {"project": "nlp", "resources": {"gpus": gpus}, "run": {"command": ["true"]}, **more}
    answer = await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=body)
    return list(answer["warnings"])


async def test_a_submission_returns_the_warnings_of_its_pools(cell: GatewayCell) -> None:
    await cell.joins("n2", pool="h100", gpus=8)
    await cell.run_until_idle()
    async with reading(cell.app.state.gateway.sizes):
        (warning,) = await submit(cell, 12)
        assert warning.startswith("resources.gpus: 12 per replica, the largest node has 8")
        assert await submit(cell, 8) == [], "another of its pools may run it"
        (warning,) = await submit(cell, 8, pools=["default"])
    assert warning == "resources.gpus: 8 per replica, the largest node has 4"


async def test_a_submission_is_recorded_without_views(cell: GatewayCell) -> None:
    cell.app = create_app(replace(cell.ports, telemetry=telemetry("gateway")), cell.settings)
    gateway: Gateway = cell.app.state.gateway
    gateway.views.store = type(cell.store)("main", cell.clock)
    async with reading(gateway.sizes):
        assert await submit(cell, 12) == []


class Hanging:
    """Views whose reads fail when the test sets an event."""

    def __init__(self) -> None:
        self.reads = 0
        self.read_started = asyncio.Event()
        self.fail_reads = asyncio.Event()

    async def page(self, kind: type[Row], query: Query) -> Page[Row]:
        self.reads += 1
        self.read_started.set()
        await self.fail_reads.wait()
        raise ViewsUnavailable(found="no answer in time")

    @property
    def store(self) -> "Hanging":
        return self


async def test_submissions_wait_for_hanging_views_together_and_only_once() -> None:
    views, clock = Hanging(), ManualClock()
    sizes = NodeSizes(cast(MonotonicViews, views), clock, telemetry("gateway"))
    requested = spec('"resources": {"gpus": 12}')
    async with reading(sizes):
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(sizes.warnings(requested, "nlp")) for _ in range(20)]
            await views.read_started.wait()
            views.fail_reads.set()
        assert [one.result() for one in waiting] == [[]] * 20
        assert await sizes.warnings(requested, "nlp") == []
        assert views.reads == 1, "each read of views that hang takes as long as their timeout"
        clock.advance(FRESH_S)
        assert await sizes.warnings(requested, "nlp") == []
    assert views.reads == 2


async def test_a_submission_gets_its_answer_while_the_views_hang() -> None:
    views, clock = Hanging(), ManualClock()
    sizes = NodeSizes(cast(MonotonicViews, views), clock, telemetry("gateway"))
    requested = spec('"resources": {"gpus": 12}')
    async with reading(sizes), asyncio.TaskGroup() as group:
        waiting = group.create_task(sizes.warnings(requested, "nlp"))
        await views.read_started.wait()
        clock.advance(READ_S)
        assert await waiting == []
        assert await sizes.warnings(requested, "nlp") == []
    assert views.reads == 1, "further submissions do not wait for the views again"


class Slow:
    """Views whose reads of nodes end when the test allows it."""

    def __init__(self, store: ViewStore) -> None:
        self.reads = 0
        self.read_started = asyncio.Event()
        self.allowed = asyncio.Semaphore(0)
        self._store = store

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        self.reads += 1
        self.read_started.set()
        await self.allowed.acquire()
        return await self._store.page(kind, query)

    async def get(self, kind: type[R], key: str) -> R | None:
        return await self._store.get(kind, key)

    @property
    def store(self) -> "Slow":
        return self


async def test_a_read_longer_than_a_submission_waits_serves_later_submissions(
    cell: GatewayCell,
) -> None:
    views, clock = Slow(cell.store), ManualClock()
    sizes = NodeSizes(cast(MonotonicViews, views), clock, telemetry("gateway"))
    requested = spec('"resources": {"gpus": 12}, "pools": ["default"]')

    async def submit_while_reading() -> list[str]:
        views.read_started.clear()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(sizes.warnings(requested, "nlp"))
            await views.read_started.wait()
            clock.advance(READ_S)
        return waiting.result()

    async def end_read() -> None:
        views.allowed.release()
        await until(lambda: sizes._reading is None)

    async with reading(sizes):
        assert await submit_while_reading() == []
        await end_read()
        (warning,) = await sizes.warnings(requested, "nlp")
        assert views.reads == 1
        clock.advance(FRESH_S)
        assert await submit_while_reading() == [warning], "the sizes that were read before"
        assert await sizes.warnings(requested, "nlp") == [warning]
        assert views.reads == 2, "one read runs at a time"
        clock.advance(STALE_S)
        assert await sizes.warnings(requested, "nlp") == []
        await end_read()
        assert await sizes.warnings(requested, "nlp") == [warning]
