"""A package as a folder: verified while it is read, and visible only when it is complete.

The archive was written by a user, so it is read as an attack. Only what `archive` writes is
accepted: files, folders, symbolic links that stay inside, and extended headers of bounded size. The
headers are read here, one block after another, because `tarfile` reads an extended header of any
size into memory; `tarfile.data_filter` checks every entry in addition, where Python has it.
"""

import errno
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from yardmaster_packages.errors import ArchiveRefused
from yardmaster_packages.gunzip import Gunzip
from yardmaster_packages.limits import PackageLimits
from yardmaster_packages.paths import collision_key, problem_of_link, problem_of_path

#: The end of the name of a folder that is not complete.
UNFINISHED: Final = ".new"
_READ_BYTES: Final = 64 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
#: Python has the filters of `tarfile` since 3.11.4; Debian 12 has 3.11.2.
_HAS_FILTERS: Final = hasattr(tarfile, "data_filter")
_ZEROS: Final = bytes(_BLOCK)
#: The path and the target of a link, each at most 3 KiB, and their keys.
_MAX_EXTENDED_BYTES: Final = 8 * 1024
_EXTENDED_KEYS: Final = frozenset({"path", "linkpath"})
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755


def unpack(
    file: IO[bytes],
    into: Path,
    *,
    digest: str,
    packed_bytes: int,
    limits: PackageLimits | None = None,
) -> None:
    """Unpack the package that `file` contains into the new folder `into`.

    The folder has a temporary name next to `into` until digest and size are verified. If `into`
    exists by then, another process has unpacked the package, and its folder is kept. The times of
    files are those of the unpacking.

    Raises:
        ArchiveRefused: the package is damaged, is another one, or exceeds a limit; `into` does not
            exist.
    """
    limits = PackageLimits() if limits is None else limits
    reader = _Reader(file, Gunzip(digest, packed_bytes, limits), digest)
    new = into.with_name(f".{into.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        new.mkdir(mode=0o700)
        _Unpacking(new, reader, digest, limits).run()
        new.chmod(_FOLDER_MODE)
        try:
            new.rename(into)
        except OSError:
            if not into.is_dir():
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


class _Reader:
    """Reads exact numbers of decompressed bytes."""

    def __init__(self, file: IO[bytes], gunzip: Gunzip, digest: str) -> None:
        self._file = file
        self._gunzip = gunzip
        self._digest = digest
        self._pieces = self._decompressed()
        self._rest = b""

    def _decompressed(self) -> Iterator[bytes]:
        while data := self._file.read(_READ_BYTES):
            yield from self._gunzip.feed(data)
        self._gunzip.finish()

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes.

        Raises: ArchiveRefused.
        """
        while size:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                raise ArchiveRefused(digest=self._digest, found="its tar is truncated")
            piece, self._rest = piece[:size], piece[size:]
            size -= len(piece)
            yield piece

    def block(self) -> bytes:
        """Return the next block of the tar.

        Raises: ArchiveRefused.
        """
        return b"".join(self.pieces(_BLOCK))

    def rest(self) -> Iterator[bytes]:
        """Yield all that follows; at the end, digest and size are verified.

        Raises: ArchiveRefused.
        """
        yield self._rest
        self._rest = b""
        yield from self._pieces


@dataclass
class _Unpacking:
    """One package on its way into a folder."""

    folder: Path
    reader: _Reader
    digest: str
    limits: PackageLimits
    _folders: set[str] = field(default_factory=lambda: {""})
    _seen: set[str] = field(default_factory=set)
    _bytes: int = 0

    def run(self) -> None:
        """Write all entries, then verify the rest of the package.

        Raises: ArchiveRefused.
        """
        extended: dict[str, str] = {}
        while (block := self.reader.block()) != _ZEROS:
            try:
                entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except (tarfile.TarError, ValueError) as error:
                raise self._refused("its tar has a damaged header") from error
            if entry.size < 0:
                raise self._refused("its tar has a damaged header")
            if entry.type == tarfile.XHDTYPE:
                if extended:
                    raise self._refused("its tar has two extended headers for one entry")
                extended = self._extended(entry.size)
                continue
            entry.name = extended.get("path", entry.name).removesuffix("/")
            entry.linkname = extended.get("linkpath", entry.linkname)
            extended = {}
            self._check(entry)
            self._write(entry)
        if extended or any(piece.strip(b"\0") for piece in self.reader.rest()):
            raise self._refused("bytes follow the end of its tar")

    def _extended(self, size: int) -> dict[str, str]:
        """Read an extended header: lines `LENGTH KEY=VALUE`, where LENGTH counts the whole line."""
        if size > _MAX_EXTENDED_BYTES:
            raise self._refused(f"an extended header of its tar has {size} bytes")
        content = b"".join(self.reader.pieces(_padded(size)))[:size]
        found: dict[str, str] = {}
        while content:
            number, space, _ = content.partition(b" ")
            length = int(number) if number.isdigit() and len(number) < 6 else 0
            line, content = content[:length], content[length:]
            key, equals, value = line[len(number) + 1 : -1].partition(b"=")
            if not space or not equals or not line.endswith(b"\n") or len(line) != length:
                raise self._refused("its tar has a damaged extended header")
            try:
                found[key.decode()] = value.decode()
            except UnicodeDecodeError as error:
                raise self._refused("its tar has a damaged extended header") from error
        unknown = found.keys() - _EXTENDED_KEYS
        if unknown:
            raise self._refused(f"an extended header of its tar has the key {min(unknown)!r}")
        return found

    def _check(self, entry: tarfile.TarInfo) -> None:
        path = entry.name
        found = problem_of_path(path)
        if found is None and entry.issym():
            found = problem_of_link(path, entry.linkname)
        if found is None and not (entry.isdir() or entry.issym() or entry.type in _FILES):
            found = "it is neither a file, a folder nor a symbolic link"
        if found is None and entry.size and not entry.isfile():
            found = "it is not a file, but has content"
        if found is None and path.rpartition("/")[0] not in self._folders:
            found = "its folder is not part of the package"
        if found is None and collision_key(path) in self._seen:
            found = "it occurs twice, or differs from another path only in case"
        if found is None and _HAS_FILTERS:
            try:
                tarfile.data_filter(entry, str(self.folder))
            except tarfile.FilterError as error:
                found = str(error)
        if found is not None:
            raise self._refused(f"it contains {path!r}: {found}")
        self._seen.add(collision_key(path))
        self._bytes += entry.size
        if len(self._seen) > self.limits.files:
            raise self._refused(f"it contains more than {self.limits.files} files and folders")
        if self._bytes > self.limits.unpacked_bytes:
            raise self._refused(f"its files have more than {self.limits.unpacked_bytes} bytes")

    def _write(self, entry: tarfile.TarInfo) -> None:
        path = self.folder / entry.name
        try:
            if entry.isdir():
                path.mkdir()
                path.chmod(_FOLDER_MODE)
                self._folders.add(entry.name)
            elif entry.issym():
                path.symlink_to(entry.linkname)
            else:
                self._write_file(path, entry)
        except OSError as error:
            if error.errno not in _BY_THE_PATH:
                raise
            found = (error.strerror or "").lower()
            raise self._refused(f"it contains {entry.name!r}: {found}") from error

    def _write_file(self, path: Path, entry: tarfile.TarInfo) -> None:
        mode = _FOLDER_MODE if entry.mode & 0o100 else _FILE_MODE
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, mode), "wb", buffering=0) as file:
            for piece in self.reader.pieces(entry.size):
                _write_all(file, piece)
            os.fchmod(file.fileno(), mode)
        for padding in self.reader.pieces(_padded(entry.size) - entry.size):
            if padding.strip(b"\0"):
                raise self._refused("bytes follow a file of its tar")

    def _refused(self, found: str) -> ArchiveRefused:
        return ArchiveRefused(digest=self.digest, found=found)


_FILES: Final = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE})
#: Errors of the file system that depend on the paths of the package, not on the disk.
_BY_THE_PATH: Final = frozenset(
    {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL}
)


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
