"""Repeated events change nothing; events that contradict the state stop the machine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import from_json

from tests.unit.core.scheduling.reading import only, running
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.testing import Cell, admitted_spec, fold
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Unschedulable
from yardmaster_schemas.reasons import EndCode, Start, Stop, StopCode, Wait, WaitCode


def eventful() -> Cell:
    """A cell in which every type of decision was made."""
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=3)
    cell.submit("low", priority=90)
    cell.submit("late", priority=90)
    cell.submit("young", priority=90)
    cell.submit("spare", priority=90)
    cell.submit("fails", gpus=9, unschedulable=Unschedulable.FAIL)
    running(cell, "low")
    cell.submit("top", priority=1)
    cell.submit("gone", priority=1)
    cell.cycle()
    cell.cancel("gone")
    cell.cycle(after_s=10)
    cell.pause("low")
    cell.cycle()
    cell.never_starts("late")
    cell.never_starts("young")
    cell.ends("low")
    cell.cycle()
    cell.cancel("top")
    cell.cycle()
    cell.cycle(silent={"n2": cell.now_ms - 60_000})
    made = {type(event) for event in cell.history if "decisions" in event.TOPICS}
    assert made == {
        dec.PreemptionRequestedV1,
        dec.SlotsAllocatedV1,
        dec.SlotsReservedV1,
        dec.ReservationDroppedV1,
        dec.StopRequestedV1,
        dec.AllocationRevokedV1,
        dec.TaskRequeuedV1,
        dec.TaskUnschedulableV1,
        dec.TaskEndedV1,
        dec.NodeSilenceObservedV1,
        dec.NodeLostV1,
    }
    return cell


class Stuttering(Cell):
    """Applies each of its decisions twice."""

    def on_decision(self, decision: Event) -> None:
        before = self.machine.digest(self.state)
        self.state = self.machine.apply(self.state, decision, "")
        assert self.machine.digest(self.state) == before, decision


def test_every_decision_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cell, "on_decision", Stuttering.on_decision)
    eventful()


def test_decisions_about_ended_attempts_and_tasks_are_repeats() -> None:
    cell = eventful()
    before = cell.machine.digest(cell.state)
    about_tasks = (
        dec.SlotsAllocatedV1,
        dec.PreemptionRequestedV1,
        dec.StopRequestedV1,
        dec.AllocationRevokedV1,
        dec.TaskRequeuedV1,
        dec.TaskEndedV1,
        dec.NodeLostV1,
    )
    for event in list(cell.history):
        if isinstance(event, about_tasks) and (
            not hasattr(event, "task_id") or event.task_id in cell.state.tasks
        ):
            cell.state = cell.machine.apply(cell.state, event, "")
    assert cell.machine.digest(cell.state) == before


def test_folding_the_history_again_gives_the_same_state() -> None:
    cell = eventful()
    assert fold(cell.steps).digest() == cell.state.digest()


def test_a_repeated_admission_gives_one_job() -> None:
    cell = Cell()
    cell.submit("job", tasks=2)
    cell._inputs.append(cell._inputs[-1])
    cell.cycle()
    assert len(cell.state.tasks) == 2


def test_a_repeated_entitlement_wakes_no_task() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job", gpus=2)
    cell.cycle()
    pool = cell.state.pools["main"]
    event = adm.PoolConfiguredV1(pool="main", revision=pool.revision, config=pool.config)  # type: ignore[arg-type]
    cell.admission(event)
    assert cell.cycle() == []


def test_a_repeated_cancel_or_pause_changes_nothing() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("one")
    cell.submit("two")
    running(cell, "one")
    for _ in range(2):
        cell.cancel("one")
        cell.pause("two")
    assert [e.TYPE for e in cell.cycle()] == ["StopRequested", "StopRequested"]


# Contradictions


def impossible(cell: Cell, event: Event, match: str) -> None:
    """Assert that the machine stops at an event with a matching message."""
    with pytest.raises(ImpossibleEvent, match=match):
        cell.machine.apply(cell.state, event, "")


@pytest.fixture
def cell() -> Cell:
    """`job` runs on n1, attempt 1."""
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job")
    running(cell, "job")
    return cell


def about(cell: Cell, **changes: Any) -> dict[str, Any]:
    """The first fields of a decision about the job's attempt."""
    return {"task_id": cell.task("job").id, "attempt": 1, **changes}


def test_a_job_admitted_again_with_other_content_is_impossible(cell: Cell) -> None:
    first = next(e for e in cell.history if isinstance(e, adm.TaskAdmittedV1))
    impossible(cell, replace(first, spec=admitted_spec(priority=3)), "another content")
    impossible(cell, replace(first, project="q"), "another content")


@pytest.mark.parametrize(
    "event",
    [
        lambda job: adm.CancelAcceptedV1(job_id=job),
        lambda job: adm.TaskPausedV1(job_id=job),
        lambda job: adm.PriorityChangedV1(job_id=job, priority=1, revision=2),
        lambda job: adm.MaxSlotsChangedV1(job_id=job, max_slots_milli=1, revision=2),
        lambda job: adm.WeightChangedV1(job_id=job, weight=1, revision=2),
    ],
)
def test_a_verdict_about_a_job_that_has_ended_changes_nothing(
    cell: Cell, event: Callable[[str], Event]
) -> None:
    """Quota reads ends later than the scheduler decides them."""
    job = cell.task("job").job.id
    cell.ends("job")
    cell.cycle()
    cell.cycle()
    before = cell.machine.digest(cell.state)
    cell.state = cell.machine.apply(cell.state, event(job), "quota/main.0123456789ab/1/9")
    assert not cell.state.jobs
    assert cell.machine.digest(cell.state) == before


def test_a_job_is_removed_with_its_tasks_after_its_last_task_has_ended() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    empty = cell.machine.digest(cell.state)
    cell.submit("array", tasks=2)
    running(cell, "array", 0)
    running(cell, "array", 1)
    cell.ends("array", index=0)
    cell.cycle()
    cell.cycle()
    assert len(cell.state.tasks) == 2
    cell.ends("array", index=1)
    cell.cycle()
    dumped = cell.machine.dump(cell.state)
    assert len(dumped["jobs"]) == 1, "the digest that the cycle committed covers it"
    restored = cell.machine.load("main", from_json(plain.encode(dumped)))
    assert cell.machine.digest(restored) == cell.machine.digest(cell.state) != empty
    for state in (restored, cell.state):
        cell.machine.begin_cycle(state, cell.cycles + 1, cell.now_ms)
        assert not state.jobs
        assert not state.tasks
    assert cell.machine.digest(restored) == cell.machine.digest(cell.state)


def test_a_verdict_about_an_unknown_task_is_impossible(cell: Cell) -> None:
    job = cell.task("job").job.id
    impossible(cell, adm.CancelAcceptedV1(job_id=job, index=1), "there is no task")


def test_an_attempt_follows_the_previous_one_only_after_its_end(cell: Cell) -> None:
    first = next(e for e in cell.history if isinstance(e, dec.SlotsAllocatedV1))
    impossible(cell, replace(first, attempt=2), "is RUNNING, attempt 1")
    impossible(cell, replace(first, task_id="absent000000.0"), "there is no task")
    cell.ends("job", exit_code=0)
    cell.submit("next")
    again = only([e for e in cell.cycle() if "next" in str(e)], dec.SlotsAllocatedV1)
    impossible(cell, replace(again, attempt=3), "attempt 1")


def test_a_stop_of_an_unknown_attempt_is_impossible(cell: Cell) -> None:
    stop = Stop(code=StopCode.CANCELLED)
    late = about(cell, attempt=2, nodes=("n1",), stop=stop)
    impossible(cell, dec.StopRequestedV1(**late, grace_s=0, deadline_at_ms=0), "no attempt 2")
    impossible(cell, dec.PreemptionRequestedV1(**late, grace_s=0, deadline_at_ms=0), "no attempt 2")
    impossible(cell, dec.AllocationRevokedV1(**late), "no attempt 2")


def test_a_task_that_holds_slots_is_neither_requeued_nor_ended(cell: Cell) -> None:
    requeued = dec.TaskRequeuedV1(**about(cell), code=EndCode.PAUSED, restarts=0)
    impossible(cell, requeued, "still holds slots")
    ended = dec.TaskEndedV1(**about(cell), outcome=dec.Outcome.FAILED, code=EndCode.EXIT)
    impossible(cell, ended, "still holds slots")


def test_a_wait_reason_for_no_pending_task_is_impossible(cell: Cell) -> None:
    wait = Wait(code=WaitCode.FRAGMENTED)
    event = dec.TaskUnschedulableV1(
        task_id=cell.task("job").id, shape="0" * 16, priority=1, pool="main", wait=wait
    )
    impossible(cell, event, "no task of shape")


def test_the_loss_of_an_unknown_incarnation_is_impossible(cell: Cell) -> None:
    event = dec.NodeLostV1(
        node="n1", incarnation="f" * 12, cause=dec.LossCause.SILENT, last_heard_at_ms=0
    )
    impossible(cell, event, "n1 is 000000000000")


def test_an_event_that_the_scheduler_does_not_know_stops_it(cell: Cell) -> None:
    class Unknown(Event):
        TYPE = "Unknown"
        VERSION = 1
        TOPICS = ("decisions",)

    impossible(cell, Unknown(), "no applier")
    assert Start(rule="priority").numbers == {}
