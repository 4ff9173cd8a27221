"""The amounts that projects and departments hold, deserve and may hold in each pool (S6).

Reserved slots count as held from the decision that reserves them. While a task moves, only its
reserved slots count, and the slots that it still holds do not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.requests import DepartmentConfig, ProjectConfig, Quota

#: gpu_milli, cpu_milli, memory_mib.
Amounts = tuple[int, int, int]
#: The same; None: unlimited.
Bounds = tuple[int | None, int | None, int | None]
#: A project or department.
Queue = tuple[Level, str]

NOTHING: Final[Amounts] = (0, 0, 0)
UNLIMITED: Final[Bounds] = (None, None, None)


def amounts_of(placements: Iterable[Placement]) -> Amounts:
    """Return the sum of the amounts of placements."""
    gpu = cpu = memory = 0
    for p in placements:
        gpu += len(p.slots) * p.gpu_milli
        cpu += p.cpu_milli
        memory += p.memory_mib
    return gpu, cpu, memory


def negative(amounts: Amounts) -> Amounts:
    """Return the amounts with the opposite sign, to subtract them."""
    return -amounts[0], -amounts[1], -amounts[2]


class Quotas:
    """The tree of departments and projects, with what their tasks hold.

    A project is in one department, and a department may be in another one. After a change of the
    tree, the sums of all queues are counted again when they are read.
    """

    def __init__(
        self, projects: Mapping[str, ProjectConfig], departments: Mapping[str, DepartmentConfig]
    ) -> None:
        #: Grows with each change of the tree or of a quota.
        self.revision = 0
        self._projects = projects
        self._departments = departments
        #: The department of each project that was ever configured or had a job.
        self._department_of: dict[str, str] = {}
        #: By (project, pool): the amounts of all its tasks, and of its non-preemptible tasks.
        self._held: dict[tuple[str, str], tuple[Amounts, Amounts]] = {}
        #: The same by (queue, pool), with the departments; None: to be counted again. Below, the
        #: deserved amounts by (queue, pool), and the queues of each department.
        self._sums: dict[tuple[Queue, str], tuple[Amounts, Amounts]] | None = None
        self._deserved: dict[tuple[Queue, str], Bounds] = {}
        self._below: dict[str, list[Queue]] = {}

    def admitted(self, project: str, department: str) -> None:
        """Note the department that a project's job names, unless the project has one already."""
        if project not in self._department_of:
            self._department_of[project] = department
            self._sums = None

    def configured(self, project: str | None) -> None:
        """Note that a department, or this project, was configured or deleted."""
        self.revision += 1
        config = self._projects.get(project) if project is not None else None
        if project is not None and config is not None:
            self._department_of[project] = config.department
        self._sums = None

    def charge(self, project: str, pool: str, amounts: Amounts, *, preemptible: bool) -> None:
        """Add `amounts` (below 0: subtract them) to what the tasks of a project hold in a pool."""
        non_preemptible = NOTHING if preemptible else amounts
        key = project, pool
        self._held[key] = _plus(self._held.get(key), amounts, non_preemptible)
        if self._sums is not None:
            for queue in self.path(project):
                self._sums[queue, pool] = _plus(
                    self._sums.get((queue, pool)), amounts, non_preemptible
                )

    def path(self, project: str) -> Iterator[Queue]:
        """Yield the project, then the departments above it, from the bottom to the top."""
        yield Level.PROJECT, project
        department = self._department_of.get(project)
        passed: set[str] = set()
        while department is not None and department not in passed:
            passed.add(department)
            yield Level.DEPARTMENT, department
            config = self._departments.get(department)
            department = config.parent if config is not None else None

    def held(self, queue: Queue, pool: str, *, non_preemptible: bool = False) -> Amounts:
        """Return what the tasks of a queue hold, or only its non-preemptible tasks."""
        return self._counted().get((queue, pool), (NOTHING, NOTHING))[non_preemptible]

    def held_in_all_pools(self, project: str) -> int:
        """Return the gpu_milli that the tasks of a project hold in all pools together."""
        return sum(held[0] for (name, _), (held, _) in self._held.items() if name == project)

    def quota(self, queue: Queue, pool: str) -> Quota | None:
        """The quota of a project or department in a pool."""
        level, name = queue
        of: Mapping[str, ProjectConfig | DepartmentConfig] = (
            self._projects if level is Level.PROJECT else self._departments
        )
        config = of.get(name)
        return config.quotas.get(pool) if config is not None else None

    def deserved(self, queue: Queue, pool: str) -> Bounds:
        """Return what a project or department deserves in a pool.

        A project without a quota deserves no GPUs, but unlimited CPUs and memory. A department
        without a quota deserves the sum of what the projects and departments in it deserve.
        """
        self._counted()
        known = self._deserved.get((queue, pool))
        if known is None:
            known = self._deserved[queue, pool] = self._derived(queue, pool)
        return known

    def limit(self, queue: Queue, pool: str) -> Bounds:
        """Return the limit of a project or department in a pool; over-quota does not change it."""
        quota = self.quota(queue, pool)
        if quota is None:
            return UNLIMITED
        return quota.limit_milli, quota.limit_cpu_milli, quota.limit_memory_mib

    def _derived(self, queue: Queue, pool: str) -> Bounds:
        """Return what a queue deserves in a pool: by its quota, else as `deserved` says."""
        quota = self.quota(queue, pool)
        if quota is not None:
            gpus = None if quota.deserved_unlimited else quota.deserved_milli or 0
            return gpus, quota.deserved_cpu_milli, quota.deserved_memory_mib
        level, name = queue
        below = self._below.get(name, []) if level is Level.DEPARTMENT else []
        if not below:
            return 0, None, None
        parts = [self.deserved(each, pool) for each in below]
        return _sum(p[0] for p in parts), _sum(p[1] for p in parts), _sum(p[2] for p in parts)

    def _counted(self) -> dict[tuple[Queue, str], tuple[Amounts, Amounts]]:
        """Return the sums by (queue, pool).

        After a change of the tree, count the sums and the queues of each department again, and
        forget the deserved amounts.
        """
        if self._sums is not None:
            return self._sums
        sums: dict[tuple[Queue, str], tuple[Amounts, Amounts]] = {}
        self._sums = sums
        self._deserved.clear()
        self._below.clear()
        for project, department in self._department_of.items():
            self._below.setdefault(department, []).append((Level.PROJECT, project))
        for name, config in self._departments.items():
            if config.parent is not None:
                self._below.setdefault(config.parent, []).append((Level.DEPARTMENT, name))
        for (project, pool), (held, non_preemptible) in self._held.items():
            for queue in self.path(project):
                sums[queue, pool] = _plus(sums.get((queue, pool)), held, non_preemptible)
        return sums


def _plus(
    known: tuple[Amounts, Amounts] | None, held: Amounts, non_preemptible: Amounts
) -> tuple[Amounts, Amounts]:
    """Add amounts to those of all tasks and of non-preemptible tasks (None: nothing yet)."""
    if known is None:
        return held, non_preemptible
    (a, b, c), (d, e, f) = known
    return (a + held[0], b + held[1], c + held[2]), (
        d + non_preemptible[0],
        e + non_preemptible[1],
        f + non_preemptible[2],
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of the amounts; None (unlimited) if one of them is None."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
