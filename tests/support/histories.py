"""Convert the events of a `Cell` to a `History`."""

from yardmaster_core.testing import Cell, CycleBegun, EventApplied
from yardmaster_simulation.history import History


def history_of(cell: Cell) -> History:
    """The history of all events that the cell applied, at the times of its cycles."""
    history = History()
    now_ms = 0
    for step in cell.steps:
        match step:
            case CycleBegun(_, now_ms, _):
                pass
            case EventApplied(event, _):
                history.see(now_ms, event)
    history.flush()
    return history


def a_cell() -> Cell:
    """`a` runs from 10 to 70 and ends; `b` waits."""
    cell = Cell()
    cell.submit("a", gpus=2, preemptible=False)
    cell.submit("b", gpus=9)
    cell.cycle()
    cell.node("n1")
    cell.cycle(after_s=10)
    cell.starts("a")
    cell.cycle()
    cell.ends("a")
    cell.cycle(after_s=60)
    return cell
