"""The working folders of replicas with a context: the cache, the copies, and what is refused."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.packages import Package, package_of, read_tree, write_tree
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.code_folders import UnpackedCode, prepare_unless
from yardmaster_node_agent.errors import RunRefused
from yardmaster_node_agent.executors.port import Launch
from yardmaster_node_agent.executors.secrets import NoSecrets
from yardmaster_node_agent.git_commits import GitCommits
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_packages.limits import PackageLimits
from yardmaster_packages.store import PackageStore
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import CodeContext, Run
from yardmaster_schemas.reasons import StartFailure

JOB = "4kq7w2mz9c1f"


class CountingStore(PackageStore):
    """A store that counts its reads, and waits before each until it may answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads = 0
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def read(self, project: str, digest: str) -> AsyncGenerator[bytes, None]:
        self.reads += 1
        self.asked.set()
        await self.may_answer.wait()
        async for piece in super().read(project, digest):
            yield piece


class Node:
    """The code folders of one node, and the store that it fetches from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CountingStore(str(folder / "packages"))
        self.registry = CollectorRegistry()
        telemetry = Telemetry("node_agent", now_ms=lambda: 0, registry=self.registry, level="error")
        self.telemetry, self.metrics = telemetry, AgentMetrics(telemetry)
        self.replicas = 0
        self.code = self.folders()

    def folders(
        self,
        *,
        store: PackageStore | None = None,
        limits: PackageLimits | None = None,
        cache_bytes: int = 2**30,
    ) -> UnpackedCode:
        self.code = UnpackedCode(
            self.folder / "code",
            store or self.store,
            limits=limits or PackageLimits(),
            git=GitCommits((), PackageLimits(), NoSecrets()),
            cache_bytes=cache_bytes,
            isolated=False,
            telemetry=self.telemetry,
        )
        return self.code

    def package(self, text: str) -> Package:
        """A package of a folder with random bytes, so that packages are of about one size."""
        files = {"run.sh": text.encode(), "noise": os.urandom(10_000)}
        return package_of(write_tree(self.folder / f"src-{text}", files))

    async def put(self, package: Package, project: str = "nlp") -> None:
        async def content() -> AsyncGenerator[bytes, None]:
            yield package.content

        await self.store.put(project, package.digest, content(), packed_bytes=package.size)

    async def stored(self, text: str) -> Package:
        package = self.package(text)
        await self.put(package)
        return package

    def launch(self, package: Package, working_dir: str | None = None) -> Launch:
        self.replicas += 1
        context = CodeContext(digest=package.digest, packed_bytes=package.size)
        key = ReplicaKey(task_id=f"{JOB}.0", attempt=self.replicas, replica=0)
        return Launch(key, Run(command=("true",), working_dir=working_dir, context=context), {})

    async def prepare(self, package: Package, project: str = "nlp") -> Path:
        launch = await self.code.prepare(self.launch(package), project, self.metrics)
        assert launch.run.working_dir is not None
        return Path(launch.run.working_dir)

    async def refused(self, package: Package, project: str = "nlp") -> RunRefused:
        with pytest.raises(RunRefused) as caught:
            await self.code.prepare(self.launch(package), project, self.metrics)
        assert not list((self.folder / "code/replicas").glob("*"))
        return caught.value

    def cached(self) -> set[str]:
        """The digests of the cached packages."""
        names = [path.name for path in (self.folder / "code/cache").iterdir()]
        return {name.removesuffix(".tar.gz").rpartition("-")[2] for name in names}

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"yard_node_agent_{name}", labels)


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_each_replica_gets_a_copy_that_it_may_change(node: Node) -> None:
    package = await node.stored("a")
    first, second = await node.prepare(package), await node.prepare(package)
    assert first != second
    assert read_tree(first) == read_tree(second) == read_tree(node.folder / "src-a")
    (first / "run.sh").write_text("changed")
    assert (second / "run.sh").read_text() == "a"
    assert read_tree(await node.prepare(package)) == read_tree(second)
    assert first.stat().st_mode & 0o777 == 0o700


async def test_a_working_directory_is_a_folder_of_the_context(node: Node) -> None:
    package = await node.stored("a")
    launch = await node.code.prepare(node.launch(package, "src/model"), "nlp", node.metrics)
    assert launch.run.working_dir is not None
    assert launch.run.working_dir.endswith("/src/model")


async def test_a_job_without_a_context_is_left_alone(node: Node) -> None:
    launch = Launch(ReplicaKey(task_id=f"{JOB}.0", attempt=1, replica=0), Run(script="true"), {})
    assert await node.code.prepare(launch, "nlp", node.metrics) is launch
    assert not (node.folder / "code").exists()


async def test_replicas_that_start_together_fetch_a_package_once(node: Node) -> None:
    package = await node.stored("a")
    folders = await asyncio.gather(*(node.prepare(package) for _ in range(5)))
    assert len(set(folders)) == 5
    assert node.store.reads == 1
    assert node.metric("code_packages_total", source="store") == 1
    assert node.metric("code_packages_total", source="cache") == 4


async def test_a_later_agent_finds_what_an_earlier_one_has_fetched(node: Node) -> None:
    package = await node.stored("a")
    await node.prepare(package)
    node.folders()
    await node.prepare(package)
    assert node.store.reads == 1


async def test_the_least_recently_used_package_leaves_a_full_cache(node: Node) -> None:
    packages = [await node.stored(text) for text in "abc"]
    size = max(package.size for package in packages)
    node.folders(cache_bytes=2 * size)
    for at, package in enumerate(packages[:2]):
        await node.prepare(package)
        # The order of use, without waiting until the clock of the file system advances.
        path = node.folder / f"code/cache/nlp-{package.digest}.tar.gz"
        os.utime(path, ns=(at, at))
    await node.prepare(packages[0])
    await node.prepare(packages[2])
    assert node.cached() == {packages[0].digest, packages[2].digest}
    kept = packages[0].size + packages[2].size
    assert node.metric("code_cache_bytes") == kept
    assert node.metric("code_evicted_total") == 1
    await node.prepare(packages[1])
    assert node.store.reads == 4


async def test_a_package_above_the_limit_of_the_cache_is_used_all_the_same(node: Node) -> None:
    packages = [await node.stored(text) for text in "ab"]
    node.folders(cache_bytes=1)
    for package in packages:
        assert (await node.prepare(package) / "run.sh").exists()
        assert node.cached() == {package.digest}


@pytest.mark.parametrize("damage", ["changed", "truncated", "emptied"])
async def test_a_damaged_entry_of_the_cache_is_fetched_again(node: Node, damage: str) -> None:
    package = await node.stored("a")
    await node.prepare(package)
    (entry,) = (node.folder / "code/cache").iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    shorter = {"changed": len(content), "truncated": len(content) // 2, "emptied": 0}
    entry.write_bytes(content[: shorter[damage]])
    folder = await node.prepare(package)
    assert read_tree(folder) == read_tree(node.folder / "src-a")
    assert entry.read_bytes() == package.content
    assert node.store.reads == 2


async def test_a_package_that_is_not_stored_cannot_start_anywhere(node: Node) -> None:
    await node.stored("a")
    error = await node.refused(node.package("b"))
    assert error.failure is StartFailure.CONTEXT_MISSING
    assert "has no package" in str(error)


async def test_a_project_gets_no_package_of_another_one_from_the_cache(node: Node) -> None:
    package = await node.stored("a")
    launch = node.launch(package)
    await node.code.prepare(launch, "nlp", node.metrics)
    node.code.forget(launch.key)
    assert (await node.refused(package, "vision")).failure is StartFailure.CONTEXT_MISSING


async def test_a_package_with_another_content_is_refused_and_not_kept(node: Node) -> None:
    package, other = await node.stored("a"), node.package("b")
    (stored,) = (node.folder / "packages").rglob("*.tar.gz")
    stored.write_bytes(other.content)
    error = await node.refused(package)
    assert error.failure is StartFailure.CONTEXT_MISSING
    assert f"its content has the digest {other.digest}" in str(error)
    assert node.cached() == set()


async def test_a_node_without_the_setting_says_so_and_another_node_may_try(node: Node) -> None:
    package = node.package("a")
    node.code = UnpackedCode(
        node.folder / "code",
        None,
        limits=PackageLimits(),
        git=GitCommits((), PackageLimits(), NoSecrets()),
        cache_bytes=1,
        isolated=False,
        telemetry=node.telemetry,
    )
    error = await node.refused(package)
    assert error.failure is StartFailure.OTHER
    assert "YARD_PACKAGES is empty" in str(error)


async def test_a_node_that_sees_no_packages_at_all_leaves_the_job_to_other_nodes(
    node: Node,
) -> None:
    error = await node.refused(node.package("a"))
    assert error.failure is StartFailure.OTHER
    assert "finds no packages at all" in str(error)


async def test_a_node_with_a_lower_limit_names_its_setting(node: Node) -> None:
    package = await node.stored("a")
    node.folders(limits=PackageLimits(packed_bytes=100))
    error = await node.refused(package)
    assert error.failure is StartFailure.OTHER
    assert "YARD_MAX_PACKAGE_BYTES" in str(error)


async def test_a_disk_that_cannot_be_written_is_a_failure_of_this_node(node: Node) -> None:
    package = await node.stored("a")
    (node.folder / "code").mkdir()
    (node.folder / "code/cache").write_text("not a folder")
    error = await node.refused(package)
    assert error.failure is StartFailure.OTHER
    assert "cannot be unpacked: File exists" in str(error)


async def test_a_stop_does_not_wait_for_a_slow_store(node: Node) -> None:
    package = await node.stored("a")
    node.store.may_answer.clear()
    stopping = asyncio.Event()
    launch = node.launch(package)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            prepare_unless(stopping, node.code, launch, "nlp", node.metrics)
        )
        await node.store.asked.wait()
        stopping.set()
    assert running.result() is launch
    assert node.cached() == set(), "nothing unfinished is left"


async def test_folders_are_removed_with_their_replicas(node: Node) -> None:
    package = await node.stored("a")
    launches = [node.launch(package) for _ in range(3)]
    for launch in launches:
        await node.code.prepare(launch, "nlp", node.metrics)
    (node.folder / "code/cache/nlp-0.tar.gz.1.new").write_text("a killed agent left this")
    node.code.forget(launches[0].key)
    node.code.keep_only([launches[1].key])
    names = [path.name for path in (node.folder / "code/replicas").iterdir()]
    assert names == [str(launches[1].key)]
    assert node.cached() == {package.digest}
