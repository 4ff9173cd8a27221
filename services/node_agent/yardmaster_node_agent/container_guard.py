"""Kills the fenced containers of a node when the agent's lease was not renewed (see `lease`).

A process is killed by its runner; a container has none. So one guard for each data directory runs
as a process of its own, which outlives the agent, as runners do:
`python -m yardmaster_node_agent.container_guard FOLDER SOCKET`. Each file of `FOLDER` names a
container, its lease, and the directory of its replica; an executor writes the file before it starts
the container (`executors.guarding`).

`lock` in the folder is locked while a guard runs. A guard without containers to guard unlocks it
and ends. An executor that finds the lock free after it has written a file starts a guard. The
guard looks once more after it has unlocked, so one of the two always finds the file.

A file that cannot be read is reported once, by the guard in its log and by the agent, and read
again at each look. Until it can be read, nothing guards its container.

If the agent and the guard are both killed, a container continues.
"""

import fcntl
import http.client
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from yardmaster_node_agent.runner import LeaseFence

LOCK: Final = "lock"
#: The longest seconds between two looks at the folder; a fence has more.
LOOK_S: Final = 1.0
#: Seconds to the next request about a container that could not be killed.
AGAIN_S: Final = 1.0
#: Seconds that one request to the engine may take.
ANSWER_S: Final = 20.0
#: The most requests to the engine at once.
AT_ONCE: Final = 16
#: The states of a container that does not run and is not started again.
ENDED: Final = ("exited", "dead")


class Guard:
    """The containers of a folder, by the names of their files."""

    def __init__(self, folder: str, engine: str) -> None:
        self._folder = folder
        self._engine = engine
        self._guarded: dict[str, Guarded] = {}
        #: The files that could not be read at the last look.
        self._damaged: set[str] = set()

    def look(self) -> bool:
        """Read new files, and forget removed ones; return whether there is any file."""
        names = {name for name in os.listdir(self._folder) if name != LOCK and name[0] != "."}
        for name in self._guarded.keys() - names:
            del self._guarded[name]
        for name in sorted(names - self._guarded.keys()):
            try:
                self._guarded[name] = read(os.path.join(self._folder, name))
            except FileNotFoundError:
                names.discard(name)
            except (OSError, ValueError) as error:
                if name not in self._damaged:
                    print(f"nothing guards {name}: {error}", file=sys.stderr, flush=True)
                self._damaged.add(name)
        self._damaged &= names - self._guarded.keys()
        return bool(names)

    def kill_expired(self) -> float:
        """Kill all containers whose lease has expired; return the seconds to the next look."""
        waits_s = {name: each.left_s() for name, each in self._guarded.items()}
        expired = [self._guarded[name] for name, left_s in waits_s.items() if left_s <= 0]
        if expired:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda each: each.kill(self._engine), expired))
        return min([LOOK_S, *(left_s for left_s in waits_s.values() if left_s > 0)])


class Guarded:
    """One container and its lease."""

    def __init__(self, path: str, content: dict[str, Any]) -> None:
        self._path = path
        self._id: str = content["id"]
        self._mark = os.path.join(content["directory"], "fenced")
        self._fence = LeaseFence(content["directory"], content["fence"])
        self._again_s = float("-inf")
        self._printed = ""

    def left_s(self) -> float:
        """The seconds until the container must be killed, or killed again."""
        return max(self._fence.left_s(), self._again_s - time.monotonic())

    def kill(self, engine: str) -> None:
        """SIGKILL the container; remove its file if it can never run again.

        A container that was not started yet may start at any time, so its file stays.
        """
        self._again_s = time.monotonic() + AGAIN_S
        try:
            status = ask(engine, "GET", f"/containers/{self._id}/json")
            if status is None or status in ENDED:
                os.unlink(self._path)
            elif status != "created":
                # The mark comes first: the agent reads it when the container has ended.
                with open(self._mark, "w", encoding="ascii"):
                    pass
                ask(engine, "POST", f"/containers/{self._id}/kill?signal=KILL")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if str(error) != self._printed:
                self._printed = str(error)
                print(f"container {self._id}: {error}", file=sys.stderr, flush=True)


def read(path: str) -> Guarded:
    """Read the file of a container.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not have what an executor writes.
    """
    with open(path, encoding="ascii") as file:
        content = json.load(file)
    try:
        guarded = Guarded(path, content)
        guarded.left_s()
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no file of an executor: {error!r}") from None
    return guarded


def ask(engine: str, method: str, path: str) -> str | None:
    """The status that a container's description names; None if there is no such container."""
    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(ANSWER_S)
        connection.sock.connect(engine)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status == 404:
        return None
    return str(json.loads(body)["State"]["Status"]) if response.status == 200 else ""


def main(folder: str, engine: str) -> int:
    """Guard the containers of a folder until none is left; 0 at once if another guard does."""
    lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    guard = Guard(folder, engine)
    while take(lock):
        try:
            while guard.look():
                time.sleep(guard.kill_expired())
            fcntl.flock(lock, fcntl.LOCK_UN)
            if not guard.look():
                return 0
        except FileNotFoundError:
            return 0  # the data directory was removed
    return 0


def take(lock: int) -> bool:
    """Take the lock; False: another guard has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
