"""The figures of a run, from its `History`; each is defined in docs/explanation/simulator.md."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from yardmaster_schemas.events.decisions import Outcome
from yardmaster_simulation.history import PREEMPTED, History
from yardmaster_simulation.records import Task
from yardmaster_simulation.series import windows

#: A function from a task's id to how long the task runs if nothing stops it, in milliseconds.
ExecMs = Callable[[str], int]

#: The number of equal windows into which a run is divided for plots over time and for fairness.
WINDOWS: Final = 400
#: The kinds of tasks: not preemptible, preemptible, and both together.
TE: Final = "te"
BE: Final = "be"
ALL: Final = "all"
KINDS: Final = (TE, BE, ALL)
SHARES: Final = (0.5, 0.75, 0.95, 0.99)
#: How long after the last grace period of its victims a task may start, in milliseconds; if it
#: starts and ends later, they were preempted in vain.
USELESS_AFTER_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum (`most`) of `count` values; None if there are no values."""

    count: int
    mean: float | None
    p50: float | None
    p75: float | None
    p95: float | None
    p99: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of the tasks of one kind.

    Times are seconds. Slowdown, wait and completion describe only tasks that succeeded.
    """

    kind: str
    tasks: int
    succeeded: int
    failed: int
    cancelled: int
    slowdown: Spread
    wait_s: Spread
    completion_s: Spread
    #: The time from each preemption request to the task's next start.
    rescheduling_s: Spread
    #: Number of tasks that were preempted once, twice, three times or more.
    preempted: tuple[int, int, int]

    @property
    def preempted_share(self) -> float:
        """The share of the tasks that were preempted at least once."""
        return sum(self.preempted) / self.tasks if self.tasks else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run; GPUs are whole GPUs, shares are 0 to 1."""

    parts: tuple[Part, ...]
    rejected: int
    makespan_s: float
    #: These figures are None if there were no GPUs (the first two), no free GPUs, and no project
    #: that requested GPUs.
    utilisation: float | None
    #: The utilization between the first submission and the last.
    arriving_utilisation: float | None
    fragmentation: float | None
    fairness: float | None
    gpu_hours: float
    #: The GPU hours that were lost to preemption, and for other reasons.
    preempted_lost_gpu_hours: float
    other_lost_gpu_hours: float
    preemptions: int
    #: The preemptions for tasks that had neither started nor ended 10 minutes after the last grace
    #: period of the tasks that were preempted for them at the same time.
    useless_preemptions: int
    nodes_lost: int
    #: The GPU hours in which reserved GPUs were idle, because tasks waited for more slots.
    reserved_idle_gpu_hours: float

    def part(self, kind: str) -> Part:
        """Return the figures of one kind (`te`, `be`, `all`)."""
        return self.parts[KINDS.index(kind)]

    def rows(self) -> list[dict[str, str | int | float | None]]:
        """One table row for each kind; the figures of the whole run are in the row of all kinds."""
        found: list[dict[str, str | int | float | None]] = []
        for part in self.parts:
            row: dict[str, str | int | float | None] = {
                "kind": part.kind,
                "tasks": part.tasks,
                "succeeded": part.succeeded,
                "preempted_share": part.preempted_share,
            }
            for name in ("slowdown", "wait_s", "completion_s", "rescheduling_s"):
                spread: Spread = getattr(part, name)
                row |= {
                    f"{name}_{of}": getattr(spread, of)
                    for of in ("mean", "p50", "p75", "p95", "p99")
                }
            if part.kind == ALL:
                row |= {name: getattr(self, name) for name in RUN_FIGURES}
            found.append(row)
        return found


#: The figures of `Summary` that describe the whole run.
RUN_FIGURES: Final = (
    *(
        "makespan_s",
        "utilisation",
        "arriving_utilisation",
        "fragmentation",
        "fairness",
        "gpu_hours",
    ),
    *("preempted_lost_gpu_hours", "other_lost_gpu_hours", "preemptions", "nodes_lost", "rejected"),
    *("useless_preemptions", "reserved_idle_gpu_hours", "arriving_utilisation"),
)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile `share` (0 to 1) of ascending values.

    It is the value at rank share x (n - 1), interpolated linearly between the two nearest values,
    as numpy's default and SQL's percentile_cont do.
    """
    rank = share * (len(ordered) - 1)
    below = int(rank)
    if below + 1 >= len(ordered):
        return ordered[-1]
    low, high = ordered[below], ordered[below + 1]
    return low + (high - low) * (rank - below)


def spread(values: Iterable[float]) -> Spread:
    """Return mean, percentiles and maximum of `values`."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0, None, None, None, None, None, None)
    p50, p75, p95, p99 = (percentile(ordered, share) for share in SHARES)
    return Spread(len(ordered), sum(ordered) / len(ordered), p50, p75, p95, p99, ordered[-1])


def exec_ms_of(task: Task, exec_ms: ExecMs | None) -> int:
    """How long a task runs if nothing stops it; if unknown, how long it ran without lost work."""
    if exec_ms is not None:
        return exec_ms(task.id)
    return sum(run.ran_ms - run.lost_ms for run in task.attempts)


def slowdown(wait_ms: int, exec_ms: int) -> float | None:
    """1 + wait / execution time; None for a task without execution time."""
    return 1 + wait_ms / exec_ms if exec_ms > 0 else None


def rescheduling_ms(task: Task) -> list[int]:
    """Times from each preemption request to the task's next start."""
    return [
        after.allocated_ms - run.stop_ms
        for run, after in pairwise(task.attempts)
        if run.end == PREEMPTED and run.stop_ms is not None
    ]


def times_preempted(task: Task) -> int:
    """How often a task was preempted."""
    return sum(run.preempted for run in task.attempts)


def useless_preemptions(history: History) -> int:
    """How many preemptions were for a task that had neither started nor ended
    `USELESS_AFTER_MS` after the last grace period of the tasks preempted for it at the same time.

    A preemption whose task may still start in time does not count.
    """
    deadlines: dict[tuple[str, int], list[int]] = {}
    for task in history.tasks.values():
        for run in task.attempts:
            if run.for_task is not None and run.stop_ms is not None and run.deadline_ms is not None:
                deadlines.setdefault((run.for_task, run.stop_ms), []).append(run.deadline_ms)
    useless = 0
    for (task_id, stop_ms), until_ms in deadlines.items():
        claimant = history.tasks.get(task_id)
        if claimant is None:
            continue
        served = [run.allocated_ms for run in claimant.attempts if run.allocated_ms >= stop_ms]
        ended = [] if claimant.ended_ms is None else [claimant.ended_ms]
        if min([*served, *ended, history.now_ms]) > max(until_ms) + USELESS_AFTER_MS:
            useless += len(until_ms)
    return useless


def lost_gpu_milli_ms(task: Task) -> tuple[int, int]:
    """Return the lost work of a task in gpu_milli x ms: (by preemption, for other reasons)."""
    preempted = other = 0
    for run in task.attempts:
        if run.end == PREEMPTED:
            preempted += run.lost_ms
        else:
            other += run.lost_ms
    return preempted * task.job.gpu_milli, other * task.job.gpu_milli


def jain(shares: Sequence[float]) -> float | None:
    """Jain's index: 1 if all n shares are equal, 1/n if all but one are zero; None if all are."""
    squares = sum(share * share for share in shares)
    if not squares:
        return None
    return sum(shares) ** 2 / (len(shares) * squares)


def fair_shares(
    capacity: float, asks: Mapping[str, float], weights: Mapping[str, int]
) -> dict[str, float]:
    """Divide `capacity` by weight; no project gets more than it requests in `asks` (max-min)."""
    found: dict[str, float] = {}
    left, weight = capacity, sum(weights[name] for name, ask in asks.items() if ask > 0)
    for name in sorted(asks, key=lambda name: (asks[name] / weights[name], name)):
        if asks[name] <= 0:
            found[name] = 0.0
            continue
        found[name] = min(asks[name], left * weights[name] / weight)
        left -= found[name]
        weight -= weights[name]
    return found


@dataclass(frozen=True, slots=True)
class Shares:
    """The GPUs of a project; each field has the mean of each window.

    `held`: allocated. `requested`: by pending tasks. `fair`: the project's part by weight.
    `deserved`: by quota. `share`: recorded by the policy (0: no share was recorded).
    """

    name: str
    held: list[float]
    requested: list[float]
    fair: list[float]
    deserved: list[float]
    share: list[float]


def project_shares(history: History, edges: Sequence[int], up: Sequence[float]) -> list[Shares]:
    """Return the `Shares` of each project that held or requested GPUs, sorted by name.

    `edges` are the bounds of the windows in ms; `up[i]` is the mean number of GPUs in nodes that
    are up in window i.
    """
    history.flush()
    lengths = [end - begin for begin, end in pairwise(edges)]
    found: list[Shares] = []
    asks: dict[str, list[float]] = {}
    for name, project in sorted(history.projects.items()):
        held, requested, deserved, share = (
            [total / length / 1000 for total, length in zip(sums, lengths, strict=True)]
            for sums in (project.series.sums(column, edges) for column in (0, 1, 2, 4))
        )
        if any(held) or any(requested):
            asks[name] = [one + other for one, other in zip(held, requested, strict=True)]
            found.append(Shares(name, held, requested, [], deserved, share))
    weights = {name: history.projects[name].weight for name in asks}
    for at, capacity in enumerate(up):
        divided = fair_shares(capacity, {name: ask[at] for name, ask in asks.items()}, weights)
        for one in found:
            one.fair.append(divided[one.name])
    return found


@dataclass(frozen=True, slots=True)
class ProjectTotals:
    """The GPU hours and preemptions of a project in a run.

    `pending_gpu_hours`: the GPUs that pending tasks requested, summed over time. `preempted`: the
    number of preemptions of the project's tasks, by the rule of the stop.
    """

    name: str
    gpu_hours: float
    within_deserved_gpu_hours: float
    over_quota_gpu_hours: float
    pending_gpu_hours: float
    preempted: Mapping[str, int]

    def row(self) -> dict[str, object]:
        """Return the fields as a table row."""
        return {
            "project": self.name,
            "gpu_hours": self.gpu_hours,
            "within_deserved_gpu_hours": self.within_deserved_gpu_hours,
            "over_quota_gpu_hours": self.over_quota_gpu_hours,
            "pending_gpu_hours": self.pending_gpu_hours,
            "preempted": dict(sorted(self.preempted.items())),
        }


def project_totals(history: History) -> list[ProjectTotals]:
    """Return the totals of each project that held or requested GPUs, sorted by name."""
    history.flush()
    edges = windows(*span(history), 1)
    found = []
    for name, project in sorted(history.projects.items()):
        sums = (project.series.sums(column, edges) for column in (0, 1, 3))
        held, pending, within = (_gpu_hours(each) for each in sums)
        if held or pending:
            preempted = dict(project.preempted)
            found.append(ProjectTotals(name, held, within, held - within, pending, preempted))
    return found


def fairness(shares: Iterable[Shares]) -> float | None:
    """Jain's index of the projects' GPUs relative to their fair shares."""
    return jain([sum(one.held) / total for one in shares if (total := sum(one.fair)) > 0])


def span(history: History) -> tuple[int, int]:
    """Return the times of the first submission and of the last task's end, in ms.

    If a task has not ended, the second time is the present time of the history.
    """
    begin = min((job.submitted_ms for job in history.jobs.values()), default=history.now_ms)
    ends = [task.ended_ms for task in history.tasks.values()]
    if not ends or None in ends:
        return begin, history.now_ms
    return begin, max(end for end in ends if end is not None)


def pools_over(history: History, edges: Sequence[int]) -> list[list[float]]:
    """Return five lists with the mean GPUs of each window between `edges` (ms), over all pools.

    The lists are: GPUs in nodes that are up, allocated GPUs, GPUs that pending tasks request, free
    GPUs that are unusable (see `fragments`), and reserved GPUs that are idle.
    """
    history.flush()
    found = [[0.0] * (len(edges) - 1) for _ in range(5)]
    for pool in history.pools.values():
        for column, means in enumerate(found):
            for at, total in enumerate(pool.series.sums(column, edges)):
                means[at] += total / (edges[at + 1] - edges[at]) / 1000
    return found


def summary(history: History, exec_ms: ExecMs | None = None) -> Summary:
    """The figures of a run so far.

    `exec_ms` returns each task's true execution time. If it is None, the time that a task ran
    without lost work is used instead.
    """
    begin, end = span(history)
    edges = windows(begin, end, WINDOWS)
    shares = project_shares(history, edges, pools_over(history, edges)[0])
    seconds = max(end - begin, 1) / 1000
    (up,), (allocated,), _, (unusable,), (reserved_idle,) = pools_over(
        history, windows(begin, end, 1)
    )
    tasks = list(history.tasks.values())
    lost = [lost_gpu_milli_ms(task) for task in tasks]
    return Summary(
        parts=tuple(_part(kind, tasks, exec_ms) for kind in KINDS),
        rejected=history.rejected,
        makespan_s=(end - begin) / 1000,
        utilisation=allocated / up if up else None,
        arriving_utilisation=_arriving_utilisation(history, begin),
        fragmentation=unusable / (up - allocated) if up > allocated else None,
        fairness=fairness(shares),
        gpu_hours=allocated * seconds / 3600,
        preempted_lost_gpu_hours=_gpu_hours(one for one, _ in lost),
        other_lost_gpu_hours=_gpu_hours(other for _, other in lost),
        preemptions=sum(map(times_preempted, tasks)),
        useless_preemptions=useless_preemptions(history),
        nodes_lost=history.nodes_lost,
        reserved_idle_gpu_hours=reserved_idle * seconds / 3600,
    )


def _arriving_utilisation(history: History, begin: int) -> float | None:
    last = max((job.submitted_ms for job in history.jobs.values()), default=begin)
    if last == begin:
        return None
    (up,), (allocated,), *_ = pools_over(history, (begin, last))
    return allocated / up if up else None


def _gpu_hours(milli_ms: Iterable[int]) -> float:
    return sum(milli_ms) / (1000 * 3_600_000)


def of_kind(tasks: Iterable[Task], kind: str) -> list[Task]:
    """Return the tasks of a kind (`te`, `be`, `all`)."""
    return [task for task in tasks if kind == ALL or task.job.preemptible is (kind == BE)]


def _part(kind: str, every: list[Task], exec_ms: ExecMs | None) -> Part:
    tasks = of_kind(every, kind)
    done = [task for task in tasks if task.outcome is Outcome.SUCCEEDED]
    times = [times_preempted(task) for task in tasks]
    slow = (slowdown(task.wait_ms, exec_ms_of(task, exec_ms)) for task in done)
    return Part(
        kind=kind,
        tasks=len(tasks),
        succeeded=len(done),
        failed=sum(task.outcome is Outcome.FAILED for task in tasks),
        cancelled=sum(task.outcome is Outcome.CANCELLED for task in tasks),
        slowdown=spread(value for value in slow if value is not None),
        wait_s=spread(task.wait_ms / 1000 for task in done),
        completion_s=spread(
            (task.ended_ms - task.job.submitted_ms) / 1000
            for task in done
            if task.ended_ms is not None
        ),
        rescheduling_s=spread(ms / 1000 for task in tasks for ms in rescheduling_ms(task)),
        preempted=(times.count(1), times.count(2), sum(each > 2 for each in times)),
    )
