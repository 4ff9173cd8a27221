"""Strict queues: the next group behind others is found, however many groups wait."""

from random import Random

from tests.unit.core.scheduling.reading import all_of, waits
from yardmaster_core.scheduling.policies.strict_queues import StrictQueues
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import SlotsAllocatedV1, SlotsReservedV1
from yardmaster_schemas.reasons import WaitCode


def firsts(cell: Cell) -> list[str]:
    pool = cell.state.pools["main"]
    return [g.queue.first.id.rstrip("0.") for g in pool.index.next_behind(pool.queue_classes)]


def crowd(policy: str, jobs: int) -> Cell:
    """A full node, and pending tasks of different shapes."""
    cell = Cell(policy=policy)
    cell.node("n1", gpus=1, cpu_milli=1_000_000)
    cell.submit("full")
    for number in range(jobs):
        cell.submit(f"j{number:03}x", gpus=1, max_slots_milli=1000 + number)
    cell.cycle()
    return cell


def test_only_the_next_of_many_tasks_is_woken() -> None:
    cell = crowd("fifo", 200)
    assert firsts(cell) == ["j001x"]
    cell.starts("full")
    cell.ends("full")
    decided = cell.cycle()
    assert [e.task_id[:4] for e in decided if isinstance(e, SlotsAllocatedV1)] == ["j000"]
    # The task that starts, and the next one, which does not fit.
    assert len(decided) == 3
    assert firsts(cell) == ["j002x"]


def test_each_strict_queue_has_a_first_group() -> None:
    cell = Cell(policy="fitgpp")
    cell.node("n1", gpus=2)
    cell.submit("full", gpus=2, preemptible=False)
    for name, gpus, preemptible in (
        *(("be1", 1, True), ("be2", 2, True), ("be3", 1, True)),
        *(("te1", 1, False), ("te2", 2, False), ("te3", 0, False)),
    ):
        cell.submit(name, gpus=gpus, preemptible=preemptible)
    cell.cycle()
    assert firsts(cell) == ["te2", "be2"]


def test_no_task_passes_one_that_waits_behind_a_task_of_the_other_queue() -> None:
    cell = Cell(policy="fitgpp")
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=2)
    cell.submit("low", min_runtime_s=600)
    cell.submit("wide", replicas=3, min_runtime_s=600)
    cell.submit("small")
    cell.cycle()
    cell.starts("low")
    cell.submit("urgent", replicas=3, preemptible=False)
    assert waiting(cell) == ["insufficient_free", "behind_task", "victims_protected"]
    # All tasks are considered again: `wide` waits behind `urgent` now, and `small` behind `wide`.
    cell.node("n3", gpus=0)
    assert waiting(cell) == ["behind_task", "behind_task", "victims_protected"]


def waiting(cell: Cell) -> list[str | None]:
    """Run a cycle; return why the tasks wait that could pass each other."""
    cell.cycle()
    return [cell.wait_code(name) for name in ("wide", "small", "urgent")]


def test_a_task_that_left_is_not_found_and_one_that_rejoined_is() -> None:
    cell = crowd("fifo", 5)
    cell.pause("j001x")
    cell.cycle()
    assert firsts(cell) == ["j002x"]
    cell.resume("j001x")
    cell.cycle()
    assert firsts(cell) == ["j001x"]


def test_a_group_is_found_by_its_current_first_task() -> None:
    cell = Cell(policy="fifo")
    cell.node("n1", gpus=1)
    cell.submit("full")
    cell.submit("head")
    cell.submit("many", gpus=0, tasks=2)
    cell.submit("late", gpus=0, priority=1)
    cell.cycle()
    assert firsts(cell) == ["many"]
    cell.pause("many", 0)
    cell.cycle()
    assert firsts(cell) == ["many00000000.1"]
    cell.pause("many", 1)
    cell.cycle()
    assert firsts(cell) == ["late"]


def test_entries_do_not_accumulate() -> None:
    cell = crowd("fifo", 20)
    chance = Random(1)
    for _ in range(300):
        name = f"j{chance.randrange(1, 20):03}x"
        cell.pause(name)
        cell.cycle()
        cell.resume(name)
        cell.cycle()
    lines = cell.state.pools["main"].index
    assert isinstance(lines, StrictQueues)
    entries: list[Group] = [entry[2] for line in lines._entries.values() for entry in line]
    assert len(entries) < 300
    assert firsts(cell) == ["j001x"]


def test_tasks_at_the_limit_of_one_that_gets_reserved_slots_are_considered_too() -> None:
    cell = Cell(policy="lrtp")
    cell.node("n1", gpus=3)
    cell.entitle("p", limit_milli=1000)
    cell.submit("own")
    cell.submit("other", project="q", gpus=2)
    cell.cycle()
    cell.starts("other")
    cell.submit("te", preemptible=False)
    cell.submit("be")
    cell.cycle()
    assert {waits(cell, name).code for name in ("te", "be")} == {WaitCode.AT_LIMIT}
    cell.cancel("other")
    cell.entitle("p", limit_milli=3000)
    decided = cell.cycle()
    reserved = [e.task_id.rstrip("0.") for e in all_of(decided, SlotsReservedV1)]
    assert reserved == ["te", "be"]
