"""The fields of a pod that this scheduler does not honor: it refuses the pod and names them.

A scheduler that binds a pod with one of these fields would skip a check that the pod relies on.
"""

from collections.abc import Iterator, Sequence

from yardmaster_kubernetes.objects import Pod, Volume


def refused_fields(pod: Pod) -> Sequence[str]:
    """The paths of the fields for which the pod is refused, in the order of the pod's text.

    A pod with scheduling gates is not refused, but must wait until they are removed.
    """
    return list(_refused(pod))


def _refused(pod: Pod) -> Iterator[str]:
    for annotation, value in (
        ("gpu-fraction", pod.metadata.annotations.gpu_fraction),
        ("gpu-memory", pod.metadata.annotations.gpu_memory),
    ):
        if value is not None:
            yield f"metadata.annotations[{annotation}]"
    spec = pod.spec
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if spec.affinity.pod_affinity.required:
        yield f"spec.affinity.podAffinity.{required}"
    if spec.affinity.pod_anti_affinity.required:
        yield f"spec.affinity.podAntiAffinity.{required}"
    for field, containers in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    ):
        for index, container in enumerate(containers):
            for number, port in enumerate(container.ports):
                if port.host_port:
                    yield f"spec.{field}[{index}].ports[{number}].hostPort"
    if spec.resource_claims:
        yield "spec.resourceClaims"
    for index, constraint in enumerate(spec.topology_spread_constraints):
        if constraint.when_unsatisfiable != "ScheduleAnyway":
            yield f"spec.topologySpreadConstraints[{index}]"
    for index, volume in enumerate(spec.volumes):
        for name, field in zip(
            Volume.__struct_fields__, Volume.__struct_encode_fields__, strict=True
        ):
            if getattr(volume, name) is not None:
                yield f"spec.volumes[{index}].{field}"
    if spec.scheduling_group is not None:
        yield "spec.schedulingGroup"
    if spec.workload_ref is not None:
        yield "spec.workloadRef"
