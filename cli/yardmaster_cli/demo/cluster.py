"""The cluster of `yard demo`: its start and stop, the commands on it, and its allocations."""

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import yardmaster
from yardmaster.client import Client
from yardmaster.local_cluster import read_dev
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.server.remote import Remote
from yardmaster_cli.session import Session
from yardmaster_localcluster.errors import EngineSilent
from yardmaster_localcluster.task_containers import end_containers
from yardmaster_schemas.api import Phase, Task

#: The longest wait for one event, in seconds; the whole demo usually takes 25.
STEP_S: Final = 60.0
#: The longest wait for the first container, whose image may have to be pulled.
PULL_LIMIT: Final = "20m"
#: The polling interval, in seconds.
LOOK_S: Final = 0.2
NODES: Final = 2
SLOTS: Final = 4
#: The most GPUs of a cluster for the demo; each GPU runs one process.
MOST_GPUS: Final = 32
POOL: Final = "default"
#: The most tasks that one request lists.
PAGE: Final = 1000
#: The name of the folder of checkpoints, and where containers have it.
_CHECKPOINTS: Final = "checkpoints"
_HOLDING: Final = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
#: Settings of the user that must not affect the demo.
_FOREIGN: Final = ("YARD_SERVER", "YARD_TOKEN", "YARD_PROJECT", "YARD_OUTPUT", "YARD_LOG")


@dataclass(frozen=True, slots=True)
class Programs:
    """The paths of programs on the nodes, and a shared folder for checkpoints."""

    python: str
    examples: str
    checkpoints: str

    @classmethod
    def here(cls, folder: Path) -> "Programs":
        """The paths on this machine."""
        return cls(sys.executable, str(find_examples()), str(folder / "checkpoints"))

    def run(self, program: str, steps: int) -> list[str]:
        """The command line of an example program."""
        words = [self.python, f"{self.examples}/{program}", "--steps", str(steps)]
        return [*words, "--out", self.checkpoints]

    def shown(self, words: Sequence[str]) -> list[str]:
        """A command line as a user types it in a clone."""
        if words[0] != self.python:
            return list(words)
        return [Path(words[0]).name, f"examples/{Path(words[1]).name}", *words[2:-2]]


def find_examples() -> Path:
    """The folder of the example programs in a clone.

    Raises:
        BadUsage: this is an installation without the sources.
    """
    path = Path(__file__).resolve().parents[3] / "examples"
    if not (path / "train.py").is_file():
        raise BadUsage(
            f"the example programs are not at {path}", hint="run make demo in a clone of Yardmaster"
        )
    return path


def gpus_held(tasks: Sequence[Task]) -> int:
    """The GPUs of tasks that start, run or stop."""
    return sum(task.gpu_milli for task in tasks if task.phase in _HOLDING) // 1000


def line_of(tasks: Sequence[Task], gpus: int) -> str:
    """One line with the GPUs of each job, and with the pending tasks and their reasons."""
    held: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for task in tasks:
        if task.phase in _HOLDING:
            stopping = " (stopping)" if task.phase is Phase.STOPPING else ""
            held[f"{task.name}{stopping}"] += task.gpu_milli // 1000
        elif task.phase in (Phase.SUBMITTED, Phase.PENDING):
            waiting[f"{task.name} ({task.wait.code})" if task.wait else task.name] += 1
    parts = [f"{sum(held.values())} of {gpus} GPUs"]
    parts += [f"{name} {count}" for name, count in held.items()]
    if waiting:
        parts.append("pending: " + ", ".join(f"{count} {name}" for name, count in waiting.items()))
    return "  " + " | ".join(parts)


class DemoCluster:
    """A cluster of the embedded mode in a folder of its own."""

    #: The steps of each search point: so many that the demo cancels the point before its end.
    search_steps = 60
    at_the_end = "The cluster is stopped."
    next_step = "yard dev, and in another terminal yard submit -- COMMAND"

    def __init__(self, folder: Path, programs: Programs, *, color: bool) -> None:
        self.folder = folder
        self.programs = programs
        self.color = color
        self.remote: Remote | None = None
        self.nodes = NODES
        self.slots = SLOTS
        self.jobs: list[str] = []
        self._last = ""

    @classmethod
    def in_folder(cls, folder: Path, *, color: bool) -> "DemoCluster":
        """A cluster on this machine with all data in `folder`."""
        return cls(folder, Programs.here(folder), color=color)

    @property
    def client(self) -> Client:
        """The client of the gateway."""
        assert self.remote is not None
        return self.remote.client

    @property
    def log_hint(self) -> str:
        """The place of the logs, for errors."""
        return f"the log of the cluster is {self.folder / 'dev.out'}"

    # --- the cluster ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the embedded mode as a process; stop it and its tasks at the end."""
        for name in _FOREIGN:
            os.environ.pop(name, None)
        os.environ |= {
            "YARD_CONTEXT": "dev",
            "YARD_DATA": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }
        self.say(f"A cluster of {NODES} nodes with {SLOTS} GPUs each, in one process:")
        shown = f"yard dev --nodes {NODES} --slots {SLOTS}"
        self.command(f"{shown} &")
        # The default port stays free for a cluster of the user.
        words = [sys.executable, "-m", "yardmaster_cli.main", *shlex.split(shown)[1:]]
        words += ["--port", "0"]
        output = self.folder / "dev.out"
        with open(output, "wb") as file:
            process = subprocess.Popen(
                words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            self._connect(process, output)
            yield
        except BaseException:
            self._end_tasks()
            raise
        finally:
            _stop(process)

    def _connect(self, process: subprocess.Popen[bytes], output: Path) -> None:
        def there() -> bool:
            if process.poll() is not None:
                raise CliError(
                    f"yard dev ended with exit code {process.returncode}:\n{output.read_text()}",
                    exit_code=Exit.INTERNAL,
                )
            return read_dev(self.folder / "data") is not None

        self.until(there, "yard dev listens")
        self.remote = Session({}).remote
        self.until(
            lambda: sum(node.state == "ready" for node in self.client.nodes().items) == NODES,
            "both nodes have joined",
        )
        self.prepare()

    def prepare(self) -> None:
        """Do what the demo needs before its first step: here nothing."""

    def _end_tasks(self) -> None:
        """Cancel all tasks of the demo after a failure."""
        if self.remote is None:
            return
        with contextlib.suppress(Exception):
            for job in {task.job_id for task in self.tasks() if not task.phase.final}:
                self.client.cancel(job, immediate=True)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(not t.phase.final for t in self.tasks()):
                time.sleep(LOOK_S)

    # --- output and commands --------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print a line of the story."""
        click.echo("\n" + click.style(f"# {text}", fg="cyan"), color=self.color)

    def command(self, text: str) -> None:
        """Print a command."""
        click.echo(click.style(f"$ {text}", bold=True), color=self.color)

    def yard(self, *words: str) -> int:
        """Print and run a command; returns its exit code.

        Raises:
            KeyboardInterrupt: the command was interrupted.
        """
        from yardmaster_cli.main import run

        self.command(shlex.join(["yard", *words]))
        sys.stdout.flush()
        return _not_interrupted(run(words))

    def submit(self, flags: Sequence[str], program: Sequence[str]) -> str:
        """Submit a job and return its id.

        Raises:
            CliError: the job was refused.
        """
        shown = self.programs.shown(program)
        self.command(shlex.join(["yard", "submit", *flags, "--", *shown]))
        code, job = _silently(["submit", *flags, "--", *program])
        click.echo(job)
        self.jobs.append(job)
        if code != Exit.DONE:
            raise CliError("the job was refused", exit_code=code)
        return job

    def submit_gang(self, flags: Sequence[str], program: str, steps: int) -> str:
        """Submit a job that runs an example program as a gang, and return its id.

        Raises:
            CliError: the job was refused.
        """
        return self.submit(flags, self.programs.run(program, steps))

    def cancel(self, refs: Sequence[str]) -> None:
        """Cancel jobs or tasks; a long list is abbreviated."""
        shown = refs if len(refs) < 4 else [refs[0], "...", refs[-1]]
        self.command(" ".join(["yard", "cancel", *shown]))
        _silently(["cancel", *refs])

    def tasks(self) -> list[Task]:
        """All tasks of the demo, in the order of their submission."""
        # The page is large, because two pages would be read at two moments.
        found = [task for task in self.client.all_tasks(limit=PAGE) if task.job_id in self.jobs]
        return sorted(found, key=lambda task: (task.submitted_at, task.job_id, task.index))

    def until(self, there: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; `what` describes it.

        Raises:
            CliError: the condition does not hold within `STEP_S` seconds.
        """
        deadline = time.monotonic() + STEP_S
        while not there():
            if time.monotonic() > deadline:
                raise CliError(
                    f"timeout after {STEP_S:.0f} s: {what}",
                    exit_code=Exit.TIMEOUT,
                    hint=self.log_hint,
                )
            time.sleep(LOOK_S)

    def watch(self, done: Callable[[list[Task]], bool], what: str) -> None:
        """Print a line for each change of the allocations until a condition holds."""

        gpus = self.nodes * self.slots

        def look() -> bool:
            tasks = self.tasks()
            if gpus_held(tasks) > gpus:
                # More GPUs are held than exist: the pages of the list were read at two moments,
                # before the end of one gang and after the start of the next one.
                return False
            line = line_of(tasks, gpus)
            if line != self._last:
                click.echo(line)
                self._last = line
            return done(tasks)

        self.until(look, what)


class ContainerCluster(DemoCluster):
    """A cluster of its own as `DemoCluster`, which runs the gangs of the demo in containers."""

    #: Containers start later than processes, and no point may end before the demo cancels it.
    search_steps = 100

    def __init__(self, folder: Path, image: str, *, color: bool) -> None:
        super().__init__(folder, Programs.here(folder), color=color)
        self.image = image
        #: The example programs with the SDK, which needs only Python's standard library.
        self.code = folder / "code"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """As in `DemoCluster`, with nodes whose containers share a network and the checkpoints.

        Raises:
            CliError: no node can run containers, or none can run the image.
        """
        examples, sdk = Path(self.programs.examples), Path(yardmaster.__file__).parent
        self.code.mkdir()
        for program in ("tiny.py", "train_gang.py"):
            shutil.copy(examples / program, self.code)
        (self.code / "yardmaster").mkdir()
        for module in ("__init__.py", "task.py"):
            shutil.copy(sdk / module, self.code / "yardmaster")
        checkpoints = Path(self.programs.checkpoints)
        checkpoints.mkdir()
        mounts = {_CHECKPOINTS: {"path": str(checkpoints), "read_only": False}}
        os.environ |= {
            "YARD_AGENT_EXECUTOR": "auto",
            "YARD_AGENT_CONTAINER_NETWORK": "host_for_gangs",
            "YARD_AGENT_MOUNTS": json.dumps(mounts),
        }
        try:
            with super().running():
                yield
        finally:
            # Agents keep ended containers for a while.
            with contextlib.suppress(EngineSilent):
                end_containers(self.folder / "data" / "nodes")

    def prepare(self) -> None:
        """Allow the mount, and run the image once, so that its pull does not delay a step.

        Raises:
            CliError: no node can run containers, or none can run the image.
        """
        if not any("container" in node.executors for node in self.client.nodes().items):
            raise CliError(
                "no container engine answers",
                exit_code=Exit.CONFLICT,
                hint="start Docker, or run yard demo without --executor; yard doctor says more",
            )
        self.say(f"The gangs will run in containers of {self.image}. Does it have Python?")
        self.yard("projects", "set", "default", f"mounts={_CHECKPOINTS}:rw")
        options = ["--image", self.image, "--follow", "--timeout", PULL_LIMIT]
        code = self.yard("submit", *options, "--", "python3", "--version")
        if code != Exit.DONE:
            raise CliError(f"{self.image} did not run", exit_code=code, hint=self.log_hint)

    def submit_gang(self, flags: Sequence[str], program: str, steps: int) -> str:
        """Submit a job that runs an example program as a gang of containers; return its id.

        Raises:
            CliError: the job was refused.
        """
        folder = f"/{_CHECKPOINTS}"
        options = ["--image", self.image, "--context", str(self.code)]
        options += ["--mount", f"{_CHECKPOINTS}:{folder}:rw"]
        words = ["python3", program, "--steps", str(steps), "--out", folder]
        return self.submit([*flags, *options], words)


class RunningCluster(DemoCluster):
    """A running cluster, which keeps running after the demo."""

    search_steps = 100
    at_the_end = "All tasks have ended; the cluster keeps running."
    next_step = "yard submit -- COMMAND; yard down stops the cluster"

    def __init__(self, folder: Path, *, color: bool) -> None:
        session = Session({})
        dev = session.config.dev
        given = dev.programs if dev is not None else None
        programs = Programs(**given) if given is not None else Programs.here(folder)
        super().__init__(folder, programs, color=color)
        self.remote = session.remote

    @property
    def log_hint(self) -> str:
        """The place of the logs, for errors."""
        return "the logs are in the folder that yard up printed"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Check the cluster; cancel the tasks of a demo that fails.

        Raises:
            CliError: the cluster lacks two idle nodes of equal size under the policy `priority`.
        """
        ready = [n for n in self.client.nodes(pool=POOL, limit=1000).items if n.state == "ready"]
        sizes = {node.gpus for node in ready}
        busy = any(not task.phase.final for task in self.client.all_tasks())
        self.nodes, self.slots = len(ready), min(sizes, default=0)
        too_many = self.nodes * self.slots > MOST_GPUS
        if self.nodes < NODES or len(sizes) > 1 or self.slots < 2 or busy or too_many:
            raise CliError(
                f"the demo needs {NODES} or more idle nodes of one size, at most {MOST_GPUS} GPUs "
                f"in all; {self.nodes} are ready, with "
                f"{' or '.join(map(str, sorted(sizes))) or 'no'} GPUs{', busy' if busy else ''}",
                exit_code=Exit.CONFLICT,
                hint="start one with yard up --agents 3 --slots 4; yard ls shows running tasks",
            )
        policy = self.client.pool(POOL).config.policy
        if policy.name != "priority" or not all(policy.options.values()):
            raise CliError(
                f"the demo needs the policy priority with all options; pool {POOL} differs",
                exit_code=Exit.CONFLICT,
                hint=f"see yard pools show {POOL}",
            )
        self.say(f"The running cluster: {self.nodes} nodes with {self.slots} GPUs each:")
        try:
            yield
        except BaseException:
            self._end_tasks()
            raise


def _silently(words: Sequence[str]) -> tuple[int, str]:
    """Run a command; returns its exit code and its output.

    Raises:
        KeyboardInterrupt: the command was interrupted.
    """
    from yardmaster_cli.main import run

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = _not_interrupted(run(words))
    return code, text.getvalue().strip()


#: Set by Ctrl-C. A library that a command calls may lose the KeyboardInterrupt.
_INTERRUPTED: Final = threading.Event()


@contextlib.contextmanager
def remembered_interrupts() -> Iterator[None]:
    """Remember Ctrl-C in `_INTERRUPTED`, so that it ends the demo after the current command."""

    def remember(*_: object) -> None:
        _INTERRUPTED.set()
        raise KeyboardInterrupt

    _INTERRUPTED.clear()
    former = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _not_interrupted(code: int) -> int:
    """Return the exit code of a command; Ctrl-C during the command ends the demo too."""
    if code == Exit.INTERRUPTED or _INTERRUPTED.is_set():
        raise KeyboardInterrupt
    return code


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the embedded mode as Ctrl-C does; kill the process after a timeout."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
