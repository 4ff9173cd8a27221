"""Who may do what: pure functions of a caller's roles. Quota judges what it knows of again."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from yardmaster_schemas.events.admissions import RoleName, Scope


@dataclass(frozen=True, slots=True)
class Binding:
    """A role in a cell, department or project."""

    role: RoleName
    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: an opaque id, how it was authenticated, and the roles it has."""

    user: str
    method: str
    issuer: str
    credential_id: str
    bindings: tuple[Binding, ...]


class Action(StrEnum):
    """What a caller may want."""

    READ = "read"
    SUBMIT = "submit"
    #: Cancel, pause, resume or change a job.
    CHANGE_OWN = "change_own"
    CHANGE_ANY = "change_any"
    #: What was said of a job in words, and what it ran.
    ERASE = "erase"
    #: Pools, projects, departments, nodes.
    OPERATE = "operate"
    #: The log itself, with everybody's records.
    READ_LOG = "read_log"


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
    """Whether one of the roles covers an action on the cell, or on a project of a department."""
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
    """The departments or projects that a caller has a role in."""
    return frozenset(binding.name for binding in bindings if binding.scope is scope)
