"""The tree of departments: each is a part of at most one other, its parent."""

from typing import Final

from yardmaster_core.admission.state import AdmissionState

#: The most levels of departments. The scheduler charges every start to all of them.
MAX_LEVELS: Final = 8


def path_of(state: AdmissionState, name: str) -> list[str]:
    """A department, its parent, and so on up to the one without a parent."""
    path = [name]
    while (row := state.departments.get(path[-1])) is not None and row.config.parent is not None:
        path.append(row.config.parent)
    return path


def levels_of(state: AdmissionState, name: str) -> int:
    """The number of levels of a department and all departments below it; 1: none is below it."""
    below = state.children.get(name) or ()
    return 1 + max((levels_of(state, child) for child in below), default=0)
