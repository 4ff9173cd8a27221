"""A folder as a package: an archive with the same bytes on every machine.

The tar is sorted by path, and has no times, users or other modes than 644 and 755. The package is
named by the SHA-256 of the tar before it is compressed, because two versions of zlib compress the
same bytes to different ones.

A folder that contains only ignored files is left out, because it exists only on some machines; an
empty folder is kept.
"""

import errno
import gzip
import hashlib
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import IO, Any, Final, cast

from yardmaster_packages.errors import (
    ContextChanged,
    ContextTooLarge,
    ContextUnusable,
    PathRefused,
)
from yardmaster_packages.ignore_rules import IgnoreRules, read_rules
from yardmaster_packages.limits import MIB, PackageLimits
from yardmaster_packages.paths import collision_key, problem_of_link, problem_of_path

#: The number of paths that an error about the size names.
NAMED: Final = 5
_LEVEL: Final = 6
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
_SPECIAL: Final = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    """A folder that was written as a package."""

    #: The SHA-256 of the uncompressed tar, which names the package.
    digest: str
    #: Bytes of the compressed archive.
    packed_bytes: int
    #: Bytes of all files together.
    unpacked_bytes: int
    #: Files, folders and symbolic links.
    files: int


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    mode: int
    size: int = 0
    #: The target of a symbolic link.
    target: str = ""


def pack(folder: Path, into: IO[bytes], *, limits: PackageLimits | None = None) -> PackedFolder:
    """Write `folder` as a compressed archive into a binary file; return its digest and sizes.

    Files are read in pieces, so memory depends only on the number of paths.

    Raises:
        ContextUnusable: the folder, or a file in it, cannot be read.
        IgnoreRulesInvalid: a rule of .yardignore is wrong.
        PathRefused: it contains a path that a package must not contain.
        ContextTooLarge: it exceeds a limit; the error names the largest paths.
        ContextChanged: a file changed while it was read.
    """
    limits = PackageLimits() if limits is None else limits
    entries = _Scan(folder, limits).entries()
    packed = _CountingFile(into, limits.packed_bytes)
    try:
        with gzip.GzipFile("", "wb", _LEVEL, cast("Any", packed), mtime=0) as compressed:
            tar_file = _CountingFile(compressed, limits.tar_bytes)
            _write_tar(folder, entries, tar_file)
    except _Full as full:
        found = (
            f"its archive has more than {_mib(limits.packed_bytes)}"
            if full.file is packed
            else "its paths are too long"
        )
        raise ContextTooLarge(path=folder, found=found, largest=_largest(entries)) from None
    return PackedFolder(
        digest=tar_file.digest,
        packed_bytes=packed.size,
        unpacked_bytes=sum(entry.size for entry in entries),
        files=len(entries),
    )


def context_paths(folder: Path, *, limits: PackageLimits | None = None) -> list[str]:
    """Return the paths that a package of `folder` contains, in its order, without reading files.

    Raises:
        ContextUnusable, IgnoreRulesInvalid, PathRefused, ContextTooLarge, ContextChanged.
    """
    limits = PackageLimits() if limits is None else limits
    return [entry.path for entry in _Scan(folder, limits).entries()]


def largest_files(folder: Path) -> str:
    """Return paths and sizes of the largest files of a folder's package, as an error names them.

    Raises:
        ContextUnusable and its subclasses.
    """
    return _largest(_Scan(folder, PackageLimits()).entries())


class _Full(Exception):
    """A file has reached its limit."""

    def __init__(self, file: "_CountingFile") -> None:
        super().__init__()
        self.file = file


class _CountingFile:
    """Passes on what is written, counts and hashes it."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        # GzipFile writes the end of its data when it is closed, also after an error.
        self.size += len(data)
        if self.size > self._limit:
            raise _Full(self)
        self._hash.update(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        pass

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


@dataclass
class _Scan:
    """One pass over a folder: what a package of it contains, within the limits."""

    folder: Path
    limits: PackageLimits
    _found: list[_Entry] = field(default_factory=list)
    #: Number of entries by their folder.
    _counts: Counter[str] = field(default_factory=Counter)
    _by_key: dict[str, str] = field(default_factory=dict)

    def entries(self) -> list[_Entry]:
        """Return all entries, sorted by the bytes of their paths.

        Raises: ContextUnusable and its subclasses.
        """
        if not self.folder.is_dir():
            raise ContextUnusable(path=self.folder, found="it is not a folder")
        self._scan("", read_rules(self.folder))
        size = sum(entry.size for entry in self._found)
        if size > self.limits.unpacked_bytes:
            raise ContextTooLarge(
                path=self.folder,
                found=f"its files have {_mib(size)}, above {_mib(self.limits.unpacked_bytes)}",
                largest=_largest(self._found),
            )
        return sorted(self._found, key=lambda entry: entry.path.encode())

    def _scan(self, start: str, rules: IgnoreRules) -> None:
        # A stack instead of recursion: a folder may be nested deeper than Python's limit.
        pending = [start]
        #: Folders that are left out unless something in them is not ignored.
        doubtful: set[str] = set()
        while pending:
            parent = pending.pop()
            ignored = kept = 0
            for name, status in self._children(parent):
                path = f"{parent}/{name}" if parent else name
                is_folder = stat.S_ISDIR(status.st_mode)
                if rules.ignores(path, folder=is_folder):
                    ignored += 1
                    continue
                kept += 1
                self._add(self._entry(path, status), parent)
                if is_folder:
                    pending.append(path)
            if parent and ignored and not kept:
                doubtful.add(parent)
        self._leave_out(doubtful)

    def _leave_out(self, folders: set[str]) -> None:
        """Remove folders that contain only ignored paths, and those that contain only such ones."""
        while folders:
            self._found = [entry for entry in self._found if entry.path not in folders]
            parents = {path.rpartition("/")[0] for path in folders} - {""}
            if not parents:
                return
            in_use = {entry.path.rpartition("/")[0] for entry in self._found}
            folders = parents - in_use

    def _children(self, parent: str) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(self.folder / parent) as found:
                for child in found:
                    yield child.name, child.stat(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ContextChanged(path=_shown(parent or ".")) from error
        except OSError as error:
            raise PathRefused(path=_shown(parent or "."), found=_reason(error)) from error

    def _entry(self, path: str, status: os.stat_result) -> _Entry:
        found = problem_of_path(path)
        if found is not None:
            raise PathRefused(path=_shown(path), found=found)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return _Entry(path, stat.S_IFDIR)
        if stat.S_ISREG(mode):
            return _Entry(path, mode, status.st_size)
        if not stat.S_ISLNK(mode):
            kind = _SPECIAL.get(stat.S_IFMT(mode), "a special file")
            raise PathRefused(path=_shown(path), found=f"it is {kind}")
        try:
            target = os.readlink(self.folder / path)
        except OSError as error:
            raise ContextChanged(path=_shown(path)) from error
        found = problem_of_link(path, target)
        if found is not None:
            raise PathRefused(path=_shown(path), found=f"{found} ({_shown(target)})")
        return _Entry(path, mode, target=target)

    def _add(self, entry: _Entry, parent: str) -> None:
        other = self._by_key.setdefault(collision_key(entry.path), entry.path)
        if other != entry.path:
            names = " and ".join(sorted((_shown(other), _shown(entry.path))))
            found = f"a file system that ignores case does not distinguish {names}"
            raise PathRefused(path=_shown(entry.path), found=found)
        self._found.append(entry)
        self._counts[parent] += 1
        if len(self._found) > self.limits.files:
            raise ContextTooLarge(
                path=self.folder,
                found=f"it contains more than {self.limits.files} files and folders",
                largest=", ".join(
                    f"{_shown(folder or '.')} ({count} entries)"
                    for folder, count in self._counts.most_common(NAMED)
                ),
            )


def _write_tar(folder: Path, entries: list[_Entry], into: _CountingFile) -> None:
    with tarfile.open(
        mode="w|", fileobj=cast("Any", into), format=tarfile.PAX_FORMAT, encoding="utf-8"
    ) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.mode = _FOLDER_MODE
            if stat.S_ISDIR(entry.mode):
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif stat.S_ISLNK(entry.mode):
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                tar.addfile(info)
            else:
                info.mode = _FOLDER_MODE if entry.mode & stat.S_IXUSR else _FILE_MODE
                info.size = entry.size
                _add_file(tar, info, folder)
            cast("Any", tar).members.clear()  # tarfile keeps every entry, and nothing reads them


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path) -> None:
    with _opened(folder, info.name) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != info.size:
            raise ContextChanged(path=_shown(info.name))
        tar.addfile(info, cast("Any", _WholeFile(file, info.name)))


def _opened(folder: Path, path: str) -> IO[bytes]:
    # The path may have become a link or a pipe after the scan: neither is followed or waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(folder / path, flags), "rb")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            raise ContextChanged(path=_shown(path)) from error
        raise PathRefused(path=_shown(path), found=_reason(error)) from error


class _WholeFile:
    """A file that must not end before the size in its header."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path

    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise PathRefused(path=_shown(self._path), found=_reason(error)) from error
        if len(data) < size:
            raise ContextChanged(path=_shown(self._path))
        return data


def _largest(entries: list[_Entry]) -> str:
    found = nlargest(NAMED, entries, key=lambda entry: (entry.size, entry.path))
    return ", ".join(f"{_shown(entry.path)} ({_mib(entry.size)})" for entry in found if entry.size)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB // 10 else f"{size} bytes"


def _shown(path: str) -> str:
    """A path as an error names it: bytes that are not UTF-8, and control characters, escaped."""
    return path if path.isprintable() and path else ascii(path)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
