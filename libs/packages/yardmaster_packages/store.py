"""Packages at an fsspec URL: `PROJECT/DIGEST.tar.gz`.

A package is written under a temporary name and moved when its digest and size are verified, so a
reader never sees an incomplete one. Projects do not share packages, so that a digest does not
reveal what another project has uploaded.
"""

import os
import re
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from yardmaster_packages.errors import (
    PackageError,
    PackageNotFound,
    PackagesUnavailable,
    WrongSize,
)
from yardmaster_packages.gunzip import Gunzip
from yardmaster_packages.limits import MIB, PackageLimits
from yardmaster_packages.store_calls import StoreCalls

#: Seconds after which a call counts as unanswered; a call transfers at most a few MiB.
DEADLINE_S: Final = 30.0
#: No call begins while this many calls have been given up and have not ended.
MAX_HUNG: Final = 16
#: Bytes that one call of the store reads or writes.
CALL_BYTES: Final = MIB
_PROJECT: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FILE: Final = re.compile(r"([0-9a-f]{64})\.tar\.gz")
_TEMPORARY: Final = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}\.new")
#: Under these keys file systems of fsspec say when a file was written.
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPackage:
    """A package that a project has uploaded."""

    project: str
    digest: str
    #: Bytes of the compressed archive.
    packed_bytes: int
    #: When it was written, in milliseconds since 1970, by the store's clock.
    stored_ms: int

    def age_s(self, now_ms: int) -> float:
        """Seconds since the package was written; 0 if the store's clock is ahead."""
        return max(0, now_ms - self.stored_ms) / 1000


class PackageStore:
    """Packages below a URL: a folder's path, `memory://...`, or any other URL of fsspec.

    `options` go to fsspec (credentials, endpoints). Every method raises PackagesUnavailable when
    the store cannot be reached, or does not answer a call within `deadline_s` seconds. `executor`
    runs the calls; None: each call has a thread of its own. A method raises ValueError for a
    project or digest that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: PackageLimits | None = None,
        options: Mapping[str, Any] | None = None,
        deadline_s: float = DEADLINE_S,
        executor: Executor | None = None,
    ) -> None:
        self.url = url
        self.limits = PackageLimits() if limits is None else limits
        self._calls = StoreCalls(
            "packages",
            deadline_s=deadline_s,
            max_hung=MAX_HUNG,
            executor=executor,
            unavailable=lambda found: PackagesUnavailable(url=url, found=found),
            passed_on=(PackageError,),
        )
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **dict(options or {}))
        except (ImportError, ValueError) as error:
            raise PackagesUnavailable(url=url, found=str(error)) from error
        self._root = root.rstrip("/")

    async def put(
        self, project: str, digest: str, content: AsyncIterable[bytes], *, packed_bytes: int
    ) -> StoredPackage:
        """Store a package whole or not at all; `packed_bytes` is the size of `content`.

        A package that is stored already is not read. Two equal uploads at once store one package.

        Raises:
            WrongSize: the content has another size, or exceeds the limit.
            WrongDigest: the content has another digest.
            ArchiveRefused: the content is no complete gzip file, or unpacks to too many bytes.
        """
        path = self._path(project, digest)
        found = await self.stat(project, digest)
        if found is not None:
            return found
        gunzip = Gunzip(digest, packed_bytes, self.limits)
        new = f"{self._root}/{project}/{digest}.{uuid.uuid4().hex}.new"
        upload = _Upload(self._fs, new, gunzip)
        try:
            async with aclosing(_joined(content, digest, packed_bytes)) as pieces:
                async for piece in pieces:
                    await self._calls.run(partial(upload.write, piece))
            await self._calls.run(partial(upload.publish, path))
        except BaseException:
            # If the store is away, `remove_unfinished` removes the file later.
            with suppress(PackagesUnavailable):
                await self._calls.run(upload.discard)
            raise
        stored = await self.stat(project, digest)
        if stored is None:
            raise PackagesUnavailable(url=self.url, found=f"{path} is gone after it was written")
        return stored

    async def stat(self, project: str, digest: str) -> StoredPackage | None:
        """Return the package of a project; None if it is not stored."""
        path = self._path(project, digest)
        return await self._calls.run(partial(self._stat, project, digest, path))

    async def exists(self) -> bool:
        """Whether there is anything at the URL; a folder that is not mounted has nothing."""
        return await self._calls.run(lambda: bool(self._fs.exists(self._root)))

    async def read(self, project: str, digest: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a package in pieces of at most `CALL_BYTES`; it is not verified.

        A caller that may stop before the end closes the generator (`contextlib.aclosing`).

        Raises: PackageNotFound.
        """
        path = self._path(project, digest)

        def opened() -> Any:
            try:
                return self._fs.open(path, "rb")
            except FileNotFoundError:
                raise PackageNotFound(project=project, digest=digest) from None

        file = await self._calls.run(opened)
        answers = True
        try:
            while piece := await self._calls.run(partial(file.read, CALL_BYTES)):
                yield piece
        except PackagesUnavailable:
            answers = False  # the file may still be in use by the call that was given up
            raise
        finally:
            if answers:
                await self._calls.run(file.close)

    async def remove(self, project: str, digest: str) -> bool:
        """Remove a package; return whether it was stored."""
        path = self._path(project, digest)
        return await self._calls.run(partial(self._remove, path))

    async def packages(self) -> AsyncIterator[StoredPackage]:
        """Yield the packages of all projects, ordered by project and digest."""
        for project in await self._projects():
            for package in await self._calls.run(partial(self._list, project)):
                yield package

    async def remove_unfinished(self, *, before_ms: int) -> int:
        """Remove what uploads left that were written last before a time; return their number.

        Only an upload whose process was killed leaves a file. `before_ms` must be earlier than the
        start of every upload that still runs.
        """
        removed = 0
        for project in await self._projects():
            removed += await self._calls.run(partial(self._remove_unfinished, project, before_ms))
        return removed

    async def _projects(self) -> list[str]:
        return await self._calls.run(
            lambda: sorted(name for name in self._infos(self._root) if _PROJECT.fullmatch(name))
        )

    def _list(self, project: str) -> list[StoredPackage]:
        return [
            self._package(project, match[1], info)
            for name, info in sorted(self._infos(f"{self._root}/{project}").items())
            if (match := _FILE.fullmatch(name))
        ]

    def _remove_unfinished(self, project: str, before_ms: int) -> int:
        return sum(
            self._remove(f"{self._root}/{project}/{name}")
            for name, info in self._infos(f"{self._root}/{project}").items()
            if _TEMPORARY.fullmatch(name) and self._stored_ms(info) < before_ms
        )

    def _infos(self, folder: str) -> dict[str, dict[str, Any]]:
        """Information about what a folder contains, by name."""
        self._fs.invalidate_cache(folder)  # a cached listing hides the files of another process
        try:
            found = self._fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {info["name"].rstrip("/").rsplit("/", 1)[-1]: info for info in found}

    def _stat(self, project: str, digest: str, path: str) -> StoredPackage | None:
        self._fs.invalidate_cache(f"{self._root}/{project}")
        try:
            return self._package(project, digest, self._fs.info(path))
        except FileNotFoundError:
            return None

    def _package(self, project: str, digest: str, info: Mapping[str, Any]) -> StoredPackage:
        return StoredPackage(
            project=project,
            digest=digest,
            packed_bytes=int(info["size"]),
            stored_ms=self._stored_ms(info),
        )

    def _stored_ms(self, info: Mapping[str, Any]) -> int:
        found: Any = next((info[key] for key in _TIMES if info.get(key) is not None), None)
        if isinstance(found, str):
            found = datetime.fromisoformat(found)
        elif found is None:
            found = self._fs.modified(info["name"])
        if isinstance(found, datetime):
            found = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
        return int(found * 1000)

    def _remove(self, path: str) -> bool:
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, project: str, digest: str) -> str:
        if not _PROJECT.fullmatch(project):
            raise ValueError(f"{project!r} is not a name of a project")
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a SHA-256 digest")
        return f"{self._root}/{project}/{digest}.tar.gz"


class _Upload:
    """A package under its temporary name. A lock keeps a call that was given up from the next."""

    def __init__(self, fs: Any, new: str, gunzip: Gunzip) -> None:
        self._fs = fs
        self._new = new
        self._gunzip = gunzip
        self._lock = threading.Lock()
        self._file: Any = None
        self._ended = False

    def write(self, data: bytes) -> None:
        """Verify and append the next bytes.

        Raises: ArchiveRefused, WrongSize.
        """
        with self._lock:
            if self._ended:
                return
            if self._file is None:
                self._fs.makedirs(self._new.rpartition("/")[0], exist_ok=True)
                self._file = self._fs.open(self._new, "wb")
            for _ in self._gunzip.feed(data):
                pass  # the decompressed bytes are counted and hashed
            self._file.write(data)

    def publish(self, path: str) -> None:
        """Verify the whole package, and give it its name.

        Raises: ArchiveRefused, WrongSize, WrongDigest.
        """
        with self._lock:
            if self._ended:
                return
            self._gunzip.finish()
            local = isinstance(self._fs, LocalFileSystem)
            if local:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            self._fs.mv(self._new, path)
            self._ended = True
            if local:
                _sync_folder(path.rpartition("/")[0])

    def discard(self) -> None:
        """Remove the temporary file."""
        with self._lock:
            if self._ended or self._file is None:
                self._ended = True
                return
            self._ended = True
            self._file.close()
            try:
                self._fs.rm_file(self._new)
            except FileNotFoundError:
                return


def _sync_folder(folder: str) -> None:
    """Make the names in a local folder durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def _joined(
    content: AsyncIterable[bytes], digest: str, packed_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Yield the content in pieces that are worth a call; stop before more than its size is kept.

    Raises: WrongSize.
    """
    parts: list[bytes] = []
    waiting = size = 0
    async for part in content:
        size += len(part)
        if size > packed_bytes:
            raise WrongSize(digest=digest, found=f"it has more than {packed_bytes} bytes")
        parts.append(part)
        waiting += len(part)
        if waiting >= CALL_BYTES:
            yield b"".join(parts)
            parts, waiting = [], 0
    yield b"".join(parts)
