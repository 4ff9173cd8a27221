"""Under `quota`, a task for which no node could have enough is not considered until one could."""

from collections.abc import Sequence
from unittest.mock import patch

from yardmaster_core.scheduling.planner.moving_search import MovingSearch
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req

NODES = 4
CLAIMS = 3


def deserve(cell: Cell, project: str, gpus: int) -> None:
    cell.entitle(project, quotas={"main": req.Quota(deserved_milli=gpus * 1000)})


def full() -> Cell:
    """On each node, 7 GPUs are deserved and 1 is not; others wait for 8 GPUs that they deserve."""
    cell = Cell(policy="quota")
    deserve(cell, "a", 7 * NODES)
    deserve(cell, "b", 0)
    for number in range(NODES):
        cell.node(f"n{number}")
        cell.submit(f"a{number}x", project="a", gpus=7)
    cell.cycle()
    cell.submit("b", project="b", gpus=1, tasks=NODES)
    cell.cycle()
    for number in range(NODES):
        cell.starts(f"a{number}x")
        cell.starts("b", number)
    for number in range(CLAIMS):
        deserve(cell, f"p{number}", 8)
        cell.submit(f"p{number}x", project=f"p{number}", gpus=8)
    assert not preempted(cell.cycle())
    cell.cycle()
    return cell


def preempted(events: Sequence[Event]) -> list[str]:
    return [event.task_id for event in events if isinstance(event, dec.PreemptionRequestedV1)]


def searches(cell: Cell) -> int:
    """The number of searches for victims in the next cycle."""
    with patch.object(MovingSearch, "preemption", return_value=None) as search:
        cell.cycle()
    return search.call_count


def test_an_end_that_cannot_help_causes_no_search() -> None:
    cell = full()
    cell.ends("b", 0)
    assert searches(cell) == 0


def test_an_unrelated_submit_causes_no_search() -> None:
    cell = full()
    cell.submit("z", project="z", gpus=1, node_types=("none",))
    assert searches(cell) == 0


def test_an_end_that_leaves_enough_on_one_node_does() -> None:
    cell = full()
    cell.ends("a1x")
    assert len(preempted(cell.cycle())) == 1


def test_a_project_that_deserves_less_than_before_loses_tasks() -> None:
    cell = full()
    deserve(cell, "a", 0)
    assert len(preempted(cell.cycle())) == 2 * CLAIMS


def test_a_node_that_joins_serves_a_claim() -> None:
    cell = full()
    cell.node("n9")
    assert any(isinstance(event, dec.SlotsAllocatedV1) for event in cell.cycle())
