"""What `yard demo` plays: an example of Determined's documentation, in its seven steps.

On 8 GPUs: a search takes them all; a more urgent gang of 4 has part of it stopped; a notebook waits
for its turn; gang and search end; a gang of 8 waits for the notebook's GPU, a less urgent gang of 4
is lent the rest; the notebook is closed, and the lent GPUs are given back, with a checkpoint. On a
cluster of another size all of them are as much larger or smaller.
"""

import re
import time
from collections.abc import Sequence
from typing import Final

import click

from yardmaster_cli.demo.cluster import Stage
from yardmaster_cli.errors import Exit
from yardmaster_schemas.api import Attempt, Phase, Task

_RESUMED: Final = re.compile(r"^resumed from step (\d+)", re.MULTILINE)


class Walk:
    """The play on one stage, and what was observed of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.started_s = time.monotonic()
        self.search = self.gang = self.notebook = self.whole = self.late = ""
        #: The last tasks, and their attempts, the newest first.
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.resumed: dict[str, int] = {}
        #: Points of the search that it does not give up.
        self.kept: set[str] = set()
        #: The code with which the notebook, and the gang of all GPUs, waited.
        self.waited: dict[str, str] = {}

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.stage.nodes * self.stage.slots

    # --- the play -------------------------------------------------------------------------------

    def play(self) -> None:
        """Everything, in order."""
        self.stage.yard("nodes")
        self._search()
        self._gang()
        self._notebook()
        self._gang_of_all()
        self._lent_and_given_back()
        self._look_back()

    def _search(self) -> None:
        seeds = ",".join(str(seed + 1) for seed in range(self.gpus * 5 // 4))
        points = self.gpus * 5 // 4 * 2
        self.stage.say(f"1. A search of {points} points, a GPU each: it takes all there are.")
        flags = ["--name", "search", "--priority", "2", "--gpus", "1", "--grace", "20s"]
        self.search = self.stage.submit(
            [*flags, "--matrix", "rate=[0.5,2.0]", "--matrix", f"seed=[{seeds}]"],
            self.stage.programs.run("train.py", self.stage.search_steps),
        )
        self.stage.watch(
            lambda tasks: sum(_saved(task) for task in tasks) == self.gpus,
            "as many points as there are GPUs have saved a checkpoint",
        )

    def _gang(self) -> None:
        half = self.stage.slots // 2
        size = self.stage.nodes * half
        self.stage.say(
            f"2. A gang of {size} GPUs that is more urgent (1 goes before 2), all or nothing: "
            "the youngest points are asked to stop. They save, leave, and wait."
        )
        self.gang = self._submit_gang("gang", 1, half, 40)
        self.stage.watch(lambda tasks: _runs(tasks, self.gang), "the gang runs")
        stopped = [t for t in self._of(self.search) if self._stopped_for(t.task_id, self.gang)]
        # One less than was stopped: so one GPU is left.
        self.kept = {task.task_id for task in stopped[1:]}

    def _notebook(self) -> None:
        stage = self.stage
        stage.say("3. A notebook, which nobody may stop, of priority 3: the search goes first.")
        flags = ["--name", "notebook", "--kind", "interactive", "--role", "notebook"]
        self.notebook = stage.submit([*flags, "--priority", "3", "--gpus", "1"], ["sleep", "600"])
        self._until_it_waits(self.notebook)
        stage.yard("explain", self.notebook)
        stage.say(
            f"The search gives up all points but {len(self.kept)}, which go on from their "
            "checkpoints; that leaves a GPU for the notebook."
        )
        given_up = [
            task
            for task in self._of(self.search)
            if task.task_id not in self.kept and not task.phase.final
        ]
        # Those that wait first: else some would start in place of those that run.
        given_up.sort(key=lambda task: task.phase is not Phase.PENDING)
        stage.cancel([task.task_id for task in given_up])
        stage.watch(lambda tasks: _runs(tasks, self.notebook), "the notebook runs")
        stage.say("4. Gang and search come to their ends.")
        stage.watch(
            lambda tasks: all(t.phase.final or t.job_id == self.notebook for t in tasks),
            "gang and search have ended",
        )

    def _gang_of_all(self) -> None:
        stage = self.stage
        stage.say(f"5. A gang of all {self.gpus} GPUs: the notebook has one of them, so it waits.")
        self.whole = self._submit_gang("all", 1, stage.slots, 15)
        self._until_it_waits(self.whole)
        stage.yard("explain", self.whole)

    def _lent_and_given_back(self) -> None:
        stage = self.stage
        half = stage.slots // 2
        size = stage.nodes * half
        stage.say(f"6. A gang of {size} of priority 2: it is lent what the other cannot use.")
        self.late = self._submit_gang("late", 2, half, 30)
        stage.watch(
            lambda tasks: any(t.job_id == self.late and _saved(t) for t in tasks),
            "the gang has saved a checkpoint",
        )
        stage.say(
            "7. The notebook is closed. What was lent is given back, with a checkpoint; the gang "
            f"of {self.gpus} runs; the other goes on after it."
        )
        stage.cancel([self.notebook])
        stage.watch(lambda tasks: all(t.phase.final for t in tasks), "everything has ended")

    def _look_back(self) -> None:
        stage = self.stage
        for task in stage.tasks():
            self.tasks[task.task_id] = task
            self.attempts[task.task_id] = stage.client.attempts(task.task_id).items
            if task.task_id in self.kept or task.job_id == self.late:
                found = _RESUMED.search("".join(stage.client.logs(task.task_id)))
                if found:
                    self.resumed[task.task_id] = int(found[1])
        stage.say("What was lent and given back, and what it wrote, first and last:")
        stage.yard("show", self.late)
        stage.yard("logs", "--attempt", "1", "--replica", "0", self.late)
        stage.yard("logs", "--replica", "0", self.late)
        stage.say("And the gang of all GPUs: its replicas exchanged gradients, over both nodes.")
        stage.yard("logs", self.whole)

    # --- what was observed ----------------------------------------------------------------------

    def judge(self) -> bool:
        """Prove the log, and say what was observed of what was promised."""
        stage = self.stage
        stage.say(f"{stage.at_the_end} Now its log alone: is every decision derived again?")
        proved = stage.yard("replay", "verify") == Exit.DONE
        checks = [*self._checks(), (proved, "every decision was derived again from the log")]
        stage.say("Observed:")
        for held, text in checks:
            mark = click.style("ok ", fg="green") if held else click.style("NOT", fg="red")
            click.echo(f"  {mark} {text}", color=stage.color)
        took = f"{time.monotonic() - self.started_s:.0f} s"
        click.echo(f"\n{took}. Next: {stage.next_step}")
        return all(held for held, _ in checks)

    def _checks(self) -> list[tuple[bool, str]]:
        half = self.stage.nodes * (self.stage.slots // 2)
        stopped = [
            each[-1]
            for task, each in self.attempts.items()
            if each and self.tasks[task].job_id == self.search and _stop_for(each[-1], self.gang)
        ]
        steps = ", ".join(str(self.resumed[task]) for task in sorted(self.kept & set(self.resumed)))
        (notebook,), (whole,) = (self.attempts[f"{job}.0"] for job in (self.notebook, self.whole))
        late = self.attempts[f"{self.late}.0"]
        late_step = self.resumed.get(f"{self.late}.0", 0)
        points = [
            attempt.allocated_at
            for task, each in self.attempts.items()
            if self.tasks[task].job_id == self.search
            for attempt in each
        ]
        nodes = sorted(set(whole.nodes))
        wanted = [t for t in self.tasks.values() if t.phase is not Phase.CANCELLED]
        good = sum(task.phase is Phase.SUCCEEDED for task in wanted)
        goals = self.kept | {f"{job}.0" for job in (self.gang, self.whole, self.late)}
        return [
            (
                len(stopped) == half and all(each.checkpoint for each in stopped),
                f"{len(stopped)} points were stopped for the gang, each with a checkpoint",
            ),
            (
                self.kept <= self.resumed.keys() and min(self.resumed.values(), default=0) > 0,
                f"those that were kept went on from their checkpoints, at step {steps or '-'}",
            ),
            (
                self.waited[self.notebook] == "backfill_not_allowed"
                and notebook.allocated_at >= max(points),
                f"the notebook waited ({self.waited[self.notebook]}) for the last of the search",
            ),
            (
                self.waited[self.whole] == "insufficient_free" and len(nodes) == self.stage.nodes,
                f"the gang of {self.gpus} waited ({self.waited[self.whole]}) for the notebook, "
                f"and ran on {' and '.join(nodes)}",
            ),
            (
                late[-1].rule == "backfill" and _stop_for(late[-1], self.whole) and late_step > 0,
                f"the lent GPUs ({late[-1].rule}) were given back, and that gang went on from "
                f"step {late_step}",
            ),
            (
                good == len(wanted) and goals <= {task.task_id for task in wanted},
                f"{good} of {len(wanted)} tasks that nobody cancelled succeeded",
            ),
        ]

    # --- how ------------------------------------------------------------------------------------

    def _submit_gang(self, name: str, priority: int, gpus: int, steps: int) -> str:
        """Submit a gang of a replica for each node."""
        return self.stage.submit(
            [
                *("--name", name, "--priority", str(priority), "--grace", "20s"),
                *("--gpus", str(gpus), "--replicas", str(self.stage.nodes)),
            ],
            self.stage.programs.run("train_gang.py", steps),
        )

    def _until_it_waits(self, job: str) -> None:
        def waits(tasks: Sequence[Task]) -> bool:
            for task in tasks:
                if task.job_id == job and task.wait and task.wait.code != "not_considered":
                    self.waited[job] = task.wait.code
                    return True
            return False

        self.stage.watch(waits, "it is known why it waits")

    def _of(self, job: str) -> list[Task]:
        return [task for task in self.stage.tasks() if task.job_id == job]

    def _stopped_for(self, task: str, job: str) -> bool:
        return any(_stop_for(each, job) for each in self.stage.client.attempts(task).items)


def _runs(tasks: Sequence[Task], job: str) -> bool:
    return any(task.job_id == job and task.phase is Phase.RUNNING for task in tasks)


def _saved(task: Task) -> bool:
    return task.phase is Phase.RUNNING and task.checkpoint is not None


def _stop_for(attempt: Attempt, job: str) -> bool:
    return attempt.stop is not None and attempt.stop.for_task == f"{job}.0"
