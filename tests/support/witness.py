"""A witness beside the log: what test tasks saw of their own starts, ends and slots.

A task run with `python witness.py FOLDER -- CMD...` (or one that imports `Watch`) notes its start
and end as lines of `FOLDER/witness.jsonl` and holds a lock file for each of its whole slots and for
its replica while it lives. The kernel lets go of locks when the last process that inherited them is
gone, so a lock that is taken is proof that something still runs. Standard library only: it runs
inside tasks.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "witness.jsonl"


class Watch:
    """One replica's testimony; make it first thing, and keep it until the end."""

    def __init__(self, folder: Path, environ: dict[str, str] | None = None) -> None:
        env = dict(os.environ) if environ is None else environ
        self.folder = folder
        self.who: dict[str, Any] = {
            "task": env["YARD_TASK_ID"],
            "attempt": int(env["YARD_ATTEMPT"]),
            "replica": int(env.get("YARD_REPLICA", "0")),
            "node": env.get("YARD_NODE", ""),
            "pid": os.getpid(),
        }
        visible = env.get("CUDA_VISIBLE_DEVICES", "")
        self.slots = [int(s) for s in visible.split(",") if s.strip().isdigit()]
        whole = int(env.get("YARD_GPU_MILLI", "1000")) >= 1000
        folder.mkdir(parents=True, exist_ok=True)
        self._note("start", slots=self.slots)
        names = [f"slot.{self.who['node']}.{slot}" for slot in self.slots] if whole else []
        names.append(f"replica.{self.who['task']}.{self.who['replica']}")
        self._locks = [fd for name in names if (fd := self._lock(name)) is not None]

    def end(self, code: int = 0) -> None:
        """Note that the work is over; locks go with the process."""
        self._note("end", code=code)

    def _lock(self, name: str) -> int | None:
        fd = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        os.set_inheritable(fd, True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0).decode(errors="replace")
            self._note("taken", lock=name, holder=holder)
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(self.who).encode(), 0)
        return fd

    def _note(self, what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "at_ns": time.time_ns(), **self.who, **more}) + "\n"
        fd = os.open(self.folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line.encode())  # one write: lines of several processes do not mix
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Start:
    """One process that ran a replica; `end_ns` is None when it was killed, or lives."""

    task: str
    attempt: int
    replica: int
    node: str
    pid: int
    start_ns: int
    slots: tuple[int, ...]
    end_ns: int | None = None


@dataclass(slots=True)
class Testimony:
    """What all tasks noted."""

    starts: list[Start] = field(default_factory=list)
    #: Locks that were held when somebody came to take them.
    taken: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Attempts that started twice, slots held twice: one line each."""
        found = [f"unreadable line: {line[:200]!r}" for line in self.unreadable]
        first: dict[tuple[str, int, int], Start] = {}
        for start in self.starts:
            other = first.setdefault((start.task, start.attempt, start.replica), start)
            if other is not start:
                found.append(
                    f"{start.task} attempt {start.attempt} replica {start.replica} started twice: "
                    f"pid {other.pid} on {other.node}, pid {start.pid} on {start.node}"
                )
        for line in self.taken:
            kind = "slot held twice" if line["lock"].startswith("slot.") else "runs twice at once"
            found.append(
                f"{kind}: {line['lock']} wanted by {line['task']} attempt {line['attempt']} "
                f"(pid {line['pid']}), held by {line['holder']}"
            )
        return found


def read_witness(folder: Path) -> Testimony:
    """What the tasks of a folder noted; nothing when none ran."""
    testimony = Testimony()
    path = folder / FILE
    if not path.exists():
        return testimony
    open_: dict[tuple[str, int, int, int], int] = {}
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
            key = (line["task"], line["attempt"], line["replica"], line["pid"])
            match line["what"]:
                case "start":
                    open_[key] = len(testimony.starts)
                    slots = tuple(line["slots"])
                    testimony.starts.append(
                        Start(*key[:3], line["node"], key[3], line["at_ns"], slots)
                    )
                case "end":
                    at = open_.pop(key)
                    s = testimony.starts[at]
                    testimony.starts[at] = Start(
                        *key[:3], s.node, s.pid, s.start_ns, s.slots, line["at_ns"]
                    )
                case "taken":
                    testimony.taken.append(line)
                case other:
                    raise ValueError(other)
        except (ValueError, KeyError, TypeError):
            testimony.unreadable.append(text)
    return testimony


def assert_witness_clean(folder: Path) -> Testimony:
    """Fail when an attempt started twice or a slot was held twice; returns what was read."""
    testimony = read_witness(folder)
    problems = testimony.problems()
    assert not problems, "tasks saw what must not be:\n" + "\n".join(problems[:20])
    return testimony


def command(folder: Path, *cmd: str) -> list[str]:
    """What to submit so that `cmd` runs under a witness."""
    return [sys.executable, str(Path(__file__).resolve()), str(folder), "--", *cmd]


def main(argv: Sequence[str]) -> int:
    """`witness.py FOLDER -- CMD...`: run CMD while holding the locks; its exit code."""
    folder, dashes, *cmd = argv
    if dashes != "--" or not cmd:
        print("usage: witness.py FOLDER -- CMD...", file=sys.stderr)
        return 2
    watch = Watch(Path(folder))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # for CMD to act on, which starts with the defaults
    code = subprocess.Popen(cmd, close_fds=False).wait()
    watch.end(code)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
