"""Packages for tests: of folders, and written by an attacker."""

import gzip
import hashlib
import io
import os
import socket
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yardmaster_packages.archive import pack
from yardmaster_packages.limits import PackageLimits


@dataclass(frozen=True)
class Package:
    """A compressed archive and the digest that names it."""

    digest: str
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


def write_tree(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """A folder with files; `-> target` is a symbolic link, `path/` an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        at = folder / path
        if path.endswith("/"):
            at.mkdir(parents=True)
            continue
        at.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            at.symlink_to(content.removeprefix("-> "))
        else:
            at.write_bytes(content)
    return folder


def read_tree(folder: Path) -> dict[str, bytes | str]:
    """The files of a folder, as `write_tree` gets them, and all folders."""
    found: dict[str, bytes | str] = {}
    for at in sorted(folder.rglob("*")):
        path = at.relative_to(folder).as_posix()
        if at.is_symlink():
            found[path] = f"-> {os.readlink(at)}"
        elif at.is_dir():
            found[f"{path}/"] = b""
        else:
            found[path] = at.read_bytes()
    return found


def package_of(folder: Path, limits: PackageLimits | None = None) -> Package:
    into = io.BytesIO()
    packed = pack(folder, into, limits=limits)
    return Package(packed.digest, into.getvalue())


def package_of_tar(tar: bytes, level: int = 6) -> Package:
    return Package(hashlib.sha256(tar).hexdigest(), gzip.compress(tar, level, mtime=0))


def tar_of(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = 2) -> bytes:
    """A tar of any entries, as an attacker writes it; `form` is one of tarfile's formats."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=form) as tar:
        for entry in entries:
            info, content = entry if isinstance(entry, tuple) else (entry, b"")
            info.size = len(content) if content else info.size
            tar.addfile(info, io.BytesIO(content) if content else None)
    return into.getvalue()


def file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def directory(name: str) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE)


def link(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, target)


def bind_socket(path: Path) -> socket.socket:
    """A socket at a path that may be longer than an address of a socket."""
    bound = socket.socket(socket.AF_UNIX)
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        bound.bind(path.name)
    finally:
        os.chdir(before)
    return bound
