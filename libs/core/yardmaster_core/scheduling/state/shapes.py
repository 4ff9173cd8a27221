"""Shapes: what makes tasks equal for the scheduler.

Tasks of one project with the same requests share a `Shape`. If one of them does not fit, none of
them fits, and one recorded reason applies to all.
"""

from copy import copy
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.requests import Layout, Unschedulable
from yardmaster_schemas.resources import fraction_of

#: gpu_milli of a whole GPU.
WHOLE: Final = 1000

#: project, pools, node types, preemptible, fails when it can never fit, replicas, gpus, gpu_milli,
#: cpu_milli, memory_mib, job id.
Request = tuple[
    str, tuple[str, ...], tuple[str, ...], bool, bool, int, int, int, int, int, str | None
]
#: Whether on whole nodes; nodes to avoid. None: the request has neither.
Constraints = tuple[bool, tuple[str, ...]] | None
#: After this many consecutive failed starts a task gets a shape of its own. A single failed start
#: may be a bad node's fault: the task keeps its place, avoids that node, and preempts as before.
SEPARATE_AFTER: Final = 2
#: These failed starts expire this long after the last of them and the back-off that follows it.
EXPIRY_MS: Final = 300_000
#: Whether the nodes must run containers; whether the last starts of the tasks failed; the memory
#: of each GPU slot that is requested instead of gpu_milli (0: none); the user.
Extras = tuple[bool, bool, int, str | None]
#: The part of a shape that decides on which nodes a task fits, whatever its project.
Fit = tuple[object, ...]


class Shape:
    """The request of a task; immutable.

    `replicas` times (`gpus` slots of `gpu_milli` each, `cpu_milli`, `memory_mib`) in one of
    `pools`, in order of preference, on nodes of one of `node_types` (empty: any). `job_id` is set
    only for a job whose tasks are not equal to tasks of other jobs, `user` only where tasks of
    different users are not equal.

    With `gpu_memory_mib`, `gpu_milli` and the totals are 0: the fraction of a GPU depends on the
    node (`NodeCapacity.milli_of`) or the pool (`Pool.most_milli`).

    With `whole_nodes`, `gpus` is the total of the task and `replicas` is 1. The task is placed on
    one node, or as a gang with one replica per node, each with the CPU and memory.

    `start_failed` separates tasks whose last starts failed: they fit on the same nodes, but preempt
    no other task.
    """

    __slots__ = (
        "avoid_nodes",
        "cpu_milli",
        "fail_when_never",
        "fit",
        "fit_within_limits",
        "gpu_memory_from_mib",
        "gpu_memory_mib",
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
        "user",
        "whole_nodes",
    )

    def __init__(self, request: Request, constraints: Constraints, extras: Extras) -> None:
        self.project, self.pools, self.node_types = request[:3]
        self.preemptible, self.fail_when_never = request[3:5]
        self.replicas, self.gpus, self.gpu_milli, self.cpu_milli, self.memory_mib = request[5:10]
        self.job_id = request[10]
        self.whole_nodes, self.avoid_nodes = constraints or (False, ())
        self.image, self.start_failed, self.gpu_memory_mib, self.user = extras
        self.fit: Fit = (*request[5:10], self.node_types, constraints, self.image)
        if self.gpu_memory_mib:
            self.fit = (*self.fit, self.gpu_memory_mib)
        #: The memory that its GPUs must have at least.
        self.gpu_memory_from_mib = self.gpu_memory_mib
        #: `fit`; for a request by memory with the owners of its limits, which may leave a task only
        #: GPUs on which it takes a smaller part.
        self.fit_within_limits: Fit = self.fit
        if self.gpu_memory_mib:
            self.fit_within_limits = (*self.fit, self.project, self.job_id)
        self.replica_gpu_milli = self.gpus * self.gpu_milli
        self.total_gpu_milli = self.replicas * self.replica_gpu_milli
        #: 1 with GPUs, 0 without; the two classes never block each other.
        self.queue_class = 1 if self.gpus else 0
        # The log has the ids: a shape without the newer parts keeps the id that it always had.
        facts: tuple[object, ...] = request if constraints is None else (*request, constraints)
        facts += ("image",) * self.image + ("start_failed",) * self.start_failed
        facts += ("gpu_memory_mib", self.gpu_memory_mib) if self.gpu_memory_mib else ()
        facts += () if self.user is None else ("user", self.user)
        self.id = blake2b(repr(facts).encode(), digest_size=8).hexdigest()

    def gpu_milli_on(self, memory_mib: int) -> int:
        """The gpu_milli that a task with this request by memory takes, all its replicas together,
        on GPUs of `memory_mib`.
        """
        return self.replicas * self.gpus * fraction_of(self.gpu_memory_mib, memory_mib)


@lru_cache(maxsize=4096)
def on_larger_gpus(shape: Shape, memory_mib: int) -> Shape:
    """The same request by memory, on GPUs that have at least `memory_mib`."""
    larger = copy(shape)
    larger.gpu_memory_from_mib = memory_mib
    larger.fit = (*shape.fit, "from", memory_mib)
    return larger


def shape_of(
    job_id: str,
    project: str,
    spec: AdmittedSpec,
    *,
    own: bool | None = None,
    start_failed: bool = False,
    user: str | None = None,
) -> Shape:
    """The shape of a job's tasks; equal shapes are the same object.

    `own` overrides whether the job has a shape of its own; by default a job with `max_slots` does.
    `start_failed` selects the shape of tasks whose last starts failed, `user` that of the tasks of
    one user.
    """
    resources = spec.resources
    # A single slot is on one node anyway.
    whole = spec.layout is Layout.WHOLE_NODES and resources.gpus > 1
    constraints = (whole, spec.avoid_nodes) if whole or spec.avoid_nodes else None
    own = spec.max_slots_milli is not None if own is None else own
    return _shape(
        (
            *(project, spec.pools, spec.node_types, spec.preemptible),
            *(spec.unschedulable is Unschedulable.FAIL, spec.replicas_min),
            *(resources.gpus, resources.gpu_milli, resources.cpu_milli, resources.memory_mib),
            job_id if own else None,
        ),
        constraints,
        (spec.image, start_failed, resources.gpu_memory_mib, user),
    )


@lru_cache(maxsize=65_536)
def _shape(request: Request, constraints: Constraints, extras: Extras) -> Shape:
    return Shape(request, constraints, extras)


def shape_id(
    job_id: str,
    project: str,
    spec: AdmittedSpec,
    *,
    own: bool | None = None,
    start_failed: bool = False,
    user: str | None = None,
) -> str:
    """The id under which waits of a job's tasks are recorded (16 hex digits)."""
    return shape_of(job_id, project, spec, own=own, start_failed=start_failed, user=user).id
