"""Submitting a job with a context: its package must be stored, and the log names it by digest."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from tests.support.packages import package_of_tar
from yardmaster_gateway.code_context import MARK_S, is_needed
from yardmaster_packages.store import PackageStore
from yardmaster_schemas.events.details import CodeContext, JobDetailedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1

PACKAGE = package_of_tar(b"a package " * 1000)
CONTEXT = {"digest": PACKAGE.digest, "packed_bytes": PACKAGE.size}


@pytest.fixture
async def cell() -> AsyncIterator[GatewayCell]:
    async with gateway_cell(packages=f"memory://{uuid.uuid4().hex}") as made:
        yield made


async def upload(cell: GatewayCell, project: str = "nlp") -> None:
    path = f"/v1/packages/{project}/{PACKAGE.digest}"
    await cell.call("PUT", path, token=project, status=201, content=PACKAGE.content)


def job(context: object = CONTEXT, **run: Any) -> dict[str, Any]:
    return {"project": "nlp", "run": {"command": ["true"], "context": context, **run}}


async def submit(cell: GatewayCell, body: dict[str, Any], status: int = 202) -> Any:
    headers = {"Idempotency-Key": "k1"}
    return await cell.call(
        "POST", "/v1/jobs", token="nlp", status=status, json=body, headers=headers
    )


async def recorded(cell: GatewayCell) -> list[object]:
    return [e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)]


async def test_the_log_contains_digest_and_size_of_a_context(cell: GatewayCell) -> None:
    await upload(cell)
    answer = await submit(cell, job())
    (details,) = [e for e in await cell.events("details") if isinstance(e, JobDetailedV1)]
    assert details.run.context == CodeContext(digest=PACKAGE.digest, packed_bytes=PACKAGE.size)
    shown = await cell.call("GET", f"/v1/jobs/{answer['job_id']}")
    assert shown["run"]["context"] == CONTEXT


@pytest.mark.parametrize(
    ("context", "pointer", "found"),
    [
        ({**CONTEXT, "digest": "0" * 64}, "/run/context/digest", "has no package 000"),
        ({**CONTEXT, "packed_bytes": 7}, "/run/context/packed_bytes", f"{PACKAGE.size} bytes, not"),
        ("src", "/run/context", "does not see the folder"),
    ],
)
async def test_a_job_whose_package_is_not_stored_is_refused(
    cell: GatewayCell, context: object, pointer: str, found: str
) -> None:
    await upload(cell)
    problem = await submit(cell, job(context), status=422)
    assert problem["code"] == "invalid_spec"
    assert problem["errors"][0]["pointer"] == pointer
    assert found in problem["errors"][0]["detail"]
    assert await recorded(cell) == []


@pytest.mark.parametrize("digest", ["0" * 63, "A" * 64, "../" + "0" * 61, ""])
async def test_a_digest_of_another_form_is_refused(cell: GatewayCell, digest: str) -> None:
    problem = await submit(cell, job({**CONTEXT, "digest": digest}), status=422)
    assert "digest" in problem["errors"][0]["pointer"]


async def ended(cell: GatewayCell) -> str:
    """The id of a job with the package that has ended."""
    answer = await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=job())
    task = f"{answer['job_id']}.0"
    await cell.starts(task)
    await cell.finishes(task)
    return str(answer["job_id"])


async def digests(cell: GatewayCell) -> list[str]:
    assert cell.ports.packages is not None
    return [one.digest async for one in cell.ports.packages.packages()]


async def test_a_package_is_needed_until_its_last_job_has_ended(cell: GatewayCell) -> None:
    await upload(cell)
    gateway = cell.app.state.gateway
    assert not await is_needed(gateway, "nlp", PACKAGE.digest)
    answer = await submit(cell, job())
    assert await is_needed(gateway, "nlp", PACKAGE.digest)
    assert not await is_needed(gateway, "vision", PACKAGE.digest)
    await cell.starts(f"{answer['job_id']}.0")
    await cell.finishes(f"{answer['job_id']}.0")
    assert not await is_needed(gateway, "nlp", PACKAGE.digest)


async def test_an_erasure_removes_the_package_with_its_last_job(cell: GatewayCell) -> None:
    await upload(cell)
    first, second = await ended(cell), await ended(cell)
    for erased, left in ((first, [PACKAGE.digest]), (second, [])):
        await cell.call("POST", f"/v1/jobs/{erased}/erase", token="admin", status=202)
        assert await digests(cell) == left


async def test_a_submission_marks_an_old_package_as_used(tmp_path: Path) -> None:
    async with gateway_cell(packages=str(tmp_path)) as cell:
        await upload(cell)
        await submit(cell, job())
        mark = tmp_path / "nlp" / f"{PACKAGE.digest}.used"
        assert not mark.exists(), "the package itself is new"
        long_ago = (cell.clock.now_ms() / 1000) - 2 * MARK_S
        os.utime(tmp_path / "nlp" / f"{PACKAGE.digest}.tar.gz", (long_ago, long_ago))
        await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=job())
        assert mark.exists()


async def test_a_package_of_another_project_does_not_count(cell: GatewayCell) -> None:
    await upload(cell, "vision")
    problem = await submit(cell, job(), status=422)
    assert "project nlp has no package" in problem["errors"][0]["detail"]


async def test_a_package_above_the_present_limit_is_refused(cell: GatewayCell) -> None:
    await upload(cell)
    store = cell.ports.packages
    assert store is not None
    limits = store.limits
    store.limits = type(limits)(packed_bytes=10)
    problem = await submit(cell, job(), status=422)
    assert "the limit is 10" in problem["errors"][0]["detail"]


async def test_a_repeated_submission_needs_no_package_any_more(cell: GatewayCell) -> None:
    await upload(cell)
    first = await submit(cell, job())
    store = cell.ports.packages
    assert store is not None
    await store.remove("nlp", PACKAGE.digest)
    assert await submit(cell, job()) == first
    assert len(await recorded(cell)) == 1


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"working_dir": "/srv"}, "a folder in the context"),
        ({"working_dir": "src/../.."}, "a folder in the context"),
    ],
)
async def test_keys_that_a_context_excludes_are_refused(
    cell: GatewayCell, more: dict[str, Any], found: str
) -> None:
    await upload(cell)
    problem = await submit(cell, job(**more), status=422)
    assert found in problem["detail"]


async def test_a_gateway_without_a_store_names_its_setting() -> None:
    async with gateway_cell() as cell:
        problem = await submit(cell, job(), status=501)
        assert problem["code"] == "no_packages"
        assert "YARD_PACKAGES" in problem["detail"]
        assert await recorded(cell) == []


async def test_a_store_that_does_not_answer_is_not_described_to_the_caller(
    cell: GatewayCell, tmp_path: Any
) -> None:
    (tmp_path / "file").write_text("no folder")
    url = str(tmp_path / "file" / "packages")
    broken = PackageStore(url, deadline_s=5)
    object.__setattr__(cell.app.state.gateway.ports, "packages", broken)
    problem = await submit(cell, job(), status=503)
    assert problem["code"] == "packages_unavailable"
    assert url not in problem["detail"]
