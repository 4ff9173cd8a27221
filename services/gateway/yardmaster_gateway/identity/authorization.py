"""Which actions a caller's roles allow: pure functions.

Quota checks again what it can: the rules of projects and pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from yardmaster_schemas.events.users import RoleName, Scope


@dataclass(frozen=True, slots=True)
class Binding:
    """A role in the cell, in a department or in a project."""

    role: RoleName
    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user of a request: an opaque id, the authentication, and the roles."""

    user: str
    method: str
    issuer: str
    credential_id: str
    bindings: tuple[Binding, ...]


class Action(StrEnum):
    """An action that needs a role; its value completes `User X is not allowed to ...`."""

    READ = "read"
    SUBMIT = "submit jobs"
    #: Cancel, pause, resume or change a job.
    CHANGE_OWN = "change own jobs"
    CHANGE_ANY = "change jobs of other users"
    #: Erase a job's name, labels, command, environment and notes.
    ERASE = "erase jobs"
    #: Change pools, projects, departments and nodes.
    OPERATE = "operate the cluster"
    #: Read the log itself, which contains the records of all projects.
    READ_LOG = "read the log"


_GRANTS: Final = {
    RoleName.VIEWER: frozenset({Action.READ}),
    RoleName.USER: frozenset({Action.READ, Action.SUBMIT, Action.CHANGE_OWN}),
    RoleName.PROJECT_ADMIN: frozenset(
        {Action.READ, Action.SUBMIT, Action.CHANGE_OWN, Action.CHANGE_ANY, Action.ERASE}
    ),
    RoleName.OPERATOR: frozenset(Action),
}


def _grants(binding: Binding, action: Action) -> bool:
    if action is Action.READ_LOG:
        return binding.scope is Scope.CELL
    return action in _GRANTS[binding.role]


def is_allowed(
    bindings: Sequence[Binding],
    action: Action,
    *,
    project: str | None = None,
    department: str | None = None,
) -> bool:
    """Whether one of the roles allows an action on the cell, or on a project of a department."""
    return any(
        _grants(binding, action)
        and (
            binding.scope is Scope.CELL
            or (binding.scope is Scope.PROJECT and binding.name == project)
            or (binding.scope is Scope.DEPARTMENT and binding.name == department)
        )
        for binding in bindings
    )


def sees_all_projects(bindings: Sequence[Binding]) -> bool:
    """Whether a caller sees every project of the cell."""
    return any(binding.scope is Scope.CELL for binding in bindings)


def names_in_scope(bindings: Sequence[Binding], scope: Scope) -> frozenset[str]:
    """The departments or projects in which a caller has a role."""
    return frozenset(binding.name for binding in bindings if binding.scope is scope)
