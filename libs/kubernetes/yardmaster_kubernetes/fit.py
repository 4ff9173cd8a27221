"""Whether a pod fits a node, as kube-scheduler's filters decide it.

`misfits` covers the filters NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and
NodeResourcesFit. Fields that other filters read are found by `refused_fields`: a pod with one must
be refused by that name. Pods on other nodes are not looked at, so an anti-affinity of theirs that
forbids this pod is not seen.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from yardmaster_kubernetes.objects import (
    Node,
    NodeSelectorTerm,
    Pod,
    Requirement,
    Taint,
    Toleration,
)
from yardmaster_kubernetes.pod_request import PODS, Amounts, amounts, pod_request, sum_of

_UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)


def free_capacity(node: Node, others: Iterable[Pod]) -> Amounts:
    """The allocatable resources of a node less those of the pods that run on it.

    Pods that have ended use none, pods that are being deleted still do. A value is negative where
    the node has too many pods, as after a device plugin restarted.

    Raises:
        QuantityInvalid.
    """
    present = [pod for pod in others if pod.uses_capacity]
    used = sum_of(pod_request(pod) for pod in present)
    allocatable = amounts(node.status.allocatable)
    free = {name: size - used.get(name, 0) for name, size in allocatable.items()}
    free.update((name, -size) for name, size in used.items() if name not in allocatable)
    free[PODS] = allocatable.get(PODS, 0) - len(present)
    return free


def misfits(pod: Pod, node: Node, free: Amounts) -> Sequence[str]:
    """Why a pod does not fit a node with `free` resources; empty if it fits.

    The reasons are `unschedulable`, `node_name`, `taint KEY`, `node_affinity` and
    `insufficient RESOURCE`.
    """
    found: list[str] = []
    tolerations = pod.spec.tolerations
    if node.spec.unschedulable and not tolerated(_UNSCHEDULABLE, tolerations):
        found.append("unschedulable")
    if pod.spec.node_name not in ("", node.metadata.name):
        found.append("node_name")
    found += [
        f"taint {taint.key}"
        for taint in node.spec.taints
        if taint.effect in _KEEPS_AWAY and not tolerated(taint, tolerations)
    ]
    if not may_run_on(pod, node):
        found.append("node_affinity")
    request = {**pod_request(pod), PODS: 1}
    found += [
        f"insufficient {name}"
        for name, size in sorted(request.items())
        if size > 0 and size > free.get(name, 0)
    ]
    return found


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether one of the tolerations tolerates the taint."""
    return any(
        each.effect in ("", taint.effect)
        and each.key in ("", taint.key)
        and (
            each.operator == "Exists"
            or (each.operator in ("", "Equal") and each.value == taint.value)
        )
        for each in tolerations
    )


def may_run_on(pod: Pod, node: Node) -> bool:
    """Whether the node meets the pod's node selector and its required node affinity."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = pod.spec.affinity.node_affinity.required
    return required is None or any(
        _meets(node.metadata.name, labels, term) for term in required.node_selector_terms
    )


def _meets(name: str, labels: Mapping[str, str], term: NodeSelectorTerm) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    # An operator that is not known meets no node, rather than all.
    return all(
        each.operator in OPERATORS and OPERATORS[each.operator](each, labels)
        for each in term.match_expressions
    ) and all(
        each.operator in ("In", "NotIn") and OPERATORS[each.operator](each, fields)
        for each in term.match_fields
    )


def _compared(requirement: Requirement, labels: Mapping[str, str]) -> int:
    """1 if the label's number is above the required one, -1 if below, 0 if equal or no number."""
    texts = [labels.get(requirement.key, ""), *requirement.values]
    if len(texts) != 2 or not all(_INTEGER.fullmatch(text) for text in texts):
        return 0
    value, limit = map(int, texts)
    if value not in _INT64 or limit not in _INT64:
        return 0
    return (value > limit) - (value < limit)


#: By operator of a requirement: whether labels meet it.
OPERATORS: Final[Mapping[str, Callable[[Requirement, Mapping[str, str]], bool]]] = {
    "In": lambda each, labels: each.key in labels and labels[each.key] in each.values,
    "NotIn": lambda each, labels: each.key not in labels or labels[each.key] not in each.values,
    "Exists": lambda each, labels: each.key in labels,
    "DoesNotExist": lambda each, labels: each.key not in labels,
    "Gt": lambda each, labels: _compared(each, labels) > 0,
    "Lt": lambda each, labels: _compared(each, labels) < 0,
}
