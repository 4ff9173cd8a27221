"""A task that runs in a commit of a git repository, under an agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.git_server import Repository, serving
from tests.support.node_agent import AgentCell
from tests.support.secure_broker import Authority
from yardmaster_schemas.events.details import GitCommit, Run
from yardmaster_schemas.topics import HEARTBEATS, NODE_EVENTS, TASK_LOGS


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


async def test_a_task_runs_in_a_commit_of_a_repository_and_needs_a_node_that_allows_the_host(
    cell: AgentCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "tls")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    repository = Repository(tmp_path / "served")
    commit = repository.files(**{"train.sh": b"echo trained"})
    with serving(tmp_path / "served", authority) as (host, _):
        git = GitCommit(url=f"https://{host}/code.git", commit=commit)
        run = Run(command=("sh", "train.sh"), git=git)
        async with cell.agent():
            task = await cell.allocate(run)
            released = (await cell.ended(task))[0]
            assert (released.never_started, released.failure) == (True, "other")
            assert "YARD_AGENT_GIT_HOSTS" in await cell.output(task, stream="agent")
        cell.configure(git_hosts=(host,))
        async with cell.agent():
            task = await cell.allocate(run)
            assert (await cell.exit_of(task)).exit_code == 0
            assert await cell.output(task) == "trained\n"
            await cell.ended(task)


async def test_the_secret_of_a_private_repository_is_in_no_record_output_or_environment(
    cell: AgentCell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "tls")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.ca))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    commit = Repository(tmp_path / "served/private").files(**{"train.sh": b"env; echo trained"})
    token = "tok-3n-of-the-repository"
    (tmp_path / "secrets/nlp").mkdir(parents=True)
    with serving(tmp_path / "served", authority, f"ada:{token}") as (host, _):
        url = f"https://{host}/private/code.git"
        git = GitCommit(url=url, commit=commit, secret="nlp/git")
        run = Run(command=("sh", "train.sh"), git=git)
        cell.configure(git_hosts=(host,), secrets_dir=tmp_path / "secrets")
        async with cell.agent():
            for content, failure, words in (
                (None, "secret_missing", "no secret"),
                (f"ada:{token}-revoked", "commit_refused", "refuses the login"),
            ):
                if content is not None:
                    (tmp_path / "secrets/nlp/git").write_text(content)
                task = await cell.allocate(run)
                assert (await cell.ended(task))[-1].failure == failure
                assert words in await cell.output(task, stream="agent")
            (tmp_path / "secrets/nlp/git").write_text(f"ada:{token}\n")
            task = await cell.allocate(run)
            assert (await cell.exit_of(task)).exit_code == 0
            assert (await cell.output(task)).endswith("trained\n")
            await cell.ended(task)
            other = await cell.allocate(run, project="vision")
            assert (await cell.ended(other))[-1].failure == "secret_missing"
    for topic in (NODE_EVENTS, TASK_LOGS, HEARTBEATS):
        assert not [one for one in await cell.envelopes(topic.name) if token in repr(one)]
    kept = [path for path in (tmp_path / "n1").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if token.encode() in path.read_bytes()]
