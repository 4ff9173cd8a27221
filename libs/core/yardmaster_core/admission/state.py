"""What quota knows of a cell: pools, departments, projects, jobs, nodes it was asked about.

Immutable rows in tables. A row is small and keeps no event; the requests that wait to be judged are
the exception, they are the input of a decision. Quota reads no `decisions`, so it does not hear
that a job ended: every job stays known, in a few integers and strings.
"""

import json
import re
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from yardmaster_core.admission.tables import Table
from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    Enrolment,
    LogMode,
    PoolConfig,
    ProjectConfig,
)

#: The pool that comes first where a job and its project name none.
DEFAULT_POOL: Final = "default"
#: Starts of gateways whose marks are kept. One more replaces the one that started first by its own
#: clock: a record of that one could be mistaken for a new one only if the log took it again, late,
#: after so many other starts.
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
class Node:
    """A node that takes nothing new; one that is emptied has a deadline (milliseconds)."""

    deadline_at_ms: int | None = None

    @property
    def word(self) -> str:
        """cordoned or draining."""
        return "cordoned" if self.deadline_at_ms is None else "draining"


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What a node may claim; `revision` counts from 1, and goes on after it was `revoked`."""

    config: Enrolment
    revision: int
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted job.

    `paused` and `cancelled` are sets of task indexes as the bits of an integer: a job has up to
    10,000 tasks, and one of them changes at a time. `body` is the digest that tells a repeat from a
    clash.
    """

    project: str
    pools: tuple[str, ...]
    tasks: int
    priority: int
    revision: int
    body: bytes
    paused: int = 0
    cancelled: int = 0

    def bits(self, index: int | None) -> int:
        """The task of an index, or all of them."""
        return (1 << self.tasks) - 1 if index is None else 1 << index

    @property
    def live(self) -> bool:
        """Whether a task of it may still run."""
        return self.cancelled != self.bits(None)


@dataclass(frozen=True, slots=True)
class Mark:
    """The last record taken from a source; what is not above it is a repeat."""

    epoch: int
    seq: int

    def below(self, epoch: int, seq: int) -> bool:
        """Whether a record comes after this one."""
        return (self.epoch, self.seq) < (epoch, seq)


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that waits to be judged, and the `now` of the cycle that took it (milliseconds)."""

    event: Event
    record_id: str
    taken_ms: int


#: What a configuration could not say at first, and what it then meant: where it means that still,
#: the digest is the one that older logs have.
_SINCE: Final = {"unequal_gangs": False, "gpuless_per_node": None, "seed": 0}


def _config_line(row: Pool | Department | Project | Enrolled) -> str:
    """Canonical JSON: the same whichever way the configuration's keys came."""
    said = {
        key: value
        for key, value in plain.dump(row.config).items()
        if key not in _SINCE or value != _SINCE[key]
    }
    config = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return f"{row.revision}|{config}"


def _enrolled_line(row: Enrolled) -> str:
    return f"{_config_line(row)}|{row.revoked}"


def _job_line(job: Job) -> str:
    return (
        f"{job.project}|{','.join(job.pools)}|{job.tasks}|{job.priority}|{job.revision}"
        f"|{job.body.hex()}|{job.paused:x}|{job.cancelled:x}"
    )


class AdmissionState:
    """Quota's state of one cell, or a draft of it.

    The `put_*` methods are called by `apply` alone; `decide` calls it on a draft.
    """

    __slots__ = (
        *("cell", "cycle", "departments", "enrolled", "jobs", "judged", "lists", "logs", "nodes"),
        *(
            "now_ms",
            "own",
            "pool_names",
            "pools",
            "projects",
            "rejected",
            "sources",
            "taken",
            "uses",
        ),
        "work",
    )

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.cycle = 0
        self.now_ms = 0
        #: At most one row, named by the cell.
        self.logs: Table[Log] = Table("log", lambda row: f"{row.log_id}|{row.mode}")
        self.pools: Table[Pool] = Table("pool", _config_line)
        self.departments: Table[Department] = Table("department", _config_line)
        self.projects: Table[Project] = Table("project", _config_line)
        self.nodes: Table[Node] = Table("node", lambda row: f"{row.word}|{row.deadline_at_ms or 0}")
        self.jobs: Table[Job] = Table("job", _job_line)
        #: Nodes that were ever enrolled.
        self.enrolled: Table[Enrolled] = Table("enrolled", _enrolled_line)
        #: Jobs that were refused: their ids are used up. Name -> body digest.
        self.rejected: Table[bytes] = Table("rejected", bytes.hex)
        self.sources: Table[Mark] = Table("source", lambda row: f"{row.epoch}|{row.seq}")
        #: How many rows name a pool, department or project ("pool/h100"). Derived, so not digested.
        self.uses: Table[int] = Table("uses", str)
        #: Derived: all pools, in the order in which a job without pools tries them.
        self.pool_names: tuple[str, ...] = ()
        #: Pool lists seen, so that a million jobs share a few.
        self.lists: dict[tuple[str, ...], tuple[str, ...]] = {}
        #: Requests not judged yet, in input order; `taken` - `judged` of them.
        self.work: deque[Pending] = deque()
        self.taken = 0
        self.judged = 0
        #: The last record of quota's own that was applied. Which one it is, is the shell's affair
        #: (incarnation, numbering of a batch), so it is no part of the digest.
        self.own: Mark | None = None

    @property
    def simulated(self) -> bool:
        """Whether the log says that all of it was simulated."""
        log = self.logs.get(self.cell)
        return log is not None and log.mode == LogMode.SIMULATED

    def draft(self, requests: int) -> "AdmissionState":
        """An overlay that has the first `requests` requests still to judge; changes stay in it."""
        other = AdmissionState.__new__(AdmissionState)
        other.cell = self.cell
        other.cycle = self.cycle
        other.now_ms = self.now_ms
        other.logs = self.logs.draft()
        other.pools = self.pools.draft()
        other.departments = self.departments.draft()
        other.projects = self.projects.draft()
        other.nodes = self.nodes.draft()
        other.enrolled = self.enrolled.draft()
        other.jobs = self.jobs.draft()
        other.rejected = self.rejected.draft()
        other.sources = self.sources.draft()
        other.uses = self.uses.draft()
        other.pool_names = self.pool_names
        other.lists = {}
        other.work = deque(islice(self.work, requests))
        other.taken = self.taken
        other.judged = self.judged
        other.own = self.own
        return other

    def digest(self) -> str:
        """64 hex digits; costs what changed since it was last asked for.

        Requests that wait count by number: which they are, the digests of the inputs say.
        """
        own = f"cell\0{self.cell}\0{self.taken}|{self.judged}"
        total = row_hash(own)
        for table in (
            *(self.logs, self.pools, self.departments, self.projects, self.nodes),
            *(self.enrolled, self.jobs, self.rejected, self.sources),
        ):
            total += table.total()
        return f"{total % MODULUS:064x}"

    def in_use(self, kind: str, name: str) -> int:
        """How many rows name a pool, department or project."""
        return self.uses.get(f"{kind}/{name}") or 0

    def put_mark(self, source: str, epoch: int, seq: int) -> None:
        """Set the last record taken from a source; keeps `MAX_STARTS` starts of gateways."""
        if self.sources.get(source) is None and _ONE_START.fullmatch(source):
            starts = [
                (mark.epoch, name)
                for name, mark in self.sources.items()
                if _ONE_START.fullmatch(name)
            ]
            if len(starts) >= MAX_STARTS:
                self.sources.put(min(starts)[1], None)
        self.sources.put(source, Mark(epoch, seq))

    def put_pool(self, name: str, pool: Pool | None) -> None:
        """Set or remove a pool."""
        self.pools.put(name, pool)
        if (name in self.pool_names) != (pool is not None):
            names = {*self.pool_names, name} if pool else {*self.pool_names} - {name}
            self.pool_names = tuple(sorted(names, key=lambda n: (n != DEFAULT_POOL, n)))

    def put_department(self, name: str, department: Department | None) -> None:
        """Set or remove a department."""
        old = self.departments.get(name)
        self._count(-1, () if old is None else _named_by_quotas(old.config))
        self._count(+1, () if department is None else _named_by_quotas(department.config))
        self.departments.put(name, department)

    def put_project(self, name: str, project: Project | None) -> None:
        """Set or remove a project."""
        old = self.projects.get(name)
        self._count(-1, () if old is None else _named_by_project(old.config))
        self._count(+1, () if project is None else _named_by_project(project.config))
        self.projects.put(name, project)

    def put_enrolled(self, name: str, row: Enrolled) -> None:
        """Set what a node may claim; a node that was revoked stands in no pool's way."""
        old = self.enrolled.get(name)
        self._count(-1, () if old is None else _named_by_enrolment(old))
        self._count(+1, _named_by_enrolment(row))
        self.enrolled.put(name, row)

    def put_job(self, name: str, job: Job) -> None:
        """Set a job; one with all tasks cancelled stands in nobody's way any more."""
        old = self.jobs.get(name)
        if (old is not None and old.live) != job.live:
            named = (f"project/{job.project}", *(f"pool/{pool}" for pool in job.pools))
            self._count(+1 if job.live else -1, named)
        self.jobs.put(name, job)

    def shared(self, pools: tuple[str, ...]) -> tuple[str, ...]:
        """The same list of pools as one object."""
        return self.lists.setdefault(pools, pools)

    def _count(self, by: int, named: tuple[str, ...]) -> None:
        for key in named:
            self.uses.put(key, ((self.uses.get(key) or 0) + by) or None)


def _named_by_quotas(config: DepartmentConfig | ProjectConfig) -> tuple[str, ...]:
    return tuple(f"pool/{pool}" for pool in config.quotas)


def _named_by_project(config: ProjectConfig) -> tuple[str, ...]:
    own = (f"department/{config.department}", *(f"pool/{pool}" for pool in config.pools))
    return own + _named_by_quotas(config)


def _named_by_enrolment(row: Enrolled) -> tuple[str, ...]:
    return () if row.revoked else (f"pool/{row.config.pool}",)
