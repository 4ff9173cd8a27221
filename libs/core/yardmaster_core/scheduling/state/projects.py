"""The two levels of quota: departments, and projects in them."""

from collections.abc import Mapping

from yardmaster_core.scheduling.state.decayed_usage import DecayedUsage
from yardmaster_schemas.events.requests import DepartmentConfig, ProjectConfig


class Department:
    """The upper level of quota; it may be a part of another department."""

    __slots__ = ("config", "hash", "name", "revision", "used_milli", "within")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Itself and the departments below it; see `ClusterState.nest_departments`.
        self.within: list[Department] = [self]
        self.config: DepartmentConfig | None = None
        self.revision = 0
        #: gpu_milli in use by the projects directly in it, by pool.
        self.used_milli: dict[str, int] = {}
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        return ("department", self.name, self.revision, _nonzero(self.used_milli))


class Project:
    """The lower level of quota; each project belongs to one department."""

    __slots__ = (
        *("config", "decayed_usage", "department", "hash", "name", "ranks", "revision"),
        "used_milli",
    )

    def __init__(self, name: str, department: Department) -> None:
        self.name = name
        self.department = department
        self.config: ProjectConfig | None = None
        self.revision = 0
        #: gpu_milli in use, by pool.
        self.used_milli: dict[str, int] = {}
        #: By pool: its recorded place among the claimants of the queue.
        self.ranks: dict[str, tuple[int, ...]] = {}
        #: By pool: its decayed usage, where the pool's policy keeps it.
        self.decayed_usage: dict[str, DecayedUsage] = {}
        self.hash = 0

    def facts(self, usage: Mapping[str, DecayedUsage] | None = None) -> tuple[object, ...]:
        """All that the state's digest covers; `usage` replaces the project's own."""
        usage = self.decayed_usage if usage is None else usage
        facts: tuple[object, ...] = (
            *("project", self.name, self.department.name, self.revision),
            _nonzero(self.used_milli),
        )
        if self.ranks:
            facts = (*facts, sorted(self.ranks.items()))
        if usage:
            usages = sorted((pool, one.facts()) for pool, one in usage.items())
            facts = (*facts, "usage", usages)
        return facts


def _nonzero(used_milli: dict[str, int]) -> list[tuple[str, int]]:
    # A pool whose usage returned to 0 counts the same as a pool that was never used.
    return sorted((pool, milli) for pool, milli in used_milli.items() if milli)
