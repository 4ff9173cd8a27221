"""Names for the numbers of a wait that contain the unit of each number.

A decision names the missing resource in `about` and stores its amounts as plain numbers. A person
who reads them needs the unit of that resource, and no amounts of other resources.
"""

from collections.abc import Mapping
from typing import Final

from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources

#: The resource that a wait is about -> the suffix of the names of its numbers.
_UNITS: Final[Mapping[str, str]] = {
    "gpus": "_gpus",
    "cpus": "_cpu_milli",
    "memory": "_memory_mib",
    "gpu_memory": "_gpu_memory_mib",
    "gpuless": "_tasks",
}
#: Numbers that count nodes, whatever resource is missing.
_NODES: Final = frozenset({"blocked", "unknown_nodes"})
_IN_GPUS: Final = frozenset({WaitCode.GANG_INDIVISIBLE})


def with_units(
    code: str, about: str | None, numbers: Mapping[str, int], request: Resources, replicas: int
) -> dict[str, int]:
    """The numbers of a wait about the missing resource, with units in their names.

    `request` is that of one replica; `asked_cpu_milli` and similar numbers of a task that
    waits for free capacity are for all its replicas.
    """
    if code == WaitCode.EXCEEDS_EVERY_NODE or code in _IN_GPUS:
        unit = _UNITS.get(about or "gpus", "")
        return {key if key in _NODES else f"{key}{unit}": n for key, n in numbers.items()}
    if code == WaitCode.INSUFFICIENT_FREE and about in ("cpus", "memory"):
        # The task requests no GPU, so the number of free GPUs does not matter.
        gpus = ("asked_milli", "free_milli", "short_milli")
        found = {key: number for key, number in numbers.items() if key not in gpus}
        found["asked_cpu_milli"] = request.cpu_milli * replicas
        if request.memory_mib:
            found["asked_memory_mib"] = request.memory_mib * replicas
        return found
    return dict(numbers)
