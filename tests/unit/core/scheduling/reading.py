"""Readers of decisions that use the job names of a test."""

from collections.abc import Sequence
from typing import TypeVar

from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import NUMBERS, Wait

E = TypeVar("E", bound=Event)


def all_of(events: Sequence[Event], kind: type[E]) -> list[E]:
    """The decisions of a type, in order."""
    return [event for event in events if isinstance(event, kind)]


def only(events: Sequence[Event], kind: type[E]) -> E:
    """The only decision of a type."""
    found = all_of(events, kind)
    assert len(found) == 1, f"{len(found)} of {kind.TYPE} in {events}"
    return found[0]


def kinds(events: Sequence[Event]) -> list[str]:
    """Types of the decisions, in order."""
    return [event.TYPE for event in events]


def started(events: Sequence[Event]) -> list[str]:
    """Tasks that start: the job's name and, past the first task, its index."""
    return [_named(e.task_id) for e in all_of(events, dec.SlotsAllocatedV1)]


def stopped(events: Sequence[Event]) -> list[str]:
    """Tasks that are preempted or stopped, named as in `started`."""
    stops = (dec.PreemptionRequestedV1, dec.StopRequestedV1)
    return [_named(event.task_id) for event in events if isinstance(event, stops)]


def _named(task_id: str) -> str:
    job, _, index = task_id.partition(".")
    name = job.rstrip("0")
    return name if index == "0" else f"{name}.{index}"


def waits(cell: Cell, name: str, pool: str = "main") -> Wait:
    """The wait of a job's first pending task in a pool, with its numbers checked."""
    task = next((t for t in cell.task(name).job.tasks if t.group is not None), None)
    assert task is not None, f"{name} is not pending"
    assert task.group is not None
    if task.reserved is not None and task.reserved.pool_name == pool:
        wait = task.reserved.wait
    else:
        wait = task.group.waits[pool][0]
    assert set(wait.numbers) <= set(NUMBERS[wait.code]), wait
    return wait


def running(cell: Cell, name: str, index: int = 0) -> None:
    """Have a pending task start and report that it runs."""
    cell.cycle()
    assert cell.phase(name, index) == "starting", cell.phase(name, index)
    cell.starts(name, index)
    cell.cycle()
    assert cell.phase(name, index) == "running"
