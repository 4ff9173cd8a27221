"""The working folders of replicas whose job has code: an uploaded folder, or a commit of git.

The agent keeps the archives of packages in a cache, and unpacks one for every replica: so each has
a folder of its own that it may change, and no replica can reach what another one gets. Unpacking
verifies the digest every time, so a damaged archive is noticed, and fetched again.
"""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from yardmaster_node_agent.agent_state import ReplicaKey, TaskUser
from yardmaster_node_agent.errors import GitFailed, RunRefused, SecretMissing
from yardmaster_node_agent.executors.port import Launch
from yardmaster_node_agent.executors.task_user import open_way
from yardmaster_node_agent.git_commits import GitCommits, archive_key
from yardmaster_node_agent.git_login import GitLogin
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_packages.errors import ArchiveRefused, PackageNotFound, PackagesUnavailable
from yardmaster_packages.limits import PackageLimits
from yardmaster_packages.store import PackageStore, StoredPackage
from yardmaster_packages.unpacking import unpack
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.events.details import GitCommit
from yardmaster_schemas.reasons import StartFailure

T = TypeVar("T")

_ARCHIVE: Final = ".tar.gz"


class CodeFolders(Protocol):
    """Gives replicas their working folders."""

    async def prepare(self, launch: Launch, project: str, metrics: AgentMetrics) -> Launch:
        """Return the launch with the replica's copy of its code as its working directory.

        A launch without code is returned as it is.

        Raises:
            RunRefused: the folder cannot be provided; `failure` says whether on no node.
        """

    def folder(self, key: ReplicaKey) -> Path | None:
        """Return the working folder of a replica; None if it has none."""

    def forget(self, key: ReplicaKey) -> bool:
        """Remove the folder of a released replica; return whether nothing of it is left."""

    def keep_only(self, keys: Iterable[ReplicaKey]) -> None:
        """Remove the folders of all other replicas, and what a killed agent has left."""


async def prepare_unless(
    stopping: asyncio.Event, folders: CodeFolders, launch: Launch, project: str, m: AgentMetrics
) -> Launch:
    """Return the prepared launch; if `stopping` is set meanwhile, the launch as it was.

    Raises:
        RunRefused.
    """
    if launch.run.context is None and launch.run.git is None:
        return launch
    found = launch

    async def prepare() -> None:
        nonlocal found
        found = await folders.prepare(launch, project, m)

    await first_of(prepare(), stopping.wait())
    return found


class NoCode:
    """For simulated replicas, which run no programs."""

    async def prepare(self, launch: Launch, project: str, metrics: AgentMetrics) -> Launch:
        return launch

    def folder(self, key: ReplicaKey) -> None:
        return None

    def forget(self, key: ReplicaKey) -> bool:
        """There is no folder."""
        return True

    def keep_only(self, keys: Iterable[ReplicaKey]) -> None:
        """There are no folders."""


class UnpackedCode:
    """Folders of real replicas below `root`: `replicas/KEY`, and the archives in `cache`.

    Args:
        store: where packages are fetched; None: the node has no setting, and starts no replica
            with a context.
        git: where commits are fetched.
        cache_bytes: the archives that are kept; the least recently used ones are removed. The
            archive that was fetched last is kept in any case.
        isolated: whether other users than the agent's own use the folders.
    """

    def __init__(
        self,
        root: Path,
        store: PackageStore | None,
        *,
        limits: PackageLimits,
        git: GitCommits,
        cache_bytes: int,
        isolated: bool,
        telemetry: Telemetry,
    ) -> None:
        self._cache = root / "cache"
        self._folders = root / "replicas"
        #: Of commits that are being fetched.
        self._fetching = root / "fetching"
        self._root = root
        self._store = store
        self._limits = limits
        self._git = git
        self._cache_bytes = cache_bytes
        self._isolated = isolated
        self._telemetry = telemetry
        #: By the archive's name, so that replicas that start together fetch it once.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, launch: Launch, project: str, metrics: AgentMetrics) -> Launch:
        git = launch.run.git
        if launch.run.context is None and git is None:
            return launch
        try:
            if git is not None:
                folder = await self._committed(git, launch, project, metrics)
            else:
                folder = await self._stored(launch, project, metrics)
        except GitFailed as error:
            raise _refused(launch, str(error), error.failure) from error
        except (ArchiveRefused, PackageNotFound) as error:
            raise _refused(launch, str(error), StartFailure.CONTEXT_MISSING) from error
        except SecretMissing as error:
            raise _refused(launch, str(error), StartFailure.SECRET_MISSING) from error
        except _NodeCannot as error:
            raise _refused(launch, str(error)) from error
        except PackagesUnavailable as error:
            # The URL of the store and the cause are for the operator, not for the job's user.
            self._telemetry.warn("packages_unavailable", code=error.code, found=str(error)[:500])
            raise _refused(launch, "the store of packages is unavailable on this node") from error
        except OSError as error:
            raise _refused(launch, f"its context cannot be unpacked: {error.strerror}") from error
        working_dir = str(folder / (launch.run.working_dir or ""))
        run = replace(launch.run, working_dir=working_dir)
        return replace(launch, run=run, code=folder)

    def folder(self, key: ReplicaKey) -> Path | None:
        folder = self._folders / str(key)
        return folder if folder.is_dir() else None

    def forget(self, key: ReplicaKey) -> bool:
        folder = self._folders / str(key)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    def keep_only(self, keys: Iterable[ReplicaKey]) -> None:
        kept = {str(key) for key in keys}
        with suppress(FileNotFoundError):
            for folder in self._folders.iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._fetching, ignore_errors=True)
        with suppress(FileNotFoundError):
            for path in self._cache.iterdir():
                if not path.name.endswith(_ARCHIVE):
                    path.unlink(missing_ok=True)

    async def _stored(self, launch: Launch, project: str, metrics: AgentMetrics) -> Path:
        """Unpack a package for a replica; return the folder.

        Raises:
            ArchiveRefused, PackageNotFound, PackagesUnavailable, OSError, _NodeCannot.
        """
        store, context = self._store, launch.run.context
        if store is None or context is None:
            raise _NodeCannot("this node fetches no packages: its YARD_PACKAGES is empty")
        digest = context.digest
        self._make_folders()
        folder, user = self._folders / str(launch.key), launch.user
        archive = self._cache / f"{project}-{digest}{_ARCHIVE}"
        lock = self._locks.setdefault(archive.name, asyncio.Lock())
        async with lock:
            cached = archive.exists()
            if not cached:
                await self._fetch(store, archive, project, digest)
            self._keep_limit(archive, metrics)
        metrics.code_packages.labels("cache" if cached else "store").inc()
        try:
            await _in_thread(lambda: self._unpack(archive, folder, digest, user))
        except (ArchiveRefused, FileNotFoundError):
            # The archive is damaged, or was removed from the cache meanwhile. What was just
            # fetched is judged; what was in the cache is fetched again.
            async with lock:
                await self._fetch(store, archive, project, digest)
                try:
                    await _in_thread(lambda: self._unpack(archive, folder, digest, user))
                except ArchiveRefused:
                    archive.unlink(missing_ok=True)
                    raise
        return folder

    async def _committed(
        self, git: GitCommit, launch: Launch, project: str, metrics: AgentMetrics
    ) -> Path:
        """Unpack the files of a commit for a replica; return the folder.

        The secret is needed even if the commit is in the cache.

        Raises:
            GitFailed, SecretMissing, ArchiveRefused, OSError.
        """
        login = self._git.login(git, project)
        self._make_folders()
        folder, user = self._folders / str(launch.key), launch.user
        name = f"git-{archive_key(git, project)}"
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            # The name of an archive ends with the digest, which unpacking verifies.
            archive = next(iter(self._cache.glob(f"{name}-*{_ARCHIVE}")), None)
            metrics.code_packages.labels("cache" if archive else "git").inc()
            if archive is not None:
                digest = _digest_of(archive)
                try:
                    await _in_thread(lambda: self._unpack(archive, folder, digest, user))
                except (ArchiveRefused, FileNotFoundError):
                    archive.unlink(missing_ok=True)
                else:
                    return folder
            fetched = await self._fetch_commit(git, login, name)
            digest = _digest_of(fetched)
            self._keep_limit(fetched, metrics)
            await _in_thread(lambda: self._unpack(fetched, folder, digest, user))
        return folder

    async def _fetch_commit(self, git: GitCommit, login: GitLogin | None, name: str) -> Path:
        new = self._cache / f"{name}.{uuid.uuid4().hex}.new"
        try:
            digest = await self._git.pack(git, login, self._fetching, new)
            archive = self._cache / f"{name}-{digest}{_ARCHIVE}"
            new.rename(archive)
        finally:
            new.unlink(missing_ok=True)
        return archive

    def _make_folders(self) -> None:
        open_way(self._root, others=self._isolated)
        open_way(self._folders, others=self._isolated)
        self._cache.mkdir(exist_ok=True, mode=0o700)
        self._fetching.mkdir(exist_ok=True, mode=0o700)

    async def _fetch(self, store: PackageStore, archive: Path, project: str, digest: str) -> None:
        """Copy a package from the store into the cache.

        Raises:
            PackageNotFound, PackagesUnavailable, OSError, _NodeCannot.
        """
        package = await store.stat(project, digest)
        if package is None:
            if not await store.exists():
                raise _NodeCannot("this node finds no packages at all where its YARD_PACKAGES says")
            raise PackageNotFound(project=project, digest=digest)
        if package.packed_bytes > self._limits.packed_bytes:
            raise _NodeCannot(
                f"its context has {package.packed_bytes} bytes, more than the "
                f"{self._limits.packed_bytes} of this node's YARD_MAX_PACKAGE_BYTES"
            )
        new = archive.with_name(f"{archive.name}.{uuid.uuid4().hex}.new")
        try:
            async with aclosing(store.read(project, digest)) as pieces:
                await _write(new, pieces, package)
            new.rename(archive)
        finally:
            new.unlink(missing_ok=True)

    def _unpack(self, archive: Path, folder: Path, digest: str, user: TaskUser | None) -> None:
        with archive.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # The time of the last use, which survives a restart of the agent.
            os.utime(file.fileno())
            unpack(file, folder, digest=digest, packed_bytes=size, limits=self._limits)
        try:
            _give(folder, user)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _keep_limit(self, newest: Path, metrics: AgentMetrics) -> None:
        """Remove the least recently used archives above the limit, but not `newest`."""
        found = []
        for path in self._cache.iterdir():
            if path.name.endswith(_ARCHIVE):
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
        total = sum(size for _, _, size in found)
        for _, path, size in sorted(found):
            if total <= self._cache_bytes:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size
                metrics.code_evicted.inc()
        metrics.code_cache_bytes.set(total)


def _digest_of(archive: Path) -> str:
    return archive.name.removesuffix(_ARCHIVE).rpartition("-")[2]


class _NodeCannot(Exception):
    """The node lacks something that another node may have; the message says what."""


def _refused(launch: Launch, found: str, failure: StartFailure = StartFailure.OTHER) -> RunRefused:
    return RunRefused(replica=launch.key, found=found.removesuffix("."), failure=failure)


async def _write(path: Path, pieces: AsyncGenerator[bytes, None], package: StoredPackage) -> None:
    """Write a package to a file, at most as many bytes as the store has said."""
    left = package.packed_bytes
    with path.open("xb") as file:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                return  # its digest is wrong then, which unpacking reports
            await _in_thread(lambda piece=piece: file.write(piece))  # type: ignore[misc]


def _give(folder: Path, user: TaskUser | None) -> None:
    """Make a folder private to a user, with all that it contains."""
    folder.chmod(0o700)
    if user is None:
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), user.uid, user.gid, follow_symlinks=False)
    # The folder itself comes last: until then no task that shares the user can enter it, and
    # exchange a folder for a link to a file of the agent.
    os.chown(folder, user.uid, user.gid)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work of bounded size. If the caller is cancelled, the work continues."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
