"""The facts about a real API server on which Kubernetes support relies."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.go_tools import ROOT
from tests.support.kubernetes.control_plane import (
    ADMIN,
    LIMITED,
    ControlPlane,
    binding,
    client,
    created,
    pod_body,
    program,
)

pytestmark = pytest.mark.xdist_group("kubernetes")


def scheduled(pod: dict) -> list[str]:
    conditions = pod["status"].get("conditions", ())
    return [each["status"] for each in conditions if each["type"] == "PodScheduled"]


def test_a_binding_sets_the_node_of_a_pod_once(admin: httpx.Client, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = created(admin.post(pods, json=pod_body("one")))
    assert "nodeName" not in pod["spec"]

    uid = pod["metadata"]["uid"]
    created(admin.post(f"{pods}/one/binding", json=binding("one", "n1", uid)))

    bound = created(admin.get(f"{pods}/one"))
    assert bound["spec"]["nodeName"] == "n1"
    assert scheduled(bound) == ["True"]
    again = admin.post(f"{pods}/one/binding", json=binding("one", "n2", uid))
    assert again.status_code == httpx.codes.CONFLICT


def test_a_binding_for_an_earlier_pod_of_the_name_is_refused(
    admin: httpx.Client, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    earlier = created(admin.post(pods, json=pod_body("one")))["metadata"]["uid"]
    created(admin.delete(f"{pods}/one"))
    created(admin.post(pods, json=pod_body("one")))

    answer = admin.post(f"{pods}/one/binding", json=binding("one", "n1", earlier))

    assert answer.status_code == httpx.codes.CONFLICT
    assert "nodeName" not in created(admin.get(f"{pods}/one"))["spec"]


def test_a_pod_with_a_scheduling_gate_cannot_be_bound(admin: httpx.Client, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created(admin.post(pods, json=pod_body("one", schedulingGates=[{"name": "wait"}])))
    answer = admin.post(f"{pods}/one/binding", json=binding("one", "n1"))
    assert answer.status_code == httpx.codes.CONFLICT


def test_a_user_may_do_only_what_a_role_allows(
    control_plane: ControlPlane, admin: httpx.Client, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    with control_plane.client(LIMITED) as limited, control_plane.client("unknown") as unknown:
        assert unknown.get(pods).status_code == httpx.codes.UNAUTHORIZED
        assert limited.get(pods).status_code == httpx.codes.FORBIDDEN
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
        created(admin.post(f"{rbac}/roles", json={"metadata": {"name": "r"}, "rules": [rule]}))
        group = "rbac.authorization.k8s.io"
        bound = {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "limited"}],
        }
        created(admin.post(f"{rbac}/rolebindings", json=bound))

        until_allowed = (limited.get(pods).status_code for _ in range(1000))
        assert httpx.codes.OK in until_allowed
        refused = limited.post(pods, json=pod_body("one"))
        assert refused.status_code == httpx.codes.FORBIDDEN


def test_controllers_delete_a_namespace_and_all_ends_with_the_process_of_the_tests(
    tmp_path: Path,
) -> None:
    """Also when that process is killed and cannot clean up."""
    program()
    lines = (
        "import pathlib, signal, sys",
        "from tests.support.kubernetes.control_plane import ControlPlane",
        "with ControlPlane(pathlib.Path(sys.argv[1])) as plane:",
        "    plane.scheduler.start()",
        "    plane.controllers.start()",
        "    parts = (plane.etcd, plane.api, plane.scheduler, plane.controllers)",
        "    print(plane.url, *(each.pid for each in parts), flush=True)",
        "    signal.pause()",
    )
    folder = tmp_path / "plane"
    owner = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), folder],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        try:
            url, *pids = owner.stdout.readline().split()
            with client(url, folder, ADMIN) as admin:
                delete_a_namespace(admin)
        finally:
            owner.send_signal(signal.SIGKILL)
    assert len(pids) == 4
    for pid in pids:
        subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], check=True, timeout=30)


def delete_a_namespace(admin: httpx.Client) -> None:
    created(admin.post("/api/v1/namespaces", json={"metadata": {"name": "short"}}))
    created(admin.post("/api/v1/namespaces/short/pods", json=pod_body("one")))
    query = {"watch": "1", "fieldSelector": "metadata.name=short", "timeoutSeconds": "60"}
    with admin.stream("GET", "/api/v1/namespaces", params=query) as watch:
        created(admin.delete("/api/v1/namespaces/short"))
        assert any('"type":"DELETED"' in line for line in watch.iter_lines())
