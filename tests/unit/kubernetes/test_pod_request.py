"""The request of a pod, rule by rule; test_kubernetes_fit.py compares all with the scheduler."""

from typing import Any

import msgspec

from yardmaster_kubernetes.objects import Pod
from yardmaster_kubernetes.pod_request import pod_request


def container(name: str = "c", **more: Any) -> dict[str, Any]:
    requests = {key: more.pop(key) for key in ("cpu", "memory") if key in more}
    return {"name": name, "resources": {"requests": requests}, **more}


def request(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, int]:
    return dict(pod_request(msgspec.convert({"spec": spec, "status": status or {}}, Pod)))


def test_containers_add_up() -> None:
    assert request({"containers": [container(cpu="1"), container(cpu="500m", memory="1Gi")]}) == {
        "cpu": 1500,
        "memory": 1024**3,
    }


def test_parts_are_rounded_once_for_the_pod() -> None:
    containers = [container(cpu="400u"), container(cpu="400u")]
    assert request({"containers": containers}) == {"cpu": 1}


def test_init_containers_count_where_one_needs_more_than_all_containers() -> None:
    spec = {
        "containers": [container(cpu="1"), container(cpu="1")],
        "initContainers": [container(cpu="3"), container(cpu="1", memory="5")],
    }
    assert request(spec) == {"cpu": 3000, "memory": 5}


def test_a_sidecar_adds_to_the_containers_and_to_later_init_containers() -> None:
    sidecar = container(cpu="1", restartPolicy="Always")
    before = container(cpu="4")
    after = container(cpu="4")
    containers = [container(cpu="1")]
    assert request({"containers": containers, "initContainers": [before, sidecar]})["cpu"] == 4000
    assert request({"containers": containers, "initContainers": [sidecar, after]})["cpu"] == 5000


def test_requests_of_the_pod_replace_the_sums_of_cpu_and_memory_only() -> None:
    spec = {
        "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}
        ],
        "resources": {"requests": {"cpu": "4"}},
    }
    assert request(spec) == {"cpu": 4000, "nvidia.com/gpu": 2}


def test_overhead_is_added_last() -> None:
    spec = {
        "containers": [container(cpu="1")],
        "initContainers": [container(cpu="2")],
        "resources": {"requests": {"memory": "10"}},
        "overhead": {"cpu": "250m", "memory": "1"},
    }
    assert request(spec) == {"cpu": 2250, "memory": 11}


def test_the_larger_request_counts_while_a_pod_is_resized() -> None:
    spec = {"containers": [container(cpu="2", memory="7")]}
    has = {"name": "c", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "1"}}
    assert request(spec, {"containerStatuses": [has]}) == {"cpu": 3000, "memory": 7}


def test_a_resize_that_its_node_refused_does_not_count() -> None:
    spec = {"containers": [container(cpu="9")]}
    status = {
        "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    }
    assert request(spec, status) == {"cpu": 3000}
