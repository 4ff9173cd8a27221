"""The directory of one replica: names, and what is read and written in it."""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from yardmaster_node_agent.executors.port import Paths, StreamName

#: What a note of the runner's or the task's may hold at most; more of it is not read.
MAX_NOTE_BYTES: Final = 4096


class ReplicaDirectory:
    """Files of one replica under the executor's root.

    `start`, `process`, `exit` and `bell` are the runner's (see `runner`); the command's working
    directory is `work`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._noted: tuple[int, int, int] | None = None

    @property
    def paths(self) -> Paths:
        """Where the task finds its notices."""
        return Paths(str(self.path / "stop.json"), str(self.path / "checkpoint.json"))

    def create(self) -> None:
        """Make it, with the bell.

        Raises:
            FileExistsError: this replica was started before.
            OSError.
        """
        self.path.mkdir(parents=True, mode=0o700)
        (self.path / "work").mkdir()
        os.mkfifo(self.path / "bell", 0o600)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What the runner wrote; None when it did not yet, or the task damaged it.

        Runners write whole files.
        """
        try:
            content = json.loads(self._read(name, 0, MAX_NOTE_BYTES))
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def has(self, name: str) -> bool:
        """There is a file of that name."""
        return (self.path / name).is_file()

    def give_up(self) -> bool:
        """Take the runner's place at the start; False when it was taken: something may run.

        Raises:
            OSError: other than that it is taken.
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

    def write_script(self, script: str) -> str:
        """Keep a script for `sh`, out of the process title; its path."""
        path = self.path / "script"
        path.write_text(script, encoding="utf-8")
        return str(path)

    def announce_stop(self, notice: str) -> bool:
        """Put the stop file in place whole; False when the task removed the directory."""
        draft = self.path / ".stop.json"
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, notice.encode())
            finally:
                os.close(descriptor)
            draft.rename(self.path / "stop.json")
        except OSError:
            return False
        return True

    def checkpoint_note(self) -> bytes | None:
        """The checkpoint file when it is another than at the last call."""
        with self._opened("checkpoint.json", os.O_RDONLY) as descriptor:
            if descriptor is None:
                return None
            status = os.fstat(descriptor)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            if mark == self._noted:
                return None
            self._noted = mark
            return os.read(descriptor, MAX_NOTE_BYTES)

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """Bytes of an output file."""
        return self._read(stream, start, size)

    def bound_output(self, limit: int) -> None:
        """Cut output files to at most `limit` bytes; writers append, so they go on at the new end.

        What is kept below the limit may so be followed by something written much later.
        """
        for stream in ("stdout", "stderr"):
            with self._opened(stream, os.O_WRONLY) as descriptor:
                if descriptor is not None and os.fstat(descriptor).st_size > limit:
                    os.ftruncate(descriptor, limit)

    def drop_output(self) -> None:
        """Cut both output files to nothing."""
        self.bound_output(0)

    def _read(self, name: str, start: int, size: int) -> bytes:
        with self._opened(name, os.O_RDONLY) as descriptor:
            return b"" if descriptor is None else os.pread(descriptor, size, start)

    @contextmanager
    def _opened(self, name: str, how: int) -> Iterator[int | None]:
        """A regular file of that name, or None.

        The task owns the directory and the agent may see more than the task: no link is followed,
        and a pipe put in a file's place neither blocks nor is read.
        """
        try:
            flags = how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path / name, flags)
        except OSError:
            yield None
            return
        try:
            yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        finally:
            os.close(descriptor)

    def last_words(self) -> str:
        """The end of what the runner itself had to say."""
        said = self._read("runner.log", 0, 65_536).decode(errors="replace").strip()
        return said.rpartition("\n")[2][-200:]

    def remove(self) -> None:
        """Delete it and all in it; what cannot be deleted stays."""
        shutil.rmtree(self.path, ignore_errors=True)
