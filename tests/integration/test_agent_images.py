"""Images that an agent pulls with a real engine from a registry on this machine."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.containers import CONTAINER_IMAGE, is_there
from tests.support.node_agent import AgentCell
from tests.support.registry import Registry, running_registry
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.images import BACKOFF_S, Images, PullFailed
from yardmaster_node_agent.executors.port import FetchProgress
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import PullPolicy, Run
from yardmaster_schemas.events.node_events import SlotsReleasedV1, TaskPreparingV1, TaskStartedV1
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.topics import NODE_EVENTS, TASK_LOGS

pytestmark = pytest.mark.timeout(120)
ENGINE = Path("/var/run/docker.sock")
IDLE_S = 120.0


@pytest.fixture
def registry() -> Iterator[Registry]:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    with running_registry() as registry:
        yield registry


@pytest.fixture
async def cell(tmp_path: Path, registry: Registry) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(executor="auto", container_network="host")
    yield cell
    await cell.ports().executor.sweep()
    await cell.assert_honest()
    await cell.log.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def images(clock: ManualClock, metrics: CollectorRegistry) -> Images:
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, registry=metrics, level="error")
    return Images(Engine(ENGINE), clock, telemetry, idle_s=IDLE_S)


def job(image: str, **run: Any) -> Run:
    return Run(script="echo $VERSION", image=image, **run)


async def ended(cell: AgentCell, task: str) -> SlotsReleasedV1:
    return (await cell.ended(task))[-1]


class Arrived:
    """The reports of a pull."""

    def __init__(self) -> None:
        self._reports: asyncio.Queue[FetchProgress] = asyncio.Queue()
        self._bytes = 0
        self.note = self._reports.put_nowait

    async def more(self) -> None:
        """Wait until more bytes have arrived."""
        before = self._bytes
        while self._bytes <= before:
            self._bytes = (await self._reports.get()).bytes_done

    async def quiet(self) -> None:
        """Wait until the engine has reported all bytes that have arrived."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.3):
                    self._bytes = (await self._reports.get()).bytes_done


async def happened(event: Any) -> None:
    """Wait for an event of the registry's threads."""
    assert await asyncio.to_thread(event.wait, 30)


async def test_an_absent_image_is_pulled_once_and_then_the_registry_gets_no_request(
    cell: AgentCell, registry: Registry
) -> None:
    digest = registry.push("team/train:1", Env=["PATH=/bin", "VERSION=one"])
    image = registry.image("team/train:1")
    async with cell.agent():
        task = await cell.allocate(job(image))
        await ended(cell, task)
        assert await cell.output(task) == "one\n"
        assert [each.image for each in await cell.of_type(TaskStartedV1, task)] == [digest]
        assert registry.requests["GET manifests"] == 1
        registry.requests.clear()
        await ended(cell, await cell.allocate(job(image)))
    assert not registry.requests


async def test_the_digest_of_a_moved_tag_is_that_of_the_image_that_runs(
    cell: AgentCell, registry: Registry
) -> None:
    image, digests = registry.image("team/train:1"), []
    async with cell.agent():
        for _ in range(2):
            digests.append(registry.push("team/train:1"))
            await ended(cell, await cell.allocate(job(image, pull=PullPolicy.ALWAYS)))
        local = await cell.allocate(job(CONTAINER_IMAGE))
        await ended(cell, local)
    started = [each.image for each in await cell.of_type(TaskStartedV1)]
    assert started == [*digests, None]


async def test_a_moved_tag_is_pulled_at_each_start_only_if_the_job_says_always(
    cell: AgentCell, registry: Registry
) -> None:
    image = registry.image("team/train:1")
    outputs = []
    async with cell.agent():
        for version, policy in [
            ("one", PullPolicy.ALWAYS),
            ("two", PullPolicy.MISSING),
            ("three", PullPolicy.ALWAYS),
            ("four", PullPolicy.NEVER),
        ]:
            registry.push("team/train:1", Env=["PATH=/bin", f"VERSION={version}"])
            task = await cell.allocate(job(image, pull=policy))
            await ended(cell, task)
            outputs.append(await cell.output(task))
    assert outputs == ["one\n", "one\n", "three\n", "three\n"]


@pytest.mark.parametrize("policy", PullPolicy)
async def test_a_pinned_attempt_runs_its_digest_whatever_the_tag_names_by_then(
    cell: AgentCell, registry: Registry, policy: PullPolicy
) -> None:
    image, digests = registry.image("team/train:1"), []
    async with cell.agent():
        for version in ("one", "two"):
            digests.append(registry.push("team/train:1", Env=["PATH=/bin", f"VERSION={version}"]))
            await ended(cell, await cell.allocate(job(image, pull=PullPolicy.ALWAYS)))
        registry.requests.clear()
        task = await cell.allocate(job(image, pull=policy), image=digests[0])
        await ended(cell, task)
        assert await cell.output(task) == "one\n"
    assert [each.image for each in await cell.of_type(TaskStartedV1)] == [*digests, digests[0]]
    assert not registry.requests


async def test_a_pinned_digest_that_the_registry_has_no_more_is_named(
    cell: AgentCell, registry: Registry
) -> None:
    registry.push("team/train:1")
    image, gone = registry.image("team/train:1"), f"sha256:{'5' * 64}"
    async with cell.agent():
        for policy in PullPolicy:
            task = await cell.allocate(job(image, pull=policy), image=gone)
            failure = (await ended(cell, task)).failure
            never = policy is PullPolicy.NEVER
            assert failure is (StartFailure.OTHER if never else StartFailure.IMAGE_MISSING)
            said = await cell.output(task, stream="agent")
            assert f"{image.removesuffix(':1')}@{gone}" in said
            assert f"the task ran this digest of {image} first" in said


async def test_an_image_that_is_absent_and_never_pulled_is_a_failed_start(
    cell: AgentCell, registry: Registry
) -> None:
    registry.push("team/train:1")
    image = registry.image("team/train:1")
    async with cell.agent():
        task = await cell.allocate(job(image, pull=PullPolicy.NEVER))
        assert (await ended(cell, task)).never_started
        assert "run.pull is never" in await cell.output(task, stream="agent")
    assert not registry.requests


async def test_replicas_that_wait_for_an_image_share_its_pull(
    cell: AgentCell, registry: Registry
) -> None:
    registry.push("team/train:1")
    registry.flows.clear()
    image = registry.image("team/train:1")
    async with cell.agent():
        tasks = [await cell.allocate(job(image, pull=PullPolicy.ALWAYS)) for _ in range(3)]
        await happened(registry.stalled)
        registry.flows.set()
        for task in tasks:
            assert not (await ended(cell, task)).never_started
    assert registry.requests["GET manifests"] == 1


async def test_what_has_arrived_of_an_image_is_reported(
    cell: AgentCell, registry: Registry
) -> None:
    registry.push("team/train:1")
    registry.flows.clear()
    async with cell.agent():
        task = await cell.allocate(job(registry.image("team/train:1")))
        first = (await cell.until(TaskPreparingV1, task))[0]
        registry.flows.set()
        await ended(cell, task)
    assert first.layers >= 1
    assert first.bytes_done == 0


async def test_a_stop_ends_the_wait_for_an_image(cell: AgentCell, registry: Registry) -> None:
    registry.push("team/train:1")
    registry.flows.clear()
    async with cell.agent():
        task = await cell.allocate(job(registry.image("team/train:1")))
        await happened(registry.stalled)
        await cell.stop(task, grace_s=100)
        assert (await ended(cell, task)).never_started


async def test_failed_pulls_are_named_by_the_answer_of_the_registry(
    cell: AgentCell, registry: Registry
) -> None:
    registry.push("team/train:1")
    answers: dict[str, tuple[StartFailure, str, tuple[int, str] | None]] = {
        "team/denied:1": (StartFailure.IMAGE_MISSING, "manifest unknown", None),
        "team/train:2": (StartFailure.IMAGE_REFUSED, "denied", (403, "DENIED")),
        "team/train:3": (
            StartFailure.IMAGE_UNREACHABLE,
            "toomanyrequests",
            (429, "TOOMANYREQUESTS"),
        ),
        "team/train:4": (StartFailure.IMAGE_UNREACHABLE, "503", (503, "UNAVAILABLE")),
        "team//train": (StartFailure.IMAGE_REFUSED, "is not the name of an image", None),
        "../../containers": (StartFailure.IMAGE_REFUSED, "is not the name of an image", None),
        "team/Train": (StartFailure.IMAGE_REFUSED, "is not the name of an image", None),
    }
    async with cell.agent():
        for name, (failure, words, registry.failing) in answers.items():
            task = await cell.allocate(job(registry.image(name)))
            assert (await ended(cell, task)).failure is failure, name
            assert words in await cell.output(task, stream="agent")
        registry.failing, registry.login = None, ("ada", "lovelace")
        task = await cell.allocate(job(registry.image("team/train:1")))
        assert (await ended(cell, task)).failure is StartFailure.IMAGE_REFUSED
        task = await cell.allocate(job("127.0.0.1:1/team/train:1"))
        assert (await ended(cell, task)).failure is StartFailure.IMAGE_UNREACHABLE


async def test_a_pull_lasts_as_long_as_bytes_arrive(
    registry: Registry, images: Images, clock: ManualClock
) -> None:
    registry.push("team/train:1", filler_bytes=2**18)
    registry.flows.clear()
    arrived = Arrived()
    image = registry.image("team/train:1")
    async with asyncio.TaskGroup() as group:
        pulling = group.create_task(images.get(image, PullPolicy.MISSING, arrived.note))
        await happened(registry.stalled)
        for _ in range(4):
            await arrived.quiet()
            clock.advance(IDLE_S * 0.9)
            registry.one_piece.release(2)
            await arrived.more()
        registry.flows.set()
        assert (await pulling).id.startswith("sha256:")


async def test_a_pull_fails_when_no_bytes_arrive_and_the_next_one_waits_for_a_back_off(
    registry: Registry, images: Images, clock: ManualClock, metrics: CollectorRegistry
) -> None:
    registry.push("team/train:1")
    registry.flows.clear()
    image = registry.image("team/train:1")
    arrived = Arrived()

    def metric(name: str, **labels: str) -> float | None:
        return metrics.get_sample_value(f"yard_node_agent_image_pulls_{name}", labels)

    def get() -> Any:
        return images.get(image, PullPolicy.ALWAYS, arrived.note)

    async with asyncio.TaskGroup() as group:
        pulling = group.create_task(failure(get()))
        await happened(registry.stalled)
        await arrived.quiet()
        clock.advance(IDLE_S)
    assert pulling.result() == f"image {image}: no bytes arrived for 120 s"
    registry.flows.set()
    registry.failing = (503, "UNAVAILABLE")
    for pause_s in (BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S):
        registry.requests.clear()
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(failure(get()))
            await asyncio.sleep(0.05)
            clock.advance(pause_s - 1)
            await asyncio.sleep(0.05)
            assert not registry.requests
            assert (metric("paused"), metric("running")) == (1, 0)
            clock.advance(1)
        assert "503" in pulling.result()
        assert registry.requests
    registry.failing = None
    clock.advance(8 * BACKOFF_S)
    assert (await get()).id
    registry.failing = (503, "UNAVAILABLE")
    assert "503" in await failure(get())
    assert metric("total", outcome="image_unreachable") == 5
    assert metric("total", outcome="done") == 1
    assert (metric("paused"), metric("running")) == (0, 0)


async def failure(getting: Any) -> str:
    """The words of a pull that fails."""
    with pytest.raises(PullFailed) as failed:
        await getting
    return str(failed.value)


async def test_credentials_of_registries_reach_the_registry_and_nothing_that_is_kept(
    cell: AgentCell, registry: Registry, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    registry.push("team/train:1", Env=["PATH=/bin", "VERSION=one"])
    image, path = registry.image("team/train:1"), tmp_path / "config.json"
    secrets = set[str]()

    def log_in(password: str) -> None:
        pair = base64.b64encode(f"ada:{password}".encode()).decode()
        secrets.update((pair, password))
        path.write_text(json.dumps({"auths": {registry.host: {"auth": pair}}}))

    registry.login = ("ada", "lovelace-1815")
    cell.configure(registry_auths=path)
    async with cell.agent():
        log_in("byron-1788")
        refused = await cell.allocate(job(image))
        assert (await ended(cell, refused)).failure is StartFailure.IMAGE_REFUSED
        log_in("lovelace-1815")
        task = await cell.allocate(job(image))
        await ended(cell, task)
        assert await cell.output(task) == "one\n"
        path.write_text('{"auths": {"' + registry.host + '": {"auth": "lovelace-1815"}}}')
        unusable = await cell.allocate(job(image, pull=PullPolicy.ALWAYS))
        assert (await ended(cell, unusable)).never_started
        assert "YARD_AGENT_REGISTRY_AUTHS" in await cell.output(unusable, stream="agent")
    kept = [repr(await cell.envelopes(topic)) for topic in (NODE_EVENTS.name, TASK_LOGS.name)]
    kept += [p.read_text(errors="replace") for p in cell.data_dir.rglob("*") if p.is_file()]
    kept += capfd.readouterr()
    assert any(task in text for text in kept)
    assert [secret for secret in secrets for text in kept if secret in text] == []


async def test_an_image_is_found_by_its_name_and_not_by_its_id(registry: Registry) -> None:
    engine = Engine(ENGINE)
    found = await engine.image(CONTAINER_IMAGE)
    assert found is not None
    digits = found.id.removeprefix("sha256:")
    for reference in (digits, digits[:12], f"sha256:{digits[:12]}"):
        assert await engine.image(reference) is None
