"""Manifests and chart: objects are valid, hardened and probed, and open only what is needed."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.support.manifests import (
    BASE,
    CHART,
    CHART_OF_THREE,
    THREE_BROKERS,
    containers,
    named,
    of_kind,
    rendered,
    selects,
    settings_of,
    workloads,
)
from yardmaster_schemas.access import REDIS_USERS

ROOT = Path(__file__).parents[3]
FOLDERS = [BASE, THREE_BROKERS, CHART, CHART_OF_THREE]
SERVICES = {"gateway", "quota", "scheduler", "views", "agent"}

#: Every port: what a rule without one lets through.
ALL = 0
#: Allowed connections as (client, server, port); every other connection is denied.
TALKS = {
    ("gateway", "kafka", 9292),
    ("quota", "kafka", 9292),
    ("scheduler", "kafka", 9292),
    ("views", "kafka", 9292),
    ("setup", "kafka", 9292),
    ("agent", "kafka", 9292),
    ("kafka", "kafka", 9292),
    ("kafka", "kafka", 9093),
    ("gateway", "redis", 6379),
    ("views", "redis", 6379),
    ("agent", "agent", ALL),  # whatever ports a gang's replicas pick
}

#: The oldest Kubernetes that it is made for.
OLDEST = "1.30"

pytestmark = pytest.mark.parametrize("folder", FOLDERS)


def gibibytes(amount: str) -> float:
    """As Kubernetes and Redis write it."""
    return int(re.fullmatch(r"([0-9]+)(Gi|gb)", amount)[1])  # type: ignore[index]


def test_every_resource_is_valid_and_has_no_unknown_field(folder: str) -> None:
    assert len(rendered(folder)) > 30
    readme = (ROOT / "deploy" / "README.md").read_text()
    assert f"Kubernetes {OLDEST} or newer" in readme
    for resource in rendered(folder):
        for version in (OLDEST, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(resource, version, strict=True)


def test_every_service_and_what_it_stands_on_is_there(folder: str) -> None:
    found = {name: one["kind"] for name, one, _ in workloads(folder)}
    assert found == {
        "gateway": "Deployment",
        "quota": "Deployment",
        "scheduler": "Deployment",
        "views": "Deployment",
        "agent": "DaemonSet",
        "setup": "Job",
        "kafka": "StatefulSet",
        "redis": "StatefulSet",
    }
    for name in ("quota", "scheduler", "views", "gateway"):
        assert named(folder, "Deployment", name)["spec"]["replicas"] == 2


def test_agents_run_on_nodes_with_gpus_only(folder: str) -> None:
    spec = named(folder, "DaemonSet", "agent")["spec"]
    assert spec["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["updateStrategy"] == {"type": "OnDelete"}  # an update must not end tasks


def test_tasks_have_memory_to_share_within_the_agents_limit(folder: str) -> None:
    pod = named(folder, "DaemonSet", "agent")["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in agent["volumeMounts"]}
    (shared,) = [one for one in pod["volumes"] if one["name"] == mounts["/dev/shm"]]
    assert shared["emptyDir"]["medium"] == "Memory"
    limit = gibibytes(agent["resources"]["limits"]["memory"])
    assert 1 <= gibibytes(shared["emptyDir"]["sizeLimit"]) <= limit / 2


def test_redis_is_full_before_it_is_killed(folder: str) -> None:
    template = named(folder, "StatefulSet", "redis")["spec"]["template"]
    (redis,) = template["spec"]["containers"]
    (most,) = [one["value"] for one in redis["env"] if one["name"] == "REDIS_MAXMEMORY"]
    # A dump is written by a copy of the process, which shares most of its memory.
    assert 1.5 * gibibytes(most) <= gibibytes(redis["resources"]["limits"]["memory"])
    start = settings_of(folder, "redis-start")["start.sh"]
    assert "\nmaxmemory ${REDIS_MAXMEMORY:-1gb}\n" in start
    assert "\nmaxmemory-policy noeviction\n" in start


def test_users_of_redis_have_the_same_rights_in_every_form(folder: str) -> None:
    start = settings_of(folder, "redis-start")["start.sh"]
    (common,) = re.findall(r"^common='(.+)'$", start, re.MULTILINE)
    lines = dict(re.findall(r'\(user (\w+) "(.+)"\)$', start, re.MULTILINE))
    found = {user: "~* &* " + rights.replace("${common}", common) for user, rights in lines.items()}
    assert found == REDIS_USERS


def test_an_update_gives_a_broker_time_to_catch_up_before_the_next(folder: str) -> None:
    assert named(folder, "StatefulSet", "kafka")["spec"]["minReadySeconds"] >= 60


def test_every_container_that_goes_on_has_probes(folder: str) -> None:
    for name, one in containers(folder):
        if name == "setup/setup":
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert probe in one, (name, probe)
        if name.partition("/")[0] in SERVICES:
            assert one["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
            assert one["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
            assert {"name": "health", "containerPort": 7500} in one["ports"], name


def test_every_container_says_what_it_needs_and_where_its_memory_ends(folder: str) -> None:
    for name, one in containers(folder):
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert "memory" in one["resources"]["limits"], name


def test_every_container_is_hardened(folder: str) -> None:
    for name, one in containers(folder):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name


def test_every_pod_is_hardened_and_has_no_account_token(folder: str) -> None:
    for name, _, template in workloads(folder):
        pod = template["spec"]
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] >= 1000, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["serviceAccountName"] == name
        account = named(folder, "ServiceAccount", name)
        assert account["automountServiceAccountToken"] is False, name
        assert not any("hostPath" in volume for volume in pod.get("volumes", [])), name
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
    if folder in (BASE, THREE_BROKERS):  # Helm creates the namespace of a chart
        levels = named(folder, "Namespace", "yardmaster")["metadata"]["labels"]
        assert levels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_deployment_and_set_has_a_disruption_budget(folder: str) -> None:
    budgets = [one["spec"] for one in of_kind(folder, "PodDisruptionBudget")]
    for name, one, template in workloads(folder):
        if one["kind"] in ("Deployment", "StatefulSet"):
            labels = template["metadata"]["labels"]
            found = [budget for budget in budgets if selects(budget["selector"], labels)]
            assert [budget["maxUnavailable"] for budget in found] == [1], name


def test_a_selector_selects_its_own_pods_only(folder: str) -> None:
    labels = {name: template["metadata"]["labels"] for name, _, template in workloads(folder)}
    for name, one, _ in workloads(folder):
        if one["kind"] != "Job":
            selector = one["spec"]["selector"]
            assert [pod for pod in labels if selects(selector, labels[pod])] == [name]
    for service in of_kind(folder, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        assert len([pod for pod in labels if selects(selector, labels[pod])]) == 1


def test_pods_may_open_only_the_connections_they_need(folder: str) -> None:
    labels = {name: template["metadata"]["labels"] for name, _, template in workloads(folder)}
    policies = [one["spec"] for one in of_kind(folder, "NetworkPolicy")]
    for name in labels:
        for way in ("Ingress", "Egress"):
            assert any(
                way in policy["policyTypes"] and selects(policy["podSelector"], labels[name])
                for policy in policies
            ), (name, way)

    def allowed(way: str, other: str) -> set[tuple[str, str, int]]:
        return {
            (pod, peer, port.get("port", ALL))
            for policy in policies
            for rule in policy.get(way, [])
            for end in rule[other]
            if "podSelector" in end
            for pod in labels
            if selects(policy["podSelector"], labels[pod])
            for peer in labels
            if selects(end["podSelector"], labels[peer])
            for port in rule["ports"]
        }

    assert allowed("egress", "to") == TALKS
    assert all(
        rule["ports"] and all(port["protocol"] in ("TCP", "UDP") for port in rule["ports"])
        for policy in policies
        for rule in [*policy.get("egress", []), *policy.get("ingress", [])]
    )
    assert {(peer, pod, port) for pod, peer, port in allowed("ingress", "from")} == TALKS


def test_from_outside_only_callers_and_metrics_come_in(folder: str) -> None:
    outside = [
        (sorted(end["namespaceSelector"]["matchLabels"]), [port["port"] for port in rule["ports"]])
        for one in of_kind(folder, "NetworkPolicy")
        for rule in one["spec"].get("ingress", [])
        for end in rule["from"]
        if "namespaceSelector" in end
    ]
    assert sorted(outside) == [(["yardmaster/callers"], [7450]), (["yardmaster/metrics"], [7500])]


def test_secrets_are_named_and_never_there(folder: str) -> None:
    assert list(of_kind(folder, "Secret")) == []
    mounted: set[str] = set()
    for name, _, template in workloads(folder):
        mounted |= {
            volume["secret"]["secretName"]
            for volume in template["spec"].get("volumes", [])
            if "secret" in volume
        }
        for one in template["spec"]["containers"]:
            for variable in one.get("env", []):
                secret = "secretKeyRef" in variable.get("valueFrom", {})
                assert not secret, f"{name}: a secret in the environment"
    assert mounted == {"yardmaster-kafka", "yardmaster-redis", "yardmaster-tokens"}
    for settings in of_kind(folder, "ConfigMap"):
        assert not any(re.search("PASSWORD(?!_FILE$)", key) for key in settings["data"])


def test_mounts_have_volumes_and_configuration_exists(folder: str) -> None:
    maps = {one["metadata"]["name"] for one in of_kind(folder, "ConfigMap")}
    for name, one, template in workloads(folder):
        claims = [
            claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])
        ]
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
        for container in template["spec"]["containers"]:
            used = [mount["name"] for mount in container["volumeMounts"]]
            assert sorted(used) == sorted([*volumes, *claims]), name
            asked: Sequence[Mapping[str, Any]] = container.get("envFrom", [])
            assert {source["configMapRef"]["name"] for source in asked} <= maps, name
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, name


def test_images_have_a_version_and_no_registry(folder: str) -> None:
    for name, one in containers(folder):
        image, _, version = one["image"].partition(":")
        assert version not in ("", "latest"), name
        assert "." not in image, name


def test_topics_are_kept_as_often_as_there_are_brokers(folder: str) -> None:
    brokers = named(folder, "StatefulSet", "kafka")["spec"]["replicas"]
    kafka, services = settings_of(folder, "kafka"), settings_of(folder, "yardmaster")
    expected = (3, 2) if folder in (THREE_BROKERS, CHART_OF_THREE) else (1, 1)
    assert brokers == expected[0]
    assert (int(kafka["KAFKA_REPLICATION"]), int(kafka["KAFKA_MIN_ISR"])) == expected
    assert (
        int(services["YARD_KAFKA__REPLICATION_FACTOR"]),
        int(services["YARD_KAFKA__MIN_INSYNC_REPLICAS"]),
    ) == expected
    voters = [voter.partition("@")[2] for voter in kafka["KAFKA_VOTERS"].split(",")]
    assert voters == [f"kafka-{n}.kafka-brokers:9093" for n in range(brokers)]
