"""Which secrets of a node a job may read: those of its project, and shared ones."""

from typing import Final

#: Secrets below this folder may be read by jobs of every project.
SHARED: Final = "shared"


def may_read(project: str, reference: str) -> bool:
    """Whether jobs of a project may read the secret `reference`, such as `nlp/hf`."""
    folder, separator, _ = reference.partition("/")
    return bool(separator) and folder in (project, SHARED)
