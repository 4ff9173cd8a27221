"""The program inside a task for `witness`: `python watch.py FOLDER -- CMD...`.

Thousands of tasks start it, so it imports little, and only from the standard library.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

FILE = "witness.jsonl"


class Watch:
    """One replica's notes; create it first, and keep it until the end."""

    def __init__(self, folder: str) -> None:
        env = os.environ
        self.folder = folder
        self.who: dict[str, object] = {
            "task": env["YARD_TASK_ID"],
            "attempt": int(env["YARD_ATTEMPT"]),
            "replica": int(env.get("YARD_REPLICA", "0")),
            "node": env.get("YARD_NODE", ""),
            "pid": os.getpid(),
        }
        visible = env.get("CUDA_VISIBLE_DEVICES", "")
        self.slots = [int(s) for s in visible.split(",") if s.strip().isdigit()]
        whole = int(env.get("YARD_GPU_MILLI", "1000")) >= 1000
        os.makedirs(folder, exist_ok=True)
        self._note("start", slots=self.slots)
        names = [f"slot.{self.who['node']}.{slot}" for slot in self.slots] if whole else []
        names.append(f"replica.{self.who['task']}.{self.who['replica']}")
        self._locks = [fd for name in names if (fd := self._lock(name)) is not None]

    def end(self, code: int = 0) -> None:
        """Note the end of the work; the kernel releases the locks with the process."""
        self._note("end", code=code)

    def _lock(self, name: str) -> int | None:
        fd = os.open(f"{self.folder}/{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
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

    def _note(self, what: str, **more: object) -> None:
        line = json.dumps({"what": what, "at_ns": time.time_ns(), **self.who, **more}) + "\n"
        fd = os.open(f"{self.folder}/{FILE}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line.encode())  # one write: lines of several processes do not mix
        finally:
            os.close(fd)


def main(argv: list[str]) -> int:
    """`watch.py FOLDER -- CMD...`: run CMD while holding the locks; return its exit code."""
    folder, dashes, *cmd = argv
    if dashes != "--" or not cmd:
        print("usage: watch.py FOLDER -- CMD...", file=sys.stderr)
        return 2
    watch = Watch(folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # for CMD to act on, which starts with the defaults
    code = subprocess.Popen(cmd, close_fds=False).wait()
    watch.end(code)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
