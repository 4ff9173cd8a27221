"""Replicas in commits of a real git server over https: copies, the cache, and what is refused."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.git_server import Repository, serving
from tests.support.packages import read_tree
from tests.support.secure_broker import Authority
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.code_folders import UnpackedCode
from yardmaster_node_agent.errors import RunRefused
from yardmaster_node_agent.executors.port import Launch
from yardmaster_node_agent.executors.secrets import SecretFiles
from yardmaster_node_agent.git_commits import GitCommits
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_packages.limits import PackageLimits
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import GitCommit, Run
from yardmaster_schemas.reasons import StartFailure

LIMITS = PackageLimits(unpacked_bytes=2**20, files=50)


class Node:
    """A node that may fetch from one server."""

    def __init__(self, folder: Path, host: str, asked: list[str]) -> None:
        self.folder, self.host, self.asked = folder, host, asked
        self.repository = Repository(folder / "served")
        self.replicas = 0
        self.telemetry = Telemetry("node_agent", now_ms=lambda: 0, level="error")
        self.metrics = AgentMetrics(self.telemetry)
        self.code = self.allowing(host)

    def allowing(self, *hosts: str) -> UnpackedCode:
        self.code = UnpackedCode(
            self.folder / "code",
            None,
            limits=LIMITS,
            git=GitCommits(hosts, LIMITS, SecretFiles(self.folder / "secrets")),
            cache_bytes=2**30,
            isolated=False,
            telemetry=self.telemetry,
        )
        return self.code

    async def prepare(
        self,
        commit: str,
        path: str = "code.git",
        *,
        secret: str | None = None,
        project: str = "nlp",
    ) -> Path:
        self.replicas += 1
        key = ReplicaKey(task_id="4kq7w2mz9c1f.0", attempt=self.replicas, replica=0)
        git = GitCommit(url=f"https://{self.host}/{path}", commit=commit, secret=secret)
        launch = Launch(key, Run(command=("true",), git=git), {})
        launch = await self.code.prepare(launch, project, self.metrics)
        assert launch.code is not None
        assert launch.run.working_dir == str(launch.code)
        return launch.code

    async def refused(
        self, commit: str, path: str = "code.git", *, secret: str | None = None
    ) -> tuple[StartFailure, str]:
        with pytest.raises(RunRefused) as caught:
            await self.prepare(commit, path, secret=secret)
        assert not list((self.folder / "code").glob("replicas/*"))
        assert not list((self.folder / "code").glob("fetching/*"))
        assert not list((self.folder / "code").glob("cache/*"))
        return caught.value.failure, str(caught.value)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    authority = Authority(tmp_path / "tls")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(tmp_path / "served", authority) as (host, asked):
        yield Node(tmp_path, host, asked)


async def test_each_replica_gets_a_writable_copy_and_the_commit_is_fetched_once(node: Node) -> None:
    first = node.repository.files(a=b"1")
    node.repository.files(a=b"2")
    folder = await node.prepare(first)
    asked = len(node.asked)
    (folder / "a").write_bytes(b"changed")
    other = await node.prepare(first)
    assert read_tree(other) == {"a": b"1"}
    assert len(node.asked) == asked > 0
    assert not (folder / ".git").exists()


async def test_a_damaged_archive_is_fetched_again(node: Node) -> None:
    commit = node.repository.files(a=b"1")
    await node.prepare(commit)
    (archive,) = (node.folder / "code/cache").iterdir()
    archive.write_bytes(b"damaged")
    assert read_tree(await node.prepare(commit)) == {"a": b"1"}


async def test_a_host_that_the_node_does_not_allow_gets_no_request(node: Node) -> None:
    node.allowing("git.example.org")
    commit = node.repository.files(a=b"1")
    failure, found = await node.refused(commit)
    assert failure is StartFailure.OTHER
    assert "YARD_AGENT_GIT_HOSTS" in found
    assert not node.asked


async def test_a_commit_that_the_server_does_not_have_or_give_is_named(node: Node) -> None:
    commit = node.repository.files(a=b"1")
    tree = node.repository.git("rev-parse", f"{commit}^{{tree}}")
    for asked, path, expected in (
        ("0" * 39 + "1", "code.git", StartFailure.COMMIT_MISSING),
        (tree, "code.git", StartFailure.COMMIT_MISSING),
        (commit, "none.git", StartFailure.COMMIT_MISSING),
        (commit, "private/code.git", StartFailure.COMMIT_REFUSED),
        (commit, "forbidden/code.git", StartFailure.COMMIT_REFUSED),
    ):
        failure, found = await node.refused(asked, path)
        assert failure is expected, found
        assert ".." not in found


async def test_trouble_of_the_network_is_a_failure_of_this_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = node.repository.files(a=b"1")
    for path in ("broken/code.git", "moved/code.git"):
        failure, found = await node.refused(commit, path)
        assert failure is StartFailure.OTHER, found
    monkeypatch.delenv("GIT_SSL_CAINFO")
    failure, found = await node.refused(commit)
    assert failure is StartFailure.OTHER
    assert "certificate" in found


async def test_a_node_without_git_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = node.folder / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(programs))
    failure, found = await node.refused("0" * 40)
    assert failure is StartFailure.OTHER
    assert "no program git" in found


async def test_filters_and_submodules_of_a_repository_do_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = node.folder / "ran"
    home = node.folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[filter "x"]\n  smudge = touch {ran}; cat\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'filter.x.smudge=touch {ran}; cat'")
    one = node.repository
    modules = f'[submodule "s"]\n  path = s\n  url = https://{node.host}/code.git\n'
    commit = one.commit(
        ("100644", one.blob(b"* filter=x\n"), ".gitattributes"),
        ("100644", one.blob(modules.encode()), ".gitmodules"),
        ("100644", one.blob(b"text"), "a"),
        ("120000", one.blob(b"a"), "link"),
        ("160000", "1" * 40, "s"),
    )
    folder = await node.prepare(commit)
    assert (folder / "a").read_bytes() == b"text"
    assert os.readlink(folder / "link") == "a"
    assert not list((folder / "s").iterdir())
    assert not ran.exists()


async def test_hostile_commits_are_refused(node: Node) -> None:
    one = node.repository
    small, large = one.blob(b"x"), one.blob(bytes(2**20 + 1))
    noise = one.blob(os.urandom(3 * 2**20))
    hook = one.tree(("100755", small, "post-checkout"))
    wide = one.tree(*(("100644", small, f"f{i:02}") for i in range(10)))
    for entry in (
        ("120000", one.blob(b"/etc/passwd"), "link"),
        ("120000", one.blob(b"../../cache"), "link"),
        ("040000", one.tree(("040000", hook, "hooks")), ".git"),
        ("100644", large, "large"),
        ("100644", noise, "noise"),
        ("040000", one.tree(*(("040000", wide, f"d{i}") for i in range(6))), "bomb"),
    ):
        failure, found = await node.refused(one.commit(entry))
        assert failure is StartFailure.COMMIT_UNUSABLE, (entry, found)
