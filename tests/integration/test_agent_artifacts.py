"""An agent keeps the artifacts of real replicas: after each end, after its own restart."""

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from tests.support.node_agent import AgentCell
from tests.support.packages import package_of, write_tree
from yardmaster_packages.artifact_store import ArtifactPlace, ArtifactStore
from yardmaster_packages.store import PackageStore
from yardmaster_schemas.events.details import CodeContext, Run

WRITES = "mkdir out; echo model > out/model; ln -s /etc/passwd out/link; echo log > other; "


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(packages=str(tmp_path / "packages"), artifacts=str(tmp_path / "kept"))
    yield cell
    await cell.assert_honest()
    await cell.log.close()


async def job(cell: AgentCell, script: str, *artifacts: str) -> Run:
    """A job with a context that its store has."""
    package = package_of(write_tree(cell.data_dir.parent / "code", {"train.py": b"pass"}))

    async def content() -> AsyncGenerator[bytes, None]:
        yield package.content

    store = PackageStore(cell.settings.packages)
    await store.put("nlp", package.digest, content(), packed_bytes=package.size)
    context = CodeContext(digest=package.digest, packed_bytes=package.size)
    return Run(script=script, context=context, artifacts=artifacts or ("out/**",))


async def kept(cell: AgentCell, task: str, attempt: int = 1) -> list[str] | None:
    """The paths of the kept files of replica 0; None if it has no index."""
    place = ArtifactPlace(project="nlp", task_id=task, attempt=attempt, replica=0)
    index = await ArtifactStore(cell.settings.artifacts).index(place)
    return None if index is None else [file.path for file in index.files]


async def test_files_are_kept_after_success_failure_and_stop(cell: AgentCell) -> None:
    async with cell.agent():
        for end in ("exit 0", "exit 3", "kill -9 $$"):
            task = await cell.allocate(await job(cell, WRITES + end))
            await cell.until_output(task, "1 artifact kept (6 bytes), 1 left out", stream=None)
            assert await kept(cell, task) == ["out/model"]
        task = await cell.allocate(await job(cell, f"{WRITES} echo ready; exec sleep 1000"))
        await cell.until_output(task, "ready")
        await cell.stop(task, grace_s=10)
        await cell.until_output(task, "1 artifact kept", stream=None)
        assert await kept(cell, task) == ["out/model"]


async def test_the_slots_are_free_while_the_store_does_not_answer(
    cell: AgentCell, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("no folder")
    async with cell.agent():
        task = await cell.allocate(await job(cell, WRITES), slots=[(0,)])
        await cell.ended(task)
        # The same slot runs the next task.
        other = await cell.allocate(Run(script="echo next"), slots=[(0,)])
        await cell.until_output(other, "next")


async def test_an_agent_that_restarts_keeps_what_the_one_before_did_not(
    cell: AgentCell, tmp_path: Path
) -> None:
    cell.configure(kept_directories=0)
    (tmp_path / "kept").write_text("no folder")
    async with cell.agent():
        task = await cell.allocate(await job(cell, WRITES))
        await cell.ended(task)
        # Folders of replicas that need them no more are removed meanwhile.
        other = await cell.allocate(await job(cell, "true", "absent"), slots=[(0,)])
        await cell.ended(other)
    (tmp_path / "kept").unlink()
    async with cell.agent():
        await cell.until_output(task, "1 artifact kept (6 bytes), 1 left out", stream=None)
        assert await kept(cell, task) == ["out/model"]
        await cell.until_output(other, "0 artifacts kept", stream=None)
    async with cell.agent():
        # It is finished with both, so it says nothing more.
        third = await cell.allocate(Run(script="echo next"))
        await cell.until_output(third, "next")
    assert (await cell.output(task, stream=None)).count("artifact kept") == 1


async def test_a_node_without_a_store_says_so(cell: AgentCell) -> None:
    cell.configure(artifacts="")
    async with cell.agent():
        task = await cell.allocate(await job(cell, WRITES))
        await cell.until_output(task, "YARD_ARTIFACTS of this node's agent is empty", stream=None)


async def test_a_replica_that_never_ran_has_no_artifacts(cell: AgentCell) -> None:
    run = await job(cell, "true")
    wrong = CodeContext(digest="0" * 64, packed_bytes=1)
    async with cell.agent():
        task = await cell.allocate(Run(script="true", context=wrong, artifacts=run.artifacts))
        assert (await cell.ended(task))[0].never_started
        assert "artifact" not in await cell.output(task, stream=None)
    assert await ArtifactStore(cell.settings.artifacts).places("nlp", task) == []
