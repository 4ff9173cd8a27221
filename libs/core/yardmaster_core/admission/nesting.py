"""The tree of departments: a department is part of at most one other department, its parent."""

from typing import Final

from yardmaster_core.admission.state import AdmissionState

#: The most levels of departments. The scheduler charges every start to all of them.
MAX_LEVELS: Final = 8


def path_of(state: AdmissionState, name: str) -> list[str]:
    """Return a department and all departments above it, from the bottom to the top."""
    path = [name]
    while (row := state.departments.get(path[-1])) is not None and row.config.parent is not None:
        path.append(row.config.parent)
    return path


def levels_of(state: AdmissionState, name: str) -> int:
    """Return the number of levels of a department with the departments below it; 1 without any."""
    below = state.children.get(name) or ()
    return 1 + max((levels_of(state, child) for child in below), default=0)
