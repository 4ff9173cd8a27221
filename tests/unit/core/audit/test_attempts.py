"""Attempts (S4) and gangs (S5)."""

from dataclasses import replace

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    exited,
    placed,
    released,
    started,
)
from tests.unit.core.audit.cell_log import (
    GANG,
    JOB,
    PAIR,
    A,
    admit,
    expect_one,
    finish,
    found,
    lost,
    requeued,
    run,
    silent,
    stopped,
)
from yardmaster_schemas.reasons import (
    RefusalCode,
    StopCode,
)
from yardmaster_schemas.resources import Resources

IMAGE = f"sha256:{1:064x}"


def test_s4_a_gap_in_the_attempts(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S4", "expected attempt 1")


def test_s4_an_attempt_while_the_last_is_open(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(allocated(A, placed("n1", 1), attempt=2))
    expect_one(log, "S4", "while replicas [0] of attempt 1 are open")


def test_s4_a_requeue_while_slots_are_held(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A))
    expect_one(log, "S4", "found replicas [0] open")


def test_s4_a_stop_of_an_attempt_that_is_not_open(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(stopped(log, A, StopCode.CANCELLED, "n1"))
    expect_one(log, "S4", "is not open")


def test_s4_a_replica_that_started_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.claim(started(A, "n1", pid=999))
    log.scheduler.cycle()
    expect_one(log, "S4", "process 100-", "process 999-", topic="node-events")


def test_s4_covers_refused_records_of_honest_agents(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    at = log.claim(started(A, "n1", pid=999)).offset
    log.scheduler.cycle(refused=[("node-events", at, RefusalCode.REPEATED)])
    assert [f.predicate for f in found(log)] == ["S4"]
    assert found(log, honest_agents=False) == ()


def test_s4_a_repeated_start_report_counts_once(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    at = log.claim(started(A, "n1")).offset
    log.scheduler.cycle(refused=[("node-events", at, RefusalCode.REPEATED)])
    assert found(log) == ()


def test_s5_half_a_gang(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S5", "expected 2 to 2 replicas", "found [0]")


def test_s5_less_than_the_requested_resources(log: LogBuilder) -> None:
    admit(log, JOB, resources=Resources(gpus=2, gpu_milli=1000, cpu_milli=1000, memory_mib=1024))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(
        log, "S5", "expected (slots, gpu_milli, cpu_milli, memory_mib, gpu_memory_mib) (2, 1000"
    )


def test_s5_a_broken_gang_that_keeps_running(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.scheduler.cycle(silent("n2"), lost("n2", (A, 1)), after_ms=70_000)
    assert found(log) == ()
    log.scheduler.cycle()
    expect_one(log, "S5", "replica 1 was lost with node n2", "expected the 1 others")


def test_s5_a_failed_replica_stops_its_gang(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.claim(exited(A, "n1", exit_code=3))
    log.scheduler.cycle()
    log.scheduler.cycle(stopped(log, A, StopCode.GANG_INCOMPLETE, "n1", "n2"))
    log.scheduler.cycle()
    assert found(log) == ()


def test_s5_a_cycle_that_was_cut_may_stop_the_gang_later(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.claim(released(A, "n1", never_started=True))
    log.scheduler.cycle()
    log.scheduler.cycle(complete=False)
    assert found(log) == ()
    log.scheduler.cycle()
    expect_one(log, "S5", "never started")


def test_s5_a_stop_that_leaves_out_a_node(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.scheduler.cycle(stopped(log, A, StopCode.GANG_INCOMPLETE, "n1"))
    expect_one(log, "S5", "not on its nodes ['n2']")


def images(log: LogBuilder, task: str, *images: str | None, attempt: int = 1) -> None:
    """Have the replicas of a pair start with these images."""
    for replica, image in enumerate(images):
        begun = started(task, f"n{replica + 1}", attempt=attempt, replica=replica)
        log.claim(replace(begun, image=image))
    log.scheduler.cycle()


def test_s5_a_gang_that_runs_two_images(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    log.scheduler.cycle(allocated(A, *PAIR))
    images(log, A, IMAGE, None)
    log.scheduler.cycle()
    expect_one(log, "S5", "two images since cycle")


def test_s5_a_gang_of_two_images_may_be_stopped_one_cycle_later(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    log.scheduler.cycle(allocated(A, *PAIR))
    images(log, A, None, IMAGE)
    log.scheduler.cycle(stopped(log, A, StopCode.IMAGE_CHANGED, "n1", "n2"))
    log.scheduler.cycle()
    assert not found(log)


@pytest.mark.parametrize("pinned", [None, IMAGE])
def test_s5_a_later_attempt_is_given_the_image_of_the_first(
    log: LogBuilder, pinned: str | None
) -> None:
    admit(log, JOB, **GANG)
    log.scheduler.cycle(allocated(A, *PAIR))
    images(log, A, IMAGE, IMAGE)
    finish(log, A, *PAIR)
    log.scheduler.cycle(requeued(A))
    log.scheduler.cycle(replace(allocated(A, *PAIR, attempt=2), image=pinned))
    if pinned is None:
        expect_one(log, "S5", f"given image None, its task runs {IMAGE}")
    else:
        assert not found(log)


def test_s4_failed_starts_are_counted_one_by_one(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    log.claim(released(A, "n1", never_started=True))
    log.scheduler.cycle(replace(requeued(A), failed_starts=2))
    expect_one(log, "S4", "requeued with 2 failed starts; the task had 0")
