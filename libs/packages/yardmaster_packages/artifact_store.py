"""Artifacts at an fsspec URL: `PROJECT/TASK/ATTEMPT.REPLICA/NUMBER`, and `index.json` in each.

The files have numbers, so that no path of a user becomes a path of the store. `index.json` names
them with sizes and digests. It is written last: without it, nothing of the replica is kept yet.
"""

import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from yardmaster_packages.artifact_files import FoundFile, FoundFiles, LeftOut, opened_below
from yardmaster_packages.errors import (
    ArtifactDamaged,
    ArtifactNotFound,
    ArtifactsUnavailable,
    PackageError,
)
from yardmaster_packages.file_systems import children, remove_file, sync_folder, written_ms
from yardmaster_packages.limits import MIB
from yardmaster_packages.paths import problem_of_path
from yardmaster_packages.store_calls import CALL_BYTES, DEADLINE_S, MAX_HUNG, StoreCalls

#: The largest index that is read: the paths of the most files, each of the greatest length.
MAX_INDEX_BYTES: Final = 64 * MIB
_INDEX: Final = "index.json"
_PROJECT: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_TASK: Final = re.compile(r"[0-9a-z]{12}\.(0|[1-9][0-9]{0,3})")
_REPLICA: Final = re.compile(r"([1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ArtifactPlace:
    """Where the artifacts of one replica in one attempt are stored.

    Raises: ValueError: a value cannot be part of a path of the store.
    """

    project: str
    task_id: str
    attempt: int
    replica: int

    def __post_init__(self) -> None:
        if not _PROJECT.fullmatch(self.project):
            raise ValueError(f"{self.project!r} is no name of a project")
        if not _TASK.fullmatch(self.task_id):
            raise ValueError(f"{self.task_id!r} is no id of a task")
        if not _REPLICA.fullmatch(f"{self.attempt}.{self.replica}"):
            raise ValueError(f"{self.attempt}.{self.replica} is no attempt and replica")

    @property
    def folder(self) -> str:
        """The folder, relative to the root of the store."""
        return f"{self.project}/{self.task_id}/{self.attempt}.{self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A stored file of a replica."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    path: str
    size_bytes: Annotated[int, Field(ge=0)]
    #: The SHA-256 of its content.
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def __post_init__(self) -> None:
        problem = problem_of_path(self.path)
        if problem is not None:
            raise ValueError(f"a path is refused: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactIndex:
    """All that is kept of one replica in one attempt; file N of `files` is stored as `N`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    files: tuple[Artifact, ...]
    #: The first paths that the patterns selected and that are not kept.
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: Annotated[int, Field(ge=0)] = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(artifact.size_bytes for artifact in self.files)


_INDEXES: Final = TypeAdapter(ArtifactIndex)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifacts:
    """All that the store has of one replica in one attempt, whether whole or not."""

    place: ArtifactPlace
    size_bytes: int
    files: int
    #: When its newest file was written, in milliseconds since 1970, by the store's clock.
    written_ms: int


class ArtifactStore:
    """Artifacts below a URL: a folder's path, `memory://...`, or any other URL of fsspec.

    Every method raises ArtifactsUnavailable when the store cannot be reached, or does not answer a
    call within `deadline_s` seconds. `executor` runs the calls; None: each has its own thread.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = DEADLINE_S,
        executor: Executor | None = None,
    ) -> None:
        self.url = url
        self._calls = StoreCalls(
            "artifacts",
            deadline_s=deadline_s,
            max_hung=MAX_HUNG,
            executor=executor,
            unavailable=lambda found: ArtifactsUnavailable(url=url, found=found),
            passed_on=(PackageError, _Unreadable),
        )
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ArtifactsUnavailable(url=url, found=str(error)) from error
        self._root = root.rstrip("/")

    async def keep(self, place: ArtifactPlace, folder: Path, found: FoundFiles) -> ArtifactIndex:
        """Store files of a folder; return what is kept.

        A file that cannot be read, or that became shorter, is left out. If the replica has an
        index already, nothing is changed.
        """
        stored = await self.index(place)
        if stored is not None:
            return stored
        artifacts: list[Artifact] = []
        for file in found.files:
            # A file that is left out leaves no gap: the next one gets its number.
            target = f"{self._root}/{place.folder}/{len(artifacts)}"
            copied = await self._copy(folder, file, target, found)
            if copied is not None:
                artifacts.append(copied)
        index = ArtifactIndex(
            files=tuple(artifacts),
            left_out=tuple(found.left_out),
            left_out_count=found.left_out_count,
        )
        path = f"{self._root}/{place.folder}/{_INDEX}"
        await self._calls.run(partial(self._publish, path, _INDEXES.dump_json(index)))
        return index

    async def index(self, place: ArtifactPlace) -> ArtifactIndex | None:
        """Return what is kept of a replica; None if nothing is kept, or not yet.

        Raises: ArtifactDamaged.
        """
        path = f"{self._root}/{place.folder}/{_INDEX}"
        content = await self._calls.run(partial(self._read_index, path))
        if content is None:
            return None
        try:
            return _INDEXES.validate_json(content)
        except ValidationError as error:
            raise ArtifactDamaged(path=f"{place.folder}/{_INDEX}", found=str(error)) from error

    async def places(self, project: str, task_id: str) -> list[ArtifactPlace]:
        """Return the attempts and replicas of a task that have files in the store, sorted."""
        task = ArtifactPlace(project=project, task_id=task_id, attempt=1, replica=0)
        return await self._calls.run(partial(self._places, task))

    async def read(self, place: ArtifactPlace, number: int) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in pieces of at most `CALL_BYTES`; it is not verified.

        A caller that may stop before the end closes the generator (`contextlib.aclosing`).

        Raises: ArtifactNotFound.
        """
        path = f"{self._root}/{place.folder}/{number}"

        def opened() -> Any:
            try:
                return self._fs.open(path, "rb")
            except FileNotFoundError:
                raise ArtifactNotFound(path=f"{place.folder}/{number}") from None

        async with aclosing(self._calls.read(opened)) as pieces:
            async for piece in pieces:
                yield piece

    async def stored(self) -> AsyncIterator[StoredArtifacts]:
        """Yield what the store has of all replicas, ordered by place."""
        for project in await self._names(self._root, _PROJECT):
            for task_id in await self._names(f"{self._root}/{project}", _TASK):
                task = ArtifactPlace(project=project, task_id=task_id, attempt=1, replica=0)
                for one in await self._calls.run(partial(self._stored, task)):
                    yield one

    async def remove(self, place: ArtifactPlace) -> None:
        """Remove all that the store has of one replica in one attempt."""
        await self._calls.run(partial(self._remove, place))

    async def remove_job(self, project: str, job_id: str) -> int:
        """Remove all that the store has of the tasks of a job; return the number of replicas."""
        removed = 0
        for task_id in await self._names(f"{self._root}/{project}", _TASK):
            if task_id.partition(".")[0] == job_id:
                for place in await self.places(project, task_id):
                    await self.remove(place)
                    removed += 1
        return removed

    async def _copy(
        self, folder: Path, file: FoundFile, target: str, found: FoundFiles
    ) -> Artifact | None:
        copy = _Copy(self._fs, folder, file, target)
        try:
            while await self._calls.run(copy.step):
                pass
            return Artifact(path=file.path, size_bytes=file.size_bytes, digest=copy.digest)
        except _Unreadable as error:
            found.leave_out(file.path, str(error))
            return None
        finally:
            with suppress(ArtifactsUnavailable):
                await self._calls.run(copy.close)

    def _publish(self, path: str, content: bytes) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        new = f"{path}.new"
        self._fs.pipe_file(new, content)
        self._fs.mv(new, path)
        if isinstance(self._fs, LocalFileSystem):
            sync_folder(path.rpartition("/")[0])
            self._give(path.rpartition("/")[0])

    def _give(self, folder: str) -> None:
        """Give what root has written to the owner of the store: a gateway is to remove it later."""
        owner = os.stat(self._root)
        if os.geteuid() != 0 or owner.st_uid == 0:
            return
        above = [folder.rsplit("/", up)[0] for up in (2, 1)]
        for path in (*above, folder, *(f"{folder}/{name}" for name in os.listdir(folder))):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _read_index(self, path: str) -> bytes | None:
        try:
            with self._fs.open(path, "rb") as file:
                content: bytes = file.read(MAX_INDEX_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(content) > MAX_INDEX_BYTES:
            raise ArtifactDamaged(path=_INDEX, found=f"it has more than {MAX_INDEX_BYTES} bytes")
        return content

    async def _names(self, folder: str, pattern: re.Pattern[str]) -> list[str]:
        found = await self._calls.run(partial(children, self._fs, folder))
        return sorted(name for name in found if pattern.fullmatch(name))

    def _places(self, task: ArtifactPlace) -> list[ArtifactPlace]:
        folder = f"{self._root}/{task.project}/{task.task_id}"
        matches = map(_REPLICA.fullmatch, children(self._fs, folder))
        return sorted(
            replace(task, attempt=int(match[1]), replica=int(match[2]))
            for match in matches
            if match is not None
        )

    def _stored(self, task: ArtifactPlace) -> list[StoredArtifacts]:
        found = []
        for place in self._places(task):
            files = children(self._fs, f"{self._root}/{place.folder}").values()
            found.append(
                StoredArtifacts(
                    place=place,
                    size_bytes=sum(int(info["size"]) for info in files),
                    files=len(files),
                    written_ms=max((written_ms(self._fs, info) for info in files), default=0),
                )
            )
        return found

    def _remove(self, place: ArtifactPlace) -> None:
        folder = f"{self._root}/{place.folder}"
        # The index comes first: what is removed in part counts as not kept.
        names: Iterable[str] = (_INDEX, *children(self._fs, folder))
        for name in names:
            remove_file(self._fs, f"{folder}/{name}")
        # A store of objects has no folders; a local folder stays while something is in it.
        for empty in (folder, folder.rpartition("/")[0]):
            with suppress(OSError, NotImplementedError):
                self._fs.rmdir(empty)


class _Unreadable(Exception):
    """A file cannot be kept; the message says why."""


class _Copy:
    """Copies one file in steps. A lock keeps a call that was given up from the next one."""

    def __init__(self, fs: Any, folder: Path, file: FoundFile, target: str) -> None:
        self._fs = fs
        self._folder = folder
        self._file = file
        self._target = target
        self._lock = threading.Lock()
        self._hash = sha256()
        self._into: Any = None
        self._offset = 0
        self._closed = False

    @property
    def digest(self) -> str:
        """The SHA-256 of all that was copied."""
        return self._hash.hexdigest()

    def step(self) -> bool:
        """Copy the next bytes; return False once all are copied and the target is complete.

        Raises: _Unreadable.
        """
        with self._lock:
            if self._closed:
                return False
            data = self._next()
            if self._into is None:
                self._fs.makedirs(self._target.rpartition("/")[0], exist_ok=True)
                self._into = self._fs.open(self._target, "wb")
            self._into.write(data)
            self._hash.update(data)
            self._offset += len(data)
            if self._offset < self._file.size_bytes:
                return True
            self._into.close()
            self._closed = True
            return False

    def _next(self) -> bytes:
        size = min(CALL_BYTES, self._file.size_bytes - self._offset)
        try:
            with opened_below(self._folder, self._file.path) as opened:
                data = os.pread(opened, size, self._offset)
        except OSError as error:
            raise _Unreadable((error.strerror or str(error)).lower()) from error
        if len(data) < size:
            raise _Unreadable("it became shorter while it was read")
        return data

    def close(self) -> None:
        """Close a target that is not complete; the next try, or the expiry, replaces it."""
        with self._lock:
            if not self._closed and self._into is not None:
                self._closed = True
                self._into.close()
