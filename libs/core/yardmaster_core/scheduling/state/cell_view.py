"""The part of the state that policies may read."""

from collections.abc import Mapping
from typing import Protocol

from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Job, Task


class CellView(Protocol):
    """The state of a cell with the decisions of the cycle so far; `ClusterState` implements it.

    A policy also reads what the entities hold, and changes none of them.
    """

    @property
    def now_ms(self) -> int:
        """The time of the cycle (ms since the epoch)."""

    @property
    def pools(self) -> Mapping[str, Pool]:
        """All pools by name, those without a configuration too."""

    @property
    def departments(self) -> Mapping[str, Department]:
        """All departments by name."""

    @property
    def projects(self) -> Mapping[str, Project]:
        """All projects by name."""

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by id; the cycle after the end of a job removes it."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks of these jobs by id."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes that ever joined, by name."""

    def chain_of(self, department: Department) -> tuple[str, ...]:
        """The names of a department and of the departments above it."""
