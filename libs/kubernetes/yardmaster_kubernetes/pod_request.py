"""The resources that a pod requests, by the rules of Kubernetes 1.34."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from yardmaster_kubernetes.objects import Container, ContainerStatus, Pod, Quantities
from yardmaster_kubernetes.quantity import milli, nano, whole

#: By resource: `cpu` in thousandths of a CPU, all others (`nvidia.com/gpu`) as whole numbers.
Amounts: TypeAlias = Mapping[str, int]

CPU: Final = "cpu"
PODS: Final = "pods"
_OF_PODS: Final = frozenset({CPU, "memory"})


def pod_request(pod: Pod) -> Amounts:
    """The resources that a pod requests of its node, `pods` not included.

    The init containers run one after another, before the containers; sidecars run from their turn
    on. Requests of the pod as a whole replace the sums of its containers. While a pod is resized,
    the larger of its old and new request counts.

    Raises:
        QuantityInvalid.
    Source: PodRequests of k8s.io/component-helpers/resource v0.34.4.
    """
    infeasible = any(
        condition.type == "PodResizePending" and condition.reason == "Infeasible"
        for condition in pod.status.conditions
    )
    statuses = {
        status.name: status
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    }
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, _container(container, statuses, infeasible))
    sidecars: dict[str, int] = {}
    initial: dict[str, int] = {}
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            request = _container(container, statuses, infeasible)
            _add(total, request)
            _add(sidecars, request)
        else:
            alone = _nano(container.resources.requests)
            _add(alone, sidecars)
            _raise(initial, alone)
    _raise(total, initial)
    for name, text in pod.spec.resources.requests.items():
        if name in _OF_PODS or name.startswith("hugepages-"):
            total[name] = nano(text)
    _add(total, _nano(pod.spec.overhead))
    return rounded(total)


def amounts(quantities: Quantities) -> Amounts:
    """Quantities as numbers, each rounded up.

    Raises:
        QuantityInvalid.
    """
    return rounded(_nano(quantities))


def rounded(total: Mapping[str, int]) -> Amounts:
    """Billionths as thousandths of CPUs, and whole numbers of the rest."""
    return {name: milli(size) if name == CPU else whole(size) for name, size in total.items()}


def _container(
    container: Container, statuses: Mapping[str, ContainerStatus], infeasible: bool
) -> dict[str, int]:
    """The request of a container that may be resized while it runs."""
    status = statuses.get(container.name)
    if status is None or status.resources is None:
        return _nano(container.resources.requests)
    request = {} if infeasible else _nano(container.resources.requests)
    _raise(request, _nano(status.resources.requests))
    _raise(request, _nano(status.allocated_resources))
    return request


def _nano(quantities: Quantities) -> dict[str, int]:
    return {name: nano(text) for name, text in quantities.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, size in more.items():
        total[name] = total.get(name, 0) + size


def _raise(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, size in floor.items():
        total[name] = max(total.get(name, 0), size)


def sum_of(requests: Iterable[Amounts]) -> Amounts:
    """The sum of several requests."""
    total: dict[str, int] = {}
    for request in requests:
        _add(total, request)
    return total
