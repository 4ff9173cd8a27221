"""The largest possible allocation of a job, because a job is admitted only if it fits a record."""

import json
from typing import Final

from yardmaster_schemas import plain
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.requests import Layout
from yardmaster_schemas.fields import MAX_INT, MAX_REPLICAS, MAX_SLOTS
from yardmaster_schemas.topics import DECISIONS

#: Bytes of a SlotsAllocated without its placements: envelope, headers, details, checkpoint (a URI
#: of at most 1,024 characters), rule with at most 24 numbers.
REST_BYTES: Final = 8 * 1024
#: A placement without slots in which every field has its greatest length.
_LONGEST: Final = Placement(
    replica=MAX_REPLICAS - 1,
    node="n" * 63,
    incarnation="0" * 12,
    address="a" * 254,
    slots=(),
    gpu_milli=1000,
    cpu_milli=MAX_INT,
    memory_mib=MAX_INT,
)
PLACEMENT_BYTES: Final = 1 + len(json.dumps(plain.dump(_LONGEST), separators=(",", ":")))
#: The additional bytes of a placement with a request of GPU memory; without such a request, the
#: field `gpu_memory_mib` has one digit (0).
GPU_MEMORY_BYTES: Final = len(str(MAX_INT)) - 1
#: The largest record of the topic `decisions`.
MAX_BYTES: Final = DECISIONS.max_batch_bytes
#: Bytes of a slot's index with its comma.
SLOT_BYTES: Final = 1 + len(str(MAX_SLOTS - 1))


def allocation_bytes(spec: AdmittedSpec) -> int:
    """An upper bound in bytes for the SlotsAllocated record of one task."""
    gpus = spec.resources.gpus
    if spec.layout is Layout.WHOLE_NODES:
        # In the worst case each GPU of the task is on another node.
        replicas, slots = max(1, gpus), gpus
    else:
        replicas, slots = spec.replicas_max, spec.replicas_max * gpus
    each = PLACEMENT_BYTES + (GPU_MEMORY_BYTES if spec.resources.gpu_memory_mib else 0)
    return REST_BYTES + replicas * each + slots * SLOT_BYTES
