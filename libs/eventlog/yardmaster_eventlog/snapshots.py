"""Snapshots of a machine's state at an fsspec URL, so that a restart need not read the whole log.

A snapshot is a file named after its cycle. It is used only if it is complete and unchanged: its
last 32 bytes are the SHA-256 of all bytes before them. A snapshot that cannot be used is reported,
and the one before it is used. Losing all snapshots costs time, never state. There is no pickle: the
header is JSON, and the machine defines the payload.

```
b"YARDSNAP"  format: 2 bytes  header length: 4 bytes  header: JSON  payload: zlib  SHA-256: 32 bytes
```
"""

import hashlib
import json
import os
import re
import stat
import uuid
import zlib
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from yardmaster_eventlog.errors import LogError, SnapshotCorrupt, SnapshotsUnavailable
from yardmaster_packages.store_calls import StoreCalls
from yardmaster_schemas.file_modes import other_writers

#: Seconds after which a call counts as unanswered: about ten times the largest snapshot's duration.
DEADLINE_S: Final = 30.0
#: No call begins while this many calls have exceeded the deadline and have not ended.
MAX_HUNG: Final = 4

MAGIC: Final = b"YARDSNAP"
FORMAT: Final = 1
#: Ten times the state of the largest cell; a header with a larger size is refused.
MAX_PAYLOAD_BYTES: Final = 4 * 1024**3
MAX_HEADER_BYTES: Final = 4096
_DIGEST_BYTES: Final = 32
_PREFIX_BYTES: Final = len(MAGIC) + 2 + 4
FENCE: Final = "fence.json"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_FILE: Final = re.compile(r"(\d{16})\.snapshot")
_TEMPORARY: Final = re.compile(r"(\d{16})\.[0-9a-f]{32}\.new")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A machine's state after a cycle.

    `payload` is opaque here. `state_digest` is the machine's digest of the state; the cycle's
    CycleCommitted holds the same digest, so that a reader detects other content.
    """

    machine: str
    cell: str
    cycle: int
    state_digest: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest usable snapshot, if any, and the newer ones that cannot be used."""

    snapshot: Snapshot | None
    bad: tuple[SnapshotCorrupt, ...] = ()


class SnapshotStore:
    """Snapshots below a URL: a folder's path, `memory://...`, or any other URL of fsspec.

    `options` go to fsspec (credentials, endpoints). Every method raises SnapshotsUnavailable when
    the store cannot be reached, or does not answer within `deadline_s` seconds, for example because
    an NFS server is down. Such a call cannot be ended: its thread continues. While `MAX_HUNG` such
    threads exist, no other call begins. `executor` runs the calls; None: each call has a thread of
    its own.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        deadline_s: float = DEADLINE_S,
        executor: Executor | None = None,
    ) -> None:
        self.url = url
        self._calls = StoreCalls(
            "snapshots",
            deadline_s=deadline_s,
            max_hung=MAX_HUNG,
            executor=executor,
            unavailable=lambda found: SnapshotsUnavailable(url=url, found=found),
            passed_on=(LogError, ValueError),
        )
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **dict(options or {}))
        except (ImportError, ValueError) as error:
            raise SnapshotsUnavailable(url=url, found=str(error)) from error

    async def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot atomically; a snapshot of the same cycle is replaced."""
        await self._calls.run(lambda: self._save(snapshot))

    async def cycles(self, machine: str, cell: str) -> tuple[int, ...]:
        """Return the cycles that have snapshots, newest first."""
        return await self._calls.run(lambda: self._cycles(machine, cell))

    async def load(self, machine: str, cell: str, cycle: int) -> Snapshot:
        """Return the snapshot of a cycle.

        Raises: SnapshotCorrupt when the snapshot is missing, damaged, or of an unknown format.
        """
        return await self._calls.run(lambda: self._load(machine, cell, cycle))

    async def newest(self, machine: str, cell: str, *, before: int | None = None) -> Newest:
        """Return the newest usable snapshot, and the newer ones that cannot be used.

        With `before`, only snapshots of cycles below it are considered.
        """
        return await self._calls.run(lambda: self._newest(machine, cell, before))

    async def prune(self, machine: str, cell: str, *, keep: int) -> tuple[int, ...]:
        """Remove all snapshots except the newest `keep`; return the cycles of the removed ones.

        Files of writers that failed are removed too.
        """
        if keep < 1:
            raise ValueError("at least one snapshot is kept")
        return await self._calls.run(lambda: self._prune(machine, cell, keep))

    async def discard_after(self, machine: str, cell: str, cycle: int) -> tuple[int, ...]:
        """Remove the snapshots of later cycles; return their cycles."""
        return await self._calls.run(lambda: self._discard_after(machine, cell, cycle))

    async def save_fence(self, machine: str, cell: str, content: bytes) -> None:
        """Replace the fence next to the snapshots (`yardmaster_runtime.fence`), durably."""
        await self._calls.run(lambda: self._save_fence(machine, cell, content))

    async def load_fence(self, machine: str, cell: str) -> bytes | None:
        """Return the fence; None if there is none."""
        return await self._calls.run(lambda: self._load_fence(machine, cell))

    async def writable_by_others(self, machine: str, cell: str) -> tuple[str, str] | None:
        """Return a folder or file of a machine that other users may write, and those users.

        The outermost one is returned; None if others can reach none, or the store is no folder of
        this host.
        """
        return await self._calls.run(lambda: self._writable_by_others(machine, cell))

    def _save(self, snapshot: Snapshot) -> None:
        folder = self._folder(snapshot.machine, snapshot.cell)
        path = f"{folder}/{_file(snapshot.cycle)}"
        content = encode(snapshot)
        self._fs.makedirs(folder, exist_ok=True)
        if not isinstance(self._fs, LocalFileSystem):
            # An object store publishes an object when it is complete, and moves one by copying it.
            self._fs.pipe_file(path, content)
            return
        new = f"{folder}/{snapshot.cycle:016d}.{uuid.uuid4().hex}.new"
        self._fs.pipe_file(new, content)
        self._fs.mv(new, path)

    def _discard_after(self, machine: str, cell: str, cycle: int) -> tuple[int, ...]:
        later = tuple(each for each in self._cycles(machine, cell) if each > cycle)
        for each in later:
            self._remove(f"{self._folder(machine, cell)}/{_file(each)}")
        return later

    def _save_fence(self, machine: str, cell: str, content: bytes) -> None:
        folder = self._folder(machine, cell)
        self._fs.makedirs(folder, exist_ok=True)
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(f"{folder}/{FENCE}", content)
            return
        new = f"{folder}/{FENCE}.{uuid.uuid4().hex}.new"
        with self._fs.open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._fs.mv(new, f"{folder}/{FENCE}")

    def _load_fence(self, machine: str, cell: str) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(f"{self._folder(machine, cell)}/{FENCE}")
        except FileNotFoundError:
            return None
        return content

    def _writable_by_others(self, machine: str, cell: str) -> tuple[str, str] | None:
        folder = Path(self._folder(machine, cell))
        if not isinstance(self._fs, LocalFileSystem) or not folder.is_dir():
            return None
        for path in (folder.parent.parent, folder.parent, folder, *sorted(folder.iterdir())):
            try:
                mode = path.stat().st_mode
            except FileNotFoundError:
                continue  # another process prunes
            writers = other_writers(mode)
            if writers is not None:
                return str(path), writers
            if stat.S_ISDIR(mode) and not mode & (stat.S_IXGRP | stat.S_IXOTH):
                return None  # others cannot reach what the folder contains
        return None

    def _cycles(self, machine: str, cell: str) -> tuple[int, ...]:
        found = (_FILE.fullmatch(name) for name in self._names(machine, cell))
        return tuple(sorted((int(match[1]) for match in found if match), reverse=True))

    def _load(self, machine: str, cell: str, cycle: int) -> Snapshot:
        name = f"{machine}/{cell}/{_file(cycle)}"
        try:
            content = self._fs.cat_file(f"{self._folder(machine, cell)}/{_file(cycle)}")
        except FileNotFoundError:
            raise SnapshotCorrupt(name=name, found="it is gone") from None
        snapshot = decode(name, content)
        if (snapshot.machine, snapshot.cell, snapshot.cycle) != (machine, cell, cycle):
            raise SnapshotCorrupt(
                name=name,
                found=f"it belongs to {snapshot.machine}/{snapshot.cell} cycle {snapshot.cycle}",
            )
        return snapshot

    def _newest(self, machine: str, cell: str, before: int | None) -> Newest:
        bad: list[SnapshotCorrupt] = []
        for cycle in self._cycles(machine, cell):
            if before is not None and cycle >= before:
                continue
            try:
                return Newest(self._load(machine, cell, cycle), tuple(bad))
            except SnapshotCorrupt as error:
                bad.append(error)
        return Newest(None, tuple(bad))

    def _prune(self, machine: str, cell: str, keep: int) -> tuple[int, ...]:
        folder = self._folder(machine, cell)
        cycles = self._cycles(machine, cell)
        for cycle in cycles[keep:]:
            self._remove(f"{folder}/{_file(cycle)}")
        for name in self._names(machine, cell):
            temporary = _TEMPORARY.fullmatch(name)
            # Another process may be writing a file of a newer cycle now.
            if temporary and cycles and int(temporary[1]) < cycles[0]:
                self._remove(f"{folder}/{name}")
        return cycles[keep:]

    def _names(self, machine: str, cell: str) -> list[str]:
        # Some file systems cache listings, which hide snapshots of another process.
        folder = self._folder(machine, cell)
        self._fs.invalidate_cache(folder)
        try:
            return [path.rsplit("/", 1)[-1] for path in self._fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    def _remove(self, path: str) -> None:
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            return  # another process prunes as well

    def _folder(self, machine: str, cell: str) -> str:
        for name in (machine, cell):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a name of a machine or cell")
        return f"{self._root.rstrip('/')}/{machine}/{cell}"


def _file(cycle: int) -> str:
    return f"{cycle:016d}.snapshot"


def encode(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot's file."""
    header = json.dumps(
        {
            "machine": snapshot.machine,
            "cell": snapshot.cell,
            "cycle": snapshot.cycle,
            "state_digest": snapshot.state_digest,
            "payload_bytes": len(snapshot.payload),
        }
    ).encode()
    content = b"".join(
        (
            MAGIC,
            FORMAT.to_bytes(2, "big"),
            len(header).to_bytes(4, "big"),
            header,
            zlib.compress(snapshot.payload, level=1),
        )
    )
    return content + hashlib.sha256(content).digest()


def decode(name: str, content: bytes) -> Snapshot:
    """Return the snapshot of a file's bytes.

    Raises: SnapshotCorrupt.
    """

    def bad(found: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(name=name, found=found)

    if not content.startswith(MAGIC):
        raise bad("it does not start like a snapshot")
    if len(content) < _PREFIX_BYTES + _DIGEST_BYTES:
        raise bad("it is truncated")
    version = int.from_bytes(content[len(MAGIC) : len(MAGIC) + 2], "big")
    if version != FORMAT:
        raise bad(f"it has format {version}, but this Yardmaster knows only {FORMAT}")
    body = memoryview(content)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != content[-_DIGEST_BYTES:]:
        raise bad("its checksum does not match: it was truncated or changed")
    start = _PREFIX_BYTES + int.from_bytes(content[_PREFIX_BYTES - 4 : _PREFIX_BYTES], "big")
    # The checksum detects damage, not malice, so the sizes in the header are checked as well.
    if start > min(len(body), _PREFIX_BYTES + MAX_HEADER_BYTES):
        raise bad("its header is too long")
    try:
        header = json.loads(bytes(body[_PREFIX_BYTES:start]))
        size = header["payload_bytes"]
        if not isinstance(size, int) or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise bad("its header has no valid size")
        unpacker = zlib.decompressobj()
        payload = unpacker.decompress(body[start:], size + 1)
        if len(payload) != size or not unpacker.eof:
            raise bad("its payload does not have the size in its header")
        return Snapshot(
            machine=str(header["machine"]),
            cell=str(header["cell"]),
            cycle=int(header["cycle"]),
            state_digest=str(header["state_digest"]),
            payload=payload,
        )
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise bad(f"its content is not a snapshot: {type(error).__name__}") from error
