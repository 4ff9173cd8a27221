"""The examples on the page of policies: steps on 8 GPUs, played on a cell of the scheduler.

Agents obey at once: a task that is allocated runs, and one that is stopped saves and leaves. So a
row of a table is what the scheduler decided until nothing was left to decide.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import Cell, job_id
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.decisions import PreemptionRequestedV1

HOUR_S: Final = 3600
#: Numbers of a stop that say the sizes of both tasks, which the table has already.
SIZES: Final = ("held_milli", "asked_milli")
#: How the fields of a job are said; `{}` is the value.
SAID: Final[Mapping[str, str]] = {
    "user": "user `{}`",
    "project": "project `{}`",
    "priority": "priority {}",
    "weight": "weight {}",
    "grace_s": "grace {} s",
    "min_runtime_s": "`min_runtime` {} s",
}


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Submit:
    """A job is submitted; `spec` has the fields that are not the default."""

    job: str
    tasks: int = 1
    gpus: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)

    def play(self, cell: Cell) -> None:
        cell.submit(self.job, tasks=self.tasks, gpus=self.gpus, **self.spec)

    def __str__(self) -> str:
        each = count(self.gpus, "GPU")
        said = [each if self.tasks == 1 else f"{self.tasks} tasks of {each}"]
        for key, value in self.spec.items():
            if key == "preemptible":
                said.append("not preemptible")
            elif key == "runtime_estimate_s":
                said.append(f"estimated to run {value // HOUR_S} h")
            else:
                said.append(SAID[key].format(value))
        return f"submit `{self.job}`: {', '.join(said)}"


@dataclass(frozen=True)
class End:
    """Running tasks of a job end; None: all."""

    job: str
    tasks: int | None = None

    def play(self, cell: Cell) -> None:
        running = [task for task in tasks_of(cell, self.job) if task.run is not None]
        for task in running[: self.tasks]:
            cell.ends(self.job, task.index)

    def __str__(self) -> str:
        if self.tasks is None:
            return f"`{self.job}` ends"
        return f"{count(self.tasks, 'task')} of `{self.job}` ends"


@dataclass(frozen=True)
class Cancel:
    """A job is cancelled: its pending tasks, or all."""

    job: str
    pending: bool = False

    def play(self, cell: Cell) -> None:
        for task in tasks_of(cell, self.job):
            if task.run is None or not self.pending:
                cell.cancel(self.job, task.index)

    def __str__(self) -> str:
        return f"cancel {'the pending tasks of ' if self.pending else ''}`{self.job}`"


@dataclass(frozen=True)
class Weigh:
    """The weight of a job is changed."""

    job: str
    weight: int

    def play(self, cell: Cell) -> None:
        cell.set_weight(self.job, self.weight)

    def __str__(self) -> str:
        return f"set the weight of `{self.job}` to {self.weight}"


@dataclass(frozen=True)
class Deserve:
    """A project gets a quota of GPUs in the pool."""

    project: str
    gpus: int

    def play(self, cell: Cell) -> None:
        cell.entitle(self.project, quotas={"main": req.Quota(deserved_milli=self.gpus * 1000)})

    def __str__(self) -> str:
        return f"project `{self.project}` deserves {count(self.gpus, 'GPU')}"


Step = Submit | End | Cancel | Weigh | Deserve
#: Each step is what happens before the next cycle.
Steps = Sequence[Sequence[Step]]
#: What a table says after a step.
DECIDED: Final = ("GPUs in use", "preempted", "pending")


@dataclass(frozen=True)
class Row:
    """The decisions after a step, and the tasks in the cell then."""

    step: str
    #: GPUs by job, in the order of submission.
    held: Mapping[str, int]
    preempted: Sequence[str]
    #: Pending tasks by job and reason.
    pending: Mapping[tuple[str, str], int]


def tasks_of(cell: Cell, job: str) -> list[Task]:
    """The tasks of a job that have not ended."""
    return [task for task in unfinished(cell) if task.job.id == job_id(job)]


def unfinished(cell: Cell) -> list[Task]:
    """The tasks that have not ended."""
    return [task for task in cell.state.tasks.values() if not task.phase.final]


def play(steps: Steps, **pool: Any) -> Iterator[Row]:
    """Play steps on one node of 8 GPUs in a pool with these settings."""
    cell = Cell(**pool)
    cell.node("n1", gpus=8)
    jobs = {
        job_id(each.job): each.job for step in steps for each in step if isinstance(each, Submit)
    }
    for step in steps:
        for each in step:
            each.play(cell)
        preemptions = list(until_idle(cell, jobs))
        held: Counter[str] = Counter()
        pending: Counter[tuple[str, str]] = Counter()
        for task in unfinished(cell):
            job = jobs[task.job.id]
            if task.run is not None:
                held[job] += task.job.shape.total_gpu_milli // 1000
                continue
            code = cell.wait_code(job, index=task.index)
            assert code is not None, f"{task.id} is pending without a reason"
            pending[job, code] += 1
        yield Row("; ".join(map(str, step)), held, said(preemptions, jobs), pending)


def until_idle(cell: Cell, jobs: Mapping[str, str]) -> Iterator[PreemptionRequestedV1]:
    """Run cycles, with agents that obey, until nothing is decided; yield the preemptions."""
    while decided := cell.cycle(after_s=1):
        yield from (event for event in decided if isinstance(event, PreemptionRequestedV1))
        for task in unfinished(cell):
            if task.run is None:
                continue
            name = jobs[task.job.id]
            if task.run.stop is not None:
                cell.checkpoints(name, 1, task.index)
                cell.ends(name, task.index)
            elif not task.run.started:
                cell.starts(name, task.index)


def said(preemptions: Sequence[PreemptionRequestedV1], jobs: Mapping[str, str]) -> list[str]:
    """The preemptions, those of one job for another with one rule together."""

    def alike(event: PreemptionRequestedV1) -> tuple[str, str, str]:
        job = event.task_id.partition(".")[0]
        for_job = (event.stop.for_task or "").partition(".")[0]
        return jobs[job], jobs.get(for_job, ""), event.stop.rule or ""

    found = []
    for (job, for_job, rule), events in groupby(preemptions, alike):
        several = list(events)
        numbers = ", ".join(
            f"{key.removesuffix('_milli')} {value / 1000 if key.endswith('_milli') else value:g}"
            for key, value in several[0].stop.numbers.items()
            if key not in SIZES
        )
        indexes = [each.task_id.partition(".")[2] for each in several]
        which = f"`{job}`" + (f" {', '.join(indexes)}" if indexes != ["0"] else "")
        found.append(f"{which} for `{for_job}`: `{rule}` ({numbers})".replace(" ()", ""))
    return found


def cells(rows: Sequence[Row]) -> list[str]:
    """The GPUs and the pending tasks of the last row, and the preemptions of all rows."""
    last = rows[-1]
    return [
        ", ".join(f"`{job}` {gpus}" for job, gpus in last.held.items()),
        "; ".join(preempted for row in rows for preempted in row.preempted),
        "; ".join(f"`{job}` {tasks}: `{code}`" for (job, code), tasks in last.pending.items()),
    ]


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(line)} |") for line in lines)


def by_step(steps: Steps, **pool: Any) -> str:
    """A row for each step in one pool."""
    rows = [[f"{n}. {row.step}", *cells([row])] for n, row in enumerate(play(steps, **pool), 1)]
    return table(("step", *DECIDED), rows)


def by_policy(steps: Steps, *policies: str) -> str:
    """The steps, and a row for each policy after the last one."""
    played = {policy: list(play(steps, policy=policy)) for policy in policies}
    said = [f"{n}. {row.step}" for n, row in enumerate(played[policies[0]], 1)]
    rows = [[f"`{policy}`", *cells(found)] for policy, found in played.items()]
    return "\n".join([*said, "", table(("policy", *DECIDED), rows)])


def variants_of_fair_share() -> str:
    """The GPUs of two jobs under each variant, without and with weights."""
    columns = {"weights 1 and 1": 1, "weights 3 and 1": 3}
    rows = []
    for variant in ("demand_proportional", "max_min"):
        row = [f"`{variant}`"]
        for weight in columns.values():
            steps = ((Submit("ten", 10, spec={"weight": weight}), Submit("thirty", 30)),)
            row.append(cells([*play(steps, policy="fair_share", variant=variant)])[0])
        rows.append(row)
    return table(("variant", *columns), rows)


def priority() -> str:
    """Determined's documented example: a search, a training and a notebook."""
    return by_step(
        (
            (Submit("search", 20, spec={"priority": 2}),),
            (Submit("train-4", gpus=4, spec={"priority": 1}),),
            (Submit("notebook", spec={"priority": 3, "preemptible": False}),),
            (Cancel("search", pending=True), End("search", 1)),
            (End("search"), End("train-4")),
            (Submit("train-8", gpus=8, spec={"priority": 1}),),
            (Submit("late-4", gpus=4, spec={"priority": 2}),),
            (Cancel("notebook"),),
            (End("train-8"),),
        ),
        policy="priority",
    )


def fair_share() -> str:
    """Two jobs divide the pool by demand, then by weight."""
    return by_step(
        (
            (Submit("first", 12),),
            (Submit("second", 4),),
            (Weigh("second", 3),),
            (End("second"),),
        ),
        policy="fair_share",
    )


def quota() -> str:
    """Two projects: borrow, reclaim, and preempt in a project."""
    vision, speech = {"project": "vision"}, {"project": "speech"}
    return by_step(
        (
            (Deserve("vision", 5), Deserve("speech", 3)),
            (Submit("train", 10, spec=vision),),
            (Submit("tune", 4, spec=speech),),
            (Submit("notebook", spec={**speech, "preemptible": False}),),
            (Submit("urgent", gpus=2, spec={**vision, "priority": 1}),),
            (Cancel("tune"), End("notebook")),
        ),
        policy="quota",
    )


def starved_first() -> str:
    """Three users divide the pool equally."""
    return by_step(
        (
            (Submit("sweep", 20, spec={"user": "bob", "priority": 1}),),
            (Submit("train", 20, spec={"user": "alice"}),),
            (Submit("eval", spec={"user": "carol"}),),
            (Submit("large", gpus=4, spec={"user": "carol"}),),
        ),
        policy="starved_first",
    )


def fitgpp() -> str:
    """Tasks that are not preemptible get the slots of the task with the lowest score."""
    fixed = {"preemptible": False}
    return by_step(
        (
            (
                Submit("big", gpus=4, spec={"grace_s": 30}),
                Submit("slow", gpus=2, spec={"grace_s": 300}),
                Submit("small", gpus=2, spec={"grace_s": 30}),
            ),
            (Submit("notebook", gpus=2, spec=fixed),),
            (Submit("debug", gpus=1, spec=fixed),),
            (End("notebook"), End("small")),
        ),
        policy="fitgpp",
    )


def baselines() -> str:
    """The same steps under the policies that FitGpp was compared with."""
    steps = (
        (
            Submit("day", gpus=4, spec={"runtime_estimate_s": 24 * HOUR_S}),
            Submit("hour", gpus=4, spec={"runtime_estimate_s": HOUR_S}),
        ),
        (Submit("long", gpus=4, spec={"runtime_estimate_s": 9 * HOUR_S}),),
        (Submit("short", gpus=4, spec={"runtime_estimate_s": 2 * HOUR_S, "preemptible": False}),),
        (End("hour"),),
    )
    return by_policy(steps, "fifo", "lrtp", "rand", "sjf")


#: What writes each part of the page.
EXAMPLES: Final[Mapping[str, Callable[[], str]]] = {
    "example-baselines": baselines,
    "example-fair-share": fair_share,
    "example-fair-share-variants": variants_of_fair_share,
    "example-fitgpp": fitgpp,
    "example-priority": priority,
    "example-quota": quota,
    "example-starved-first": starved_first,
}
