"""`/v1/tasks/{id}/artifacts`: who may list and read them, pages, and damaged stores."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from tests.support.packages import package_of_tar
from yardmaster_packages.artifact_files import find_artifacts
from yardmaster_packages.artifact_store import ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactDamaged
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_packages.store_calls import CALL_BYTES

MODEL = b"weights" * (CALL_BYTES // 4)
PACKAGE = package_of_tar(b"a package")


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[GatewayCell]:
    urls = {name: str(tmp_path / name) for name in ("artifacts", "packages")}
    async with gateway_cell(**urls) as made:
        yield made


def store(cell: GatewayCell) -> ArtifactStore:
    assert cell.ports.artifacts is not None
    return cell.ports.artifacts


async def ended(cell: GatewayCell, **spec: Any) -> str:
    """The id of a task that has ended after one attempt."""
    task = f"{await cell.submit(**spec)}.0"
    await cell.starts(task)
    await cell.finishes(task)
    return task


async def kept(
    cell: GatewayCell, folder: Path, task: str, files: dict[str, bytes], **where: int
) -> ArtifactPlace:
    """Keep files of a replica, as an agent does it."""
    numbers = {"attempt": 1, "replica": 0} | where
    place = ArtifactPlace(project="nlp", task_id=task, **numbers)
    work = folder / f"work-{place.attempt}.{place.replica}"
    for path, content in files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    found = find_artifacts(work, ["**"], limits=ArtifactLimits(), owner=None)
    await store(cell).keep(place, work, found)
    return place


async def listed(cell: GatewayCell, task: str, **params: int | str) -> Any:
    return await cell.call("GET", f"/v1/tasks/{task}/artifacts", token="nlp", params=params)


async def test_kept_files_are_listed_and_read(cell: GatewayCell, tmp_path: Path) -> None:
    task = await ended(cell)
    answer = await listed(cell, task)
    assert (answer["attempt"], answer["items"], answer["missing"]) == (None, [], 0)
    await kept(cell, tmp_path, task, {"out/model #1.bin": MODEL, "log": b""})
    answer = await listed(cell, task)
    digest = hashlib.sha256(MODEL).hexdigest()
    assert (answer["attempt"], answer["attempts"], answer["missing"]) == (1, [1], 0)
    assert answer["items"][1] == {
        "replica": 0,
        "path": "out/model #1.bin",
        "size_bytes": len(MODEL),
        "digest": digest,
    }
    async with cell.client("nlp") as client:
        read = await client.get(f"/v1/tasks/{task}/artifacts/out/model%20%231.bin")
    assert (read.status_code, read.content) == (200, MODEL)
    assert read.headers["etag"] == f'"{digest}"'
    assert read.headers["content-disposition"] == "attachment; filename*=utf-8''model%20%231.bin"
    await cell.call("GET", f"/v1/tasks/{task}/artifacts/absent", token="nlp", status=404)
    await cell.call(
        *("GET", f"/v1/tasks/{task}/artifacts/log"), token="nlp", status=404, params={"replica": 3}
    )


async def test_pages_end_between_files_and_between_replicas(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    for replica, count in ((0, 3), (1, 0), (2, 2)):
        files = {f"f{number}": b"x" for number in range(count)} or {"sub/a": b"", "sub/b": b""}
        await kept(cell, tmp_path, task, files, replica=replica)
    everything = [(0, "f0"), (0, "f1"), (0, "f2"), (1, "sub/a"), (1, "sub/b"), (2, "f0"), (2, "f1")]
    for limit in (1, 2, 3, 4, 7, 100):
        found, cursor = [], None
        while True:
            given: dict[str, str] = {} if cursor is None else {"cursor": cursor}
            page = await listed(cell, task, limit=limit, **given)
            assert len(page["items"]) <= limit
            assert (page["missing"] is None) == (cursor is not None), "counted once for a list"
            found += [(one["replica"], one["path"]) for one in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == everything, limit
    page = await listed(cell, task, replica=2)
    assert [one["path"] for one in page["items"]] == ["f0", "f1"]
    await cell.call(
        *("GET", f"/v1/tasks/{task}/artifacts"), token="nlp", status=400, params={"cursor": "x"}
    )


async def test_the_newest_attempt_with_files_is_shown(cell: GatewayCell, tmp_path: Path) -> None:
    task = await ended(cell)
    for attempt in (1, 12, 3):
        await kept(cell, tmp_path, task, {"n": str(attempt).encode()}, attempt=attempt)
    assert (await listed(cell, task))["attempt"] == 12
    assert (await listed(cell, task))["attempts"] == [1, 3, 12]
    for params, content in (({}, b"12"), ({"attempt": 3}, b"3")):
        async with cell.client("nlp") as client:
            read = await client.get(f"/v1/tasks/{task}/artifacts/n", params=params)
        assert read.content == content


async def test_replicas_without_files_are_counted_until_they_are_kept(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    assert (await listed(cell, task, attempt=1))["missing"] == 1
    assert (await listed(cell, task, attempt=2))["missing"] == 1, "it has not begun"
    await kept(cell, tmp_path, task, {"n": b""})
    assert (await listed(cell, task, attempt=1))["missing"] == 0


async def test_those_who_may_not_see_the_task_may_not_see_its_files(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    await kept(cell, tmp_path, task, {"n": b"x"})
    for path in ("", "/n"):
        await cell.call("GET", f"/v1/tasks/{task}/artifacts{path}", token="vision", status=404)


async def test_an_erasure_removes_the_files(cell: GatewayCell, tmp_path: Path) -> None:
    task = await ended(cell)
    await kept(cell, tmp_path, task, {"n": b"x"})
    await cell.call("POST", f"/v1/jobs/{task[:-2]}/erase", token="admin", status=202)
    assert [one async for one in store(cell).stored()] == []
    for path in ("", "/n"):
        answer = await cell.call(
            "GET", f"/v1/tasks/{task}/artifacts{path}", token="nlp", status=404
        )
        assert "was erased" in answer["detail"]


async def test_an_erasure_without_the_store_erases_nothing(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    await kept(cell, tmp_path, task, {"n": b"x"})

    async def failing(*_: object) -> int:
        raise ArtifactDamaged(path="x", found="y")

    store(cell).remove_job = failing  # type: ignore[method-assign, assignment]
    answer = await cell.call("POST", f"/v1/jobs/{task[:-2]}/erase", token="admin", status=503)
    assert answer["code"] == "artifacts_unavailable"
    assert not (await cell.call("GET", f"/v1/jobs/{task[:-2]}"))["erased"]


async def test_a_file_with_another_content_is_not_sent_whole(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    place = await kept(cell, tmp_path, task, {"n": MODEL})
    (tmp_path / "artifacts" / place.folder / "0").write_bytes(bytes(len(MODEL)))
    async with cell.client("nlp") as client:
        with pytest.raises(ArtifactDamaged, match="its content has the digest"):
            await client.get(f"/v1/tasks/{task}/artifacts/n")


async def test_a_damaged_index_is_an_error_without_the_path_of_the_store(
    cell: GatewayCell, tmp_path: Path
) -> None:
    task = await ended(cell)
    place = await kept(cell, tmp_path, task, {"n": b"x"})
    (tmp_path / "artifacts" / place.folder / "index.json").write_text("{")
    answer = await cell.call("GET", f"/v1/tasks/{task}/artifacts", token="nlp", status=503)
    assert answer["code"] == "artifacts_unavailable"
    assert str(tmp_path) not in str(answer)


async def test_a_job_with_artifacts_needs_a_store_and_valid_patterns(cell: GatewayCell) -> None:
    async with cell.client("nlp") as client:
        url = f"/v1/packages/nlp/{PACKAGE.digest}"
        assert (await client.put(url, content=PACKAGE.content)).status_code == 201
    run = {
        "command": ["true"],
        "context": {"digest": PACKAGE.digest, "packed_bytes": PACKAGE.size},
        "artifacts": ["out/**", "!"],
    }
    body = {"project": "nlp", "run": run}
    answer = await cell.call("POST", "/v1/jobs", token="nlp", status=422, json=body)
    assert answer["errors"][0]["pointer"] == "/run/artifacts"
    assert "'!' is not a pattern" in answer["errors"][0]["detail"]
    run["artifacts"] = ["out/**"]
    await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=body)
    del run["context"]
    answer = await cell.call("POST", "/v1/jobs", token="nlp", status=422, json=body)
    assert "add context" in str(answer["errors"])


async def test_without_a_store_nothing_is_accepted_and_ignored() -> None:
    async with gateway_cell() as cell:
        task = await ended(cell)
        for path in ("", "/n"):
            answer = await cell.call(
                "GET", f"/v1/tasks/{task}/artifacts{path}", token="nlp", status=501
            )
            assert "YARD_ARTIFACTS" in answer["detail"] + answer["hint"]
        body = {
            "project": "nlp",
            "run": {
                "command": ["true"],
                "context": {"digest": PACKAGE.digest, "packed_bytes": PACKAGE.size},
                "artifacts": ["*"],
            },
        }
        answer = await cell.call("POST", "/v1/jobs", token="nlp", status=501, json=body)
        assert answer["code"] == "no_artifacts"


async def test_streams_of_files_count_and_are_limited(cell: GatewayCell, tmp_path: Path) -> None:
    task = await ended(cell)
    await kept(cell, tmp_path, task, {"n": b"x"})
    gateway = cell.app.state.gateway
    async with gateway.stream("nina", "nlp"):
        gateway.settings = gateway.settings.model_copy(update={"max_streams": 1})
        async with cell.client("nlp") as client:
            refused: httpx.Response = await client.get(f"/v1/tasks/{task}/artifacts/n")
    assert refused.status_code == 429
