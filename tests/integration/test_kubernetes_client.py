"""The client of the API server: its errors, and the writes that place pods."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.kubernetes.control_plane import LIMITED, ControlPlane
from tests.support.kubernetes.followed_pods import Pods, connection
from yardmaster_kubernetes.api_client import KubernetesClient
from yardmaster_kubernetes.configuration import from_kubeconfig
from yardmaster_kubernetes.errors import (
    ApiRefused,
    ApiUnavailable,
    Conflicting,
    NotPermitted,
    ObjectMissing,
)
from yardmaster_kubernetes.objects import Metadata
from yardmaster_localcluster.ports import HOST, free_ports

pytestmark = pytest.mark.xdist_group("kubernetes")


@pytest.fixture
def pods(admin: httpx.Client, namespace: str) -> Pods:
    return Pods(admin, namespace)


async def test_a_pod_is_bound_once_and_only_the_pod_that_was_meant(
    control_plane: ControlPlane, pods: Pods, tmp_path: Path
) -> None:
    earlier = pods.create("one")
    pods.delete("one")
    pod = pods.create("one")
    async with KubernetesClient(connection(control_plane, tmp_path)) as client:
        with pytest.raises(Conflicting):
            await client.bind(earlier, "n1")
        await client.bind(pod, "n1")
        with pytest.raises(Conflicting, match="already assigned to node"):
            await client.bind(pod, "n2")
    assert pods.read("one")["spec"]["nodeName"] == "n1"


async def test_a_bound_pod_is_deleted_with_its_grace_and_another_of_its_name_is_not(
    control_plane: ControlPlane, pods: Pods, tmp_path: Path
) -> None:
    pod = pods.create("one", nodeName="n1")
    async with KubernetesClient(connection(control_plane, tmp_path)) as client:
        with pytest.raises(Conflicting):
            await client.delete_pod(Metadata(pod.name, pod.namespace, "another"), 17)
        await client.delete_pod(pod, 17)
        assert pods.read("one")["metadata"]["deletionGracePeriodSeconds"] == 17
        await client.delete_pod(pod, 0)
        with pytest.raises(ObjectMissing):
            await client.delete_pod(pod, 0)


async def test_refusals_have_the_words_of_the_server(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    async with KubernetesClient(connection(control_plane, tmp_path)) as client:
        with pytest.raises(ApiRefused, match=r"with 422: .*spec.containers: Required value"):
            await client.request("POST", path, body={"metadata": {"name": "one"}, "spec": {}})
    limited = tmp_path / "limited.json"
    limited.write_text(json.dumps(control_plane.configuration(LIMITED)))
    async with KubernetesClient(from_kubeconfig(limited)) as client:
        with pytest.raises(NotPermitted, match='User "limited" cannot list resource "pods"'):
            await client.request("GET", path)


async def test_a_server_that_is_down_is_unavailable(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    down = connection(control_plane, tmp_path, f"https://{HOST}:{port}")
    async with KubernetesClient(down) as client:
        with pytest.raises(ApiUnavailable, match="does not answer GET /version: ConnectError"):
            await client.request("GET", "/version")
