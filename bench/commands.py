"""The fixed cost of a command: processor time of whole processes.

`yard --help` queries no server; `yard ls` queries a `yard dev` with as many tasks as a terminal
shows. Only the command's own processor time counts, not the gateway's.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.timing import Row

RUNS = 21
TASKS = 50
AIM_S = 0.3
#: The longest wait for the cluster to list all tasks, in seconds.
READY_S = 60.0
YARD = (sys.executable, "-m", "yardmaster_cli.main")


def start(quick: bool) -> list[Row]:
    """The median processor time (user and system) of `yard --help` and `yard ls`."""
    runs = 5 if quick else RUNS
    with _cluster() as env:
        return [
            _row("yard --help", ["--help"], env, runs),
            _row("yard ls", ["ls"], env, runs),
            _row(f"yard ls --all, {TASKS} tasks", ["ls", "--all"], env, runs),
        ]


@contextmanager
def _cluster() -> Iterator[dict[str, str]]:
    """An environment for commands to a `yard dev` with the tasks of one array."""
    with tempfile.TemporaryDirectory() as home:
        env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
        env |= {"XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "YARD_DATA": f"{home}/data"}
        log = Path(home, "dev.out")
        with log.open("wb") as out:
            dev = subprocess.Popen([*YARD, "dev", "--port", "0"], env=env, stdout=out, stderr=out)
        try:
            job = [*YARD, "submit", "--gpus", "1", "--tasks", str(TASKS), "--", "sleep", "900"]
            deadline = time.monotonic() + READY_S
            while subprocess.run(job, env=env, capture_output=True, check=False).returncode:
                if time.monotonic() > deadline or dev.poll() is not None:
                    raise RuntimeError(f"yard dev accepted no job: {log.read_text()}")
                time.sleep(0.2)
            yield env
        finally:
            stop = [*YARD, "cancel", "--all-projects", "--phase", "active", "--now", "--yes"]
            subprocess.run(stop, env=env, capture_output=True, check=False)
            dev.terminate()
            dev.wait()


def _row(name: str, args: Sequence[str], env: dict[str, str], runs: int) -> Row:
    took = [_took(args, env) for _ in range(runs + 1)][1:]
    wall_s = statistics.median(wall for wall, _ in took)
    cpu_s = statistics.median(cpu for _, cpu in took)
    return Row(f"{name}, median of {runs}", wall_s, "s", f"cpu {AIM_S:g}", cpu=cpu_s)


def _took(args: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one command."""
    command = [*YARD, *args]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime
