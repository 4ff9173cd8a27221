"""Random pairs of a node and a pod, decided by our fit and by the real kube-scheduler.

A label of its own lets each pod run only on the node of its pair. For many pairs:

    python -m tests.support.kubernetes.fit_pairs --pairs 10000 --seed 1
"""

import argparse
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from tests.support.kubernetes.control_plane import ControlPlane, created
from yardmaster_kubernetes.fit import free_capacity, misfits
from yardmaster_kubernetes.objects import Node, Pod
from yardmaster_kubernetes.refused_fields import refused_fields

#: Pairs on the control plane at a time; the scheduler tries each pod on all nodes.
BATCH: Final = 500
LIMIT_S: Final = 120.0
PAIR: Final = "pair"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
GPU: Final = "nvidia.com/gpu"
EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")
VALUES: Final = ("", "a", "b", "7", "12", "x7")
KEYS: Final = ("zone", "model", "slots")
RUNTIME: Final = "heavy"
#: The resources of a node that has enough for every pod.
PLENTY: Final = {
    **{"cpu": "1000", "memory": "1Ti", "pods": "1000", GPU: "1000"},
    **{"ephemeral-storage": "100Ti", "hugepages-2Mi": "1Ti"},
}


class NodeList(msgspec.Struct):
    """The nodes of an answer."""

    items: list[Node]


class PodList(msgspec.Struct):
    """The pods of an answer."""

    items: list[Pod]


@dataclass
class Tally:
    """How the pairs were decided."""

    fit: int = 0
    misfitting: int = 0
    #: By reason, and by field; a pair may have several.
    misfits: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return self.fit + self.misfitting


class Draw:
    """Draws nodes and pods, of three kinds, so that a rule decides alone in many pairs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.one_of = self.random.choice

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def placing(self, name: str) -> bool:
        """Whether the pair is about labels, taints and affinity."""
        return int(name.rpartition("-")[2]) % 9 >= 4

    def sizing(self, name: str) -> bool:
        """Whether the pair is about resources; others have plenty."""
        return int(name.rpartition("-")[2]) % 9 < 5

    def node(self, name: str) -> dict[str, Any]:
        placing = self.placing(name)
        labels = {key: self.one_of(VALUES) for key in KEYS if self.chance(0.6)}
        taints = {
            (key, effect): {"key": key, "value": self.one_of(("", "a", "b")), "effect": effect}
            for key in ("dedicated", "gpu")
            for effect in EFFECTS
            if self.chance(0.08)
        }
        allocatable = self.allocatable() if self.sizing(name) else PLENTY
        spec = {
            "unschedulable": placing and self.chance(0.1),
            "taints": list(taints.values()) if placing else [],
        }
        return {
            "metadata": {"name": name, "labels": {PAIR: name, **labels}},
            "spec": spec,
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }

    def allocatable(self) -> dict[str, str]:
        """Resources in the steps of the requests, so that many pods need all that is free."""
        found = {
            "cpu": f"{self.one_of(range(2, 24)) * 250}m",
            "memory": self.one_of(("8Gi", "1e9", "500M", "1073741825", "16Gi", "64G")),
            "pods": self.one_of(("110", "110", "110", "2", "1")),
        }
        if self.chance(0.9):
            found[GPU] = self.one_of(("1", "4", "8", "8"))
        if self.chance(0.95):
            found["ephemeral-storage"] = self.one_of(("20Gi", "20Gi", "2Gi"))
        if self.chance(0.9):
            found["hugepages-2Mi"] = self.one_of(("64Mi", "64Mi", "4Mi"))
        return found

    def resources(self) -> dict[str, Any]:
        requests: dict[str, str] = {}
        limits: dict[str, str] = {}
        if self.chance(0.7):
            # Some have only a limit, from which the API server makes the request.
            chosen = limits if self.chance(0.3) else requests
            chosen["cpu"] = self.one_of(("250m", "1", "1500m", "0.5", "2500u", "2"))
        if self.chance(0.6):
            chosen = limits if self.chance(0.3) else requests
            chosen["memory"] = self.one_of(("64Mi", "250M", "1Gi", "1e8", "500M", "1073741824"))
        if self.chance(0.25):
            limits[GPU] = self.one_of(("0", "1", "2", "4"))
        if self.chance(0.1):
            requests["ephemeral-storage"] = self.one_of(("1Gi", "600Mi", "1"))
        if self.chance(0.1) and {"cpu", "memory"} & {*requests, *limits}:
            limits["hugepages-2Mi"] = self.one_of(("2Mi", "4Mi", "32Mi"))
        return {"requests": requests, "limits": limits}

    def containers(self) -> dict[str, Any]:
        containers = [
            {"name": f"c{index}", "image": "none", "resources": self.resources()}
            for index in range(self.one_of((1, 1, 1, 2)))
        ]
        initial = [
            {"name": f"i{index}", "image": "none", "resources": self.resources()}
            | ({"restartPolicy": "Always"} if self.chance(0.5) else {})
            for index in range(self.one_of((0, 0, 0, 1, 2, 3)))
        ]
        spec: dict[str, Any] = {"containers": containers, "initContainers": initial}
        if self.chance(0.2):
            spec["runtimeClassName"] = RUNTIME
        if self.chance(0.15):
            whole = {"cpu": self.one_of(("3", "4500m")), "memory": self.one_of(("3Gi", "6Gi"))}
            spec["resources"] = {self.one_of(("requests", "limits")): whole}
        return spec

    def requirement(self) -> dict[str, Any]:
        operator = self.one_of(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        found: dict[str, Any] = {"key": self.one_of(KEYS), "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self.random.sample(VALUES, self.one_of((1, 2, 3)))
        elif operator in ("Gt", "Lt"):
            found["values"] = [self.one_of(("-3", "7", "10", "12"))]
        return found

    def term(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "matchExpressions": [self.requirement() for _ in range(self.one_of((0, 1, 1, 2)))]
        }
        if self.chance(0.25):
            operator = self.one_of(("In", "In", "NotIn"))
            values = [self.one_of((name, name, "other"))]
            found["matchFields"] = [
                {"key": "metadata.name", "operator": operator, "values": values}
            ]
        return found

    def toleration(self) -> dict[str, Any]:
        key = self.one_of(("dedicated", "gpu", "node.kubernetes.io/unschedulable", ""))
        if not key or self.chance(0.4):
            found = {"key": key, "operator": "Exists"} if key else {"operator": "Exists"}
        else:
            found = {"key": key, "value": self.one_of(("", "a", "b"))}
        return found | ({"effect": self.one_of(EFFECTS)} if self.chance(0.5) else {})

    def pod(self, name: str) -> dict[str, Any]:
        spec = self.containers()
        spec["nodeSelector"], spec["affinity"] = {PAIR: name}, {}
        if self.placing(name):
            if self.chance(0.15):
                spec["nodeSelector"][self.one_of(KEYS)] = self.one_of(VALUES)
            if self.chance(0.6):
                terms = [self.term(name) for _ in range(self.one_of((1, 1, 2, 3)))]
                spec["affinity"]["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
            spec["tolerations"] = [self.toleration() for _ in range(self.one_of((0, 0, 1, 2)))]
        if self.chance(0.08):
            self.refusable(spec)
        return {"metadata": {"name": name}, "spec": spec}

    def refusable(self, spec: dict[str, Any]) -> None:
        """Add a field that our fit refuses."""
        selector = {"labelSelector": {"matchLabels": {"a": "b"}}}
        match self.random.randrange(5):
            case 0:
                spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
            case 1:
                spec["affinity"]["podAntiAffinity"] = {
                    REQUIRED: [{**selector, "topologyKey": "zone"}]
                }
            case 2:
                spec["affinity"]["podAffinity"] = {REQUIRED: [{**selector, "topologyKey": "zone"}]}
            case 3:
                rule = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                spec["topologySpreadConstraints"] = [{**selector, **rule}]
            case _:
                claim = {"persistentVolumeClaim": {"claimName": "missing"}}
                spec["volumes"] = [{"name": "data", **claim}]


def compare(admin: httpx.Client, pairs: int, seed: int) -> Tally:
    """Decide `pairs` random pairs in both ways; the scheduler must run."""
    draw, tally = Draw(seed), Tally()
    overhead = {"podFixed": {"cpu": "250m", "memory": "64Mi"}}
    runtime = {"metadata": {"name": RUNTIME}, "handler": RUNTIME, "overhead": overhead}
    answer = admin.post("/apis/node.k8s.io/v1/runtimeclasses", json=runtime)
    assert answer.is_success or answer.status_code == httpx.codes.CONFLICT, answer.text
    for first in range(0, pairs, BATCH):
        _batch(admin, draw, min(BATCH, pairs - first), tally)
    return tally


def _batch(admin: httpx.Client, draw: Draw, pairs: int, tally: Tally) -> None:
    name = f"fit-{uuid.uuid4().hex[:8]}"
    created(admin.post("/api/v1/namespaces", json={"metadata": {"name": name}}))
    pods = f"/api/v1/namespaces/{name}/pods"
    names = [f"{name}-{index}" for index in range(pairs)]
    for each in names:
        created(admin.post("/api/v1/nodes", json=draw.node(each)))
        _others(admin, draw, pods, each)
    # When it is bound, the scheduler has seen all nodes and pods that were made before it.
    last = f"{name}-last"
    status = {"allocatable": {"pods": "1"}}
    node = {"metadata": {"name": last, "labels": {PAIR: last}}, "status": status}
    created(admin.post("/api/v1/nodes", json=node))
    spec = {"nodeSelector": {PAIR: last}, "containers": [{"name": "c", "image": "none"}]}
    created(admin.post(pods, json={"metadata": {"name": last}, "spec": spec}))
    _decided(admin, pods, [last])
    others: dict[str, list[Pod]] = {}
    for pod in _pods(admin, pods):
        others.setdefault(pod.spec.node_name, []).append(pod)
    for each in names:
        _valid(admin, draw, pods, each)
    found = _decided(admin, pods, names)
    answer = admin.get("/api/v1/nodes")
    listed = msgspec.json.decode(answer.content, type=NodeList).items
    nodes = {each.metadata.name: each for each in listed}
    for each in names:
        _tally(tally, found[each], nodes[each], others.get(each, []))
    # The scheduler tries each pod that it could not bind again when there is a new node.
    created(admin.request("DELETE", pods, json={"gracePeriodSeconds": 0}))
    for each in (*names, last):
        created(admin.delete(f"/api/v1/nodes/{each}"))


def _others(admin: httpx.Client, draw: Draw, pods: str, node: str) -> None:
    """Pods that are on the node already; some have ended, some are being deleted."""
    for index in range(draw.one_of((0, 0, 1, 2))):
        name = f"{node}-other-{index}"
        body = {"metadata": {"name": name}, "spec": draw.containers() | {"nodeName": node}}
        while not (answer := admin.post(pods, json=body)).is_success:
            assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY, answer.text
            body["spec"] = draw.containers() | {"nodeName": node}
        if draw.chance(0.2):
            patch = {"status": {"phase": draw.one_of(("Succeeded", "Failed"))}}
            kind = {"Content-Type": "application/merge-patch+json"}
            created(admin.patch(f"{pods}/{name}/status", json=patch, headers=kind))
        elif draw.chance(0.2):
            created(admin.delete(f"{pods}/{name}"))


def _valid(admin: httpx.Client, draw: Draw, pods: str, name: str) -> None:
    """Create a drawn pod, the first that the API server accepts."""
    while not (answer := admin.post(pods, json=draw.pod(name))).is_success:
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY, answer.text


def _pods(admin: httpx.Client, pods: str) -> list[Pod]:
    return msgspec.json.decode(admin.get(pods).content, type=PodList).items


def _decided(admin: httpx.Client, pods: str, names: list[str]) -> dict[str, Pod]:
    """The pods, when the scheduler has bound each, or has reported that it cannot."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = {pod.metadata.name: pod for pod in _pods(admin, pods)}
        waiting = [name for name in names if not _is_decided(found[name])]
        if not waiting:
            return found
        assert time.monotonic() < deadline, waiting
        time.sleep(0.2)


def _is_decided(pod: Pod) -> bool:
    return bool(pod.spec.node_name) or any(_unschedulable(pod))


def _unschedulable(pod: Pod) -> Iterator[bool]:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            yield True


def _tally(tally: Tally, pod: Pod, node: Node, others: list[Pod]) -> None:
    refused = refused_fields(pod)
    if refused:
        tally.refused.update(refused)
        return
    # Our fit gets the pod as it was before the scheduler bound it.
    unbound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
    reasons = misfits(unbound, node, free_capacity(node, others))
    tally.misfits.update(reason.split(" ")[0] for reason in reasons)
    if reasons:
        tally.misfitting += 1
    else:
        tally.fit += 1
    if bool(pod.spec.node_name) is bool(reasons):
        bound = "bound it" if pod.spec.node_name else "did not bind it"
        tally.differing.append(f"the scheduler {bound}, our fit says {reasons}: {pod} {node}")


def main() -> None:
    """Compare many pairs on a control plane of its own, and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Path(folder) / "plane") as plane,
        plane.client() as admin,
    ):
        plane.scheduler.start()
        begun_s = time.monotonic()
        tally = compare(admin, chosen.pairs, chosen.seed)
        print(f"{chosen.pairs} pairs in {time.monotonic() - begun_s:.0f} s: {tally}")
    raise SystemExit(1 if tally.differing else 0)


if __name__ == "__main__":
    main()
