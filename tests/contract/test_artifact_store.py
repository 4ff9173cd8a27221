"""The contract of the store of artifacts, on each file system that it is used with."""

import asyncio
import hashlib
import os
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from yardmaster_packages.artifact_files import FoundFiles, find_artifacts
from yardmaster_packages.artifact_store import ArtifactPlace, ArtifactStore
from yardmaster_packages.errors import ArtifactDamaged, ArtifactNotFound, ArtifactsUnavailable
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_packages.store_calls import CALL_BYTES

JOB = "4kq7w2mz9c1f"
LARGE = random.Random(2).randbytes(5 * CALL_BYTES // 2)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    urls = {"folder": str(tmp_path / "kept"), "memory": f"memory://{uuid.uuid4().hex}/kept"}
    return ArtifactStore(urls[request.param])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "out").mkdir(parents=True)
    (made / "out/large").write_bytes(LARGE)
    (made / "out/empty").touch()
    (made / "link").symlink_to("out/empty")
    return made


def place(attempt: int = 1, replica: int = 0, task: int = 0, job: str = JOB) -> ArtifactPlace:
    return ArtifactPlace(project="nlp", task_id=f"{job}.{task}", attempt=attempt, replica=replica)


def files_of(folder: Path) -> FoundFiles:
    return find_artifacts(folder, ["**"], limits=ArtifactLimits(), owner=None)


async def content(store: ArtifactStore, where: ArtifactPlace, number: int) -> bytes:
    return b"".join([piece async for piece in store.read(where, number)])


async def listed(store: ArtifactStore) -> list[ArtifactPlace]:
    return [one.place async for one in store.stored()]


async def test_what_was_kept_is_listed_and_read(store: ArtifactStore, folder: Path) -> None:
    index = await store.keep(place(), folder, files_of(folder))
    assert [(one.path, one.size_bytes) for one in index.files] == [
        ("out/empty", 0),
        ("out/large", len(LARGE)),
    ]
    assert index.files[1].digest == hashlib.sha256(LARGE).hexdigest()
    assert [(one.path, one.reason) for one in index.left_out] == [("link", "it is a symbolic link")]
    assert await store.index(place()) == index
    assert (await content(store, place(), 0), await content(store, place(), 1)) == (b"", LARGE)
    with pytest.raises(ArtifactNotFound):
        await content(store, place(), 2)


async def test_a_repetition_changes_nothing(store: ArtifactStore, folder: Path) -> None:
    first = await store.keep(place(), folder, files_of(folder))
    (folder / "out/large").write_bytes(b"other")
    assert await store.keep(place(), folder, files_of(folder)) == first
    assert await content(store, place(), 1) == LARGE


async def test_a_copy_that_was_interrupted_is_not_kept_and_begins_again(
    store: ArtifactStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_publish", failing)
        with pytest.raises(ArtifactsUnavailable, match="the disk is full"):
            await store.keep(place(), folder, files_of(folder))
    assert await store.index(place()) is None
    assert await listed(store) == [place()], "its files are counted, and expire"
    await store.keep(place(), folder, files_of(folder))
    assert await content(store, place(), 1) == LARGE


async def test_files_that_change_before_the_copy_are_left_out(
    store: ArtifactStore, folder: Path
) -> None:
    (folder / "out/gone").write_text("x")
    (folder / "out/swapped").write_text("y")
    found = files_of(folder)
    (folder / "out/gone").unlink()
    (folder / "out/swapped").unlink()
    (folder / "out/swapped").symlink_to("/etc/hostname")
    (folder / "out/large").write_bytes(LARGE[:-1])
    index = await store.keep(place(), folder, found)
    assert [one.path for one in index.files] == ["out/empty"]
    assert {one.path for one in index.left_out} == {"link", "out/gone", "out/large", "out/swapped"}
    assert index.left_out_count == 4


async def test_places_of_a_task_are_sorted_by_number(store: ArtifactStore, folder: Path) -> None:
    found = files_of(folder)
    for attempt, replica in ((10, 0), (2, 11), (2, 2)):
        await store.keep(place(attempt, replica), folder, found)
    await store.keep(place(task=1), folder, found)
    assert await store.places("nlp", f"{JOB}.0") == [place(2, 2), place(2, 11), place(10, 0)]
    assert await store.places("vision", f"{JOB}.0") == []


async def test_a_job_is_removed_with_all_its_tasks_and_nothing_else(
    store: ArtifactStore, folder: Path
) -> None:
    found, other = files_of(folder), place(job="other0000000")
    for where in (place(), place(2), place(task=1), other):
        await store.keep(where, folder, found)
    assert await store.remove_job("nlp", JOB) == 3
    assert await listed(store) == [other]
    assert await store.remove_job("nlp", JOB) == 0


async def test_the_size_and_the_time_of_what_is_stored_are_known(
    store: ArtifactStore, folder: Path
) -> None:
    await store.keep(place(), folder, files_of(folder))
    (one,) = [stored async for stored in store.stored()]
    assert (one.place, one.files) == (place(), 3)
    assert one.size_bytes > len(LARGE)
    assert one.written_ms > 1_700_000_000_000


async def test_a_damaged_index_is_an_error(store: ArtifactStore, folder: Path) -> None:
    await store.keep(place(), folder, files_of(folder))
    path = f"{store._root}/{place().folder}/index.json"
    for damaged in (b"{", b'{"format": 1, "files": [{"path": "../x"}]}'):
        store._fs.pipe_file(path, damaged)
        with pytest.raises(ArtifactDamaged):
            await store.index(place())


def test_a_place_outside_the_store_is_refused() -> None:
    for wrong in ({"project": "../etc"}, {"task_id": "../../x.0"}, {"attempt": 0}):
        fields: dict[str, Any] = {"project": "nlp", "task_id": f"{JOB}.0", "attempt": 1} | wrong
        with pytest.raises(ValueError, match="is no"):
            ArtifactPlace(**fields, replica=0)


async def test_a_store_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(str(tmp_path / "kept"), deadline_s=0.05)
    release = threading.Event()
    monkeypatch.setattr(store._fs, "ls", lambda *_, **__: release.wait())
    try:
        with pytest.raises(ArtifactsUnavailable, match=r"no answer within 0\.05 s"):
            await store.places("nlp", f"{JOB}.0")
    finally:
        release.set()


def test_a_url_without_a_file_system_is_refused() -> None:
    with pytest.raises(ArtifactsUnavailable, match="nowhere"):
        ArtifactStore("nowhere://x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
async def test_the_owner_of_the_store_may_remove_what_root_has_kept(
    tmp_path: Path, folder: Path
) -> None:
    root = tmp_path / "kept"
    root.mkdir()
    os.chown(root, 12345, 12345)
    await ArtifactStore(str(root)).keep(place(), folder, files_of(folder))
    owners = {path.stat().st_uid for path in root.rglob("*")}
    assert owners == {12345}
    assert await asyncio.to_thread(lambda: len(list(root.rglob("*")))) == 6
