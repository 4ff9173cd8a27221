"""Find the cluster that runs on this machine, by the address that its data directory publishes."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
#: The text about a process by its state, if it does not run.
_UNSTEADY: Final = {
    "waiting": "is restarted",
    "given_up": "was given up (yard up starts it again)",
}


@dataclass(frozen=True, slots=True)
class DevServer:
    """The announcement of a running cluster on this machine."""

    server: str
    token: str
    pid: int
    #: The command that started the cluster: `yard dev` or `yard up`.
    what: str = "yard dev"
    #: The URL of the cluster's log; None: the log is a file in the data directory.
    log: str | None = None
    #: The URL of the Redis with the views; None: the views are in memory.
    redis: str | None = None
    #: The folder with the passwords of the users of the brokers (`kafka/USER`) and of Redis
    #: (`redis/USER`); None: brokers and Redis accept every client.
    credentials: str | None = None
    #: The paths of Python, the examples and a folder for checkpoints in the cluster's containers;
    #: None: the cluster's tasks see the files of this machine.
    programs: Mapping[str, str] | None = None
    #: The data directory of the cluster.
    folder: Path = Path()

    @property
    def running(self) -> str:
        """The command that started the cluster, and its process: `yard dev, pid 4711`."""
        # A cluster of containers has the pid 0.
        return f"{self.what}, pid {self.pid}" if self.pid else self.what

    def serves(self, url: str | None) -> bool:
        """Whether `url` is the address of this cluster's gateway, by any name of this machine."""
        try:
            parts = urlsplit(url or "")
            return parts.hostname in _LOOPBACK and parts.port == urlsplit(self.server).port
        except ValueError:
            return False


def default_data_dir(env: Mapping[str, str]) -> Path:
    """The default data directory of `yard dev`."""
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "yardmaster" / "dev"


def default_up_dir(env: Mapping[str, str]) -> Path:
    """The default data directory of `yard up`."""
    return default_data_dir(env).with_name("up")


def read_dev(data_dir: Path) -> DevServer | None:
    """The cluster that runs on a data directory; None: no cluster runs."""
    try:
        text = (data_dir / "dev.json").read_text()
        found = json.loads(text)
        dev = DevServer(
            server=f"http://127.0.0.1:{int(found['port'])}",
            token=str(found["token"]),
            pid=int(found["pid"]),
            what=str(found.get("what", "yard dev")),
            log=found.get("log"),
            redis=found.get("redis"),
            credentials=found.get("credentials"),
            programs=found.get("programs"),
            folder=data_dir,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A cluster of containers has the pid 0.
    return dev if dev.pid == 0 or alive(dev.pid) else None


def alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def unsteady_processes(data_dir: Path) -> list[str]:
    """A sentence for each process that does not stay up, from the state file of `yard up`."""
    try:
        rows = json.loads((data_dir / "state.json").read_text())["processes"]
        return [
            f"{row['name']} {_UNSTEADY[row['state']]} after {row['ends_in_a_row']} ends in a row; "
            f"its log: {row['log']}"
            for row in rows
            if row["state"] in _UNSTEADY and row["ends_in_a_row"] > 1
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
