"""An index built at once equals one built by single changes."""

import random

from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_schemas.events.decisions import Placement


def _placement(slots: tuple[int, ...], gpu_milli: int, cpu_milli: int, mib: int) -> Placement:
    return Placement(
        replica=0,
        node="n",
        incarnation="0" * 12,
        address="127.0.0.1",
        slots=slots,
        gpu_milli=gpu_milli,
        cpu_milli=cpu_milli,
        memory_mib=mib,
    )


def test_refile_gives_the_same_index_as_single_changes() -> None:
    chance = random.Random(5)
    kept, rebuilt = CapacityIndex(), CapacityIndex()
    for ordinal in range(70):
        gpus = chance.choice([0, 1, 8])
        cpu, mib = chance.choice([0, 1000, 96_000]), chance.choice([0, 4096])
        placed = []
        for slot in range(chance.randint(0, gpus)):
            milli = chance.choice([1000, 1000, 250])
            placed.append(_placement((slot,), milli, chance.randint(0, 2), chance.randint(0, 2)))
        capacities = NodeCapacity(ordinal, gpus, cpu, mib), NodeCapacity(ordinal, gpus, cpu, mib)
        for index, capacity in zip((kept, rebuilt), capacities, strict=True):
            index.add(capacity, "any")
        if chance.random() < 0.8:
            for index, capacity in zip((kept, rebuilt), capacities, strict=True):
                index.open_node(capacity)
        for one in placed:
            kept.take(capacities[0], one.slots, one.gpu_milli, one.cpu_milli, one.memory_mib)
        capacities[1].fill(gpus, cpu, mib, placed)
    kept.flush()
    rebuilt.refile()
    for name in ("available", "of_type", "free_milli", "whole", "shared", "cpu", "memory"):
        assert getattr(rebuilt, name) == getattr(kept, name), name
    for ordinal, capacity in kept.capacities.items():
        other = rebuilt.capacities[ordinal]
        for name in NodeCapacity.__slots__:
            assert getattr(other, name) == getattr(capacity, name), (ordinal, name)
