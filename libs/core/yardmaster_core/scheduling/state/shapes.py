"""What tasks that are equal to the scheduler have in common.

Tasks that ask for the same thing on behalf of the same project share a `Shape`: when one of them
does not fit, none does, and one recorded reason answers for all.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.requests import Layout, Unschedulable

WHOLE: Final = 1000


#: project, pools, node types, preemptible, fails when it can never fit, replicas, gpus, gpu_milli,
#: cpu_milli, memory_mib, job id
Asked = tuple[
    str, tuple[str, ...], tuple[str, ...], bool, bool, int, int, int, int, int, str | None
]
#: Whether on whole nodes; nodes to avoid. None: neither is asked for.
Where = tuple[bool, tuple[str, ...]] | None
#: After so many failed starts in a row a task is set apart from its equals. One may be a bad node's
#: fault: the task keeps its place, avoids that node, and preempts as before.
APART_AFTER: Final = 2
#: Whether a node that runs containers is needed; whether these are tasks whose last starts failed.
Also = tuple[bool, bool]
#: What decides on which nodes a task fits, on whomever's behalf.
Fit = tuple[object, ...]


class Shape:
    """What a task asks for; never changed once made.

    `replicas` times (`gpus` slots of `gpu_milli` each, `cpu_milli`, `memory_mib`) in one of
    `pools`, in order of preference, on nodes of one of `node_types` (empty: any). `job_id` is set
    only for jobs with a bound of their own, whose tasks are equal to no other job's.

    With `whole_nodes` the `gpus` are all of the task's and `replicas` is 1: it is placed on one
    node, or as a gang of as many replicas as nodes are taken, with CPU and memory for each.

    `start_failed` sets the tasks whose last starts failed apart from their equals: they fit on the
    same nodes, but preempt no other task.
    """

    __slots__ = (
        "avoid_nodes",
        "cpu_milli",
        "fail_when_never",
        "fit",
        "gpu_milli",
        "gpus",
        "id",
        "image",
        "job_id",
        "memory_mib",
        "node_types",
        "pools",
        "preemptible",
        "project",
        "queue_class",
        "replica_gpu_milli",
        "replicas",
        "start_failed",
        "total_gpu_milli",
        "whole_nodes",
    )

    def __init__(self, asked: Asked, where: Where, also: Also) -> None:
        self.project, self.pools, self.node_types = asked[:3]
        self.preemptible, self.fail_when_never = asked[3:5]
        self.replicas, self.gpus, self.gpu_milli, self.cpu_milli, self.memory_mib = asked[5:10]
        self.job_id = asked[10]
        self.whole_nodes, self.avoid_nodes = where or (False, ())
        self.image, self.start_failed = also
        self.fit: Fit = (*asked[5:10], self.node_types, where, self.image)
        self.replica_gpu_milli = self.gpus * self.gpu_milli
        self.total_gpu_milli = self.replicas * self.replica_gpu_milli
        #: 0: asks for no GPU; 1: asks for GPUs. The two never block each other.
        self.queue_class = 1 if self.gpus else 0
        # Ids are in the log: what asks for none of it keeps the one that it always had.
        told: tuple[object, ...] = asked if where is None else (*asked, where)
        told += ("image",) * self.image + ("start_failed",) * self.start_failed
        self.id = blake2b(repr(told).encode(), digest_size=8).hexdigest()


def shape_of(
    job_id: str,
    project: str,
    spec: AdmittedSpec,
    *,
    bound: bool | None = None,
    start_failed: bool = False,
) -> Shape:
    """The shape of a job's tasks: the same object for equal ones.

    `bound` says whether the job has a bound of its own (`max_slots`), when that was changed since
    its admission; `start_failed` asks for the shape of the tasks whose last starts failed.
    """
    resources = spec.resources
    # What one slot holds is on one node anyway.
    whole = spec.layout is Layout.WHOLE_NODES and resources.gpus > 1
    where = (whole, spec.avoid_nodes) if whole or spec.avoid_nodes else None
    bound = spec.max_slots_milli is not None if bound is None else bound
    return _shape(
        (
            *(project, spec.pools, spec.node_types, spec.preemptible),
            *(spec.unschedulable is Unschedulable.FAIL, spec.replicas_min),
            *(resources.gpus, resources.gpu_milli, resources.cpu_milli, resources.memory_mib),
            job_id if bound else None,
        ),
        where,
        (spec.image, start_failed),
    )


@lru_cache(maxsize=65_536)
def _shape(asked: Asked, where: Where, also: Also) -> Shape:
    return Shape(asked, where, also)


def shape_id(
    job_id: str,
    project: str,
    spec: AdmittedSpec,
    *,
    bound: bool | None = None,
    start_failed: bool = False,
) -> str:
    """The id under which waits of a job's tasks are recorded (16 hex digits)."""
    return shape_of(job_id, project, spec, bound=bound, start_failed=start_failed).id
