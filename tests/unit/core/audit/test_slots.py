"""S3: slots, and the nodes that have them."""

import dataclasses
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    exited,
    incarnation,
    joined,
    placed,
)
from tests.unit.core.audit.cell_log import (
    JOB,
    OTHER,
    THIRD,
    A,
    B,
    C,
    admit,
    expect_one,
    found,
    lost,
    requeued,
    run,
    silent,
)
from yardmaster_schemas.events.decisions import (
    LossCause,
)
from yardmaster_schemas.events.node_events import NodeDrainedV1
from yardmaster_schemas.resources import Resources


def test_s3_two_attempts_on_one_slot(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 0)))
    expect_one(log, "S3", "n1 slot 0", "found 2000", A, B)


def test_s3_fractions_fill_a_slot_and_no_more(log: LogBuilder) -> None:
    half = Resources(gpus=1, gpu_milli=500, cpu_milli=1000, memory_mib=1024)
    admit(log, JOB, OTHER, THIRD, resources=half)
    where = placed("n1", 2, gpu_milli=500)
    log.scheduler.cycle(allocated(A, where), allocated(B, where))
    assert found(log) == ()
    log.scheduler.cycle(allocated(C, where))
    expect_one(log, "S3", "found 1500")


def test_s3_a_slot_is_held_until_it_is_released(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.claim(exited(A, "n1"))
    log.scheduler.cycle(allocated(B, placed("n1", 0)))
    expect_one(log, "S3", "slot 0")


@pytest.mark.parametrize(
    ("resources", "unit"),
    [({"cpu_milli": 40_000}, "cpu_milli"), ({"memory_mib": 200_000}, "MiB")],
)
def test_s3_more_than_the_node_has(log: LogBuilder, resources: Any, unit: str) -> None:
    big = Resources(**({"cpu_milli": 1000, "memory_mib": 1024} | resources))
    admit(log, JOB, OTHER, resources=big)
    where = dataclasses.replace(placed("n1"), **resources)
    log.scheduler.cycle(allocated(A, where), allocated(B, where))
    expect_one(log, "S3", unit)


@pytest.mark.parametrize(
    ("where", "word"),
    [
        (placed("n9", 0), "is unknown"),
        (placed("n1", 0, life=2), "expected 000000000002"),
        (placed("n1", 9), "has 4 slots"),
    ],
)
def test_s3_a_placement_that_does_not_exist(log: LogBuilder, where: Any, word: str) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, where))
    expect_one(log, "S3", word)


def test_s3_another_pools_node(log: LogBuilder) -> None:
    log.claim(joined("x1", pool="other"))
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("x1", 0)))
    expect_one(log, "S3", "of pool default", "of pool other")


def test_s3_a_node_that_left_or_was_lost(log: LogBuilder) -> None:
    log.claim(NodeDrainedV1(node="n1", incarnation=incarnation()))
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S3", "gone")


def test_s3_a_lost_node_that_leaves_a_replica_open(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(silent("n1"), lost("n1"), after_ms=70_000)
    expect_one(log, "S3", "closed and open replicas differ", A)


def test_s3_a_lost_incarnation_that_was_accepted_again(log: LogBuilder) -> None:
    log.scheduler.cycle(silent("n1"), lost("n1"), after_ms=70_000)
    log.claim(joined("n1"))
    log.scheduler.cycle()
    expect_one(log, "S3", "was lost", topic="node-events")


def test_s3_a_replaced_node_without_a_successor(log: LogBuilder) -> None:
    log.scheduler.cycle(lost("n1", cause=LossCause.REPLACED))
    expect_one(log, "S3", "no other incarnation joined")


def test_s3_a_replaced_node_frees_its_slots(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.claim(joined("n1", life=2))
    log.scheduler.cycle(lost("n1", (A, 0), cause=LossCause.REPLACED), requeued(A))
    log.scheduler.cycle(allocated(A, placed("n1", 0, life=2), attempt=2))
    assert found(log) == ()
