"""The audit of placements: whole nodes, avoided nodes, disabled slots (S3, S5, S10)."""

from typing import Any

import pytest

from tests.support.logs import LogBuilder, allocated, joined, placed, pool_configured, released
from tests.unit.core.audit.cell_log import (
    GANG,
    JOB,
    OTHER,
    A,
    B,
    admit,
    expect_one,
    found,
    run,
    stopped,
)
from yardmaster_schemas.events.admissions import NodeSlotsChangedV1
from yardmaster_schemas.events.requests import (
    Layout,
    NodeSlotsChangeRequestedV1,
    PoolChangeRequestedV1,
)
from yardmaster_schemas.reasons import StopCode
from yardmaster_schemas.resources import Resources


def eight(gpus: int = 8) -> dict[str, Any]:
    requested = Resources(gpus=gpus, gpu_milli=1000, cpu_milli=1000, memory_mib=1024)
    return {"layout": Layout.WHOLE_NODES, "resources": requested}


BOTH = (placed("n1", 0, 1, 2, 3), placed("n2", 0, 1, 2, 3, replica=1))


def slots(log: LogBuilder, node: str, *disabled: int, stop: bool = False) -> None:
    what: dict[str, Any] = {"node": node, "disabled": disabled, "stop": stop}
    log.judged(NodeSlotsChangeRequestedV1(**what), NodeSlotsChangedV1(**what))


def configure(log: LogBuilder, **config: Any) -> None:
    configured = pool_configured(revision=2, start_timeout_s=300, node_timeout_s=60, **config)
    log.judged(PoolChangeRequestedV1(pool="default", config=configured.config), configured)


def test_whole_nodes_and_a_single_node_are_correct(log: LogBuilder) -> None:
    admit(log, JOB, **eight())
    log.scheduler.cycle(allocated(A, *BOTH))
    assert found(log) == ()


def test_a_part_of_one_node_is_correct(log: LogBuilder) -> None:
    admit(log, JOB, **eight(3))
    log.scheduler.cycle(allocated(A, placed("n1", 0, 2, 3)))
    assert found(log) == ()


@pytest.mark.parametrize(
    ("places", "word"),
    [
        ((placed("n1", 0, 1, 2, 3), placed("n2", 0, 1, 2, replica=1)), "8 whole GPUs in all"),
        (
            (
                placed("n1", 0, 1, 2, 3),
                placed("n2", 0, 1, replica=1),
                placed("n2", 2, 3, replica=2),
            ),
            "the same number of GPUs",
        ),
        ((BOTH[0], placed("n2", 0, 1, 2, 3, replica=2)), "replicas from 0 on"),
    ],
)
def test_s5_a_task_on_whole_nodes_that_is_placed_otherwise(
    log: LogBuilder, places: Any, word: str
) -> None:
    admit(log, JOB, **eight())
    log.scheduler.cycle(allocated(A, *places))
    expect_one(log, "S5", word)


def test_s5_a_gang_on_a_node_that_is_in_use(log: LogBuilder) -> None:
    log.claim(joined("n3", gpus=8))
    log.scheduler.cycle()
    admit(log, OTHER)
    run(log, B, placed("n3", 7))
    admit(log, JOB, **eight())
    log.scheduler.cycle(allocated(A, placed("n3", 0, 1, 2, 3), placed("n1", 0, 1, 2, 3, replica=1)))
    expect_one(log, "S5", "idle nodes, each whole", "n3")


def test_nodes_of_unequal_size_are_correct_if_the_pool_allows_them(log: LogBuilder) -> None:
    places = (placed("n3", 0, 1, 2, 3, 4, 5), placed("n1", 0, 1, 2, 3, replica=1))
    log.claim(joined("n3", gpus=6))
    log.scheduler.cycle()
    configure(log, unequal_gangs=True)
    admit(log, JOB, **eight(10))
    log.scheduler.cycle(allocated(A, *places))
    assert found(log) == ()


def test_s5_a_broken_gang_on_whole_nodes_that_was_not_stopped(log: LogBuilder) -> None:
    admit(log, JOB, **eight())
    log.scheduler.cycle(allocated(A, *BOTH))
    log.claim(released(A, "n2", replica=1, never_started=True))
    log.scheduler.cycle()
    log.scheduler.cycle()
    expect_one(log, "S5", "replica 1 never started")


def test_s3_an_avoided_node(log: LogBuilder) -> None:
    admit(log, JOB, avoid_nodes=("n1",))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S3", "n1 is in the job's avoid_nodes")


def test_s3_a_disabled_slot(log: LogBuilder) -> None:
    slots(log, "n1", 0, 2)
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 2)))
    expect_one(log, "S3", "slots [2] are disabled")


def test_a_slot_that_was_enabled_again_may_be_used(log: LogBuilder) -> None:
    slots(log, "n1", 0, 2)
    slots(log, "n1", 0)
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 2)))
    assert found(log) == ()


def test_a_node_is_whole_without_its_disabled_slots(log: LogBuilder) -> None:
    for node in ("n1", "n2"):
        slots(log, node, 3)
    admit(log, JOB, **eight(6))
    log.scheduler.cycle(allocated(A, placed("n1", 0, 1, 2), placed("n2", 0, 1, 2, replica=1)))
    assert found(log) == ()


def test_s3_more_tasks_without_gpus_than_the_pool_allows_on_a_node(log: LogBuilder) -> None:
    configure(log, gpuless_per_node=1)
    none = Resources(cpu_milli=1000, memory_mib=1024)
    admit(log, JOB, resources=none, **GANG)
    log.scheduler.cycle(allocated(A, placed("n1"), placed("n1", replica=1)))
    expect_one(log, "S3", "2 tasks without GPUs open, at most 1")


@pytest.mark.parametrize(("stop", "clean"), [(True, True), (False, False)])
def test_s10_a_stop_for_a_slot_that_need_not_be_emptied(
    log: LogBuilder, stop: bool, clean: bool
) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    slots(log, "n1", 0, stop=stop)
    log.scheduler.cycle(stopped(log, A, StopCode.SLOT_DISABLED, "n1"))
    if clean:
        assert found(log) == ()
    else:
        expect_one(log, "S10", "holds no disabled slot that must be emptied")


def test_s3_a_job_with_an_image_needs_a_node_that_runs_containers(log: LogBuilder) -> None:
    admit(log, JOB, image=True)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S3", "node n1 runs no containers, which the job's image needs")


def by_memory(gpu_memory_mib: int) -> Resources:
    return Resources(gpus=1, gpu_memory_mib=gpu_memory_mib, cpu_milli=1000, memory_mib=1024)


@pytest.mark.parametrize(
    ("gpu_milli", "memory_mib", "clean"), [(500, 20_000, True), (250, 20_000, False)]
)
def test_s5_a_fraction_by_memory_is_its_part_of_the_gpu_of_its_node(
    log: LogBuilder, gpu_milli: int, memory_mib: int, clean: bool
) -> None:
    log.claim(joined("n3", gpu_memory_mib=40_000))
    log.scheduler.cycle()
    admit(log, JOB, resources=by_memory(memory_mib))
    fraction = placed("n3", 0, gpu_milli=gpu_milli, gpu_memory_mib=memory_mib)
    log.scheduler.cycle(allocated(A, fraction))
    if clean:
        assert found(log) == ()
    else:
        expect_one(log, "S5", "(1, 500, 1000, 1024, 20000), found (1, 250, 1000, 1024, 20000)")


def test_s3_and_s5_more_memory_of_a_gpu_than_it_has(log: LogBuilder) -> None:
    log.claim(joined("n3", gpu_memory_mib=40_000))
    log.scheduler.cycle()
    fraction = placed("n3", 0, gpu_milli=400, gpu_memory_mib=30_000)
    for job, task in ((JOB, A), (OTHER, B)):
        admit(log, job, resources=by_memory(30_000))
        log.scheduler.cycle(allocated(task, fraction))
    findings = found(log)
    assert [each.predicate for each in findings] == ["S5", "S5", "S3"]
    assert "n3 slot 0: 60000 of 40000 MiB of the GPU requested" in str(findings[-1])


def test_a_node_whose_agent_learned_the_memory_of_its_gpus_takes_fractions_by_memory(
    log: LogBuilder,
) -> None:
    log.claim(joined("n1", gpu_memory_mib=40_000))
    log.scheduler.cycle()
    admit(log, JOB, resources=by_memory(20_000))
    log.scheduler.cycle(allocated(A, placed("n1", 0, gpu_milli=500, gpu_memory_mib=20_000)))
    assert found(log) == ()


def test_s6_a_fraction_by_memory_counts_towards_limits_as_its_part_of_the_gpus_that_it_gets(
    log: LogBuilder,
) -> None:
    log.claim(joined("n3", gpu_memory_mib=80_000))
    log.claim(joined("n4", gpu_memory_mib=40_000))
    log.scheduler.cycle()
    admit(log, JOB, resources=by_memory(20_000), max_slots_milli=300)
    fraction = placed("n4", 0, gpu_milli=500, gpu_memory_mib=20_000)
    log.scheduler.cycle(allocated(A, fraction))
    [finding] = found(log)
    assert "max_slots 300, used 0, requested 500" in finding.message
