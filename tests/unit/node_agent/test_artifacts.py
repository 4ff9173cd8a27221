"""The agent keeps artifacts, tries again while the store does not answer, and says what it did."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from yardmaster_node_agent.agent_state import Replica, ReplicaKey, lost_assignment
from yardmaster_node_agent.artifacts import KeptArtifacts, NoArtifacts
from yardmaster_node_agent.metrics import ArtifactMetrics
from yardmaster_packages.artifact_store import ArtifactIndex, ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactsUnavailable
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry

KEY = ReplicaKey(task_id="4kq7w2mz9c1f.0", attempt=2, replica=1)
PLACE = ArtifactPlace(project="unknown", task_id=KEY.task_id, attempt=2, replica=1)


class JumpingClock(SystemClock):
    """A clock that a sleep moves on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return int(sum(self.slept) * 1000)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class FlakyStore(ArtifactStore):
    """A store that fails its first calls, and counts the copies that run at once."""

    def __init__(self, url: str, failures: int = 0) -> None:
        super().__init__(url)
        self.failures = failures
        self.running = self.most = 0

    async def keep(self, *given: Any) -> ArtifactIndex:
        if self.failures > 0:
            self.failures -= 1
            raise ArtifactsUnavailable(url=self.url, found="no route to secret-host")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await super().keep(*given)
        finally:
            self.running -= 1


class Node:
    """One node with a working folder, whose clock does not wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = JumpingClock()
        self.registry = CollectorRegistry()
        self.telemetry = Telemetry(
            "node_agent", now_ms=self.clock.now_ms, registry=self.registry, level="error"
        )
        self.metrics = ArtifactMetrics(self.telemetry)
        self.folder = path / "work"
        self.folder.mkdir()
        (self.folder / "model.onnx").write_bytes(bytes(7))

    def keeper(self, store: ArtifactStore, wait_s: float = 3600) -> KeptArtifacts:
        return KeptArtifacts(
            store,
            limits=ArtifactLimits(),
            wait_s=wait_s,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    async def keep(self, store: ArtifactStore, *patterns: str, wait_s: float = 3600) -> str:
        keeper = self.keeper(store, wait_s)
        return await keeper.keep(replica(*patterns), self.folder, self.metrics)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"yard_node_agent_{name}", labels)


def replica(*patterns: str, number: int = 1) -> Replica:
    key = ReplicaKey(task_id=KEY.task_id, attempt=2, replica=number)
    return Replica(assignment=lost_assignment(key, "n/1", -1), artifacts=patterns or ("*.onnx",))


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_the_line_says_what_is_kept_and_what_is_left_out(node: Node) -> None:
    store = FlakyStore(str(node.path / "kept"))
    (node.folder / "latest.onnx").symlink_to("model.onnx")
    line = await node.keep(store)
    assert line == (
        "1 artifact kept (7 bytes), 1 left out, such as latest.onnx: it is a symbolic link"
    )
    index = await store.index(PLACE)
    assert index is not None
    assert [one.path for one in index.files] == ["model.onnx"]
    assert node.metric("artifact_files_total") == 1
    assert node.metric("artifact_bytes_total") == 7
    assert node.metric("artifacts_left_out_total") == 1
    assert node.metric("artifacts_waiting") == 0


async def test_pauses_grow_while_the_store_does_not_answer(
    node: Node,
) -> None:
    line = await node.keep(FlakyStore(str(node.path / "kept"), failures=9))
    assert line == "1 artifact kept (7 bytes)"
    assert node.clock.slept == [5, 10, 20, 40, 80, 160, 300, 300, 300]


async def test_the_agent_gives_up_and_does_not_name_the_store_to_the_user(node: Node) -> None:
    line = await node.keep(FlakyStore(str(node.path / "kept"), failures=99), wait_s=60)
    assert line == "no artifacts are kept: the store of artifacts did not answer within 60 s"
    assert sum(node.clock.slept) == 75
    assert node.metric("artifacts_failed_total", cause="unavailable") == 1
    assert node.metric("artifacts_waiting") == 0


async def test_a_pattern_that_is_none_is_said(node: Node) -> None:
    line = await node.keep(FlakyStore(str(node.path / "kept")), "!")
    assert line.startswith("no artifacts are kept: '!' is not a pattern")


async def test_a_node_without_a_store_or_a_folder_says_so(node: Node) -> None:
    line = await NoArtifacts().keep(replica(), node.folder, node.metrics)
    assert line == "no artifacts are kept: YARD_ARTIFACTS of this node's agent is empty"
    keeper = node.keeper(FlakyStore(str(node.path / "kept")))
    line = await keeper.keep(replica(), None, node.metrics)
    assert line == "no artifacts are kept: the job has no working folder of its own"
    line = await keeper.keep(replica(), node.path / "removed", node.metrics)
    assert line == "no artifacts are kept: its working folder: No such file or directory"


async def test_only_some_replicas_are_copied_at_once(node: Node) -> None:
    store = FlakyStore(str(node.path / "kept"))
    keeper = node.keeper(store)
    copies = (keeper.keep(replica(number=n), node.folder, node.metrics) for n in range(6))
    assert set(await asyncio.gather(*copies)) == {"1 artifact kept (7 bytes)"}
    assert store.most == 2
