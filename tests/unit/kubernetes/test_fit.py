"""Why a pod does not fit; test_kubernetes_fit.py compares the rules with the scheduler."""

from typing import Any

import msgspec
import pytest

from yardmaster_kubernetes.fit import free_capacity, may_run_on, misfits
from yardmaster_kubernetes.objects import Node, Pod
from yardmaster_kubernetes.refused_fields import refused_fields

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node(**parts: Any) -> Node:
    body: dict[str, Any] = {
        "metadata": {"name": "n1", "labels": parts.get("labels", {})},
        "spec": {"taints": parts.get("taints", []), "unschedulable": parts.get("cordoned", False)},
        "status": {"allocatable": parts.get("allocatable", {"cpu": "4", "pods": "10"})},
    }
    return msgspec.convert(body, Node)


def pod(requests: dict[str, str] | None = None, phase: str = "Pending", **spec: Any) -> Pod:
    containers = [{"name": "c", "resources": {"requests": requests or {}}}]
    body = {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}
    return msgspec.convert({**body, "status": {"phase": phase}}, Pod)


def test_free_capacity_is_allocatable_less_the_pods_that_have_not_ended() -> None:
    others = [
        pod({"cpu": "1"}, "Running", nodeName="n1"),
        pod({"cpu": "1"}, "Succeeded", nodeName="n1"),
        pod({"cpu": "1"}, "Failed", nodeName="n1"),
        pod({"cpu": "1"}),
    ]
    assert free_capacity(node(), others) == {"cpu": 3000, "pods": 9}


def test_a_resource_that_the_node_lost_is_overcommitted() -> None:
    others = [pod({"nvidia.com/gpu": "2"}, "Running", nodeName="n1")]
    assert free_capacity(node(), others)["nvidia.com/gpu"] == -2
    assert misfits(pod(), node(), free_capacity(node(), others)) == []


def test_every_reason_is_named() -> None:
    where = node(
        cordoned=True,
        taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}],
        allocatable={"cpu": "1"},
    )
    wanted = pod({"cpu": "2", "nvidia.com/gpu": "1"}, nodeSelector={"zone": "a"}, nodeName="n2")
    assert misfits(wanted, where, free_capacity(where, [])) == [
        "unschedulable",
        "node_name",
        "taint team",
        "node_affinity",
        "insufficient cpu",
        "insufficient nvidia.com/gpu",
        "insufficient pods",
    ]


@pytest.mark.parametrize(
    ("operator", "values", "labels", "meets"),
    [
        ("In", ["a", "b"], {"zone": "b"}, True),
        ("In", ["a", "b"], {}, False),
        ("In", [""], {"zone": ""}, True),
        ("In", [""], {}, False),
        ("NotIn", ["a"], {"zone": "b"}, True),
        ("NotIn", ["a"], {"zone": "a"}, False),
        ("NotIn", ["a"], {}, True),
        ("Exists", [], {"zone": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"zone": ""}, False),
        ("Gt", ["7"], {"zone": "8"}, True),
        ("Gt", ["7"], {"zone": "7"}, False),
        ("Gt", ["7"], {"zone": "x8"}, False),
        ("Gt", ["-1"], {}, False),
        ("Lt", ["7"], {"zone": "6"}, True),
        ("Lt", ["7"], {"zone": "7"}, False),
        ("Lt", ["7"], {"zone": str(-(2**63) - 1)}, False),
    ],
)
def test_each_operator_of_a_requirement(
    operator: str, values: list[str], labels: dict[str, str], meets: bool
) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    assert may_run_on(pod(affinity=affinity), node(labels=labels)) is meets


def test_a_cordon_is_tolerated_like_its_taint() -> None:
    where = node(cordoned=True)
    key = "node.kubernetes.io/unschedulable"
    tolerant = pod(tolerations=[{"key": key, "operator": "Exists"}])
    assert misfits(tolerant, where, free_capacity(where, [])) == []
    other = pod(tolerations=[{"key": key, "operator": "Exists", "effect": "NoExecute"}])
    assert misfits(other, where, free_capacity(where, [])) == ["unschedulable"]


def test_an_operator_that_is_not_known_matches_no_node() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    where = node(labels={"zone": "a"})
    assert misfits(pod(affinity=affinity), where, free_capacity(where, [])) == ["node_affinity"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"schedulingGroup": {"podGroupName": "g"}}, "spec.schedulingGroup"),
        ({"workloadRef": {"name": "w"}}, "spec.workloadRef"),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "spec.topologySpreadConstraints[0]",
        ),
        ({"volumes": [{"name": "a"}, {"ephemeral": {}}]}, "spec.volumes[1].ephemeral"),
        (
            {"volumes": [{"awsElasticBlockStore": {"volumeID": "v"}}]},
            "spec.volumes[0].awsElasticBlockStore",
        ),
        (
            {"initContainers": [{"ports": [{"containerPort": 1}, {"hostPort": 80}]}]},
            "spec.initContainers[0].ports[1].hostPort",
        ),
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, f"spec.affinity.podAffinity.{REQUIRED}"),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}},
            f"spec.affinity.podAntiAffinity.{REQUIRED}",
        ),
    ],
)
def test_fields_that_are_not_honored_are_refused_by_name(spec: dict[str, Any], field: str) -> None:
    assert refused_fields(pod(**spec)) == [field]


def test_a_fraction_of_a_gpu_is_refused() -> None:
    asks = {"metadata": {"annotations": {"gpu-fraction": "0.5", "other": "x"}}}
    assert refused_fields(msgspec.convert(asks, Pod)) == ["metadata.annotations[gpu-fraction]"]


def test_a_pod_of_fields_that_are_honored_is_not_refused() -> None:
    spread = [{"whenUnsatisfiable": "ScheduleAnyway"}]
    volumes = [{"emptyDir": {}}, {"configMap": {"name": "c"}}, {"hostPath": {"path": "/data"}}]
    assert refused_fields(pod(topologySpreadConstraints=spread, volumes=volumes)) == []
