"""Packages at an fsspec URL: `PROJECT/DIGEST.tar.gz`, and `DIGEST.used` when they are used again.

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
from dataclasses import dataclass, replace
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
from yardmaster_packages.file_systems import children, remove_file, sync_folder, written_ms
from yardmaster_packages.gunzip import Gunzip
from yardmaster_packages.limits import PackageLimits
from yardmaster_packages.store_calls import CALL_BYTES, DEADLINE_S, MAX_HUNG, StoreCalls

_PROJECT: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FILE: Final = re.compile(r"([0-9a-f]{64})\.tar\.gz")
_USED: Final = re.compile(r"([0-9a-f]{64})\.used")
_TEMPORARY: Final = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}\.new")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPackage:
    """A package that a project has uploaded."""

    project: str
    digest: str
    #: Bytes of the compressed archive.
    packed_bytes: int
    #: When it was written, in milliseconds since 1970, by the store's clock.
    stored_ms: int
    #: When a job was last submitted with it, at least `stored_ms`; only `packages` knows it.
    used_ms: int = 0


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

        async with aclosing(self._calls.read(opened)) as pieces:
            async for piece in pieces:
                yield piece

    async def remove(self, project: str, digest: str) -> bool:
        """Remove a package; return whether it was stored."""
        path = self._path(project, digest)
        await self._calls.run(partial(remove_file, self._fs, _mark(path)))
        return await self._calls.run(partial(remove_file, self._fs, path))

    async def mark_used(self, project: str, digest: str) -> None:
        """Record that a job is submitted now with a package that is stored."""
        path = self._path(project, digest)
        await self._calls.run(partial(self._fs.pipe_file, _mark(path), b""))

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
            lambda: sorted(
                name for name in children(self._fs, self._root) if _PROJECT.fullmatch(name)
            )
        )

    def _list(self, project: str) -> list[StoredPackage]:
        infos = children(self._fs, f"{self._root}/{project}")
        used = {
            match[1]: written_ms(self._fs, info)
            for name, info in infos.items()
            if (match := _USED.fullmatch(name))
        }
        packages = [
            self._package(project, match[1], info)
            for name, info in sorted(infos.items())
            if (match := _FILE.fullmatch(name))
        ]
        return [
            replace(one, used_ms=max(one.stored_ms, used.get(one.digest, 0))) for one in packages
        ]

    def _remove_unfinished(self, project: str, before_ms: int) -> int:
        return sum(
            remove_file(self._fs, f"{self._root}/{project}/{name}")
            for name, info in children(self._fs, f"{self._root}/{project}").items()
            if _TEMPORARY.fullmatch(name) and written_ms(self._fs, info) < before_ms
        )

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
            stored_ms=written_ms(self._fs, info),
        )

    def _path(self, project: str, digest: str) -> str:
        if not _PROJECT.fullmatch(project):
            raise ValueError(f"{project!r} is not a name of a project")
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a SHA-256 digest")
        return f"{self._root}/{project}/{digest}.tar.gz"


def _mark(path: str) -> str:
    """Return the path of the file that says when a package was last used."""
    return path.removesuffix(".tar.gz") + ".used"


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
                sync_folder(path.rpartition("/")[0])

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
