"""`yard demo`: a small cluster at work, from the first job to the proof of its log.

It brings a cluster of its own, the embedded mode as a process; with `--running` it plays on one
that runs: that of `yard up`, or the one that `--server` or `--context` names. Everything shown is
real: the commands are the ones a user types, the tasks are processes that train. It ends with exit
code 0 only if what it tells was observed: tasks were stopped for a more urgent gang, resumed from
their checkpoints, all finished, and every decision was derived again.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from yardmaster.cli.config import read_dev
from yardmaster.cli.errors import BadUsage, CliError, Exit
from yardmaster.cli.output import Output, is_terminal, terminal_width
from yardmaster.cli.remote import Remote, rows
from yardmaster.cli.session import Session, command, now_ms
from yardmaster.cli.tables import TASKS
from yardmaster.schemas.api import Phase, Task

#: Longest wait for one thing to happen, in seconds; all of it usually takes 25.
STEP_S: Final = 60.0
#: Pause between two looks, in seconds.
LOOK_S: Final = 0.3
NODES: Final = 2
SLOTS: Final = 2
#: Replicas of the gang; each takes a whole node.
GANG: Final = 2
#: The points of the search, of which as many are taken as fill the cluster.
RATES: Final = (2.0, 0.5, 0.1, 1.0, 0.2, 1.5, 0.3, 0.05, 0.7)
_RESUMED: Final = re.compile(r"^resumed from step (\d+)", re.MULTILINE)
#: Settings of the user's own that must not reach the demo.
_FOREIGN: Final = ("YARD_SERVER", "YARD_TOKEN", "YARD_PROJECT", "YARD_OUTPUT", "YARD_LOG")


@command("demo")
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in it.")
@click.option("--running", is_flag=True, help="Play on the cluster that runs: of yard up, say.")
def demo(session: Session, keep: bool, running: bool) -> int:
    """Watch a small cluster at work: jobs run, stop for a gang, resume and finish."""
    folder = Path(tempfile.mkdtemp(prefix="yard-demo-"))
    colour = session.out.colour
    stage: Stage
    if running:
        session.export()
        stage = RunningStage(folder, colour=colour)
    else:
        stage = Stage(folder, Programs.here(folder), colour=colour)
    good = False
    try:
        with stage.cluster():
            stage.play()
        good = stage.judge()
    finally:
        if good and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            click.echo(f"the data is kept in {folder}", err=True)
    return int(Exit.DONE if good else Exit.CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where tasks find what they run, and a folder that all nodes share for checkpoints."""

    python: str
    examples: str
    checkpoints: str

    @classmethod
    def here(cls, folder: Path) -> "Programs":
        """On this machine."""
        return cls(sys.executable, str(find_examples()), str(folder / "checkpoints"))

    def run(self, program: str, steps: int) -> list[str]:
        """The command of an example program."""
        words = [self.python, f"{self.examples}/{program}", "--steps", str(steps)]
        return [*words, "--out", self.checkpoints]


def find_examples() -> Path:
    """The folder of the example programs, beside the sources.

    Raises:
        BadUsage: this is an installation without them.
    """
    path = Path(__file__).resolve().parents[4] / "examples"
    if not (path / "train.py").is_file():
        raise BadUsage(
            f"the example programs are not at {path}", hint="run make demo in a clone of Yardmaster"
        )
    return path


class Stage:
    """One demonstration: a cluster of its own in a folder, and what was observed of it."""

    #: How many steps the training takes: it must not be over before the gang comes.
    steps = 60
    at_the_end = "The cluster is stopped."
    next_step = "yard dev, and in another terminal yard submit -- COMMAND"

    def __init__(self, folder: Path, programs: Programs, *, colour: bool) -> None:
        self.folder = folder
        self.programs = programs
        self.colour = colour
        self.started_s = time.monotonic()
        self.remote: Remote | None = None
        self.nodes = NODES
        self.slots = SLOTS
        self.jobs: list[str] = []
        #: What was seen to happen, by what it proves.
        self.stopped: set[str] = set()
        self.resumed: dict[str, int] = {}
        self.gang_nodes: list[str] = []
        self.phases: dict[str, Phase] = {}
        self.proved = False

    @property
    def gpus(self) -> int:
        """What one task of the training takes: two of them fill a node."""
        return self.slots // 2

    @property
    def tasks_in_all(self) -> int:
        """Two for each node, and the gang."""
        return 2 * self.nodes + 1

    # --- the cluster ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        """Run the embedded mode as a process of its own; stop it, and its tasks, at the end."""
        for name in _FOREIGN:
            os.environ.pop(name, None)
        os.environ |= {
            "YARD_CONTEXT": "dev",
            "YARD_DATA": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }
        self.say(f"A cluster of {NODES} nodes with {SLOTS} slots each, in one process:")
        shown = f"yard dev --nodes {NODES} --slots {SLOTS}"
        self.command(f"{shown} &")
        words = [sys.executable, "-m", "yardmaster.cli.main", *shlex.split(shown)[1:]]
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
        client = self.remote.client
        self.until(
            lambda: sum(node.state == "ready" for node in client.nodes().items) == NODES,
            "both nodes have joined",
        )

    def _end_tasks(self) -> None:
        """After a failure: leave no process behind."""
        if self.remote is None:
            return
        with contextlib.suppress(Exception):
            for job in {task.job_id for task in self.tasks() if not task.phase.final}:
                self.remote.client.cancel(job, immediate=True)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(not t.phase.final for t in self.tasks()):
                time.sleep(LOOK_S)

    # --- the play -------------------------------------------------------------------------------

    def play(self) -> None:
        """Everything, in order."""
        self.yard("nodes")
        rates = RATES[: 2 * self.nodes - 1]
        self.say(f"A training job and a search of {len(rates)} points, which fill the cluster:")
        train = self.programs.run("train.py", self.steps)
        flags = ["--gpus", str(self.gpus), "--grace", "20s"]
        self.submit(["--name", "train", "--priority", "50", *flags], train)
        search = ["--matrix", f"rate=[{','.join(map(str, rates))}]"]
        self.submit(["--name", "sweep", "--priority", "60", *search, *flags], train)
        self.say("They run, and each saves a checkpoint every ten steps:")
        self.watch(
            lambda tasks: all(t.phase.final or (t.checkpoint and t.checkpoint.step) for t in tasks),
            "every task has saved a checkpoint",
        )

        self.say(
            f"Now a gang that is more urgent: {GANG} replicas of {self.slots} GPUs, all or nothing."
        )
        size = ["--gpus", str(self.slots), "--replicas", str(GANG)]
        gang = self.submit(
            ["--name", "gang", "--priority", "5", *size], self.programs.run("train_gang.py", 25)
        )
        self.say(
            "It does not fit: tasks of worse priority are asked to stop. They save, and leave."
        )
        self.watch(
            lambda tasks: any(t.job_id == gang and t.phase is Phase.RUNNING for t in tasks),
            "the gang runs",
        )
        waiting = [t for t in self.tasks() if t.job_id != gang and t.phase is Phase.PENDING]
        if waiting:
            self.say("Why does one of them wait? The log knows, with the numbers:")
            self.yard("explain", waiting[0].task_id)
        self.say("The gang finishes; who was stopped goes on from its checkpoint, not from 0:")
        self.watch(lambda tasks: all(t.phase.final for t in tasks), "everything has ended")
        self._look_back(gang)

    def _look_back(self, gang: str) -> None:
        assert self.remote is not None
        client = self.remote.client
        for task in self.tasks():
            self.phases[task.task_id] = task.phase
            attempts = client.attempts(task.task_id).items
            if task.job_id == gang:
                self.gang_nodes = sorted(attempts[0].nodes) if attempts else []
                continue
            if any(one.stop and one.stop.for_task == f"{gang}.0" for one in attempts):
                self.stopped.add(task.task_id)
            found = _RESUMED.search("".join(client.logs(task.task_id)))
            if found:
                self.resumed[task.task_id] = int(found[1])
        if self.resumed:
            shown = min(self.resumed)
            self.say("What one of them wrote, in its first attempt and in its last:")
            self.yard("logs", "--attempt", "1", shown)
            self.yard("logs", shown)
            self.yard("show", shown)
        self.say("And the gang: its replicas exchanged gradients over MASTER_ADDR and MASTER_PORT.")
        self.yard("logs", f"{gang}.0")

    def judge(self) -> bool:
        """Prove the log, and say what was observed of what was promised."""
        self.say(f"{self.at_the_end} Now its log alone: is every decision derived again?")
        self.proved = self.yard("replay", "verify") == Exit.DONE
        steps = ", ".join(f"{task} from step {step}" for task, step in self.resumed.items())
        good = sum(phase is Phase.SUCCEEDED for phase in self.phases.values())
        checks = [
            (bool(self.stopped), f"{len(self.stopped)} tasks were stopped for the gang"),
            (
                bool(self.resumed)
                and self.stopped <= self.resumed.keys()
                and min(self.resumed.values()) > 0,
                f"each resumed from its checkpoint: {steps or 'none did'}",
            ),
            (len(self.gang_nodes) == GANG, f"the gang ran on {' and '.join(self.gang_nodes)}"),
            (
                good == len(self.phases) == self.tasks_in_all,
                f"{good} of {self.tasks_in_all} tasks succeeded",
            ),
            (self.proved, "every decision was derived again from the log"),
        ]
        self.say("Observed:")
        for held, text in checks:
            mark = click.style("ok ", fg="green") if held else click.style("NOT", fg="red")
            click.echo(f"  {mark} {text}", color=self.colour)
        took = f"{time.monotonic() - self.started_s:.0f} s"
        click.echo(f"\n{took}. Next: {self.next_step}")
        return all(held for held, _ in checks)

    # --- how ------------------------------------------------------------------------------------

    @property
    def words(self) -> str:
        """Where to look when something does not come."""
        return f"the cluster's own words: {self.folder / 'dev.out'}"

    def say(self, text: str) -> None:
        """A line of the story."""
        click.echo("\n" + click.style(f"# {text}", fg="cyan"), color=self.colour)

    def command(self, text: str) -> None:
        """A command, as a user would type it."""
        click.echo(click.style(f"$ {text}", bold=True), color=self.colour)

    def yard(self, *words: str) -> int:
        """Show and run a command; its exit code."""
        from yardmaster.cli.main import run

        self.command(shlex.join(["yard", *words]))
        sys.stdout.flush()
        return run(words)

    def submit(self, flags: Sequence[str], program: Sequence[str]) -> str:
        """Submit a job and give its id."""
        from yardmaster.cli.main import run

        short = [Path(program[0]).name, f"examples/{Path(program[1]).name}", *program[2:-2]]
        self.command(shlex.join(["yard", "submit", *flags, "--", *short]))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            code = run(["submit", *flags, "--", *program])
        job = text.getvalue().strip()
        click.echo(job)
        self.jobs.append(job)
        if code != Exit.DONE:
            raise CliError("the job was not taken", exit_code=code)
        return job

    def tasks(self) -> list[Task]:
        """All tasks of the demo, the first submitted first."""
        assert self.remote is not None
        found = [task for task in self.remote.client.all_tasks() if task.job_id in self.jobs]
        return sorted(found, key=lambda task: (task.submitted_at, task.job_id, task.index))

    def until(self, there: Callable[[], bool], what: str) -> None:
        """Wait until something is there.

        Raises:
            CliError: it never came.
        """
        deadline = time.monotonic() + STEP_S
        while not there():
            if time.monotonic() > deadline:
                raise CliError(
                    f"waited {STEP_S:.0f} s for this: {what}",
                    exit_code=Exit.TIMEOUT,
                    hint=self.words,
                )
            time.sleep(LOOK_S)

    def watch(self, done: Callable[[list[Task]], bool], what: str) -> None:
        """Show the live table of `yard ls` until something happens."""
        self.command("yard ls --watch")
        terminal = is_terminal()
        width = terminal_width() if terminal else 100
        out = Output(terminal=True, width=width, colour=self.colour, now_ms=now_ms)
        drawn = 0
        last: list[tuple[str, str]] = []

        def look() -> bool:
            nonlocal drawn, last
            tasks = self.tasks()
            found = [(task.task_id, task.phase.value) for task in tasks]
            if terminal or found != last:
                if terminal and drawn:
                    click.echo(f"\x1b[{drawn}A\x1b[J", nl=False)
                lines = out.lines(rows(tasks), TASKS, name="task_id")
                drawn = len(lines)
                click.echo("\n".join(lines), color=self.colour)
                last = found
            return done(tasks)

        self.until(look, what)


class RunningStage(Stage):
    """The same play on a cluster that runs, and goes on running."""

    steps = 120
    at_the_end = "All has ended, and the cluster goes on."
    next_step = "yard submit -- COMMAND; yard down stops the cluster"

    def __init__(self, folder: Path, *, colour: bool) -> None:
        session = Session({})
        dev = session.config.dev
        given = dev.programs if dev is not None else None
        programs = Programs(**given) if given is not None else Programs.here(folder)
        super().__init__(folder, programs, colour=colour)
        self.remote = session.remote

    @property
    def words(self) -> str:
        """Where to look when something does not come."""
        return "yard up says where the logs of its processes are"

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        """Look at what there is to play on; end the tasks of a play that fails.

        Raises:
            CliError: it has not two whole nodes of the same size, all free.
        """
        assert self.remote is not None
        client = self.remote.client
        ready = [node for node in client.nodes(limit=1000).items if node.state == "ready"]
        self.nodes, self.slots = len(ready), min((node.gpus for node in ready), default=0)
        busy = any(not task.phase.final for task in client.all_tasks())
        if self.nodes < GANG or self.slots < 2 or busy:
            raise CliError(
                f"the demo wants {GANG} nodes or more with 2 slots or more, and nothing on them; "
                f"{self.nodes} are ready, with {self.slots} slots{', busy' if busy else ''}",
                exit_code=Exit.CONFLICT,
                hint="yard up --agents 3 --slots 4; yard ls shows what runs",
            )
        self.say(f"The cluster that runs: {self.nodes} nodes with {self.slots} slots each:")
        try:
            yield
        except BaseException:
            self._end_tasks()
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the embedded mode as Ctrl-C does; by force when it does not go."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
