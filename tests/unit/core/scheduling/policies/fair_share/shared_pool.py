"""A pool under `fair_share`, and agents that obey at once."""

from typing import Any

from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event


def shared(gpus: int = 8, **options: Any) -> Cell:
    """Return a cell with one node in a pool with shares."""
    cell = Cell(policy="fair_share", **options)
    cell.node("n1", gpus=gpus)
    return cell


def all_start(cell: Cell) -> None:
    """Report that every placed task runs."""
    for task in cell.state.tasks.values():
        if task.run is not None and not task.run.started:
            cell.starts(task.job.id.rstrip("0"), task.index)


def obeyed(cell: Cell) -> list[Event]:
    """Let preempted tasks stop; return the decisions until none follows."""
    decided: list[Event] = []
    for _ in range(20):
        decided += cell.run_until_idle()
        stopping = [t for t in cell.state.tasks.values() if t.run and t.run.stop and t.run.open]
        if not stopping:
            assert_sound(cell.state)
            return decided
        for task in stopping:
            name = task.job.id.rstrip("0")
            if task.run is not None and task.run.started:
                cell.ends(name, task.index)
            else:
                cell.never_starts(name, task.index)
    raise AssertionError("still stopping")


def held(cell: Cell, name: str) -> int:
    """Return the GPUs that a job holds."""
    return cell.task(name).job.used_milli // 1000
