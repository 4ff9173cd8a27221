"""`yard up` and `yard down` as a user calls them, for tests of both forms."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.yard_cli import CommandResult, user_env
from yardmaster_localcluster.orphans import of_cluster, of_tasks
from yardmaster_localcluster.ports import CHOICE, is_free, reserve

#: Health ports are at most this far apart.
SPAN = 60
#: Spans are inside this range: below the ports that `free_ports` gives to other tests, and so below
#: the ephemeral ports of clients, any of which may be in use at any moment.
BELOW_CHOICE = range(10_000, CHOICE.start)


def free_span(size: int) -> int:
    """The first of `size` consecutive ports that are free and that no other test chooses."""
    chance = random.SystemRandom()
    for _ in range(200):
        first = chance.choice(BELOW_CHOICE[: 1 - size])
        if all(reserve(first + n) for n in range(size)):
            return first
    raise AssertionError(f"there are no {size} free ports in a row")


class Up:
    """A data directory with its own ports, and the commands that run on it.

    `form` is `--local` or `--compose`; the folder identifies its containers.
    """

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.form = form
        self.data = folder / "data"
        first = free_span(SPAN + 20)
        self.ports = {
            "gateway": first,
            "kafka": first + 10,
            "controller": first + 11,
            "redis": first + 12,
            "health": first + 20,
        }
        # The images of compose come from the variables of the process that runs the tests.
        self.env = user_env(folder, self.data, keep="YARD_UP_")

    def yard(self, *words: str, code: int | None = 0) -> CommandResult:
        """Run a command in its own process."""
        done = subprocess.run(
            [sys.executable, "-m", "yardmaster_cli.main", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.folder,
            timeout=300,
            check=False,
        )
        said = CommandResult(done.returncode, done.stdout, done.stderr)
        assert code is None or said.code == code, (
            f"yard {' '.join(words)}: exit {said.code}, expected {code}\n{said.out}\n{said.err}\n"
            f"{self.words()}"
        )
        return said

    def up(self, *words: str, code: int = 0) -> CommandResult:
        """`yard up` in this form; passes the ports of this test once, as a user would."""
        said = (self.data / "up.json").exists()
        ports = [] if said else [f"--{name}-port={port}" for name, port in self.ports.items()]
        return self.yard("up", self.form, *ports, *words, code=code)

    def words(self) -> str:
        """The last output of every process, for failure messages."""
        logs = sorted((self.data / "logs").glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs
        )

    def processes(self) -> dict[str, dict[str, Any]]:
        """The status of each process from the supervisor."""
        state = json.loads((self.data / "state.json").read_text())
        return {row["name"]: row for row in state["processes"]}

    def pids(self) -> dict[str, int]:
        """The process ids, by name."""
        return {name: row["pid"] for name, row in self.processes().items()}

    def assert_nothing_left(self) -> None:
        """Check that no process, no task and no listening port is left."""
        assert of_cluster(self.data) == []
        assert of_tasks(self.data / "agents") == []
        taken = [port for port in self.ports.values() if not is_free(port)]
        assert taken == []
        assert not (self.data / "dev.json").exists()
