"""Commits of private repositories: who gets them, and where the secret of a node goes."""

import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.git_server import Repository, serving
from tests.support.packages import read_tree
from tests.support.secure_broker import Authority
from tests.unit.node_agent.test_git_commits import Node
from yardmaster_node_agent.errors import RunRefused, SecretMissing
from yardmaster_node_agent.executors.secrets import Secrets
from yardmaster_node_agent.git_login import MAX_BYTES, login_of
from yardmaster_schemas.events.details import GitCommit
from yardmaster_schemas.reasons import StartFailure

PATH = "private/code.git"
USER, TOKEN = "ada", "tok-3n-of-the-repository"
FORMS = (TOKEN.encode(), b64encode(f"{USER}:{TOKEN}".encode()))


class PrivateNode(Node):
    """A node whose server has a private repository, with the secrets of its operator."""

    def __init__(self, folder: Path, host: str, asked: list[str]) -> None:
        super().__init__(folder, host, asked)
        self.private = Repository(folder / "served/private")
        self.commit = self.private.files(a=b"1")
        self.secret("nlp/git", f"{USER}:{TOKEN}")

    def secret(self, name: str, content: str) -> None:
        path = self.folder / "secrets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def files_with_the_token(self) -> list[Path]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        kept = [path for path in files if self.folder / "secrets" not in path.parents]
        return [path for path in kept if any(form in path.read_bytes() for form in FORMS)]


class Watch:
    """Looks for the token in the processes and files of the machine during a request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[str] = set()
        self.found: list[Path] = []

    def __call__(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                contents = {name: (process / name).read_bytes() for name in ("cmdline", "environ")}
            except OSError:
                continue
            if str(self.folder).encode() in contents["environ"]:
                self.seen.add(contents["cmdline"].split(b"\0")[0].decode())
            self.found += [process / name for name, text in contents.items() if has_token(text)]
        files = [path for path in (self.folder / "code").rglob("*") if path.is_file()]
        self.found += [path for path in files if has_token(path.read_bytes())]


def has_token(content: bytes) -> bool:
    return any(form in content for form in FORMS)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


@pytest.fixture
def node(tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateNode]:
    authority = Authority(tmp_path / "tls")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(tmp_path / "served", authority, f"{USER}:{TOKEN}", watch) as (host, asked):
        yield PrivateNode(tmp_path, host, asked)


async def test_a_private_commit_is_fetched_with_the_secret_which_stays_out_of_sight(
    node: PrivateNode, watch: Watch
) -> None:
    folder = await node.prepare(node.commit, PATH, secret="nlp/git")
    assert read_tree(folder) == {"a": b"1"}
    assert any("git" in name for name in watch.seen), "the fetch was watched"
    assert not watch.found
    assert not node.files_with_the_token()
    assert not has_token("".join(f"{k}={v}" for k, v in os.environ.items()).encode())


async def test_a_secret_may_be_a_token_alone(tmp_path: Path) -> None:
    login = login_of(Fixed(TOKEN), git("nlp/git"), "nlp")
    assert login is not None
    assert login.answer == f"username=git\npassword={TOKEN}\n".encode()
    assert TOKEN not in repr(login)


async def test_a_public_repository_gets_no_login(node: PrivateNode, watch: Watch) -> None:
    commit = node.repository.files(a=b"2")
    assert read_tree(await node.prepare(commit, secret="nlp/git")) == {"a": b"2"}
    assert not watch.seen


async def test_a_cached_commit_is_for_its_project_and_secret_alone(node: PrivateNode) -> None:
    node.secret("shared/git", f"{USER}:{TOKEN}")
    await node.prepare(node.commit, PATH, secret="shared/git")
    asked = len(node.asked)
    await node.prepare(node.commit, PATH, secret="shared/git")
    assert len(node.asked) == asked, "from the cache"
    await node.prepare(node.commit, PATH, secret="shared/git", project="vision")
    assert len(node.asked) > asked, "another project fetches it for itself"
    for secret, project, failure in (
        (None, "nlp", StartFailure.COMMIT_REFUSED),
        ("nlp/git", "vision", StartFailure.SECRET_MISSING),
        ("nlp/none", "nlp", StartFailure.SECRET_MISSING),
    ):
        with pytest.raises(RunRefused) as caught:
            await node.prepare(node.commit, PATH, secret=secret, project=project)
        assert caught.value.failure is failure
    (node.folder / "secrets/shared/git").unlink()
    with pytest.raises(RunRefused) as caught:
        await node.prepare(node.commit, PATH, secret="shared/git")
    assert "no secret 'shared/git'" in str(caught.value), "the cache needs the secret too"


async def test_a_private_repository_without_a_secret_says_what_to_do(node: PrivateNode) -> None:
    failure, found = await node.refused(node.commit, PATH)
    assert failure is StartFailure.COMMIT_REFUSED
    assert "run.git.secret" in found


@pytest.mark.parametrize("path", [PATH, "forbidden/code.git"])
async def test_a_refused_login_is_named_without_the_token(node: PrivateNode, path: str) -> None:
    node.secret("nlp/git", f"{USER}:{TOKEN}-revoked")
    failure, found = await node.refused(node.commit, path, secret="nlp/git")
    assert failure is StartFailure.COMMIT_REFUSED
    assert "refuses the login of this node's secret 'nlp/git'" in found
    assert TOKEN not in found


async def test_a_server_that_repeats_the_login_does_not_show_it(node: PrivateNode) -> None:
    _, found = await node.refused(node.commit, "echoing/code.git", secret="nlp/git")
    assert "***" in found
    assert not has_token(found.encode())
    assert not node.files_with_the_token()


class Fixed(Secrets):
    """One secret for every name."""

    def __init__(self, value: str) -> None:
        self.value = value

    def resolve(self, reference: str) -> str:
        return self.value


def git(secret: str) -> GitCommit:
    return GitCommit(url="https://git.example.org/x", commit="0" * 40, secret=secret)


@pytest.mark.parametrize(
    "content", ["", ":x", "x:", "a\nb", "a:b\nhost=x", "a:\x1b", "x" * MAX_BYTES]
)
def test_a_secret_that_is_no_login_is_refused_without_its_content(content: str) -> None:
    with pytest.raises(SecretMissing) as caught:
        login_of(Fixed(content), git("nlp/git"), "nlp")
    assert str(caught.value).endswith("is not one line with USER:PASSWORD or a token.")
