"""The part of a node's free GPUs that requests cannot use."""

from typing import Any

from yardmaster_core.testing import admitted_spec
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Layout
from yardmaster_schemas.resources import Resources
from yardmaster_simulation.fragments import CLASSES, Demand, FreeNode


def node(gpus: int = 8, cpu_milli: int = 8000) -> FreeNode:
    return FreeNode(
        NodeJoinedV1(
            node="n1",
            incarnation="0" * 12,
            boot_id="00000000",
            schema_version=1,
            pool="main",
            node_type="any",
            gpus=gpus,
            cpu_milli=cpu_milli,
            memory_mib=1000,
            address="h",
            port_first=1,
            port_last=2,
        )
    )


def place(*slots: int, gpu_milli: int = 1000, cpu_milli: int = 0) -> Placement:
    return Placement(
        replica=0,
        node="n1",
        incarnation="0" * 12,
        address="h",
        slots=slots,
        gpu_milli=gpu_milli,
        cpu_milli=cpu_milli,
        memory_mib=0,
    )


def demand(*sizes: tuple[int, Resources], **spec: Any) -> Demand:
    found = Demand()
    for tasks, resources in sizes:
        found.add(admitted_spec(resources=resources, tasks=tasks, **spec))
    found.choose()
    return found


def gpus(count: int, milli: int = 1000, cpu_milli: int = 0) -> Resources:
    return Resources(gpus=count, gpu_milli=milli, cpu_milli=cpu_milli)


def test_too_few_gpus_are_of_no_use_to_those_who_want_more() -> None:
    wanted = demand((1, gpus(1)), (3, gpus(4)))
    free = node()
    free.allocate(place(0, 1, 2, 3, 4))
    assert wanted.unusable(free) / wanted.weight == 3000 * 3 / 4
    free.allocate(place(3, 4), -1)
    assert wanted.unusable(free) == 0


def test_parts_of_slots_are_of_use_to_small_fractions_alone() -> None:
    wanted = demand((1, gpus(1)), (1, gpus(1, 500)), (1, gpus(1, 200)))
    free = node(gpus=2)
    free.allocate(place(0, gpu_milli=700))
    # 300 of slot 0 cannot serve a whole GPU nor a half; slot 1 serves every demand.
    assert wanted.unusable(free) == 300 + 300
    free.allocate(place(1))
    assert wanted.unusable(free) == 300 + 300
    free.allocate(place(0, gpu_milli=700), -1)
    assert free.slots == [1000, 0]


def test_without_cpu_no_gpu_is_of_use() -> None:
    wanted = demand((1, gpus(1, cpu_milli=4000)))
    free = node(cpu_milli=4000)
    assert wanted.unusable(free) == 0
    free.allocate(place(0, cpu_milli=1))
    assert wanted.unusable(free) == 7000


def test_who_takes_whole_nodes_has_use_for_idle_ones_alone() -> None:
    wanted = demand((1, gpus(32)), layout=Layout.WHOLE_NODES)
    free = node()
    assert wanted.unusable(free) == 0
    free.allocate(place(0))
    assert wanted.unusable(free) == 7000


def test_tasks_without_gpus_are_left_out() -> None:
    assert demand((5, Resources(cpu_milli=99_000))).unusable(node()) == 0


def test_a_few_sizes_stand_for_many() -> None:
    wanted = demand(*((1 if size < 90 else 30, gpus(size)) for size in range(1, 101)))
    assert sum(weight for _, weight in wanted.classes) == wanted.weight == CLASSES
    # 89 of the 419 are below 90: seven of the 32 middles.
    assert sum(weight for size, weight in wanted.classes if size[0] < 90) == 7


def test_the_sizes_are_chosen_again_when_there_is_a_quarter_more() -> None:
    wanted = demand((100, gpus(1)))
    assert wanted.next_total == 126
