"""Quota's state of a cell: pools, departments, projects, jobs, and nodes named in requests.

The state consists of tables of immutable rows. A row is small and keeps no event. The only events
in the state are pending requests, because a verdict needs them. Of a job that has ended, the state
keeps the id and the digest of its request.
"""

import json
import re
from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final

from yardmaster_core.access import User, operates
from yardmaster_core.admission.judged import JudgedIds
from yardmaster_core.admission.tables import Table
from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    CellConfig,
    DepartmentConfig,
    Enrollment,
    LogMode,
    PoolConfig,
    ProjectConfig,
)

#: The pool that comes first if neither a job nor its project nor the cell names a pool.
DEFAULT_POOL: Final = "default"
#: The number of gateway starts whose last record is kept. A further start replaces the earliest
#: start by the gateways' clocks. A repeated record of a replaced start would pass as new, but only
#: if the log received the repeat after this many later starts.
MAX_STARTS: Final = 1_000
#: The source of one start of a gateway: `gateway/<name>.<12 hex digits>`.
_ONE_START: Final = re.compile(r"gateway/.+\.[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Log:
    """The log's identity, from LogCreated."""

    log_id: str
    mode: str


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's configuration; `revision` counts from 1."""

    config: PoolConfig
    revision: int


@dataclass(frozen=True, slots=True)
class Department:
    """A department's configuration; `revision` counts from 1."""

    config: DepartmentConfig
    revision: int


@dataclass(frozen=True, slots=True)
class Project:
    """A project's configuration; `revision` counts from 1."""

    config: ProjectConfig
    revision: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell's configuration; `revision` counts from 1."""

    config: CellConfig
    revision: int


@dataclass(frozen=True, slots=True)
class Node:
    """A cordoned node; a draining node also has a deadline in ms since the epoch."""

    deadline_at_ms: int | None = None

    @property
    def word(self) -> str:
        """`cordoned` or `draining`."""
        return "cordoned" if self.deadline_at_ms is None else "draining"


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The enrollment of a node; `revision` counts from 1, also across revocations."""

    config: Enrollment
    revision: int
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted job with a task that has not ended.

    `paused`, `cancelled` and `ended` are sets of task indexes as the bits of an integer: a job has
    up to 10,000 tasks, and one of them changes at a time. `body` is the digest of the request: a
    repeated submission has the same digest, another submission with the same id has not. `user` is
    the user whose limit counts the tasks; empty for a job from before quota counted tasks.
    """

    project: str
    pools: tuple[str, ...]
    tasks: int
    priority: int
    revision: int
    body: bytes
    paused: int = 0
    cancelled: int = 0
    ended: int = 0
    user: str = ""

    def bits(self, index: int | None) -> int:
        """Return the set with one task, or for None with all tasks, as bits."""
        return (1 << self.tasks) - 1 if index is None else 1 << index

    @property
    def live(self) -> bool:
        """Whether a task is neither cancelled nor ended."""
        return (self.cancelled | self.ended) != self.bits(None)

    @property
    def counted(self) -> int:
        """The number of tasks that the limits of the project and of the user count."""
        return self.tasks - self.ended.bit_count() if self.user else 0


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record applied from a source; a record that is not after this one is a repeat."""

    epoch: int
    seq: int

    def precedes(self, epoch: int, seq: int) -> bool:
        """Whether the record (`epoch`, `seq`) comes after this one."""
        return (self.epoch, self.seq) < (epoch, seq)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request without a verdict, the time in ms of the cycle that consumed it, and its actor."""

    event: Event
    record_id: str
    taken_ms: int
    actor: str


def _config_line(row: Pool | Department | Project | Enrolled | Cell) -> str:
    """Return a row's revision and its configuration as JSON, whatever the order of the keys."""
    config = json.dumps(asdict(row.config), sort_keys=True, separators=(",", ":"))
    return f"{row.revision}|{config}"


def _enrolled_line(row: Enrolled) -> str:
    return f"{_config_line(row)}|{row.revoked}"


def _user_line(user: User) -> str:
    roles = ",".join(f"{r.role.value}:{r.scope.value}:{r.name}" for r in user.roles)
    tokens = ",".join(f"{t.id}:{t.digest}:{t.issued_at_ms}:{t.expires_at_ms}" for t in user.tokens)
    return f"{roles}|{tokens}|{user.removed}"


def _job_line(job: Job) -> str:
    line = (
        f"{job.project}|{','.join(job.pools)}|{job.tasks}|{job.priority}|{job.revision}"
        f"|{job.body.hex()}|{job.paused:x}|{job.cancelled:x}"
    )
    return f"{line}|{job.ended:x}|{job.user}" if job.ended or job.user else line


class AdmissionState:
    """Quota's state of one cell, or a draft of it.

    Only the appliers call the `put_*` methods.
    """

    __slots__ = (
        *(
            "cell",
            "cells",
            "children",
            "cycle",
            "departments",
            "enrolled",
            "jobs",
            "judged",
            "judged_ids",
        ),
        *(
            "lists",
            "logs",
            "nodes",
            "now_ms",
            "operators",
            "own",
            "pool_names",
            "pools",
            "projects",
        ),
        *("rules", "sources", "taken", "users", "uses", "work"),
    )

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.cycle = 0
        self.now_ms = 0
        #: The rules in force; a commit names them, so the digest does not cover them.
        self.rules = 0
        #: At most one row, under the name of the cell.
        self.logs: Table[Log] = Table("log", lambda row: f"{row.log_id}|{row.mode}")
        #: At most one row, under the name of the cell.
        self.cells: Table[Cell] = Table("cell-config", _config_line)
        self.pools: Table[Pool] = Table("pool", _config_line)
        self.departments: Table[Department] = Table("department", _config_line)
        self.projects: Table[Project] = Table("project", _config_line)
        self.nodes: Table[Node] = Table("node", lambda row: f"{row.word}|{row.deadline_at_ms or 0}")
        self.jobs: Table[Job] = Table("job", _job_line)
        #: Nodes that were ever enrolled.
        self.enrolled: Table[Enrolled] = Table("enrolled", _enrolled_line)
        #: Users, also those that were removed.
        self.users: Table[User] = Table("user", _user_line)
        #: Rejected and ended jobs, whose ids cannot be used again.
        self.judged_ids = JudgedIds()
        self.sources: Table[LastRecord] = Table("source", lambda row: f"{row.epoch}|{row.seq}")
        #: Key -> a number: of the rows that name a pool, department or project ("pool/h100"), of
        #: unfinished tasks ("tasks of user/ada"), of users ("users/now"), of tokens with a digest.
        #: This table is derived from the others, so the digest does not cover it.
        self.uses: Table[int] = Table("uses", str)
        #: At most one row, under the name of the cell: its operators in name order (derived).
        self.operators: Table[tuple[str, ...]] = Table("operators", ",".join)
        #: The departments below each parent, in name order (derived).
        self.children: Table[tuple[str, ...]] = Table("children", ",".join)
        #: All pools in the order of preference of a job that names no pool (derived).
        self.pool_names: tuple[str, ...] = ()
        #: One object for each distinct list of pools, shared by all jobs with that list.
        self.lists: dict[tuple[str, ...], tuple[str, ...]] = {}
        #: The pending requests in input order. `taken` is the number of requests ever consumed,
        #: and `judged` the number of requests that got a verdict.
        self.work: deque[Pending] = deque()
        self.taken = 0
        self.judged = 0
        #: The last applied record of quota's own topic. It depends on the shell (incarnation,
        #: division into batches), so the digest does not cover it.
        self.own: LastRecord | None = None

    @property
    def simulated(self) -> bool:
        """Whether the log is marked as simulated."""
        log = self.logs.get(self.cell)
        return log is not None and log.mode == LogMode.SIMULATED

    def draft(self, requests: int) -> "AdmissionState":
        """Return an overlay with the first `requests` pending requests; changes stay in it."""
        other = AdmissionState.__new__(AdmissionState)
        other.cell = self.cell
        other.cycle = self.cycle
        other.now_ms = self.now_ms
        other.rules = self.rules
        other.logs = self.logs.draft()
        other.cells = self.cells.draft()
        other.pools = self.pools.draft()
        other.departments = self.departments.draft()
        other.projects = self.projects.draft()
        other.nodes = self.nodes.draft()
        other.enrolled = self.enrolled.draft()
        other.users = self.users.draft()
        other.operators = self.operators.draft()
        other.jobs = self.jobs.draft()
        other.judged_ids = self.judged_ids.draft()
        other.sources = self.sources.draft()
        other.uses = self.uses.draft()
        other.children = self.children.draft()
        other.pool_names = self.pool_names
        other.lists = {}
        other.work = deque(islice(self.work, requests))
        other.taken = self.taken
        other.judged = self.judged
        other.own = self.own
        return other

    def digest(self) -> str:
        """64 hex digits; the cost depends on the changes since the last call.

        Of pending requests only the number counts, since the digests of inputs cover their content.
        """
        own = f"cell\0{self.cell}\0{self.taken}|{self.judged}"
        total = row_hash(own) + self.judged_ids.total()
        for table in (
            *(self.logs, self.cells, self.pools, self.departments, self.projects, self.nodes),
            *(self.enrolled, self.users, self.jobs, self.sources),
        ):
            total += table.total()
        return f"{total % MODULUS:064x}"

    def in_use(self, kind: str, name: str) -> int:
        """Return the number of rows that name a pool, department or project (`kind`)."""
        return self.uses.get(f"{kind}/{name}") or 0

    def unfinished(self, kind: str, name: str) -> int:
        """Return the number of unfinished tasks that the limit of a project or user counts."""
        return self.in_use(f"tasks of {kind}", name)

    @property
    def config(self) -> CellConfig:
        """The cell's configuration, or the default one."""
        row = self.cells.get(self.cell)
        return CellConfig() if row is None else row.config

    def put_last_record(self, source: str, epoch: int, seq: int) -> None:
        """Set the last record of a source; keep at most `MAX_STARTS` gateway starts."""
        if self.sources.get(source) is None and _ONE_START.fullmatch(source):
            starts = [
                (last.epoch, name)
                for name, last in self.sources.items()
                if _ONE_START.fullmatch(name)
            ]
            if len(starts) >= MAX_STARTS:
                self.sources.put(min(starts)[1], None)
        self.sources.put(source, LastRecord(epoch, seq))

    def put_cell(self, cell: Cell) -> None:
        """Set the cell's configuration."""
        self._count(-1, _named_by_cell(self.config))
        self._count(+1, _named_by_cell(cell.config))
        self.cells.put(self.cell, cell)

    def put_pool(self, name: str, pool: Pool | None) -> None:
        """Set or remove a pool."""
        self.pools.put(name, pool)
        if (name in self.pool_names) != (pool is not None):
            names = {*self.pool_names, name} if pool else {*self.pool_names} - {name}
            self.pool_names = tuple(sorted(names, key=lambda n: (n != DEFAULT_POOL, n)))

    def put_department(self, name: str, department: Department | None) -> None:
        """Set or remove a department."""
        old = self.departments.get(name)
        self._count(-1, () if old is None else _named_by_department(old.config))
        self._count(+1, () if department is None else _named_by_department(department.config))
        self.departments.put(name, department)
        was = None if old is None else old.config.parent
        parent = None if department is None else department.config.parent
        if parent != was:
            if was is not None:
                self._put_children(was, {*(self.children.get(was) or ())} - {name})
            if parent is not None:
                self._put_children(parent, {*(self.children.get(parent) or ()), name})

    def _put_children(self, parent: str, children: set[str]) -> None:
        self.children.put(parent, tuple(sorted(children)) or None)

    def put_project(self, name: str, project: Project | None) -> None:
        """Set or remove a project."""
        old = self.projects.get(name)
        self._count(-1, () if old is None else _named_by_project(old.config))
        self._count(+1, () if project is None else _named_by_project(project.config))
        self.projects.put(name, project)

    def put_enrolled(self, name: str, row: Enrolled) -> None:
        """Set an enrollment; a revoked enrollment does not count as a use of its pool."""
        old = self.enrolled.get(name)
        self._count(-1, () if old is None else _named_by_enrollment(old))
        self._count(+1, _named_by_enrollment(row))
        self.enrolled.put(name, row)

    def put_user(self, name: str, user: User) -> None:
        """Set a user; a removed user is not counted, and its tokens' digests may be reused."""
        old = self.users.get(name)
        self._count(-1, () if old is None else _counted_of_user(old))
        self._count(+1, _counted_of_user(user))
        operators = {*(self.operators.get(self.cell) or ())} - {name}
        if operates(user, self.cell):
            operators.add(name)
        self.operators.put(self.cell, tuple(sorted(operators)) or None)
        self.users.put(name, user)

    def counts_of_users(self) -> tuple[int, int]:
        """Return the number of user names that ever existed, and of users that are not removed."""
        return self.in_use("users", "ever"), self.in_use("users", "now")

    def put_job(self, name: str, job: Job) -> None:
        """Set a job; once no task is live, the job is no longer a use of its project and pools.

        Once all tasks of the job have ended, only its id and the digest of its request are kept.
        """
        old = self.jobs.get(name)
        if (old is not None and old.live) != job.live:
            named = (f"project/{job.project}", *(f"pool/{pool}" for pool in job.pools))
            self._count(+1 if job.live else -1, named)
        more = job.counted - (0 if old is None else old.counted)
        if more:
            self._count(more, (f"tasks of project/{job.project}", f"tasks of user/{job.user}"))
        if job.ended == job.bits(None):
            self.jobs.put(name, None)
            self.judged_ids.add(name, job.body)
        else:
            self.jobs.put(name, job)

    def interned(self, pools: tuple[str, ...]) -> tuple[str, ...]:
        """The object that all equal lists of pools share."""
        return self.lists.setdefault(pools, pools)

    def _count(self, by: int, named: tuple[str, ...]) -> None:
        """Add `by` to the number of each key in `uses`; a number of 0 is removed."""
        for key in named:
            self.uses.put(key, ((self.uses.get(key) or 0) + by) or None)


def _counted_of_user(user: User) -> tuple[str, ...]:
    now = () if user.removed else ("users/now",)
    return ("users/ever", *now, *(f"token/{token.digest}" for token in user.tokens))


def _named_by_quotas(config: DepartmentConfig | ProjectConfig) -> tuple[str, ...]:
    return tuple(f"pool/{pool}" for pool in config.quotas)


def _named_by_cell(config: CellConfig) -> tuple[str, ...]:
    return tuple(f"pool/{pool}" for pool in config.default_pools)


def _named_by_department(config: DepartmentConfig) -> tuple[str, ...]:
    parent = () if config.parent is None else (f"department/{config.parent}",)
    return parent + _named_by_quotas(config)


def _named_by_project(config: ProjectConfig) -> tuple[str, ...]:
    # Default pools are allowed pools, and counted once.
    pools = config.pools or config.default_pools
    own = (f"department/{config.department}", *(f"pool/{pool}" for pool in pools))
    return own + _named_by_quotas(config)


def _named_by_enrollment(row: Enrolled) -> tuple[str, ...]:
    return () if row.revoked else (f"pool/{row.config.pool}",)
