"""Figures of short runs, worked out by hand: 8 GPUs on one node, times in seconds."""

import pytest

from tests.support.histories import history_of
from yardmaster_core.testing import START_MS, Cell
from yardmaster_schemas.events.decisions import Outcome
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import next_incarnation
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import (
    exec_ms_of,
    lost_gpu_milli_ms,
    rescheduling_ms,
    summary,
    times_preempted,
    useless_preemptions,
)
from yardmaster_simulation.records import Task


def cell_of_8() -> Cell:
    cell = Cell()
    cell.node("n1")
    cell.cycle()
    return cell


def task_of(history: History, name: str, index: int = 0) -> Task:
    return history.tasks[f"{name.ljust(12, '0')}.{index}"]


def pool_now(history: History) -> list[int]:
    """GPUs up, allocated, asked for, free but of no use."""
    return list(history.pools["main"].series.points[-5:-1])


def reserved_idle_now(cell: Cell) -> int:
    return history_of(cell).pools["main"].series.points[-1]


def preempted(*, saved_after_s: int | None = None, saves_on_request: bool = False) -> History:
    """`be` has all GPUs from 0 on, is asked to stop for `te` at 100, is gone at 130; `te` has them
    until 190, then `be` again until 250.
    """
    cell = cell_of_8()
    cell.submit("be", gpus=8, grace_s=30)
    cell.cycle()
    cell.starts("be")
    cell.cycle()
    if saved_after_s is not None:
        cell.now_ms += 1000 * saved_after_s
        cell.checkpoints("be", step=1)
        cell.cycle()
    cell.now_ms = START_MS + 100_000
    cell.submit("te", gpus=8, priority=1, preemptible=False)
    cell.run_until_idle()
    cell.now_ms = START_MS + 130_000
    if saves_on_request:
        cell.checkpoints("be", step=2)
    cell.ends("be")
    cell.cycle()
    cell.starts("te")
    cell.cycle()
    cell.now_ms = START_MS + 190_000
    cell.ends("te")
    cell.cycle()
    cell.starts("be")
    cell.cycle()
    cell.now_ms = START_MS + 250_000
    cell.ends("be", done=True)
    cell.cycle()
    return history_of(cell)


def test_a_task_waits_for_a_node_then_runs() -> None:
    cell = Cell()
    cell.submit("a", gpus=2)
    cell.cycle()
    cell.node("n1")
    cell.cycle(after_s=10)
    cell.starts("a")
    cell.cycle(after_s=5)
    cell.ends("a")
    cell.cycle(after_s=60)
    history = history_of(cell)
    task = task_of(history, "a")
    assert task.wait_ms == 10_000
    assert exec_ms_of(task, None) == 60_000  # from its start, not from its allocation
    assert exec_ms_of(task, lambda _: 7) == 7
    assert task.gpu_milli_ms == 2000 * 65_000
    assert task.outcome is Outcome.SUCCEEDED
    assert [run.end for run in task.attempts] == ["succeeded"]
    figures = summary(history)
    assert figures.makespan_s == 75
    assert figures.part("be").slowdown.p50 == pytest.approx(1 + 10 / 60)
    assert figures.part("be").completion_s.mean == 75
    assert figures.part("te").slowdown.count == 0
    assert figures.utilisation == 0.25  # 2 of 8, while there were any
    assert figures.gpu_hours == pytest.approx(2 * 65 / 3600)
    assert figures.fairness == 1.0


def test_a_task_stopped_for_another_waits_again() -> None:
    history = preempted(saves_on_request=True)
    be, te = task_of(history, "be"), task_of(history, "te")
    assert (be.wait_ms, te.wait_ms) == (60_000, 30_000)
    first, second = be.attempts
    assert (first.end, second.end) == ("preempted", "succeeded")
    assert first.stop_ms == START_MS + 100_000
    assert first.closed_ms == START_MS + 130_000
    assert rescheduling_ms(be) == [90_000]
    assert (times_preempted(be), times_preempted(te)) == (1, 0)
    assert exec_ms_of(be, None) == 160_000
    figures = summary(history)
    assert figures.preemptions == 1
    assert figures.part("be").preempted == (1, 0, 0)
    assert figures.part("be").preempted_share == 1.0
    assert figures.part("all").preempted_share == 0.5
    assert figures.part("be").rescheduling_s.p50 == 90
    assert figures.part("te").slowdown.most == 1.5
    assert figures.makespan_s == 250
    assert figures.utilisation == 1.0
    assert figures.fragmentation is None


@pytest.mark.parametrize(
    ("saved_after_s", "saves_on_request", "lost_s"),
    [(None, False, 100), (60, False, 40), (None, True, 0), (60, True, 0)],
)
def test_what_no_checkpoint_holds_is_lost(
    saved_after_s: int | None, saves_on_request: bool, lost_s: int
) -> None:
    history = preempted(saved_after_s=saved_after_s, saves_on_request=saves_on_request)
    be = task_of(history, "be")
    assert [run.lost_ms for run in be.attempts] == [1000 * lost_s, 0]
    assert lost_gpu_milli_ms(be) == (8000 * 1000 * lost_s, 0)
    assert exec_ms_of(be, None) == 160_000 - 1000 * lost_s
    assert summary(history).preempted_lost_gpu_hours == pytest.approx(8 * lost_s / 3600)


def test_a_lost_node_takes_what_ran_there_with_it() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=4)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.checkpoints("a", step=1)
    cell.cycle(after_s=20)
    cell.cycle(after_s=80, silent={"n1": START_MS + 30_000})
    history = history_of(cell)
    task = task_of(history, "a")
    (run,) = task.attempts
    assert (run.end, run.ran_ms, run.lost_ms) == ("node_lost", 100_000, 80_000)
    assert lost_gpu_milli_ms(task) == (0, 4000 * 80_000)
    assert history.nodes_lost == 1
    assert pool_now(history) == [0, 0, 4000, 0]
    cell.node("n1", incarnation=next_incarnation("0" * 12))
    cell.cycle(after_s=50)
    assert task_of(history_of(cell), "a").wait_ms == 50_000


def test_a_failed_attempt_loses_what_it_did_not_save() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=1, max_restarts=1)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.exits("a", exit_code=3)
    cell.cycle(after_s=10)
    cell.releases("a")
    cell.cycle(after_s=5)
    (run,) = task_of(history_of(cell), "a").attempts
    assert (run.end, run.ran_ms, run.lost_ms) == ("failed", 10_000, 10_000)


def test_an_attempt_that_never_started_ran_for_no_time() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=1)
    cell.cycle()
    cell.never_starts("a")
    cell.cycle(after_s=10)
    (run,) = task_of(history_of(cell), "a").attempts
    assert (run.end, run.ran_ms, run.lost_ms) == ("never_started", 0, 0)


def test_a_cancelled_task_has_no_slowdown() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=1)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.cancel("a")
    cell.cycle(after_s=10)
    cell.ends("a")
    cell.cycle(after_s=20)
    history = history_of(cell)
    (run,) = task_of(history, "a").attempts
    assert (run.end, run.ran_ms, run.preempted) == ("cancelled", 10_000, False)
    part = summary(history).part("be")
    assert (part.tasks, part.succeeded, part.cancelled, part.slowdown.count) == (1, 0, 1, 0)


def test_a_paused_task_neither_waits_nor_asks() -> None:
    cell = Cell()
    cell.submit("a", gpus=2)
    cell.cycle()
    cell.pause("a")
    cell.cycle(after_s=10)
    assert pool_now(history_of(cell))[2] == 0
    cell.resume("a")
    cell.cycle(after_s=100)
    cell.node("n1")
    cell.cycle(after_s=5)
    assert task_of(history_of(cell), "a").wait_ms == 15_000


def test_tasks_that_their_own_job_holds_back_ask_for_nothing() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=4, tasks=5, max_concurrent=3)
    cell.cycle()
    assert pool_now(history_of(cell)) == [8000, 8000, 4000, 0]


def test_a_gang_gives_back_replica_by_replica() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=4, replicas=2)
    cell.cycle()
    cell.starts("a", replica=0)
    cell.cycle(after_s=10)
    cell.starts("a", replica=1)
    cell.cycle(after_s=10)
    cell.ends("a", replica=0)
    cell.cycle(after_s=30)
    assert pool_now(history_of(cell))[1] == 4000
    cell.ends("a", replica=1)
    cell.cycle(after_s=10)
    task = task_of(history_of(cell), "a")
    assert task.gpu_milli_ms == 4000 * (50_000 + 60_000)
    assert exec_ms_of(task, None) == 40_000  # from the last start to the last exit


def test_repeats_and_what_is_unknown_change_nothing() -> None:
    cell = Cell()
    cell.submit("x", gpus=1)
    cell.node("n1")
    cell.cycle()
    once, twice = history_of(cell), history_of(cell)
    for event in cell.history:
        twice.see(cell.now_ms, event)
    twice.flush()
    assert pool_now(twice) == pool_now(once)
    later = History()
    for event in cell.history[2:]:  # without what was admitted
        later.see(cell.now_ms, event)
    later.flush()
    assert later.tasks == {}
    assert pool_now(later) == [8000, 0, 0, 0]


def test_a_node_that_joins_another_pool_at_once_counts_there() -> None:
    cell = cell_of_8()
    cell.leaves("n1")
    cell.node("n1", pool="side", gpus=4, incarnation=next_incarnation("0" * 12))
    cell.cycle(after_s=1)
    history = history_of(cell)
    assert pool_now(history)[0] == 0
    assert list(history.pools["side"].series.points) == [START_MS + 1000, 4000, 0, 0, 0, 0]


def test_free_gpus_of_no_use_are_counted_over_time() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=5)  # 3 are left, in which another like it does not fit
    cell.cycle()
    assert pool_now(history_of(cell)) == [8000, 5000, 0, 3000]
    cell.submit("b", gpus=1)  # fits: then 2 are left, of no use to the half of what was asked
    cell.cycle(after_s=1)
    assert pool_now(history_of(cell)) == [8000, 6000, 0, 1000]


def test_reserved_gpus_that_no_task_holds_are_idle_until_the_task_starts() -> None:
    cell = cell_of_8()
    for name in ("a", "b"):
        cell.submit(name, gpus=3, grace_s=600, priority=90)
    cell.cycle()
    for name in ("a", "b"):
        cell.starts(name)
    cell.cycle()
    cell.now_ms += 100_000
    cell.submit("top", gpus=8, priority=10)
    cell.run_until_idle()
    assert reserved_idle_now(cell) == 2000, "the two that were free"
    cell.ends("a")
    cell.cycle(after_s=60)
    assert reserved_idle_now(cell) == 5000
    cell.ends("b")
    cell.cycle(after_s=120)
    assert reserved_idle_now(cell) == 0
    cell.starts("top")
    cell.cycle()
    cell.ends("top", done=True)
    cell.cycle(after_s=720)
    for name in ("a", "b"):
        cell.starts(name)
    cell.cycle()
    for name in ("a", "b"):
        cell.ends(name, done=True)
    cell.cycle(after_s=100)
    history = history_of(cell)
    figures = summary(history)
    assert figures.reserved_idle_gpu_hours == pytest.approx((2 * 60 + 5 * 120) / 3600)
    assert figures.makespan_s == 1100
    assert task_of(history, "top").wait_ms == 180_000
    held = 6 * 160 + 3 * 120 + 8 * 720 + 6 * 100
    assert figures.utilisation == pytest.approx(held / (8 * 1100)), "idle though reserved"


@pytest.mark.parametrize("change", ["drop", "loss", "fraction"])
def test_a_reservation_that_is_dropped_or_of_a_fraction_counts_as_far_as_it_goes(
    change: str,
) -> None:
    cell = cell_of_8()
    half = Resources(gpus=1, gpu_milli=500)
    cell.submit("a", gpus=7, grace_s=600, priority=90)
    cell.submit("b", resources=half, grace_s=600, priority=90)
    cell.cycle()
    for name in ("a", "b"):
        cell.starts(name)
    cell.cycle()
    if change == "fraction":
        cell.submit("top", resources=Resources(gpus=8, gpu_milli=500), priority=10)
        cell.cycle(after_s=1)
        assert reserved_idle_now(cell) == 500, "of the GPU of which b has the other half"
        return
    cell.submit("top", gpus=8, priority=10)
    cell.cycle(after_s=1)
    assert reserved_idle_now(cell) == 500
    if change == "drop":
        cell.cancel("top")
    else:
        cell.node("n1", incarnation=next_incarnation("0" * 12))
    cell.cycle(after_s=1)
    assert reserved_idle_now(cell) == 0


def test_shares_of_projects_are_held_against_their_weights() -> None:
    cell = cell_of_8()
    cell.entitle("p", weight=3)
    cell.entitle("q", weight=1)
    cell.cycle()
    cell.submit("a", project="q", gpus=1, tasks=8, preemptible=False)
    cell.cycle()
    cell.submit("b", project="p", gpus=1, tasks=8)
    cell.cycle()
    cell.cycle(after_s=100)
    figures = summary(history_of(cell))
    # q has 8 of its fair 2, p nothing of its 6.
    assert figures.fairness == pytest.approx(0.5)


def test_resources_are_those_of_all_replicas() -> None:
    cell = Cell()
    asks = Resources(gpus=2, gpu_milli=500, cpu_milli=3000, memory_mib=7)
    cell.submit("a", resources=asks, replicas=3)
    cell.cycle()
    job = task_of(history_of(cell), "a").job
    assert (job.gpu_milli, job.cpu_milli, job.memory_mib) == (3000, 9000, 21)


@pytest.mark.parametrize(
    ("released_after_s", "cancelled_after_s", "useless"),
    [
        (30, None, 0),  # starts when its victims are gone
        (629, None, 0),  # within ten minutes after the grace period
        (640, None, 2),  # too late
        (640, 500, 0),  # gone before
    ],
)
def test_preemptions_are_useless_if_their_task_does_not_start_in_time(
    released_after_s: int, cancelled_after_s: int | None, useless: int
) -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=4, grace_s=10)
    cell.submit("b", gpus=4, grace_s=30)
    cell.cycle()
    cell.starts("a")
    cell.starts("b")
    cell.cycle()
    begun_ms = cell.now_ms
    cell.submit("top", gpus=8, priority=1)
    cell.run_until_idle()
    if cancelled_after_s is not None:
        cell.now_ms = begun_ms + 1000 * cancelled_after_s
        cell.cancel("top")
        cell.run_until_idle()
    cell.now_ms = begun_ms + 1000 * released_after_s
    cell.ends("a")
    cell.ends("b")
    cell.run_until_idle()
    cell.now_ms = begun_ms + 2_000_000
    cell.submit("later")
    cell.run_until_idle()
    history = history_of(cell)
    assert (summary(history).preemptions, useless_preemptions(history)) == (2, useless)


def test_a_preemption_of_which_nothing_came_is_useless_at_the_end_too() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=8, grace_s=10)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.submit("top", gpus=8, priority=1)
    cell.run_until_idle()
    cell.now_ms += 600_000
    cell.submit("later")
    cell.run_until_idle()
    assert useless_preemptions(history_of(cell)) == 0, "it may still start in time"
    cell.now_ms += 20_000
    cell.submit("last")
    cell.run_until_idle()
    assert useless_preemptions(history_of(cell)) == 1


def test_the_utilization_while_jobs_arrive_ends_with_the_last_submission() -> None:
    cell = cell_of_8()
    cell.submit("a", gpus=4)
    cell.cycle()
    cell.starts("a")
    cell.cycle()
    cell.now_ms += 100_000
    cell.submit("b", gpus=2)
    cell.cycle()
    cell.starts("b")
    cell.cycle()
    cell.ends("a")
    cell.ends("b")
    cell.cycle(after_s=100)
    figures = summary(history_of(cell))
    assert figures.arriving_utilisation == pytest.approx(4 / 8)
    assert figures.utilisation == pytest.approx((4 + 6) / 16)


def test_a_run_without_jobs_has_no_utilization_while_jobs_arrive() -> None:
    assert summary(History()).arriving_utilisation is None
