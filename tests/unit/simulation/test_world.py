"""The behavior of simulated users, agents and nodes, as the log records it."""

import pytest

from tests.support.audit import audit_log
from tests.support.simulated import job, node, ran
from yardmaster_schemas.events.admissions import TaskRejectedV1
from yardmaster_schemas.events.decisions import (
    NodeLostV1,
    Outcome,
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.node_events import CheckpointDoneV1, TaskExitedV1, TaskStartedV1
from yardmaster_schemas.events.requests import ProjectConfig
from yardmaster_simulation import world
from yardmaster_simulation.errors import Endless
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import summary
from yardmaster_simulation.synthetic import AtLoad
from yardmaster_simulation.workload import DEFAULT, Behavior, Listed, NodeFaults, Workload, pool

PREEMPTION = {"preemption": True, "backfill": True}


def test_a_task_ends_when_it_has_run_for_as_long_as_it_takes() -> None:
    run = ran([job(5, 100)])
    assert [at for at, _ in run.of(SlotsAllocatedV1)] == [5]
    assert [(at, event.outcome) for at, event in run.of(TaskEndedV1)] == [(105, Outcome.SUCCEEDED)]
    assert run.world.open == 0


def test_a_task_that_takes_no_time_starts_and_ends_at_once() -> None:
    run = ran([job(5, 0)])
    assert [at for at, _ in run.of(TaskEndedV1)] == [5]


def test_who_finds_no_room_starts_when_another_has_ended() -> None:
    run = ran([job(0, 100, gpus=8), job(1, 50, gpus=8)])
    assert [at for at, _ in run.of(SlotsAllocatedV1, "1.0")] == [100]
    assert [at for at, _ in run.of(TaskEndedV1, "1.0")] == [150]


def test_decisions_are_made_at_multiples_of_the_cadence() -> None:
    run = ran([job(1, 70), job(59, 1)], cadence_ms=60_000)
    assert [at for at, _ in run.of(SlotsAllocatedV1)] == [60, 60]
    # They ran until 130 and 61: what is done by then is known at the next decision.
    assert [at for at, _ in run.of(TaskEndedV1, "0.0")] == [180]
    assert [at for at, _ in run.of(TaskEndedV1, "1.0")] == [120]


def test_each_task_of_a_job_runs_for_its_own_time() -> None:
    run = ran([job(0, 10, 30, 20)])
    ends = {event.task_id[-1]: at for at, event in run.of(TaskEndedV1)}
    assert ends == {"0": 10, "2": 20, "1": 30}


def test_all_replicas_of_a_gang_start_and_end_together() -> None:
    nodes = [node("node-0", 4), node("node-1", 4)]
    run = ran([job(0, 60, gpus=4, replicas_min=2, replicas_max=2)], nodes)
    assert [event.node for _, event in run.of(TaskStartedV1)] == ["node-0", "node-1"]
    assert [(at, event.replica) for at, event in run.of(TaskExitedV1)] == [(60, 0), (60, 1)]


def test_a_stopped_task_saves_its_work_after_its_grace_period_and_goes_on_with_it() -> None:
    low = job(0, 100, gpus=8, priority=50)
    high = job(40, 10, gpus=8, priority=10)
    run = ran([low, high], options=PREEMPTION)
    assert [at for at, _ in run.of(PreemptionRequestedV1, "0.0")] == [40]
    assert [(at, event.step) for at, event in run.of(CheckpointDoneV1)] == [(70, 40)]
    assert [at for at, _ in run.of(SlotsAllocatedV1, "1.0")] == [70]
    assert [at for at, _ in run.of(SlotsAllocatedV1, "0.0")] == [0, 80]
    assert [at for at, _ in run.of(TaskEndedV1, "0.0")] == [140], "60 s of its work were left"


async def test_a_run_with_preemption_reserves_slots_and_its_log_passes_the_audit() -> None:
    early, late = job(0, 100, gpus=3, priority=50), job(0, 100, gpus=3, priority=50, grace_s=60)
    high = job(40, 10, gpus=8, priority=10)
    run = ran([early, late, high], options=PREEMPTION)
    # Two GPUs are free at 40, five at 70, and all eight at 100, when the task starts on them.
    ((at, reserved),) = run.of(SlotsReservedV1, "2.0")
    assert (at, reserved.victims) == (40, 2)
    assert run.of(ReservationDroppedV1) == []
    ((at, started),) = run.of(SlotsAllocatedV1, "2.0")
    assert (at, started.placements) == (100, reserved.placements)
    history = History()
    for at, event in run.events:
        history.see(world.START_MS + int(at * 1000), event)
    figures = summary(history)
    assert figures.reserved_idle_gpu_hours == pytest.approx((2 * 30 + 5 * 30) / 3600)
    assert history.tasks["000000000002.0"].wait_ms == 60_000
    # The preempted tasks saved the work of their first 40 s and run for 60 s more, from 110 on.
    assert figures.makespan_s == 170
    held = 6 * 70 + 3 * 30 + 8 * 10 + 6 * 60
    assert figures.utilisation == pytest.approx(held / (8 * 170))
    assert await audit_log(run.sink.log) == ()
    report = await run.proved()
    assert report.ok, report.first


def test_work_in_the_grace_period_counts_where_it_is_said_to() -> None:
    low = job(0, 100, gpus=8, priority=50)
    high = job(40, 10, gpus=8, priority=10)
    run = ran([low, high], options=PREEMPTION, behavior=Behavior(works_in_grace=True))
    assert [at for at, _ in run.of(TaskEndedV1, "0.0")] == [110], "30 s of its work were left"


def test_a_task_that_is_done_within_its_grace_period_has_succeeded() -> None:
    low = job(0, 50, gpus=8, priority=50)
    high = job(40, 10, gpus=8, priority=10)
    run = ran([low, high], options=PREEMPTION, behavior=Behavior(works_in_grace=True))
    assert [(at, event.outcome) for at, event in run.of(TaskEndedV1, "0.0")] == [
        (50, Outcome.SUCCEEDED)
    ]
    assert [at for at, _ in run.of(SlotsAllocatedV1, "1.0")] == [50]


def test_restarts_and_checkpoints_cost_what_they_cost() -> None:
    low = job(0, 100, gpus=8, priority=50)
    high = job(45, 10, gpus=8, priority=10)
    behavior = Behavior(checkpoint_every_ms=20_000, checkpoint_cost_ms=5_000, restart_cost_ms=7_000)
    run = ran([low, high], options=PREEMPTION, behavior=behavior)
    # 20 work, 5 save, 20 work when it is asked to stop: 40 done. Then 7 to restart, 60 to work,
    # and between them two checkpoints.
    assert [at for at, _ in run.of(SlotsAllocatedV1, "0.0")] == [0, 85]
    assert [at for at, _ in run.of(TaskEndedV1, "0.0")] == [85 + 7 + 60 + 2 * 5]


def test_a_job_that_does_not_start_in_time_is_cancelled_by_its_user() -> None:
    run = ran([job(0, 100, gpus=8), job(1, 10, gpus=8)], behavior=Behavior(patience_ms=20_000))
    ends = {event.task_id: (at, event.outcome) for at, event in run.of(TaskEndedV1)}
    assert ends == {
        "000000000000.0": (100, Outcome.SUCCEEDED),
        "000000000001.0": (21, Outcome.CANCELLED),
    }


def test_a_task_whose_node_fails_begins_again_at_its_last_checkpoint() -> None:
    nodes = [node(f"node-{number}", 1) for number in range(3)]
    run = ran(
        [job(0, *[3_000] * 6)],
        nodes,
        faults=NodeFaults(mean_up_ms=4_000_000, mean_down_ms=600_000),
        behavior=Behavior(checkpoint_every_ms=500_000),
        seed=3,
    )
    lost = run.of(NodeLostV1)
    assert any(event.closed for _, event in lost), "no node was lost with a task on it"
    assert run.world.open == 0
    done = {at for at, event in run.of(TaskEndedV1) if event.outcome is Outcome.SUCCEEDED}
    assert max(done) > 6_000, "two rounds without a failure take 6,000 s"


def test_a_gang_that_loses_a_node_is_stopped_whole() -> None:
    nodes = [node(f"node-{number}", 1) for number in range(4)]
    gang = job(0, 5_000, replicas_min=3, replicas_max=3)
    run = ran(
        [gang],
        nodes,
        faults=NodeFaults(mean_up_ms=5_000_000, mean_down_ms=600_000),
        behavior=Behavior(checkpoint_every_ms=200_000),
        seed=5,
    )
    assert run.of(NodeLostV1), "no node was lost"
    assert len(run.of(SlotsAllocatedV1)) > 1
    assert run.world.open == 0


def test_what_never_fits_is_left_and_the_run_ends() -> None:
    run = ran([job(0, 10), job(0, 10, gpus=16)])
    assert run.world.open == 1
    assert len(run.of(TaskEndedV1)) == 1


def test_projects_are_set_up_before_the_first_submit() -> None:
    run = ran(
        [job(0, 10, project="vision")],
        projects={"vision": ProjectConfig(department=DEFAULT, weight=3)},
    )
    assert run.world.open == 0


def test_a_run_where_nodes_fail_too_often_for_its_tasks_is_given_up_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "LONGEST_MS", 5 * world.DAY_MS)
    with pytest.raises(Endless, match="1 tasks have not ended 5 days"):
        ran([job(0, 1_000_000)], faults=NodeFaults(mean_up_ms=3_600_000, mean_down_ms=60_000))


def test_a_gang_over_all_nodes_is_left_when_they_are_hardly_ever_up_together() -> None:
    nodes = [node(f"node-{number:02d}") for number in range(20)]
    run = ran(
        [job(0, 100_000, gpus=8, replicas_min=20, replicas_max=20)],
        nodes,
        faults=NodeFaults(mean_up_ms=36_000_000, mean_down_ms=36_000_000),
    )
    assert len(run.of(SlotsAllocatedV1)) == 1, "they are all up at the start"
    assert run.of(NodeLostV1)
    assert run.world.open == 1


def test_who_waits_for_room_that_no_end_will_make_submits_no_more() -> None:
    nodes = (node("node-0", 4),)
    there = Workload(
        name="test", nodes=nodes, jobs=(), cadence_ms=60_000, pools={DEFAULT: pool("priority")}
    )
    arrivals = AtLoad([job(0, 10, gpus=8)] * 3, there.capacity, "gpu", 2000)
    run = world.World(there, there.pools, None, arrivals)
    run.run()
    assert (run.tasks, run.open, arrivals.left) == (1, 1, 2)


def test_a_job_that_quota_refuses_is_not_waited_for() -> None:
    run = ran([job(0, 10), job(1, 10, project="no-project")])
    assert [event.job_id for _, event in run.of(TaskRejectedV1)] == ["000000000001"]
    assert run.world.open == 0
    assert run.world.outstanding == (0, 0, 0)


async def test_a_node_whose_name_is_no_address_makes_a_log_that_is_proved() -> None:
    run = ran([job(0, 10)], [node("gpu_01")])
    report = await run.proved()
    assert report.ok, report.first


@pytest.mark.parametrize("cadence_ms", [0, 60_000])
def test_a_task_works_from_its_start_to_its_exit_whenever_they_are_learned_of(
    cadence_ms: int,
) -> None:
    there = Workload(
        name="test",
        nodes=(node("node-0"),),
        jobs=(job(1, 70),),
        cadence_ms=cadence_ms,
        pools={DEFAULT: pool("priority")},
    )
    history = History()
    world.World(there, there.pools, None, Listed(there.jobs), watch=history.see).run()
    (task,) = history.tasks.values()
    (run,) = task.attempts
    assert run.ran_ms == 70_000
    assert (run.closed_ms or 0) - run.allocated_ms == (120_000 if cadence_ms else 70_000)
