"""What a command costs before it does its work: processor time of whole processes.

`yard --help` asks nothing; `yard ls` asks a server that answers at once with as many tasks as a
terminal shows, so that what is measured is the command and not the gateway.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.timing import Row

RUNS = 21
TASKS = 50
AIM_S = 0.3


def start(quick: bool) -> list[Row]:
    """The median processor time (user and system) of `yard --help` and `yard ls`."""
    runs = 5 if quick else RUNS
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Tasks)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        return [
            _row("yard --help", ["--help"], runs),
            _row(f"yard ls, {TASKS} tasks", ["ls", "--server", url], runs),
        ]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _row(name: str, args: Sequence[str], runs: int) -> Row:
    with tempfile.TemporaryDirectory() as home:
        env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
        env |= {"XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home}
        took = [_took(args, env) for _ in range(runs + 1)][1:]
    wall_s = statistics.median(wall for wall, _ in took)
    cpu_s = statistics.median(cpu for _, cpu in took)
    return Row(f"{name}, median of {runs}", wall_s, "s", f"cpu {AIM_S:g}", cpu=cpu_s)


def _took(args: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    """Seconds of one command by the clock, and of the processor."""
    command = [sys.executable, "-m", "yardmaster.cli.main", *args]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime


def _task(number: int) -> dict[str, object]:
    """A task that runs, with what the list shows of it."""
    return {
        "task_id": f"{number:012d}.0",
        "job_id": f"{number:012d}",
        "index": 0,
        "name": f"train-{number}",
        "project": "nlp",
        "user": "ada",
        "phase": "running",
        "priority": 50,
        "attempt": 1,
        "paused": False,
        "gpu_milli": 8000,
        "pool": "default",
        "pools": ["default"],
        "nodes": ["node-1"],
        "submitted_at": "2026-01-31T12:00:00.000Z",
        "started_at": "2026-01-31T12:00:05.000Z",
        "ended_at": None,
        "wait": None,
        "stop": None,
        "end": None,
        "refusal": None,
        "checkpoint": None,
        "progress_permille": 420,
        "params": {"seed": number},
        "labels": {"team": "nlp"},
    }


class _Tasks(BaseHTTPRequestHandler):
    """Answers every request with the same page of tasks."""

    body = json.dumps({"items": [_task(number) for number in range(TASKS)], "next_cursor": None})

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass
