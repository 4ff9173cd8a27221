"""`yard demo`: a small cluster at work, from the first job to the proof of its log.

Everything shown is real: the commands are the ones a user types, the tasks are processes that
train. It ends with exit code 0 only if what it tells was observed: tasks were stopped for a more
urgent gang, resumed from their checkpoints, all finished, and every decision was derived again.
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
#: One job, a search of three, a gang.
TASKS_IN_ALL: Final = 5
_RESUMED: Final = re.compile(r"^resumed from step (\d+)", re.MULTILINE)
#: Settings of the user's own that must not reach the demo.
_FOREIGN: Final = ("YARD_SERVER", "YARD_TOKEN", "YARD_PROJECT", "YARD_OUTPUT", "YARD_LOG")


@command("demo")
@click.option("--keep", is_flag=True, help="Keep the data folder, to look around in it.")
def demo(session: Session, keep: bool) -> int:
    """Watch a small cluster at work: jobs run, stop for a gang, resume and finish."""
    examples = find_examples()
    folder = Path(tempfile.mkdtemp(prefix="yard-demo-"))
    stage = Stage(folder, examples, colour=session.out.colour)
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

    def __init__(self, folder: Path, examples: Path, *, colour: bool) -> None:
        self.folder = folder
        self.examples = examples
        self.colour = colour
        self.started_s = time.monotonic()
        self.remote: Remote | None = None
        #: What was seen to happen, by what it proves.
        self.stopped: set[str] = set()
        self.resumed: dict[str, int] = {}
        self.gang_nodes: list[str] = []
        self.phases: dict[str, Phase] = {}
        self.proved = False

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
        self.say("A training job and a search of three points, which fill the cluster:")
        train = [sys.executable, str(self.examples / "train.py"), "--steps", "60"]
        out = ["--out", str(self.folder / "checkpoints")]
        flags = ["--gpus", "1", "--grace", "20s"]
        self.submit(["--name", "train", "--priority", "50", *flags], [*train, *out])
        search = ["--matrix", "rate=[2.0,0.5,0.1]"]
        self.submit(["--name", "sweep", "--priority", "60", *search, *flags], [*train, *out])
        self.say("They run, and each saves a checkpoint every ten steps:")
        self.watch(
            lambda tasks: all(t.phase.final or (t.checkpoint and t.checkpoint.step) for t in tasks),
            "every task has saved a checkpoint",
        )

        self.say("Now a gang that is more urgent: two replicas of two GPUs, all or nothing.")
        gang = self.submit(
            ["--name", "gang", "--priority", "5", "--gpus", "2", "--replicas", "2"],
            [sys.executable, str(self.examples / "train_gang.py"), "--steps", "25", *out],
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
        self.say("The cluster is stopped. Now its log alone: is every decision derived again?")
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
            (len(self.gang_nodes) == NODES, f"the gang ran on {' and '.join(self.gang_nodes)}"),
            (good == len(self.phases) == TASKS_IN_ALL, f"{good} of {TASKS_IN_ALL} tasks succeeded"),
            (self.proved, "every decision was derived again from the log"),
        ]
        self.say("Observed:")
        for held, text in checks:
            mark = click.style("ok ", fg="green") if held else click.style("NOT", fg="red")
            click.echo(f"  {mark} {text}", color=self.colour)
        took = f"{time.monotonic() - self.started_s:.0f} s"
        click.echo(f"\n{took}. Next: yard dev, and in another terminal yard submit -- COMMAND")
        return all(held for held, _ in checks)

    # --- how ------------------------------------------------------------------------------------

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
        if code != Exit.DONE:
            raise CliError("the job was not taken", exit_code=code)
        return job

    def tasks(self) -> list[Task]:
        """All tasks, the first submitted first."""
        assert self.remote is not None
        found = self.remote.client.all_tasks()
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
                    hint=f"the cluster's own words: {self.folder / 'dev.out'}",
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
