"""The life of a task, by the rows of docs/explanation/task.md: phases and ends."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, only, running, started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.state.tasks import LEAST_QUIET_S, MAX_PULL_S
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import ExitZero


def cell_with(**spec: Any) -> Cell:
    """Return one node with one running task, `job`."""
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("job", **spec)
    running(cell, "job")
    return cell


# Exits without a stop


def test_exit_code_0_is_success() -> None:
    cell = cell_with()
    cell.ends("job")
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.exit_code) == ("succeeded", "exit", 0)
    assert cell.phase("job") == "succeeded"
    assert_sound(cell.state)


def test_another_exit_code_is_failure_and_is_recorded() -> None:
    cell = cell_with()
    cell.ends("job", exit_code=3)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.exit_code) == ("failed", "exit", 3)


def test_a_signal_is_failure_and_is_recorded() -> None:
    cell = cell_with()
    cell.ends("job", signal=11)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.signal) == ("failed", "signal", 11)


def test_running_out_of_memory_is_a_failure_of_its_own() -> None:
    cell = cell_with()
    cell.ends("job", signal=9, out_of_memory=True)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code) == ("failed", "out_of_memory")


@pytest.mark.parametrize("exit_code", [0, 143, 255])
def test_a_task_that_its_container_engine_ended_is_requeued_and_uses_no_restart(
    exit_code: int,
) -> None:
    cell = cell_with()
    cell.ends("job", exit_code=exit_code, engine_restarted=True)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts, requeued.not_before_ms) == ("engine_restarted", 0, 0)


def test_a_gang_is_stopped_and_requeued_when_a_container_engine_ended_one_replica() -> None:
    cell = cell_with(gpus=2)
    cell.cancel("job")
    cell.ends("job")
    cell.cycle()
    cell.submit("gang", gpus=1, replicas=2, max_restarts=0)
    cell.cycle()
    cell.starts("gang")
    cell.ends("gang", replica=0, exit_code=0, engine_restarted=True)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert stop.stop.code == "gang_incomplete"
    cell.ends("gang", replica=1, exit_code=1)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "engine_restarted"


def test_slots_are_used_until_they_are_released() -> None:
    cell = cell_with(gpus=2)
    cell.submit("next", gpus=2)
    cell.exits("job")
    assert started(cell.cycle()) == []
    cell.releases("job")
    assert started(cell.cycle()) == ["next"]


def test_a_failed_task_is_retried_up_to_max_restarts_with_growing_back_off() -> None:
    cell = cell_with(max_restarts=2)
    for failures, backoff_s in ((1, 1), (2, 2)):
        cell.ends("job", exit_code=7)
        requeued = only(cell.cycle(), dec.TaskRequeuedV1)
        assert (requeued.code, requeued.restarts) == ("exit", failures)
        assert requeued.not_before_ms == cell.now_ms + backoff_s * 1000
        assert cell.phase("job") == "pending"
        assert cell.machine.due_ms(cell.state) == requeued.not_before_ms
        assert cell.cycle(after_s=backoff_s - 0.001) == []
        again = only(cell.cycle(after_s=0.001), dec.SlotsAllocatedV1)
        assert again.attempt == failures + 1
        cell.starts("job")
        cell.cycle()
    cell.ends("job", exit_code=7)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.exit_code) == ("failed", "restarts_exhausted", 7)


def test_the_backoff_stops_growing_at_five_minutes() -> None:
    cell = cell_with(max_restarts=12)
    waited = []
    for _ in range(12):
        cell.ends("job", exit_code=1)
        requeued = only(cell.cycle(), dec.TaskRequeuedV1)
        waited.append((requeued.not_before_ms - cell.now_ms) // 1000)
        cell.cycle(after_s=waited[-1])
        cell.starts("job")
        cell.cycle()
    assert waited == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


# Exits after a stop


def stopped(cell: Cell, how: str) -> None:
    """Stop `job` in one of the ways after which it is requeued."""
    if how == "preempted":
        cell.submit("top", priority=1, gpus=2)
    elif how == "paused":
        cell.pause("job")
    else:
        cell.drain("n1", within_s=60)
    cell.cycle()
    assert cell.phase("job") == "stopping"


STOPS = {"preempted": "priority", "paused": "paused", "drained": "node_drained"}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("exit_", [{"exit_code": 0}, {"exit_code": 1}, {"signal": 15}])
def test_after_a_stop_any_exit_means_saved_and_the_task_is_requeued(
    how: str, exit_: dict[str, int]
) -> None:
    cell = cell_with()
    stopped(cell, how)
    cell.ends("job", **exit_)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts, requeued.not_before_ms) == (STOPS[how], 0, 0)
    assert cell.phase("job") == "pending"


@pytest.mark.parametrize("how", STOPS)
def test_a_task_that_reported_done_has_succeeded_though_it_was_stopped(how: str) -> None:
    cell = cell_with()
    stopped(cell, how)
    cell.ends("job", done=True)
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "succeeded"


@pytest.mark.parametrize("how", STOPS)
def test_with_exit_zero_finished_exit_code_0_is_success_though_it_was_stopped(how: str) -> None:
    cell = cell_with(exit_zero=ExitZero.FINISHED)
    stopped(cell, how)
    cell.ends("job")
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "succeeded"


def test_done_does_not_make_a_success_of_another_exit_code() -> None:
    cell = cell_with(exit_zero=ExitZero.FINISHED)
    stopped(cell, "paused")
    cell.ends("job", exit_code=1, done=True)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "paused"


def test_stops_do_not_count_as_restarts() -> None:
    cell = cell_with(max_restarts=1)
    cell.pause("job")
    cell.cycle()
    cell.ends("job", exit_code=1)
    cell.cycle()
    cell.resume("job")
    running(cell, "job")
    cell.ends("job", exit_code=1)
    assert only(cell.cycle(), dec.TaskRequeuedV1).restarts == 1


def test_a_stop_carries_the_grace_period_of_the_task() -> None:
    cell = cell_with(grace_s=45)
    cell.pause("job")
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.stop.code, stop.grace_s, stop.nodes) == ("paused", 45, ("n1",))
    assert stop.deadline_at_ms == cell.now_ms + 45_000


# Cancel


def test_a_pending_task_is_cancelled_at_once() -> None:
    cell = Cell()
    cell.submit("job")
    cell.cycle()
    cell.cancel("job")
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.attempt) == ("cancelled", "cancelled", 0)
    assert_sound(cell.state)


def test_a_task_cancelled_in_the_cycle_that_admits_it_never_starts() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    cell.cancel("job")
    assert kinds(cell.cycle()) == ["TaskEnded"]


def test_tasks_that_wait_for_max_concurrent_are_cancelled_too() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job", tasks=3, max_concurrent=1)
    cell.cycle()
    cell.cancel("job")
    decided = cell.cycle()
    assert kinds(decided) == ["StopRequested", "TaskEnded", "TaskEnded"]
    cell.never_starts("job")
    cell.cycle()
    assert [cell.phase("job", i) for i in range(3)] == ["cancelled"] * 3
    assert_sound(cell.state)


@pytest.mark.parametrize("runs", [False, True])
def test_a_task_that_starts_or_runs_is_stopped_with_grace_and_ends_when_released(
    runs: bool,
) -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", grace_s=20)
    cell.cycle()
    if runs:
        cell.starts("job")
    cell.cancel("job")
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.stop.code, stop.grace_s) == ("cancelled", 20)
    assert cell.phase("job") == "stopping"
    if runs:
        cell.ends("job")
    else:
        cell.never_starts("job")
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "cancelled"


def test_an_immediate_cancel_gives_no_grace() -> None:
    cell = cell_with()
    cell.cancel("job", immediate=True)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.grace_s, stop.deadline_at_ms) == (0, cell.now_ms)


def test_an_immediate_cancel_cuts_the_grace_of_a_stop_short_once() -> None:
    cell = cell_with(grace_s=600)
    cell.pause("job")
    cell.cycle()
    cell.cancel("job", immediate=True)
    stop = only(cell.cycle(after_s=5), dec.StopRequestedV1)
    assert (stop.stop.code, stop.deadline_at_ms) == ("cancelled", cell.now_ms)
    assert cell.cycle(after_s=5) == []
    cell.ends("job", signal=9)
    assert only(cell.cycle(), dec.TaskEndedV1).outcome == "cancelled"


def test_a_cancel_while_stopping_sends_no_second_stop_and_the_task_is_not_requeued() -> None:
    cell = cell_with()
    stopped(cell, "preempted")
    cell.cancel("job")
    assert cell.cycle() == []
    cell.ends("job", done=True)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert ended.outcome == "cancelled"


def test_a_cancel_after_the_allocation_was_revoked_ends_the_task_when_released() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1")
    cell.submit("job")
    cell.cycle()
    assert kinds(cell.cycle(after_s=10)) == ["AllocationRevoked"]
    cell.cancel("job", immediate=True)
    assert cell.cycle() == []
    cell.never_starts("job")
    assert kinds(cell.cycle()) == ["TaskEnded"]


def test_a_cancel_while_a_failed_task_waits_for_its_restart_ends_it_at_once() -> None:
    cell = cell_with(max_restarts=5)
    cell.ends("job", exit_code=1)
    cell.cycle()
    cell.cancel("job")
    assert kinds(cell.cycle()) == ["TaskEnded"]
    assert cell.cycle(after_s=600) == []


def test_a_cancel_of_one_task_leaves_the_others() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", tasks=2)
    cell.cancel("job", 1)
    cell.cycle()
    assert [cell.phase("job", i) for i in range(2)] == ["starting", "cancelled"]


def test_a_cancel_of_a_finished_task_changes_nothing() -> None:
    cell = cell_with()
    cell.ends("job")
    cell.cycle()
    cell.cancel("job", immediate=True)
    assert cell.cycle() == []
    assert cell.phase("job") == "succeeded"


# Pause and resume


def test_a_paused_pending_task_does_not_start_until_it_is_resumed() -> None:
    cell = Cell()
    cell.submit("job")
    cell.cycle()
    cell.pause("job")
    cell.node("n1")
    assert cell.cycle() == []
    assert cell.task("job").group is None
    cell.resume("job")
    assert started(cell.cycle()) == ["job"]


def test_a_paused_task_releases_its_slots_and_resumes_from_its_checkpoint() -> None:
    cell = cell_with()
    cell.checkpoints("job", step=9)
    cell.pause("job")
    cell.cycle()
    cell.ends("job")
    assert kinds(cell.cycle()) == ["TaskRequeued"]
    assert cell.cycle(after_s=3600) == []
    cell.resume("job")
    again = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert again.checkpoint is not None
    assert (again.attempt, again.checkpoint.step) == (2, 9)


def test_a_task_that_is_starting_is_paused_too() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    cell.cycle()
    cell.pause("job")
    assert only(cell.cycle(), dec.StopRequestedV1).stop.code == "paused"
    cell.never_starts("job")
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "paused"


def test_a_pause_while_stopping_holds_the_task_once_it_is_back_in_the_queue() -> None:
    cell = cell_with()
    stopped(cell, "preempted")
    cell.pause("job")
    assert cell.cycle() == []
    cell.ends("job")
    decided = cell.cycle()
    assert only(decided, dec.TaskRequeuedV1).code == "priority"
    assert cell.task("job").group is None


def test_a_task_that_is_resumed_while_stopping_is_queued_as_soon_as_it_has_stopped() -> None:
    cell = cell_with()
    cell.pause("job")
    cell.cycle()
    cell.resume("job")
    assert cell.cycle() == []
    cell.ends("job")
    assert kinds(cell.cycle()) == ["TaskRequeued", "SlotsAllocated"]


def test_a_pause_does_not_shorten_the_wait_for_a_restart() -> None:
    cell = cell_with(max_restarts=1)
    cell.ends("job", exit_code=1)
    cell.cycle()
    cell.pause("job")
    cell.resume("job")
    assert started(cell.cycle()) == []
    assert started(cell.cycle(after_s=1)) == ["job"]


def test_a_restart_that_is_due_while_the_task_is_paused_waits_for_the_resumption() -> None:
    cell = cell_with(max_restarts=1)
    cell.ends("job", exit_code=1)
    cell.pause("job")
    cell.cycle()
    assert cell.cycle(after_s=60) == []
    cell.resume("job")
    assert started(cell.cycle()) == ["job"]


def test_a_pause_of_a_finished_task_changes_nothing() -> None:
    cell = cell_with()
    cell.ends("job")
    cell.cycle()
    cell.pause("job")
    cell.resume("job")
    assert cell.cycle() == []


# Deadlines


def test_an_attempt_that_has_not_started_in_time_is_revoked_and_keeps_its_slots() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.submit("next")
    cell.cycle()
    assert cell.cycle(after_s=9.999) == []
    revoked = only(cell.cycle(after_s=0.001), dec.AllocationRevokedV1)
    assert revoked.stop.code == "start_timeout"
    assert revoked.stop.numbers == {"active": 0, "needed": 1, "limit_s": 10}
    assert revoked.nodes == ("n1",)
    assert cell.phase("job") == "pending"
    assert started(cell.run_until_idle()) == [], "the slot is free when it is said to be free"
    cell.never_starts("job")
    decided = cell.cycle()
    assert only(decided, dec.TaskRequeuedV1).code == "start_timeout"
    assert started(decided) == ["next"], "the other one waits 2 s, as after any failed start"


def test_a_start_that_comes_after_the_revocation_does_not_count() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    cell.cycle(after_s=10)
    cell.starts("job")
    assert cell.cycle() == []
    assert cell.phase("job") == "pending"
    cell.ends("job", signal=9)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "start_timeout"


def test_a_time_limit_counts_running_over_all_attempts() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job", time_limit_s=100, grace_s=5)
    cell.cycle()
    cell.cycle(after_s=50)
    cell.starts("job")
    cell.cycle()
    cell.pause("job")
    cell.cycle(after_s=60)
    cell.ends("job")
    cell.cycle(after_s=10)
    cell.resume("job")
    cell.cycle(after_s=1000)
    cell.starts("job")
    cell.cycle()
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 30_000, "70 s of 100 are used"
    assert cell.cycle(after_s=29.999) == []
    stop = only(cell.cycle(after_s=0.001), dec.StopRequestedV1)
    assert (stop.stop.code, stop.grace_s) == ("time_limit", 5)
    assert stop.stop.numbers == {"limit_s": 100, "ran_s": 100}
    cell.ends("job", done=True)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code) == ("failed", "time_limit")


def test_a_shorter_start_timeout_applies_to_tasks_that_are_starting() -> None:
    cell = Cell(start_timeout_s=300)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    cell.pool("main", start_timeout_s=30)
    cell.cycle(after_s=10)
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 20_000
    assert kinds(cell.cycle(after_s=20)) == ["AllocationRevoked"]


def test_no_decision_is_repeated_about_an_unchanged_task() -> None:
    cell = cell_with(gpus=2)
    cell.submit("next", gpus=2)
    assert len(all_of(cell.cycle(), dec.TaskUnschedulableV1)) == 1
    for _ in range(3):
        assert cell.cycle(after_s=1) == []


def _pause(cell: Cell) -> None:
    cell.pause("job")


def _drain(cell: Cell) -> None:
    cell.drain("n1", within_s=60)


def _more_urgent(cell: Cell) -> None:
    cell.submit("top", gpus=2, priority=1)


@pytest.mark.parametrize("then", [_pause, _drain, _more_urgent])
def test_an_attempt_that_ended_by_itself_is_not_stopped_while_it_holds_its_slots(
    then: Callable[[Cell], None],
) -> None:
    cell = cell_with()
    cell.exits("job")
    then(cell)
    assert not {"PreemptionRequested", "StopRequested"} & set(kinds(cell.cycle()))
    cell.releases("job")
    cell.cycle()
    assert cell.phase("job") == "succeeded"
    assert_sound(cell.state)


def test_an_attempt_that_ended_in_time_does_not_exceed_its_time_limit() -> None:
    cell = cell_with(time_limit_s=10)
    cell.exits("job")
    cell.cycle()
    cell.cycle(after_s=11)
    cell.releases("job")
    cell.cycle()
    assert cell.phase("job") == "succeeded"


def test_the_start_timeout_counts_from_the_last_report_of_an_image_that_arrives() -> None:
    cell = Cell(start_timeout_s=100)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    for _ in range(3):
        assert cell.cycle(after_s=80) == []
        cell.prepares("job")
        cell.cycle()
    cell.prepares("job")
    assert cell.cycle() == []
    assert cell.cycle(after_s=99) == []
    assert only(cell.cycle(after_s=1), dec.AllocationRevokedV1).stop.code == "start_timeout"


def test_a_pull_that_arrives_outlives_a_start_timeout_below_the_interval_of_its_reports() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    cell.prepares("job")
    cell.cycle()
    assert cell.cycle(after_s=LEAST_QUIET_S - 1) == []
    assert only(cell.cycle(after_s=1), dec.AllocationRevokedV1).stop.code == "start_timeout"


def test_the_start_timeout_counts_from_the_last_start_that_another_waited_for() -> None:
    cell = Cell(start_timeout_s=100)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    for ahead in (20, 12, 4):
        assert cell.cycle(after_s=80) == []
        cell.waits_to_start("job", ahead)
        cell.cycle()
    assert cell.cycle(after_s=99) == []
    assert only(cell.cycle(after_s=1), dec.AllocationRevokedV1).stop.code == "start_timeout"


def test_no_reports_of_a_pull_extend_a_start_beyond_its_bound() -> None:
    cell = Cell(start_timeout_s=3600)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    for _ in range(MAX_PULL_S // 1800 - 1):
        assert cell.cycle(after_s=1800) == []
        cell.prepares("job")
        cell.cycle()
    assert cell.cycle(after_s=1799) == []
    cell.prepares("job")
    assert cell.cycle() == []
    assert only(cell.cycle(after_s=1), dec.AllocationRevokedV1).stop.code == "start_timeout"
    cell.prepares("job")
    cell.cycle()
    assert [code for _, code in cell.refused] == ["pull_too_long"]


def test_a_start_timeout_above_the_bound_of_pulls_is_kept() -> None:
    cell = Cell(start_timeout_s=2 * MAX_PULL_S)
    cell.node("n1", gpus=1)
    cell.submit("job")
    cell.cycle()
    cell.cycle(after_s=MAX_PULL_S)
    cell.prepares("job")
    assert cell.cycle() == []
    assert [code for _, code in cell.refused] == ["pull_too_long"]
    assert cell.cycle(after_s=MAX_PULL_S - 1) == []
    assert only(cell.cycle(after_s=1), dec.AllocationRevokedV1).stop.code == "start_timeout"


def test_an_image_that_arrives_after_the_start_is_a_contradiction() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job")
    running(cell, "job")
    cell.prepares("job")
    cell.cycle()
    assert [code for _, code in cell.refused] == ["contradiction"]
