"""The ledger: a node's assignments and their outcomes, on disk before any replica is started.

The ledger is a file of lines `checksum number json`, to which lines are only appended. Each entry
replaces the earlier entry on its subject (`agent_state`). An attempt starts at most once, because
its entry is durable before the start. An incomplete last line, as after a crash, is truncated.
Damage before valid lines raises `LedgerCorrupt`: the entries of the damaged lines are lost, so the
agent cannot know which tasks run. SQLite was rejected, because it cannot say which rows it lost.

If later lines have replaced many lines of the file, the lines that still count are written to a new
file, which replaces the old file.
"""

import fcntl
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from yardmaster_node_agent.agent_state import ENTRY, AgentState, Entry, Head, dump
from yardmaster_node_agent.errors import LedgerCorrupt, LedgerInUse, LedgerUnwritable

#: The file is compacted when it has this many lines more than it needs.
SPARE_LINES: Final = 20_000


class Ledger(Protocol):
    """The durable storage of an agent's state."""

    def load(self) -> AgentState | None:
        """Lock the ledger for this process and return its state; None if it is new.

        Raises:
            LedgerCorrupt: the file is damaged.
            LedgerInUse: another process has locked it.
            LedgerUnwritable.
        """

    @property
    def place(self) -> str:
        """A text that differs for a copy of this ledger on the same host; call it after `load`."""

    def begin(self, head: Head) -> AgentState:
        """Start a new ledger, durably; the old entries are deleted.

        Raises:
            LedgerUnwritable: the old entries may still exist.
        """

    def write(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Append entries; if `durable`, they survive a crash of the machine.

        After a crash, all of the entries or a prefix of them are in the ledger.

        Raises:
            LedgerUnwritable: it is unknown which entries are in the ledger; the agent must stop.
        """

    def close(self) -> None:
        """Unlock it for other processes."""


class MemoryLedger:
    """A ledger in memory; `crash` loses entries that are not durable, as a power loss does."""

    def __init__(self, place: str = "memory") -> None:
        self._place = place
        self._lines: list[bytes] = []
        self._durable = 0
        self._locked = False

    def load(self) -> AgentState | None:
        """Lock it and return its state."""
        if self._locked:
            raise LedgerInUse(path="memory")
        self._locked = True
        return fold("memory", [ENTRY.validate_json(line) for line in self._lines])

    @property
    def place(self) -> str:
        """The text that the constructor was given."""
        return self._place

    def begin(self, head: Head) -> AgentState:
        """Start a new ledger."""
        self._lines, self._durable = [], 0
        self.write([head])
        return AgentState(head)

    def write(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Add entries."""
        self._lines += [dump(entry) for entry in entries]
        if durable:
            self._durable = len(self._lines)

    def close(self) -> None:
        """Unlock it for other agents."""
        self._locked = False

    def crash(self) -> None:
        """Lose the entries that are not durable, and the lock."""
        del self._lines[self._durable :]
        self._locked = False


class FileLedger:
    """A ledger in a file, created if it does not exist; the lock is `<name>.lock` next to it."""

    def __init__(self, path: Path, *, spare_lines: int = SPARE_LINES) -> None:
        self._path = path
        self._spare_lines = spare_lines
        self._lock = -1
        self._file = -1
        self._lines = 0
        #: If the file has more lines, it is compacted.
        self._limit = 0

    def load(self) -> AgentState | None:
        """Lock the file and read it; truncate an incomplete last line."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._acquire_lock()
            raw = self._path.read_bytes() if self._path.exists() else b""
            entries, good = parse(str(self._path), raw)
            state = fold(str(self._path), entries)
            if state is None:
                return None
            self._lines = len(entries)
            self._limit = len(state.entries()) + self._spare_lines
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            if good < len(raw):
                os.ftruncate(self._file, good)
                os.fsync(self._file)
        except OSError as error:
            raise LedgerUnwritable(path=self._path, found=error) from None
        return state

    @property
    def place(self) -> str:
        """The inode of the lock file: the agent never replaces it, and a copy has another one."""
        return str(os.fstat(self._lock).st_ino)

    def begin(self, head: Head) -> AgentState:
        """Replace the file by a new ledger."""
        state = AgentState(head)
        self._rewrite(state)
        return state

    def write(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Append lines, in one write."""
        data = b"".join(line(self._lines + n, entry) for n, entry in enumerate(entries))
        try:
            _write_all(self._file, data)
            if durable:
                os.fdatasync(self._file)
            self._lines += len(entries)
            if self._lines > self._limit:
                state = fold(str(self._path), parse(str(self._path), self._path.read_bytes())[0])
                assert state is not None, "a ledger begins with its head"
                self._rewrite(state)
        except OSError as error:
            raise LedgerUnwritable(path=self._path, found=error) from None

    def close(self) -> None:
        """Unlock it for other processes."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _acquire_lock(self) -> None:
        lock = self._path.with_name(self._path.name + ".lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LedgerInUse(path=self._path) from None

    def _rewrite(self, state: AgentState) -> None:
        """Replace the file atomically and durably by the fewest lines that fold into `state`."""
        entries = state.entries()
        new = self._path.with_name(self._path.name + ".new")
        try:
            descriptor = os.open(
                new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            _write_all(descriptor, b"".join(line(n, entry) for n, entry in enumerate(entries)))
            os.fsync(descriptor)
            os.rename(new, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise LedgerUnwritable(path=self._path, found=error) from None
        if self._file >= 0:
            os.close(self._file)
        self._file, self._lines = descriptor, len(entries)
        self._limit = len(entries) + self._spare_lines


def line(number: int, entry: Entry) -> bytes:
    """Return one line of the file: a checksum of number and entry, the number, the entry."""
    rest = b"%d %s" % (number, dump(entry))
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def parse(path: str, raw: bytes) -> tuple[list[Entry], int]:
    """Parse a ledger; return its entries and the length of their bytes.

    The remaining bytes are an incomplete end, as after a crash.

    Raises:
        LedgerCorrupt: a valid line follows a damaged one, lines are missing, or it is no ledger.
    """
    entries: list[Entry] = []
    good = 0
    at = 0
    while at < len(raw):
        end = raw.find(b"\n", at)
        content = raw[at:end] if end >= 0 else None
        rest = _checked(content) if content is not None else None
        if rest is None:
            _no_good_line_after(path, raw, end, len(entries))
            break
        number, _, body = rest.partition(b" ")
        if number != b"%d" % len(entries):
            raise LedgerCorrupt(path=path, found=f"line {len(entries)} is missing")
        try:
            entries.append(ENTRY.validate_json(body))
        except ValidationError as error:
            found = f"line {len(entries)} holds {error.errors(include_url=False)[0]['msg']}"
            raise LedgerCorrupt(path=path, found=found) from None
        at = good = end + 1
    return entries, good


def _checked(content: bytes) -> bytes | None:
    if len(content) < 10 or content[8:9] != b" ":
        return None
    rest = content[9:]
    return rest if content[:8] == b"%08x" % zlib.crc32(rest) else None


def _no_good_line_after(path: str, raw: bytes, end: int, number: int) -> None:
    """Raise LedgerCorrupt if a valid line follows a damaged one.

    A crash damages only the end of the file. If the first line is complete but not valid, the file
    is no ledger, and the agent must not overwrite it.
    """
    if end >= 0 and any(_checked(later) for later in raw[end + 1 :].split(b"\n")):
        raise LedgerCorrupt(path=path, found=f"line {number} does not match its checksum")
    if number == 0 and end >= 0:
        raise LedgerCorrupt(path=path, found="its first line is not a ledger's")


def fold(path: str, entries: Sequence[Entry]) -> AgentState | None:
    """Return the state after `entries`; None if there are none.

    Raises:
        LedgerCorrupt: the first entry is no head.
    """
    if not entries:
        return None
    head = entries[0]
    if not isinstance(head, Head):
        raise LedgerCorrupt(path=path, found="it does not begin with the node's entry")
    state = AgentState(head)
    for entry in entries[1:]:
        state.apply(entry)
    return state


def sync_directory(path: Path) -> None:
    """Make names that were created, renamed or removed in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
