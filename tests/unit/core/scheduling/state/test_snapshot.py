"""The state as JSON and back: the same digest, and the same decisions afterwards."""

from typing import Any

import pytest
from pydantic_core import from_json

from tests.unit.core.scheduling.reading import kinds, running, started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_core.testing import Cell
from yardmaster_schemas import plain
from yardmaster_schemas.events.node_events import FractionLimits
from yardmaster_schemas.sources import agent_source, next_incarnation


def restarted(cell: Cell) -> None:
    """Continue from a snapshot, whose digest must be the same."""
    before = cell.state.digest()
    cell.restart()
    assert cell.state.digest() == before
    assert_sound(cell.state)


def test_an_empty_cell_is_restored() -> None:
    cell = Cell()
    cell.cycle()
    restarted(cell)


def test_a_task_that_was_held_is_not_held_after_a_restart() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", replicas=2)
    running(cell, "job")
    cell.ends("job")
    cell.cycle()
    restarted(cell)


def test_a_preemption_continues_after_a_restart() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    for name in ("one", "two"):
        cell.submit(name, gpus=2, priority=90)
    cell.cycle()
    cell.submit("top", gpus=4, priority=5)
    assert kinds(cell.cycle()) == [*["PreemptionRequested"] * 2, "SlotsReserved"]
    restarted(cell)
    cell.never_starts("one")
    cell.submit("equal", gpus=2, priority=5)
    assert started(cell.cycle()) == [], "the slots being freed stay reserved for `top`"
    restarted(cell)
    cell.never_starts("two")
    assert started(cell.cycle()) == ["top"]


def test_deadlines_are_kept() -> None:
    cell = Cell(start_timeout_s=100)
    cell.node("n1", gpus=4)
    cell.submit("starting")
    cell.submit("limited", time_limit_s=50)
    cell.submit("failed", max_restarts=1)
    cell.cycle()
    for name in ("limited", "failed"):
        cell.starts(name)
    cell.cycle()
    cell.ends("failed", exit_code=1)
    cell.cycle()
    decided = []
    for _ in range(4):
        restarted(cell)
        due_ms = cell.machine.due_ms(cell.state)
        assert due_ms is not None
        decided.append(
            (
                (due_ms - cell.now_ms) // 1000,
                kinds(cell.cycle(after_s=(due_ms - cell.now_ms) / 1000)),
            )
        )
    assert decided == [
        (1, ["SlotsAllocated"]),
        (49, ["StopRequested"]),
        (50, ["AllocationRevoked"]),
        (1, ["AllocationRevoked"]),
    ]


def test_the_deadline_of_a_drain_is_kept() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("shell", preemptible=False, grace_s=20)
    running(cell, "shell")
    cell.drain("n1", within_s=60)
    cell.cycle()
    restarted(cell)
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 60_000
    assert kinds(cell.cycle(after_s=60)) == ["StopRequested"]


def test_a_gangs_shared_port_keeps_its_number_of_holders() -> None:
    cell = Cell()
    cell.node("n1", gpus=8, port_first=7000, port_last=7000)
    for name in ("one", "two"):
        cell.submit(name, replicas=2)
        running(cell, name)
    cell.ends("one")
    cell.cycle()
    assert cell.state.nodes["n1"].ports == {7000: 1}
    restarted(cell)
    assert cell.state.nodes["n1"].ports == {7000: 1}


def test_the_user_of_a_job_is_kept_and_part_of_the_digest() -> None:
    cell, without = Cell(), Cell()
    cell.submit("job", user="ada")
    without.submit("job")
    cell.cycle()
    without.cycle()
    assert cell.state.digest() != without.state.digest()
    restarted(cell)
    assert cell.task("job").job.user == "ada"


def test_what_enforces_fractions_is_kept() -> None:
    cell = Cell()
    cell.node("n1", fraction_limits=FractionLimits.MPS)
    cell.node("n2")
    cell.cycle()
    restarted(cell)
    assert [cell.state.node(name).fraction_limits for name in ("n1", "n2")] == ["mps", "none"]


def test_a_pending_join_and_a_cut_cycle_are_kept() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("job", tasks=2)
    cell.cycle()
    cell.node("n1", gpus=2, incarnation=next_incarnation("0" * 12))
    cell.cycle(limit=1)
    assert not cell.complete
    restarted(cell)
    decided = cell.run_until_idle()
    assert kinds(decided).count("TaskRequeued") == 2
    assert started(decided) == ["job", "job.1"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda dump: dump.update(format=99),
        lambda dump: dump.update(cell="other"),
        lambda dump: dump.pop("nodes"),
        lambda dump: dump.update(jobs=7),
        lambda dump: dump["jobs"][0].update(project="absent"),
        lambda dump: dump["pools"][0].update(config={"policy": 3}),
        lambda dump: dump["groups"].append({**dump["groups"][0], "key": ["0" * 16, 3]}),
    ],
)
def test_a_value_that_is_no_snapshot_of_this_cell_is_refused(damage: Any) -> None:
    cell = Cell()
    cell.submit("job")
    cell.cycle()
    dump = from_json(plain.encode(cell.machine.dump(cell.state)))
    damage(dump)
    with pytest.raises(SnapshotUnreadable):
        cell.machine.load("main", dump)


def test_observations_are_kept_across_a_restart() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    running(cell, "job")
    cell.submit("other")
    cell.cycle(silent={"n1": cell.now_ms - 30_000}, limit=1)
    assert not cell.complete
    restarted(cell)
    assert cell.state.nodes["n1"].silent_ms == cell.now_ms - 30_000
    assert cell.state.sources[agent_source("n1", "0" * 12)][0] == 1


def test_the_last_report_of_a_pull_is_kept() -> None:
    cell = Cell(start_timeout_s=100)
    cell.node("n1")
    cell.submit("job")
    cell.cycle()
    cell.cycle(after_s=90)
    cell.prepares("job")
    cell.cycle()
    restarted(cell)
    assert cell.cycle(after_s=99) == []
    assert kinds(cell.cycle(after_s=1)) == ["AllocationRevoked"]
