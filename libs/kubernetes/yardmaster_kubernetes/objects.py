"""The parts of nodes and pods that are read.

Decoding drops every other field, environments of containers above all, so that many pods need
little memory. For this reason an object must never be written back: only patch it.
"""

from typing import Final, TypeAlias

import msgspec

#: Quantities by resource, as Kubernetes writes them.
Quantities: TypeAlias = dict[str, str]

TERMINAL: Final = frozenset({"Succeeded", "Failed"})


class PartialObject(msgspec.Struct, rename="camel", frozen=True, gc=False, omit_defaults=True):
    """A part of an object; unknown fields are dropped."""


class Present(PartialObject, frozen=True):
    """A field whose content is not read."""


class OwnerReference(PartialObject, frozen=True):
    """The object that made this one."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Annotations(PartialObject, frozen=True):
    """Annotations that ask for less than one GPU, in the way of other schedulers."""

    gpu_fraction: str | None = msgspec.field(name="gpu-fraction", default=None)
    gpu_memory: str | None = msgspec.field(name="gpu-memory", default=None)


class Metadata(PartialObject, frozen=True):
    """Identity and labels. An object made again under its name has another `uid`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: Annotations = Annotations()
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Condition(PartialObject, frozen=True):
    """A condition of a node, pod or group."""

    type: str = ""
    status: str = ""
    reason: str = ""


# --- nodes ----------------------------------------------------------------------------------------


class Taint(PartialObject, frozen=True):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(PartialObject, frozen=True):
    """The wish of operators for a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeInfo(PartialObject, frozen=True):
    """The running system of a node."""

    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(PartialObject, frozen=True):
    """The state of a node, as its kubelet reports it."""

    allocatable: Quantities = {}
    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()


class Node(PartialObject, frozen=True):
    """A node of the cluster."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- pods -----------------------------------------------------------------------------------------


class Requirement(PartialObject, frozen=True):
    """One requirement on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(PartialObject, frozen=True):
    """Requirements that must all be met; a term without any is met by no node."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(PartialObject, frozen=True):
    """Terms, one of which must be met."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class NodeAffinity(PartialObject, frozen=True):
    """The nodes that a pod may run on; preferences are not read."""

    required: NodeSelector | None = msgspec.field(name=_REQUIRED, default=None)


class PodAffinity(PartialObject, frozen=True):
    """Pods that a pod must run near to, or apart from."""

    required: tuple[Present, ...] = msgspec.field(name=_REQUIRED, default=())


class Affinity(PartialObject, frozen=True):
    """All affinities of a pod."""

    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class Toleration(PartialObject, frozen=True):
    """A taint, or several, that the pod tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class ContainerResources(PartialObject, frozen=True):
    """Requests of a container or a pod; the API server has set those that only have a limit."""

    requests: Quantities = {}


class Port(PartialObject, frozen=True):
    """A port of a container."""

    host_port: int = 0


class Container(PartialObject, frozen=True):
    """A container; an init container that always restarts is a sidecar."""

    name: str = ""
    resources: ContainerResources = ContainerResources()
    ports: tuple[Port, ...] = ()
    restart_policy: str = ""


class Volume(PartialObject, frozen=True):
    """A volume that restricts the nodes of its pod; other kinds of volumes are not read."""

    persistent_volume_claim: Present | None = None
    ephemeral: Present | None = None
    gce_persistent_disk: Present | None = None
    aws_elastic_block_store: Present | None = msgspec.field(
        name="awsElasticBlockStore", default=None
    )
    azure_disk: Present | None = None
    cinder: Present | None = None
    vsphere_volume: Present | None = None
    portworx_volume: Present | None = None
    iscsi: Present | None = None
    rbd: Present | None = None


class SpreadConstraint(PartialObject, frozen=True):
    """A rule that spreads pods over a topology."""

    when_unsatisfiable: str = ""


class PodSpec(PartialObject, frozen=True):
    """The request of a pod, without environments, commands and mounts."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ContainerResources = ContainerResources()
    overhead: Quantities = {}
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int = 30
    scheduling_gates: tuple[Present, ...] = ()
    scheduling_group: Present | None = None
    workload_ref: Present | None = None
    resource_claims: tuple[Present, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()


class ContainerStatus(PartialObject, frozen=True):
    """The resources that a container has, which differ from its request while it is resized."""

    name: str = ""
    resources: ContainerResources | None = None
    allocated_resources: Quantities = {}


class PodStatus(PartialObject, frozen=True):
    """The state of a pod."""

    phase: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(PartialObject, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def uses_capacity(self) -> bool:
        """Whether it uses capacity of its node; a pod that is being deleted still does."""
        return bool(self.spec.node_name) and self.status.phase not in TERMINAL
