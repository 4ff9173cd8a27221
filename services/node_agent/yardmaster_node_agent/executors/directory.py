"""The directory of one replica: its files, and how to read and write them."""

import ctypes
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from yardmaster_node_agent.agent_state import TaskUser
from yardmaster_node_agent.executors.port import CheckpointFileUnusable, Paths, StreamName

#: The most bytes that are read of a JSON file of the runner or the task.
MAX_NOTE_BYTES: Final = 4096
#: The unit of `st_blocks`.
BLOCK_BYTES: Final = 512
#: Bytes of an output file that may exceed the kept part; with more, the surplus is freed.
SLACK_BYTES: Final = 2**20
#: Flags to open a file that a task may have replaced: follow no link, wait for no pipe.
_CAREFULLY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Flags of fallocate(2).
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_USER: Final = TypeAdapter(TaskUser)
_STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")


class ReplicaDirectory:
    """The directory of one replica, under the executor's root.

    The runner uses the files `start`, `process`, `exit` and `bell` (see `runner`). The command's
    working directory is `work`. A command of another user may write `work`, `task` with its
    checkpoint file, and its output; all else is read-only for it, and the whole directory is closed
    to the users of other replicas.
    """

    def __init__(self, path: Path, *, apart: bool = False) -> None:
        """`apart`: the command can write only what a command of another user can."""
        self.path = path
        self._apart = apart
        self._noted: tuple[int, int, int, int] | None = None
        self._known_checkpoint_file: Path | None = None

    @property
    def paths(self) -> Paths:
        """The paths of the stop file and the checkpoint file."""
        return Paths(str(self.path / "stop.json"), str(self._checkpoint_file))

    @property
    def _checkpoint_file(self) -> Path:
        # The task replaces the file, so it must be able to write the file's folder: this is `task`
        # if the task cannot write all of the directory. An existing directory keeps its folder if
        # the setting changed.
        if self._known_checkpoint_file is not None:
            return self._known_checkpoint_file
        shared, new = self.path / "task", not self.exists
        shares = self._apart if new else shared.is_dir()
        path = (shared if shares else self.path) / "checkpoint.json"
        if not new:
            self._known_checkpoint_file = path
        return path

    @property
    def exists(self) -> bool:
        """Whether the directory was created; it is then complete."""
        return self.path.is_dir()

    @property
    def user(self) -> TaskUser | None:
        """The user of the command; None: the agent's own, or that of a container's image."""
        try:
            return _USER.validate_json(self._read("user", 0, MAX_NOTE_BYTES))
        except ValidationError:
            return None

    @property
    def script_path(self) -> Path:
        """The path of the script for `sh`, if the job has one."""
        return self.path / "script"

    @property
    def _draft(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def create(self, script: str | None, user: TaskUser | None = None) -> None:
        """Create the directory at once, with the FIFO `bell` and the job's script.

        With a user, only this user can use it, through its own group: the directory stays the
        agent's, so the user cannot exchange what is in it.

        The script is in a file, so that no process title shows it.

        Raises: OSError.
        """
        draft = self._draft
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        (draft / "work").mkdir()
        os.mkfifo(draft / "bell", 0o600)
        if script is not None:
            path = draft / self.script_path.name
            path.write_text(script, encoding="utf-8")
            path.chmod(0o644)
        if self._apart:
            (draft / "task").mkdir()
        if user is not None:
            for name in ("stdout", "stderr"):
                (draft / name).touch(0o600)
            for name in ("work", "task"):
                (draft / name).chmod(0o700)
            for name in ("work", "task", "stdout", "stderr"):
                os.chown(draft / name, user.uid, user.gid)
            if script is not None:
                # Of a user that a job named, the group can have other members.
                os.chown(draft / self.script_path.name, user.uid, user.gid)
                (draft / self.script_path.name).chmod(0o400)
            (draft / "user").write_bytes(_USER.dump_json(user))
            (draft / "user").chmod(0o600)
            os.chown(draft, -1, user.gid)
            draft.chmod(0o710)
        draft.rename(self.path)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file of the runner.

        None if the file is missing, or damaged: the runner creates files atomically, so only the
        task can have damaged it.
        """
        try:
            content = json.loads(self._read(name, 0, MAX_NOTE_BYTES))
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).is_file()

    def prevent_start(self) -> bool:
        """Create the file `start`, so that no runner can start the command.

        False if `start` exists already: a runner created it, and a process may run.

        Raises:
            OSError: any error except that `start` exists.
        """
        try:
            descriptor = os.open(
                self.path / "start", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except FileExistsError:
            return False
        try:
            os.write(descriptor, b'{"void": true}')
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def announce_stop(self, notice: str) -> bool:
        """Create the stop file atomically; False if the task removed the directory."""
        draft = self.path / ".stop.json"
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, notice.encode())
            finally:
                os.close(descriptor)
            draft.rename(self.path / "stop.json")
        except OSError:
            return False
        return True

    def checkpoint_note(self) -> bytes | None:
        """Return the first bytes of the checkpoint file if it changed since the last call.

        None if it is missing or unchanged. The agent may have more permissions than the task, so
        the file must be the task's own: with another name of a file (a link, also a hard link), the
        task would choose what the agent reads and reports.

        Raises:
            CheckpointFileUnusable: once for each file that is not the task's own regular file.
        """
        path = self._checkpoint_file
        try:
            status = path.lstat()
        except OSError:
            return None
        if _mark(status) == self._noted:
            return None
        descriptor = None
        try:
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | _CAREFULLY)
                status = os.fstat(descriptor)
            self._noted = _mark(status)
            found = self._foreign(status)
            if found is not None:
                raise CheckpointFileUnusable(found)
            if descriptor is None:
                raise CheckpointFileUnusable("the agent may not read it")
            return os.read(descriptor, MAX_NOTE_BYTES)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _foreign(self, status: os.stat_result) -> str | None:
        """Return why a file does not count as a file of the task's own; None if it does."""
        if stat.S_ISLNK(status.st_mode):
            return "it is a symbolic link"
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        user = self.user
        if user is not None and status.st_uid != user.uid:
            return "it belongs to another user"
        if status.st_nlink > 1:
            return "it is a hard link: the same file has another name"
        return None

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """Return at most `size` bytes of an output file from byte `start` on; none at its end."""
        return self._read(stream, start, size)

    def output_size(self, stream: StreamName) -> int:
        """Return the size of an output file, with the bytes that were freed; 0 without one."""
        status = self._output_status(stream)
        return 0 if status is None else status.st_size

    def bound_output(self, head: int, tail: int) -> bool:
        """Free the disk space between the first and the newest bytes of each output file.

        `head` and `tail` are the numbers of first and newest bytes that stay. The file becomes
        sparse: its size and the positions of its bytes stay the same, so the task and a later agent
        process continue where they were. If the file system cannot free a part of a file, return
        False and truncate the file to `head + tail` bytes. Tasks write with O_APPEND, so later
        output then follows these bytes, and the output in between is lost.
        """
        sparse = True
        for stream in _STREAMS:
            status = self._output_status(stream)
            if status is None:
                continue
            between = status.st_size - head - tail
            # Free space only in large steps, not after every few bytes that a task writes.
            if between <= 0 or status.st_blocks * BLOCK_BYTES <= head + tail + SLACK_BYTES:
                continue
            with self._opened(stream, os.O_WRONLY) as descriptor:
                if descriptor is None:
                    continue
                try:
                    _punch_hole(descriptor, head, between)
                except OSError:
                    os.ftruncate(descriptor, head + tail)
                    sparse = False
        return sparse

    def _output_status(self, stream: StreamName) -> os.stat_result | None:
        """Return the status of an output file; None if there is no regular file of that name."""
        try:
            status = os.lstat(f"{self.path}/{stream}")
        except OSError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _read(self, name: str, start: int, size: int) -> bytes:
        with self._opened(name, os.O_RDONLY) as descriptor:
            return b"" if descriptor is None else os.pread(descriptor, size, start)

    @contextmanager
    def _opened(self, name: str, how: int) -> Iterator[int | None]:
        """Open a regular file of that name; None if there is none.

        The task can write in the directory, and the agent may have more permissions than the task.
        Therefore links are not followed, and a pipe is neither waited for nor read.
        """
        try:
            descriptor = os.open(self.path / name, how | _CAREFULLY)
        except OSError:
            yield None
            return
        try:
            yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        finally:
            os.close(descriptor)

    def last_log_line(self) -> str:
        """Return the last line of the runner's own log."""
        said = self._read("runner.log", 0, 65_536).decode(errors="replace").strip()
        return said.rpartition("\n")[2][-200:]

    def remove(self) -> bool:
        """Delete the directory; return False if there are files that cannot be deleted.

        It is renamed first: if its files were deleted one by one, a runner that is late could
        create a file in between, find no `start`, and start the command.
        """
        removed = self.path.with_name(self.path.name + ".removed")
        shutil.rmtree(removed, ignore_errors=True)
        with suppress(OSError):
            self.path.rename(removed)
        for path in (removed, self._draft):
            shutil.rmtree(path, ignore_errors=True)
        return not any(map(os.path.lexists, (self.path, removed)))


def _mark(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes when the file does."""
    return (status.st_ino, status.st_mtime_ns, status.st_size, status.st_nlink)


def _punch_hole(descriptor: int, start: int, size: int) -> None:
    """Free the disk space of a range of a file; raises OSError."""
    arguments = (ctypes.c_int64(start), ctypes.c_int64(size))
    if _LIBC.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
