"""The steps of `yard demo`: an example from Determined's documentation, in seven steps.

The steps on 8 GPUs (the sizes scale with the cluster):

1. A search uses all GPUs.
2. A gang of 4 with a higher priority preempts a part of the search.
3. A notebook is pending; most search points are cancelled, and the notebook starts.
4. The gang and the search end.
5. A gang of 8 is pending for the GPU of the notebook.
6. A gang of 4 with a lower priority runs as backfill on the other GPUs.
7. The notebook ends, and the gang of 8 preempts the backfill, which saves a checkpoint.
"""

import re
import time
from collections.abc import Sequence
from typing import Final

import click

from yardmaster_cli.demo.cluster import DemoCluster
from yardmaster_cli.errors import Exit
from yardmaster_schemas.api import Attempt, Phase, Task

_RESUMED: Final = re.compile(r"^resumed from step (\d+)", re.MULTILINE)


class DemoRun:
    """One run of the demo on a cluster, with its observations."""

    def __init__(self, cluster: DemoCluster) -> None:
        self.cluster = cluster
        self.started_s = time.monotonic()
        self.search = self.gang = self.notebook = self.whole = self.late = ""
        #: The tasks at the end, and their attempts, the newest first.
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.resumed: dict[str, int] = {}
        #: Search points that are not cancelled.
        self.kept: set[str] = set()
        #: The wait codes of the notebook and of the gang of all GPUs.
        self.waited: dict[str, str] = {}

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.cluster.nodes * self.cluster.slots

    # --- the steps ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all steps in order."""
        self.cluster.yard("nodes")
        self._search()
        self._gang()
        self._notebook()
        self._gang_of_all()
        self._backfill()
        self._look_back()

    def _search(self) -> None:
        seeds = ",".join(str(seed + 1) for seed in range(self.gpus * 5 // 4))
        points = self.gpus * 5 // 4 * 2
        self.cluster.say(f"1. A search of {points} points with one GPU each: it uses all GPUs.")
        flags = ["--name", "search", "--priority", "2", "--gpus", "1", "--grace", "20s"]
        self.search = self.cluster.submit(
            [*flags, "--matrix", "rate=[0.5,2.0]", "--matrix", f"seed=[{seeds}]"],
            self.cluster.programs.run("train.py", self.cluster.search_steps),
        )
        self.cluster.watch(
            lambda tasks: sum(_saved(task) for task in tasks) == self.gpus,
            "as many points as there are GPUs have saved a checkpoint",
        )

    def _gang(self) -> None:
        half = self.cluster.slots // 2
        size = self.cluster.nodes * half
        self.cluster.say(
            f"2. A gang of {size} GPUs with a higher priority (1 before 2): the newest points are "
            "preempted. They save a checkpoint, stop, and are pending again."
        )
        self.gang = self._submit_gang("gang", 1, half, 40)
        self.cluster.watch(lambda tasks: _runs(tasks, self.gang), "the gang runs")
        stopped = [t for t in self._of(self.search) if self._stopped_for(t.task_id, self.gang)]
        # The demo keeps one search point fewer than were preempted, so that one GPU stays free.
        self.kept = {task.task_id for task in stopped[1:]}

    def _notebook(self) -> None:
        cluster = self.cluster
        cluster.say("3. A notebook of priority 3, not preemptible: the search goes first.")
        flags = ["--name", "notebook", "--kind", "interactive", "--role", "notebook"]
        self.notebook = cluster.submit([*flags, "--priority", "3", "--gpus", "1"], ["sleep", "600"])
        self._until_it_waits(self.notebook)
        cluster.yard("explain", self.notebook)
        cluster.say(
            f"All points of the search but {len(self.kept)} are cancelled; these resume from their "
            "checkpoints, and one GPU is left for the notebook."
        )
        given_up = [
            task
            for task in self._of(self.search)
            if task.task_id not in self.kept and not task.phase.final
        ]
        # Pending points are cancelled first: otherwise they would start on the GPUs of running
        # points that were just cancelled.
        given_up.sort(key=lambda task: task.phase is not Phase.PENDING)
        cluster.cancel([task.task_id for task in given_up])
        cluster.watch(lambda tasks: _runs(tasks, self.notebook), "the notebook runs")
        cluster.say("4. The gang and the search finish.")
        cluster.watch(
            lambda tasks: all(t.phase.final or t.job_id == self.notebook for t in tasks),
            "gang and search have ended",
        )

    def _gang_of_all(self) -> None:
        cluster = self.cluster
        cluster.say(
            f"5. A gang of all {self.gpus} GPUs: it is pending, as the notebook has one of them."
        )
        self.whole = self._submit_gang("all", 1, cluster.slots, 15)
        self._until_it_waits(self.whole)
        cluster.yard("explain", self.whole)

    def _backfill(self) -> None:
        cluster = self.cluster
        half = cluster.slots // 2
        size = cluster.nodes * half
        cluster.say(
            f"6. A gang of {size} of priority 2 runs as backfill on the GPUs that are left."
        )
        self.late = self._submit_gang("late", 2, half, 30)
        cluster.watch(
            lambda tasks: any(t.job_id == self.late and _saved(t) for t in tasks),
            "the gang has saved a checkpoint",
        )
        cluster.say(
            "7. The notebook ends. The backfill is preempted and saves a checkpoint; the gang "
            f"of {self.gpus} runs; then the other gang resumes."
        )
        cluster.cancel([self.notebook])
        cluster.watch(lambda tasks: all(t.phase.final for t in tasks), "everything has ended")

    def _look_back(self) -> None:
        cluster = self.cluster
        for task in cluster.tasks():
            self.tasks[task.task_id] = task
            self.attempts[task.task_id] = cluster.client.attempts(task.task_id).items
            if task.task_id in self.kept or task.job_id == self.late:
                found = _RESUMED.search("".join(cluster.client.logs(task.task_id)))
                if found:
                    self.resumed[task.task_id] = int(found[1])
        cluster.say("The gang that was backfill, and its output, first and last:")
        cluster.yard("show", self.late)
        cluster.yard("logs", "--attempt", "1", "--replica", "0", self.late)
        cluster.yard("logs", "--replica", "0", self.late)
        cluster.say("The gang of all GPUs: its replicas exchanged gradients over both nodes.")
        cluster.yard("logs", self.whole)

    # --- observations ---------------------------------------------------------------------------

    def judge(self) -> bool:
        """Verify the log, and print which claims were observed; returns whether all were."""
        cluster = self.cluster
        cluster.say(f"{cluster.at_the_end} Does its log prove every decision?")
        proved = cluster.yard("replay", "verify") == Exit.DONE
        checks = [*self._checks(), (proved, "every decision was recomputed from the log")]
        cluster.say("Observed:")
        for held, text in checks:
            mark = click.style("ok ", fg="green") if held else click.style("NOT", fg="red")
            click.echo(f"  {mark} {text}", color=cluster.color)
        took = f"{time.monotonic() - self.started_s:.0f} s"
        click.echo(f"\n{took}. Next: {cluster.next_step}")
        return all(held for held, _ in checks)

    def _checks(self) -> list[tuple[bool, str]]:
        half = self.cluster.nodes * (self.cluster.slots // 2)
        stopped = [
            each[-1]
            for task, each in self.attempts.items()
            if each and self.tasks[task].job_id == self.search and _stop_for(each[-1], self.gang)
        ]
        steps = ", ".join(str(self.resumed[task]) for task in sorted(self.kept & set(self.resumed)))
        (whole,) = self.attempts[f"{self.whole}.0"]
        late = self.attempts[f"{self.late}.0"]
        late_step = self.resumed.get(f"{self.late}.0", 0)
        nodes = sorted(set(whole.nodes))
        wanted = [t for t in self.tasks.values() if t.phase is not Phase.CANCELLED]
        good = sum(task.phase is Phase.SUCCEEDED for task in wanted)
        goals = self.kept | {f"{job}.0" for job in (self.gang, self.whole, self.late)}
        return [
            (
                len(stopped) == half and all(each.checkpoint for each in stopped),
                f"{len(stopped)} points were preempted for the gang, each with a checkpoint",
            ),
            (
                self.kept <= self.resumed.keys() and min(self.resumed.values(), default=0) > 0,
                f"the points that were kept resumed from their checkpoints, at step {steps or '-'}",
            ),
            (
                self.waited[self.notebook] == "backfill_not_allowed",
                f"the notebook was pending ({self.waited[self.notebook]}) behind the search",
            ),
            (
                self.waited[self.whole] == "insufficient_free" and len(nodes) == self.cluster.nodes,
                f"the gang of {self.gpus} was pending ({self.waited[self.whole]}) for the notebook "
                f"and ran on {' and '.join(nodes)}",
            ),
            (
                late[-1].rule == "backfill" and _stop_for(late[-1], self.whole) and late_step > 0,
                f"the {late[-1].rule} gang was preempted, and resumed from step {late_step}",
            ),
            (
                good == len(wanted) and goals <= {task.task_id for task in wanted},
                f"{good} of {len(wanted)} tasks that were not cancelled succeeded",
            ),
        ]

    # --- helpers --------------------------------------------------------------------------------

    def _submit_gang(self, name: str, priority: int, gpus: int, steps: int) -> str:
        """Submit a gang with one replica per node."""
        flags = ["--name", name, "--priority", str(priority), "--grace", "20s"]
        flags += ["--gpus", str(gpus), "--replicas", str(self.cluster.nodes)]
        return self.cluster.submit_gang(flags, "train_gang.py", steps)

    def _until_it_waits(self, job: str) -> None:
        def waits(tasks: Sequence[Task]) -> bool:
            for task in tasks:
                if task.job_id == job and task.wait and task.wait.code != "not_considered":
                    self.waited[job] = task.wait.code
                    return True
            return False

        self.cluster.watch(waits, "the job has a wait reason")

    def _of(self, job: str) -> list[Task]:
        return [task for task in self.cluster.tasks() if task.job_id == job]

    def _stopped_for(self, task: str, job: str) -> bool:
        return any(_stop_for(each, job) for each in self.cluster.client.attempts(task).items)


def _runs(tasks: Sequence[Task], job: str) -> bool:
    return any(task.job_id == job and task.phase is Phase.RUNNING for task in tasks)


def _saved(task: Task) -> bool:
    return task.phase is Phase.RUNNING and task.checkpoint is not None


def _stop_for(attempt: Attempt, job: str) -> bool:
    return attempt.stop is not None and attempt.stop.for_task == f"{job}.0"
