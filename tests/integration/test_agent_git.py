"""A task that runs in a commit of a git repository, under an agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.git_server import Repository, serving
from tests.support.node_agent import AgentCell
from tests.support.secure_broker import Authority
from yardmaster_schemas.events.details import GitCommit, Run


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
