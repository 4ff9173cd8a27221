"""The allocation of an admitted job fits into a batch."""

import pytest

from tests.unit.core.admission.admission_cell import CELL_SETUP, AdmissionCell, gpus, job
from yardmaster_core.admission.size import MAX_BYTES, allocation_bytes
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import batch_bytes
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.decisions import Checkpoint, Placement, SlotsAllocatedV1
from yardmaster_schemas.events.requests import DetailsRef, Layout
from yardmaster_schemas.fields import MAX_INT, MAX_REPLICAS, MAX_SLOTS
from yardmaster_schemas.reasons import Start
from yardmaster_schemas.resources import Resources

NO_GPU = Resources(cpu_milli=100)


def worst(replicas: int, slots: int) -> int:
    """Bytes of a batch with one allocation whose fields have their greatest length."""
    placements = tuple(
        Placement(
            replica=MAX_REPLICAS - 1,
            node="n" * 63,
            incarnation="0" * 12,
            address="a" * 254,
            slots=tuple(range(MAX_SLOTS - slots, MAX_SLOTS)),
            gpu_milli=1000,
            cpu_milli=MAX_INT,
            memory_mib=MAX_INT,
        )
        for _ in range(replicas)
    )
    event = SlotsAllocatedV1(
        task_id="4kq7w2mz9c1f.9999",
        attempt=MAX_INT,
        pool="p" * 63,
        project="p" * 63,
        tasks=10_000,
        placements=placements,
        master_port=65_535,
        details=DetailsRef(partition=MAX_INT, offset=MAX_INT, digest="0" * 64),
        checkpoint=Checkpoint(uri="file://" + "c" * 1017, step=MAX_INT),
        start=Start(rule="r" * 41, numbers={f"n{n:02d}" + "x" * 38: MAX_INT for n in range(24)}),
        grace_s=10 * 365 * 86_400,
        fence_s=MAX_INT,
        image="sha256:" + "0" * 64,
    )
    envelope = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source="scheduler/" + "c" * 63 + "." + "0" * 12,
        epoch=MAX_INT,
        seq=MAX_INT,
        subject=event.task_id,
        time_ms=253_402_300_799_999,
        actor=Actor(kind=ActorKind.SERVICE, id="scheduler"),
        cause="quota/" + "c" * 63 + ".000000000000/9007199254740991/9007199254740991",
        traceparent="00-" + "0" * 32 + "-" + "0" * 16 + "-00",
        data=event,
    )
    return batch_bytes([encode(envelope, "c" * 63)])


@pytest.mark.parametrize(("replicas", "each"), [(1, 0), (1, 8), (100, 1), (1900, 8), (2100, 0)])
def test_no_allocation_is_larger_than_its_upper_bound(replicas: int, each: int) -> None:
    verdict = AdmissionCell(*CELL_SETUP).one(
        job(resources=gpus(each) if each else NO_GPU, replicas_min=replicas, replicas_max=replicas)
    )
    assert isinstance(verdict, TaskAdmittedV1)
    assert worst(replicas, each) <= allocation_bytes(verdict.spec) <= MAX_BYTES


def test_a_gang_whose_allocation_exceeds_a_record_is_refused() -> None:
    verdict = AdmissionCell(*CELL_SETUP).one(
        job(resources=NO_GPU, replicas_min=2200, replicas_max=MAX_REPLICAS)
    )
    assert isinstance(verdict, TaskRejectedV1)
    assert verdict.code == "allocation_too_large"
    assert verdict.numbers["replicas"] == MAX_REPLICAS
    assert verdict.numbers["bytes"] > verdict.numbers["limit_bytes"] == MAX_BYTES


def test_the_bound_of_a_task_on_whole_nodes_assumes_one_node_for_each_gpu() -> None:
    verdict = AdmissionCell(*CELL_SETUP).one(job(resources=gpus(1024), layout=Layout.WHOLE_NODES))
    assert isinstance(verdict, TaskAdmittedV1)
    assert worst(1024, 1) <= allocation_bytes(verdict.spec)
