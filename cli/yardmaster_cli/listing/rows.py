"""The rows of `yard ls`: active tasks first, tasks of an array grouped.

A list for people is short. All pending tasks of a job are one row, all its ended tasks in one phase
are one row, and the number of rows is limited. Without a filter that selects tasks, such a list has
the active tasks and the `RECENT` rows that ended last. Other formats, and `--all`, have a row for
every task.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit, list_hint
from yardmaster_cli.listing.filters import matches
from yardmaster_cli.output.columns import GROUPS, JOBS, TASKS, counted, grouped, reason
from yardmaster_cli.output.formats import Column, Row
from yardmaster_cli.server.reader import Reader
from yardmaster_cli.server.remote import Remote
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.phases import ENDED, Phase

#: The most rows of a list for people without `--limit` or `--all`.
MOST_ROWS: Final = 100
#: The number of rows of ended tasks in a list without a filter that selects tasks. They are the
#: rows that ended last among the `_READ_ENDED` newest jobs with ended tasks.
RECENT: Final = 10
_READ_ENDED: Final = 100
#: The most tasks read where the client groups them instead of the server.
_READ: Final = 1000

_RUN: Final = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
_WAIT: Final = (Phase.SUBMITTED, Phase.PENDING)
#: Filters that match only some tasks of a job.
_OF_TASKS: Final = ("pool", "node")

Query = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """Rows of a list, and a line that says what was left out; None: nothing was left out."""

    rows: Sequence[Row]
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A kind of list: its columns, and the key of a row's name."""

    remote: Remote
    query: Query
    columns: Sequence[Column]
    name: str = "task_id"

    def read(self, most: int | None) -> Listed:
        """Read at most `most` rows; None: all rows."""
        raise NotImplementedError

    def _phases(self, some: Sequence[Phase]) -> list[str]:
        """The phases of `some` that the filters allow."""
        wanted = self.query.get("phase")
        return [phase.value for phase in some if wanted is None or phase.value in wanted]


_ACTIVE: Final = (*_RUN, *_WAIT)
_OVER: Final = tuple(phase for phase in Phase if phase in ENDED)


class EachTask(Listing):
    """One row for each task."""

    def read(self, most: int | None) -> Listed:
        """Read active tasks, then ended ones, the newest first."""
        parts = [
            self.remote.reader.all_tasks(**{**self.query, "phase": wanted})
            for some in (_ACTIVE, _OVER)
            if (wanted := self._phases(some))
        ]
        return Listed(list(islice(chain.from_iterable(parts), most)))


@dataclass(frozen=True, slots=True)
class GroupedTasks(Listing):
    """Running tasks, then pending and ended tasks grouped by job and phase.

    `recent`: only the `RECENT` rows of ended tasks that ended last.
    """

    recent: bool = False

    def read(self, most: int | None) -> Listed:
        """Read groups of tasks in the order of their phases."""
        left = most if most is not None else MOST_ROWS
        found: list[Row] = []
        cut = False
        wanted = self._phases(_RUN)
        if wanted:
            page = self.remote.reader.tasks(
                **{**self.query, "phase": wanted, "limit": max(1, min(left, _READ))}
            )
            found += [grouped({"first": row, "count": 1}) for row in page["items"]][:left]
            cut = page["next_cursor"] is not None
        if any(self.query.get(name) for name in _OF_TASKS):
            return self._by_tasks(found, left, cut)
        counts: dict[str, int] = {}
        most_counted = 0
        for some in (_WAIT, _OVER):
            wanted = self._phases(some)
            if counts and (not wanted or len(found) >= left):
                continue
            groups = self.remote.reader.task_groups(
                **{
                    **self.query,
                    "phase": wanted or [phase.value for phase in some],
                    "limit": max(1, min(left - len(found), _READ)),
                }
            )
            counts, most_counted = groups["phases"], groups["counted_most"]
            if wanted:
                rows = [grouped(group) for group in groups["items"]]
                found += self._chosen(rows, some)[: left - len(found)]
        allowed = self._phases(tuple(Phase))
        counts = {phase: count for phase, count in counts.items() if phase in allowed}
        if not counts:
            return Listed(found)
        summary = counted(counts, most_counted)
        if sum(row["count"] for row in found) < sum(counts.values()):
            summary += f" ({self._left_out(found)})"
        return Listed(found, summary)

    def _chosen(self, rows: list[Row], phases: Sequence[Phase]) -> list[Row]:
        """Shorten rows of ended tasks to the ones that ended last if `recent` is set."""
        if not self.recent or phases is not _OVER:
            return rows
        return sorted(rows, key=lambda row: row.get("ended_at") or "", reverse=True)[:RECENT]

    def _left_out(self, found: Sequence[Row]) -> str:
        """The summary line of an incomplete list: how many rows are shown, how to see the rest."""
        shown = f"{count_of(len(found), 'row')} shown"
        if not self.recent:
            return f"{shown}; --all lists every task"
        return f"{shown}; --phase ended lists all that ended, --all every task"

    def _by_tasks(self, found: list[Row], left: int, cut: bool) -> Listed:
        """Group tasks in the client, because the filters match only some tasks of a job.

        `found`: the rows of running tasks; `left`: the most rows. `cut`: more tasks are running
        than `found` contains.
        """
        for some in (_WAIT, _OVER):
            wanted = self._phases(some)
            if not wanted:
                continue
            page = self.remote.reader.tasks(**{**self.query, "phase": wanted, "limit": _READ})
            cut = cut or page["next_cursor"] is not None
            groups: dict[tuple[str, ...], list[Row]] = {}
            for row in page["items"]:
                # Failed tasks that ended differently have different reasons.
                end = str(reason(row)) if row["phase"] == "failed" else ""
                groups.setdefault((row["job_id"], row["phase"], end), []).append(row)
            rows = [
                grouped({"first": tasks[-1], "last_index": tasks[0]["index"], "count": len(tasks)})
                for tasks in groups.values()
            ]
            chosen = self._chosen(rows, some)
            cut = cut or len(chosen) < len(rows)
            found += chosen
        cut = cut or len(found) > left
        shown = found[:left]
        return Listed(shown, self._left_out(shown) if cut else None)


@dataclass(frozen=True, slots=True)
class EachJob(Listing):
    """One row for each job, jobs with active tasks first.

    `recent`: only the `RECENT` newest of the jobs without active tasks.
    """

    recent: bool = False

    def read(self, most: int | None) -> Listed:
        """Read jobs with active tasks, then the others, the newest first."""
        seen: set[str] = set()

        def found(some: Sequence[Phase]) -> Iterator[Row]:
            if wanted := self._phases(some):
                for job in self.remote.reader.all_jobs(**{**self.query, "phase": wanted}):
                    if job["job_id"] not in seen:
                        seen.add(job["job_id"])
                        yield job

        active, ended = found(_ACTIVE), found(_OVER)
        if most is None:
            return Listed([*active, *ended])
        listed = list(islice(active, most))
        left = most - len(listed)
        listed += islice(ended, min(left, RECENT) if self.recent else left)
        more = next(chain(active, ended), None) is not None
        shown = count_of(len(listed), "job")
        return Listed(listed, f"{shown} shown; --all lists every job" if more else None)


@dataclass(frozen=True, slots=True)
class Queue(Listing):
    """The pending tasks of a pool in the order of its policy; `group` makes equal tasks one row."""

    group: bool = False

    def read(self, most: int | None) -> Listed:
        """Read pending tasks, the next one first."""
        options = {"project": self.query.get("project"), "grouped": self.group}
        items = self.remote.reader.queue(self.query["pool"], **options)
        query = {**self.query, "phase": ["pending"]}
        found = (
            {**grouped(item), "position": item["position"]}
            for item in items
            if matches(item["first"], query)
        )
        return Listed(list(islice(found, most)))


def listing(
    remote: Remote,
    query: dict[str, Any],
    *,
    queue: str | None,
    jobs: bool,
    group: bool,
    recent: bool,
) -> Listing:
    """The kind of list that the options request; `recent`: show only few ended tasks or jobs.

    Raises:
        BadUsage: options that exclude each other.
    """
    if queue is not None:
        if jobs:
            raise BadUsage("--jobs and --queue exclude each other", hint="leave one of them out")
        place = Column("POSITION", lambda row: row["position"], right=True)
        priority = Column("PRIORITY", lambda row: row["priority"], right=True)
        rest = (GROUPS if group else TASKS)[1:]
        columns = (
            TASKS[0],
            place,
            priority,
            *(c for c in rest if c.title not in ("PRIORITY", "NODES")),
        )
        return Queue(remote, {**query, "pool": queue}, columns, group=group)
    if jobs:
        if "node" in query:
            raise BadUsage("--node filters tasks, not jobs", hint="leave out --jobs or --node")
        return EachJob(remote, query, JOBS, "job_id", recent)
    if group:
        return GroupedTasks(remote, query, GROUPS, recent=recent)
    return EachTask(remote, query, TASKS)


def check_names(reader: Reader, query: Query) -> None:
    """Check the node, pool and project of a query that found no task.

    Raises:
        CliError: the server does not know one of the names; exit code 101.
    """
    for kind in ("node", "pool", "project"):
        for name in filter(None, str(query.get(kind) or "").split(",")):
            try:
                reader.named(kind, name)
            except ApiError as error:
                if error.document["code"] != "not_found":
                    raise
                raise CliError(
                    f"there is no {kind} {name}",
                    exit_code=Exit.NOT_FOUND,
                    hint=list_hint(kind),
                ) from None
