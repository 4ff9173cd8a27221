"""The executor's side of the guard of fenced containers (see `container_guard`)."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

from yardmaster_node_agent import container_guard
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.port import Launch

#: What the guard prints, such as requests that the engine did not answer.
LOG: Final = ".log"


class Guarding:
    """Writes and removes the files of guarded containers, and starts their guard."""

    def __init__(self, folder: Path, engine_socket: Path, renewed: Path) -> None:
        """`renewed` is the file of the lease's renewals (see `renewals`)."""
        self._folder = folder.absolute()
        self._engine_socket = engine_socket.absolute()
        self._renewed = renewed.absolute()
        self._pid = 0

    def protect(self, launch: Launch, directory: ReplicaDirectory, container_id: str) -> None:
        """Guard a container from now on; call this before it is started.

        Raises: OSError: the guard cannot be started.
        """
        if launch.fence_s is None:
            return
        content = {
            "id": container_id,
            "directory": str(directory.path),
            "fence": {
                "renewed": str(self._renewed),
                "incarnation": launch.incarnation,
                "seconds": launch.fence_s,
            },
        }
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{directory.path.name}"
        draft.write_text(json.dumps(content), encoding="ascii")
        draft.rename(self._folder / directory.path.name)
        self.watch()

    def release(self, directory: ReplicaDirectory) -> None:
        """Guard a container no longer, which has ended or was removed."""
        (self._folder / directory.path.name).unlink(missing_ok=True)

    def damaged(self) -> dict[str, str]:
        """Return the files that the guard cannot read, and why."""
        found = {}
        for path in self._files():
            try:
                container_guard.read(str(path))
            except FileNotFoundError:
                pass  # the guard removes the files of ended containers
            except (OSError, ValueError) as error:
                found[path.name] = str(error)
        return found

    def _files(self) -> list[Path]:
        """Return the files of guarded containers."""
        if not self._folder.is_dir():
            return []
        return [
            path
            for path in self._folder.iterdir()
            if path.name[0] != "." and path.name != container_guard.LOCK
        ]

    def watch(self) -> None:
        """Start the guard if there are containers to guard and it does not run.

        Raises: OSError.
        """
        if self._pid:
            try:
                ended, _ = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                ended = self._pid
            if ended:
                self._pid = 0  # the machine may give the number to another process
        if not self._files():
            return
        lock = os.open(
            self._folder / container_guard.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            if not container_guard.take(lock):
                return
        finally:
            os.close(lock)
        words = [sys.executable, "-I", "-m", container_guard.__name__]
        writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._pid = os.posix_spawn(
            sys.executable,
            [*words, str(self._folder), str(self._engine_socket)],
            {"PATH": os.environ.get("PATH", os.defpath)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(self._folder / LOG), writing, 0o600),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
