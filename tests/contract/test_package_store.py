"""The contract of the store of packages, on each file system that it is used with."""

import asyncio
import gzip
import hashlib
import os
import random
import threading
import tracemalloc
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import Package, package_of, package_of_tar, read_tree, write_tree
from yardmaster_packages.errors import (
    ArchiveRefused,
    PackageNotFound,
    PackagesUnavailable,
    WrongDigest,
    WrongSize,
)
from yardmaster_packages.limits import MIB, PackageLimits
from yardmaster_packages.store import PackageStore, StoredPackage
from yardmaster_packages.store_calls import CALL_BYTES, MAX_HUNG
from yardmaster_packages.unpacking import unpack

TAR = random.Random(1).randbytes(3 * CALL_BYTES // 2)
PACKAGE = package_of_tar(TAR)
OTHER = package_of_tar(b"another package")


@pytest.fixture(params=["folder", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {
        "folder": str(tmp_path / "packages"),
        "file": f"file://{tmp_path}/packages",
        "memory": f"memory://{uuid.uuid4().hex}/packages",
    }
    return urls[request.param]


@pytest.fixture
def store(url: str) -> PackageStore:
    return PackageStore(url)


async def pieces(content: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def put(store: PackageStore, package: Package, project: str = "nlp") -> StoredPackage:
    return await store.put(
        project, package.digest, pieces(package.content), packed_bytes=package.size
    )


async def read(store: PackageStore, digest: str, project: str = "nlp") -> bytes:
    return b"".join([piece async for piece in store.read(project, digest)])


async def listed(store: PackageStore) -> list[tuple[str, str]]:
    return [(one.project, one.digest) async for one in store.packages()]


def files(store: PackageStore) -> list[str]:
    """All files of the store, the temporary ones too."""
    fs, root = store._fs, store._root
    return sorted(path.removeprefix(root) for path in fs.find(root)) if fs.exists(root) else []


async def test_what_was_put_is_read(store: PackageStore) -> None:
    stored = await put(store, PACKAGE)
    assert (stored.project, stored.digest) == ("nlp", PACKAGE.digest)
    assert stored.packed_bytes == PACKAGE.size > CALL_BYTES
    assert await store.stat("nlp", PACKAGE.digest) == stored
    parts = [piece async for piece in store.read("nlp", PACKAGE.digest)]
    assert b"".join(parts) == PACKAGE.content
    assert max(map(len, parts)) <= CALL_BYTES
    assert files(store) == [f"/nlp/{PACKAGE.digest}.tar.gz"]


async def test_a_folder_becomes_the_same_folder_on_a_node(
    store: PackageStore, tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "context", {"train.py": b"pass\n", "lib/": b"", "l": "-> lib"})
    package = package_of(folder)
    await put(store, package)
    spool = tmp_path / "spool"
    spool.write_bytes(await read(store, package.digest))
    with spool.open("rb") as file:
        unpack(file, tmp_path / "work", digest=package.digest, packed_bytes=package.size)
    assert read_tree(tmp_path / "work") == read_tree(folder)


async def test_another_handle_sees_the_package(store: PackageStore, url: str) -> None:
    other = PackageStore(url)
    assert await listed(other) == []
    assert await other.stat("nlp", PACKAGE.digest) is None
    await put(store, PACKAGE)
    assert await listed(other) == [("nlp", PACKAGE.digest)]
    assert await read(other, PACKAGE.digest) == PACKAGE.content


async def test_nothing_is_there_at_first(store: PackageStore) -> None:
    assert await store.stat("nlp", PACKAGE.digest) is None
    assert await listed(store) == []
    assert not await store.remove("nlp", PACKAGE.digest)
    assert await store.remove_unfinished(before_ms=2**53) == 0
    with pytest.raises(PackageNotFound, match=f"nlp has no package {PACKAGE.digest}"):
        await read(store, PACKAGE.digest)


async def test_projects_do_not_share_packages(store: PackageStore) -> None:
    await put(store, PACKAGE, "nlp")
    assert await store.stat("vision", PACKAGE.digest) is None
    await put(store, PACKAGE, "vision")
    await store.remove("nlp", PACKAGE.digest)
    assert await read(store, PACKAGE.digest, "vision") == PACKAGE.content


async def test_an_equal_upload_is_not_read(store: PackageStore) -> None:
    first = await put(store, PACKAGE)

    sent = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal sent
        sent += 1
        yield PACKAGE.content

    again = await store.put("nlp", PACKAGE.digest, content(), packed_bytes=PACKAGE.size)
    assert again == first
    assert sent == 0


async def test_equal_uploads_at_once_store_one_package(store: PackageStore) -> None:
    stored = await asyncio.gather(*(put(store, PACKAGE) for _ in range(8)))
    assert {one.digest for one in stored} == {PACKAGE.digest}
    assert files(store) == [f"/nlp/{PACKAGE.digest}.tar.gz"]
    assert await read(store, PACKAGE.digest) == PACKAGE.content


async def test_other_compression_is_the_same_package(store: PackageStore) -> None:
    first = package_of_tar(bytes(1000), level=9)
    second = package_of_tar(bytes(1000), level=0)
    assert first.content != second.content
    assert (await put(store, first)).digest == (await put(store, second)).digest
    assert len(files(store)) == 1


async def test_a_truncated_upload_is_not_stored(store: PackageStore) -> None:
    for size in (0, 1, 10, PACKAGE.size // 2, PACKAGE.size - 1):
        cut = PACKAGE.content[:size]
        with pytest.raises(WrongSize):
            await store.put("nlp", PACKAGE.digest, pieces(cut), packed_bytes=PACKAGE.size)
        with pytest.raises(ArchiveRefused, match="truncated"):
            await store.put("nlp", PACKAGE.digest, pieces(cut), packed_bytes=size)
    assert files(store) == []


async def test_another_digest_is_not_stored(store: PackageStore) -> None:
    with pytest.raises(WrongDigest, match=OTHER.digest):
        await store.put("nlp", PACKAGE.digest, pieces(OTHER.content), packed_bytes=OTHER.size)
    packed = hashlib.sha256(OTHER.content).hexdigest()  # the name is that of the tar, not of gzip
    with pytest.raises(WrongDigest):
        await store.put("nlp", packed, pieces(OTHER.content), packed_bytes=OTHER.size)
    assert files(store) == []


async def test_more_bytes_than_announced_are_not_stored(store: PackageStore) -> None:
    with pytest.raises(WrongSize, match=f"more than {PACKAGE.size - 1} bytes"):
        await store.put(
            "nlp", PACKAGE.digest, pieces(PACKAGE.content), packed_bytes=PACKAGE.size - 1
        )
    assert files(store) == []


async def test_an_endless_upload_ends_at_its_size(store: PackageStore) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield gzip.compress(TAR)[:1000]
        while True:
            sent += 1
            yield bytes(1000)

    with pytest.raises(ArchiveRefused):
        await store.put("nlp", PACKAGE.digest, endless(), packed_bytes=PACKAGE.size)
    assert sent < 2 * PACKAGE.size / 1000
    assert files(store) == []


async def test_bytes_after_the_package_are_not_stored(store: PackageStore) -> None:
    more = PACKAGE.content + b"more"
    with pytest.raises(ArchiveRefused, match="bytes follow its end"):
        await store.put("nlp", PACKAGE.digest, pieces(more), packed_bytes=len(more))
    assert files(store) == []


async def test_the_limits_are_checked(url: str) -> None:
    store = PackageStore(url, limits=PackageLimits(packed_bytes=PACKAGE.size - 1))
    with pytest.raises(WrongSize, match="the limit is"):
        await put(store, PACKAGE)
    bomb = package_of_tar(bytes(8 * MIB), level=9)
    assert bomb.size < 10_000
    store = PackageStore(url, limits=PackageLimits(unpacked_bytes=4 * MIB, files=1))
    with pytest.raises(ArchiveRefused, match="unpacks to more than"):
        await put(store, bomb)
    assert files(store) == []


@pytest.mark.parametrize("error", [ConnectionResetError, asyncio.CancelledError, KeyError])
async def test_an_upload_that_breaks_leaves_nothing(
    store: PackageStore, error: type[BaseException]
) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield PACKAGE.content[: CALL_BYTES + 1]
        raise error

    with pytest.raises(error):
        await store.put("nlp", PACKAGE.digest, breaking(), packed_bytes=PACKAGE.size)
    assert files(store) == []
    await put(store, PACKAGE)


async def test_a_cancelled_upload_leaves_nothing(store: PackageStore) -> None:
    begun = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield PACKAGE.content[: CALL_BYTES + 1]
        begun.set()
        await asyncio.Event().wait()

    upload = asyncio.ensure_future(
        store.put("nlp", PACKAGE.digest, stalling(), packed_bytes=PACKAGE.size)
    )
    await begun.wait()
    assert len(files(store)) == 1
    assert await store.stat("nlp", PACKAGE.digest) is None
    assert await listed(store) == []
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert files(store) == []


async def test_a_removed_package_is_gone(store: PackageStore) -> None:
    await put(store, PACKAGE)
    await put(store, OTHER)
    assert await store.remove("nlp", PACKAGE.digest)
    assert not await store.remove("nlp", PACKAGE.digest)
    assert await store.stat("nlp", PACKAGE.digest) is None
    assert await listed(store) == [("nlp", OTHER.digest)]


async def test_packages_are_listed_with_their_times(store: PackageStore) -> None:
    for project, package in (("vision", PACKAGE), ("nlp", PACKAGE), ("nlp", OTHER)):
        await put(store, package, project)
    found = [one async for one in store.packages()]
    digests = sorted((PACKAGE.digest, OTHER.digest))
    assert [(one.project, one.digest) for one in found] == [
        *(("nlp", digest) for digest in digests),
        ("vision", PACKAGE.digest),
    ]
    for one in found:
        assert one.packed_bytes in (PACKAGE.size, OTHER.size)
        assert one.used_ms == one.stored_ms
        assert 1_700_000_000_000 < one.stored_ms < 4_000_000_000_000


async def test_a_package_that_is_used_again_is_listed_with_the_time(store: PackageStore) -> None:
    before = await put(store, PACKAGE)
    await store.mark_used("nlp", PACKAGE.digest)
    (one,) = [one async for one in store.packages()]
    assert one.stored_ms == before.stored_ms <= one.used_ms
    await store.remove("nlp", PACKAGE.digest)
    assert files(store) == []


async def test_other_files_are_no_packages(store: PackageStore) -> None:
    await put(store, PACKAGE)
    for path in ("nlp/notes.txt", f"nlp/{'a' * 63}.tar.gz", f"UPPER/{'a' * 64}.tar.gz", "file"):
        store._fs.makedirs(f"{store._root}/{path}".rpartition("/")[0], exist_ok=True)
        store._fs.pipe_file(f"{store._root}/{path}", b"")
    assert await listed(store) == [("nlp", PACKAGE.digest)]
    assert await store.remove_unfinished(before_ms=2**53) == 0


async def test_what_a_killed_upload_left_is_removed_when_it_is_old(store: PackageStore) -> None:
    stored = await put(store, PACKAGE)
    left = f"{store._root}/nlp/{OTHER.digest}.{uuid.uuid4().hex}.new"
    store._fs.pipe_file(left, b"half")
    assert await store.stat("nlp", OTHER.digest) is None
    assert await store.remove_unfinished(before_ms=stored.stored_ms - 60_000) == 0
    assert await store.remove_unfinished(before_ms=stored.stored_ms + 60_000) == 1
    assert files(store) == [f"/nlp/{PACKAGE.digest}.tar.gz"]


@pytest.mark.parametrize("project", ["", "..", "a/b", "../x", "A", "a" * 64, "-a", "a\n"])
async def test_a_name_that_is_no_project_is_refused(store: PackageStore, project: str) -> None:
    for call in (store.stat, store.remove):
        with pytest.raises(ValueError, match="not a name of a project"):
            await call(project, PACKAGE.digest)
    with pytest.raises(ValueError, match="not a name of a project"):
        await put(store, PACKAGE, project)


@pytest.mark.parametrize(
    "digest", ["", "..", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"]
)
async def test_a_text_that_is_no_digest_is_refused(store: PackageStore, digest: str) -> None:
    for call in (store.stat, store.remove, lambda *given: read(store, given[1])):
        with pytest.raises(ValueError, match="not a SHA-256 digest"):
            await call("nlp", digest)


async def test_a_reader_may_stop_early(store: PackageStore) -> None:
    await put(store, PACKAGE)
    async with aclosing(store.read("nlp", PACKAGE.digest)) as content:
        async for piece in content:
            assert len(piece) == CALL_BYTES
            break
    await store.remove("nlp", PACKAGE.digest)


async def test_a_new_upload_replaces_nothing_that_is_read(store: PackageStore) -> None:
    await put(store, PACKAGE)
    content = store.read("nlp", PACKAGE.digest)
    first = await anext(content)
    await store.remove("nlp", PACKAGE.digest)
    await put(store, PACKAGE)
    assert first + b"".join([piece async for piece in content]) == PACKAGE.content


# --- a store that fails or hangs -----------------------------------------------------------------


class Hang:
    """Makes calls of a file system hang until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch, fs: Any, *names: str) -> None:
        self.entered = 0
        self._release = threading.Event()
        for name in names:
            patch.setattr(fs, name, self._hanging(getattr(fs, name)), raising=False)

    def _hanging(self, call: Any) -> Any:
        def hang(*given: Any, **named: Any) -> Any:
            self.entered += 1
            self._release.wait(30)
            return call(*given, **named)

        return hang

    def has_entered(self, times: int) -> bool:
        return self.entered == times

    def release(self) -> None:
        self._release.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads set no event of the loop
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["info", "open", "mv"])
async def test_a_store_that_hangs_is_unavailable_after_the_deadline(
    url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = PackageStore(url, deadline_s=0.2)
    hang = Hang(monkeypatch, store._fs, name)
    try:
        with pytest.raises(PackagesUnavailable, match=r"no answer within 0\.2 s"):
            await put(store, PACKAGE)
    finally:
        hang.release()
        monkeypatch.undo()
    await until(lambda: store._calls._hung == 0)
    assert files(store) in ([], [f"/nlp/{PACKAGE.digest}.tar.gz"])
    assert (await put(PackageStore(url), PACKAGE)).packed_bytes == PACKAGE.size


async def test_a_hanging_store_takes_a_bounded_number_of_threads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PackageStore(url, deadline_s=0.05)
    hang = Hang(monkeypatch, store._fs, "info")
    try:
        for _ in range(MAX_HUNG):
            with pytest.raises(PackagesUnavailable, match="no answer"):
                await store.stat("nlp", PACKAGE.digest)
        with pytest.raises(PackagesUnavailable, match=f"{MAX_HUNG} earlier calls have not ended"):
            await store.stat("nlp", PACKAGE.digest)
        assert hang.entered == MAX_HUNG
    finally:
        hang.release()
    await until(lambda: store._calls._hung == 0)
    assert await store.stat("nlp", PACKAGE.digest) is None


async def test_cancelled_calls_that_hang_count_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that disconnect must not take a thread each."""
    store = PackageStore(url, deadline_s=5)
    hang = Hang(monkeypatch, store._fs, "info")
    try:
        for number in range(MAX_HUNG):
            call = asyncio.ensure_future(store.stat("nlp", PACKAGE.digest))
            await until(partial(hang.has_entered, number + 1))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        with pytest.raises(PackagesUnavailable, match="earlier calls"):
            await store.stat("nlp", PACKAGE.digest)
    finally:
        hang.release()
    await until(lambda: store._calls._hung == 0)


async def every_call(store: PackageStore) -> None:
    await put(store, PACKAGE)
    await listed(store)
    await store.remove("nlp", PACKAGE.digest)


@pytest.mark.parametrize("name", ["open", "mv", "makedirs", "ls", "info", "rm_file"])
async def test_an_error_of_the_store_is_unavailable_with_its_words(
    url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = PackageStore(url)

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the bucket is closed")

    with monkeypatch.context() as patched:
        patched.setattr(store._fs, name, failing)
        with pytest.raises(PackagesUnavailable, match="RuntimeError: the bucket is closed"):
            await every_call(store)
    await put(store, PACKAGE)
    assert await listed(store) == [("nlp", PACKAGE.digest)]


def test_a_url_that_names_no_store_is_refused() -> None:
    with pytest.raises(PackagesUnavailable, match="nowhere"):
        PackageStore("nowhere://x/y")


async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "packages").write_bytes(b"a file in place of the folder")
    with pytest.raises(PackagesUnavailable):
        await put(PackageStore(str(tmp_path / "packages")), PACKAGE)


async def test_a_full_disk_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PackageStore(url)
    opened = store._fs.open

    def full(*given: Any, **named: Any) -> Any:
        file = opened(*given, **named)
        return Full(file)

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self._file.close()

    with monkeypatch.context() as patched:
        patched.setattr(store._fs, "open", full)
        with pytest.raises(PackagesUnavailable, match="No space left"):
            await put(store, PACKAGE)
    assert files(store) == []


async def test_the_content_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    synced = os.fsync

    def record(number: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{number}").rpartition("/")[2])
        synced(number)

    store = PackageStore(str(tmp_path / "packages"))
    monkeypatch.setattr(os, "fsync", record)
    await put(store, PACKAGE)
    temporary, folder = order
    assert temporary.endswith(".new")
    assert folder == "nlp"


async def test_memory_does_not_depend_on_the_size_of_a_package(tmp_path: Path) -> None:
    """The largest piece that is in memory is that of one call."""
    part = random.Random(2).randbytes(MIB)

    def parts() -> Iterable[bytes]:
        compressor = zlib.compressobj(0, zlib.DEFLATED, 31)
        for _ in range(24):
            yield compressor.compress(part)
        yield compressor.flush()

    digest = hashlib.sha256(part * 24).hexdigest()
    size = sum(map(len, parts()))

    async def content() -> AsyncIterator[bytes]:
        for one in parts():
            for start in range(0, len(one), 65_536):
                yield one[start : start + 65_536]

    store = PackageStore(str(tmp_path / "packages"))
    tracemalloc.start()
    try:
        await store.put("nlp", digest, content(), packed_bytes=size)
        async for _ in store.read("nlp", digest):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
