"""deploy/helm: the chart renders what deploy/k8s renders, and its values reach the processes."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from pydantic_settings import BaseSettings

from tests.support.go_tools import ROOT, go_tool
from tests.support.manifests import (
    BASE,
    CHART,
    CHART_IN_FULL,
    CHART_OF_THREE,
    COMPONENT,
    THREE_BROKERS,
    Resource,
    containers,
    named,
    of_kind,
    rendered,
    selects,
    settings_of,
    workloads,
)
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_node_agent.settings import Settings as AgentSettings
from yardmaster_quota.main import Settings as QuotaSettings
from yardmaster_scheduler.settings import Settings as SchedulerSettings
from yardmaster_views.settings import ViewsSettings

FOLDER: Final = ROOT / CHART
VALUES: Final[Mapping[str, Any]] = yaml.safe_load((FOLDER / "values.yaml").read_text())
SETTINGS: Final[Mapping[str, type[BaseSettings]]] = {
    "gateway": GatewaySettings,
    "quota": QuotaSettings,
    "scheduler": SchedulerSettings,
    "views": ViewsSettings,
    "agent": AgentSettings,
}
#: What the chart sets in addition to deploy/k8s, where every process keeps the defaults.
ADDED: Final = {"YARD_CELL": "main", "YARD_PARTITION": "0", "YARD_AGENT_POOL": "default"}
#: Labels by which the chart tells the gateways of cells and the groups of agents apart.
GROUPS: Final = {"yardmaster/cell", "yardmaster/group"}
#: Resources of the Prometheus Operator, whose schemas are not those of Kubernetes.
OPERATOR: Final = {"PodMonitor", "PrometheusRule"}


def comparable(value: Any) -> Any:
    """An object's content without what each renderer adds in its own way."""
    if isinstance(value, dict):
        added = {*GROUPS, "annotations", "status", "creationTimestamp"}
        if value.get("type") == "ClusterIP":
            added |= {"type"}  # the default of a Service
        if value.keys() & {"secretName"}:
            added |= {"items"}  # the same file, whatever the key of the Secret is
        return {key: comparable(each) for key, each in value.items() if key not in added}
    if isinstance(value, list):
        return [comparable(each) for each in value if not added_variable(each)]
    # kustomize appends a hash of ten characters to the name of a generated ConfigMap.
    return re.sub(r"^(yardmaster|kafka|kafka-start|redis-start)-[a-z0-9]{10}$", r"\1", str(value))


def added_variable(value: Any) -> bool:
    return isinstance(value, dict) and ADDED.get(value.get("name", "")) == value.get("value", ADDED)


def by_name(source: str) -> dict[tuple[str, str], Any]:
    """The content of each object by its kind and name."""
    found = {}
    for one in rendered(source):
        name = comparable(one["metadata"]["name"])
        if one["kind"] == "Job":
            name = one["metadata"]["labels"][COMPONENT]
        content = {key: comparable(one[key]) for key in ("spec", "data") if key in one}
        for claim in content.get("spec", {}).get("volumeClaimTemplates", []):
            claim["metadata"].pop("labels", None)  # kustomize also labels claims
        found[one["kind"], name] = content
    return found


@pytest.mark.parametrize(("chart", "folder"), [(CHART, BASE), (CHART_OF_THREE, THREE_BROKERS)])
def test_the_chart_renders_the_objects_of_kustomize(chart: str, folder: str) -> None:
    expected, found = by_name(folder), by_name(chart)
    del expected["Namespace", "yardmaster"]  # helm install --create-namespace
    assert found.keys() == expected.keys()
    for key, content in expected.items():
        assert found[key] == content, key


def test_the_chart_passes_the_linter() -> None:
    for values in ("values.yaml", "ci/full-values.yaml"):
        go_tool("helm", "lint", "--strict", FOLDER, "--values", FOLDER / values)


def test_the_chart_has_the_version_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("gateway.replica=3", "additional properties 'replica' not allowed"),
        ("monitoring.podMonitor.enable=true", "additional properties 'enable' not allowed"),
        ("settings.LOG=x", "additional properties 'LOG' not allowed"),
        ("kafka.brokers=2", "value must be one of 1, 3"),
        ("kafka.deploy=false", "kafka.external.address: set it"),
        ("redis.deploy=false", "redis.external.url: set it"),
        ("redis.usersSecret=", "at '/redis/usersSecret': minLength"),
        ("kafka.usersSecret=", "at '/kafka/usersSecret': minLength"),
        ("agent.cell=west", "the cell west of an agent group is not in `cells`"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(value: str, found: str) -> None:
    printed = go_tool("helm", "template", "yardmaster", FOLDER, "--set", value, expect=1)
    assert found in printed


def objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every schema of an object with fixed keys."""
    if "properties" in schema:
        yield schema
    for key in ("properties", "$defs"):
        for each in schema.get(key, {}).values():
            yield from objects(each)
    if "items" in schema:
        yield from objects(schema["items"])


def test_every_value_is_in_the_schema_and_the_schema_has_no_other() -> None:
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    assert all(each["additionalProperties"] is False for each in objects(schema))
    assert schema["properties"].keys() - {"global"} == VALUES.keys()
    for key, each in schema["properties"].items():
        if "properties" in each:
            assert each["properties"].keys() == VALUES[key].keys(), key


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_objects_of_full_values_are_valid(version: str) -> None:
    found = [one for one in rendered(CHART_IN_FULL) if one["kind"] not in OPERATOR]
    assert len(found) > 25
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def environment(source: str, container: Resource) -> dict[str, str]:
    """The variables of a container; what Kubernetes fills in is `node-1`."""
    shared = settings_of(source, "yardmaster") if container.get("envFrom") else {}
    own = {each["name"]: each.get("value", "node-1") for each in container.get("env", [])}
    return {**shared, **own}


@pytest.mark.parametrize("source", [CHART, CHART_IN_FULL])
def test_every_process_accepts_its_settings(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for name, one, template in workloads(source):
        if name not in SETTINGS:
            continue
        variables = environment(source, template["spec"]["containers"][0])
        for old in [key for key in os.environ if key.startswith("YARD_")]:
            monkeypatch.delenv(old)
        for key, value in variables.items():
            if key.startswith("YARD_"):
                monkeypatch.setenv(key, value)
        monkeypatch.setenv("YARD_AGENT_DATA_DIR", "/var/lib/yardmaster")  # as in the image
        found[one["metadata"]["name"]] = SETTINGS[name]()
    cells = {
        name: (settings.cell, settings.partition)  # type: ignore[attr-defined]
        for name, settings in found.items()
        if name.startswith(("gateway", "agent"))
    }
    if source == CHART:
        assert cells == {"gateway": ("main", 0), "agent": ("main", 0)}
        return
    assert cells == {
        "gateway": ("main", 0),
        "gateway-east": ("east", 1),
        "agent-a100": ("main", 0),
        "agent-h100": ("east", 1),
    }
    values = {name: settings.model_dump(mode="json") for name, settings in found.items()}
    for each in values.values():
        assert each["log"] == "kafka://kafka-0.example.org:9094,kafka-1.example.org:9094"
        assert each["kafka"]["security_protocol"] == "SASL_SSL"
        assert each["kafka"]["sasl_username"] == "yardmaster"
        assert each["traces"]["endpoint"] == "http://collector:4318"
    assert values["quota"]["cycle"]["min_interval_ms"] == 50
    assert values["scheduler"]["snapshot"]["every_s"] == 120
    assert values["scheduler"]["cells"] == ["main", "east"]
    assert values["views"]["redis"]["max_connections"] == 32
    assert values["gateway"]["rate_per_s"] == 200
    assert values["agent-h100"]["pool"] == "h100"


def names_of(settings: type[BaseSettings]) -> Iterator[str]:
    """The variables that a process reads."""

    def fields(model: Any, prefix: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            inner = field.annotation
            if hasattr(inner, "model_fields"):
                yield from fields(inner, f"{prefix}{name.upper()}__")
            else:
                yield f"{prefix}{name.upper()}"

    for prefix in ("YARD_", str(settings.model_config["env_prefix"])):
        yield from fields(settings, prefix)


@pytest.mark.parametrize("source", [BASE, CHART, CHART_IN_FULL])
def test_every_setting_is_read_by_a_process(source: str) -> None:
    """A process ignores variables that it does not know, such as a misspelled one."""
    known = {name: set(names_of(settings)) for name, settings in SETTINGS.items()}
    shared = settings_of(source, "yardmaster")
    assert shared.keys() <= set[str]().union(*known.values())
    for name, _, template in workloads(source):
        if name in SETTINGS:
            own = template["spec"]["containers"][0].get("env", [])
            variables = {each["name"] for each in own if each["name"].startswith("YARD_")}
            assert variables <= known[name], name


def test_a_file_that_a_setting_names_is_mounted() -> None:
    for name, _, template in workloads(CHART_IN_FULL):
        pod = template["spec"]
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        files = {}
        for mount in container["volumeMounts"]:
            secret = volumes[mount["name"]].get("secret")
            if secret is not None:
                items = secret.get("items", [])
                files[mount["mountPath"]] = {each["path"] for each in items}
        for key, value in environment(CHART_IN_FULL, container).items():
            if key.endswith("FILE") and value.startswith("/etc/"):
                folder, _, file = value.rpartition("/")
                assert folder in files, (name, key)
                assert not files[folder] or file in files[folder], (name, key)


def test_the_pods_of_two_cells_and_two_groups_are_selected_apart() -> None:
    pods = {
        one["metadata"]["name"]: template["metadata"]["labels"]
        for _, one, template in workloads(CHART_IN_FULL)
    }
    for _, one, _ in workloads(CHART_IN_FULL):
        if one["kind"] != "Job":
            name, selector = one["metadata"]["name"], one["spec"]["selector"]
            assert [pod for pod in pods if selects(selector, pods[pod])] == [name]
    for service in of_kind(CHART_IN_FULL, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        name = service["metadata"]["name"]
        assert [pod for pod in pods if selects(selector, pods[pod])] == [name]


def test_agents_of_a_group_have_the_merged_values() -> None:
    spec = named(CHART_IN_FULL, "DaemonSet", "agent-h100")["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "H100-SXM5-80GB",
    }
    assert spec["containers"][0]["resources"] == {
        "requests": VALUES["agent"]["resources"]["requests"],
        "limits": {"memory": "512Gi"},
    }


def test_with_brokers_of_the_site_the_policies_open_their_ports() -> None:
    opened = {
        (policy["metadata"]["name"], port["port"])
        for policy in of_kind(CHART_IN_FULL, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        if any("ipBlock" in peer for peer in rule["to"])
        for port in rule["ports"]
    }
    brokers = {(name, 9094) for name in ("gateway", "views", "log", "agent")}
    assert opened == brokers | {("gateway", 6380), ("views", 6380)}


def test_another_image_or_setting_is_another_setup_job() -> None:
    def job(*options: str) -> str:
        (found,) = of_kind(" ".join([CHART, *options]), "Job")
        name: str = found["metadata"]["name"]
        return name

    unchanged = job()
    assert job("--set monitoring.dashboard.enabled=true") == unchanged
    assert len({unchanged, job("--set image.tag=0.2.0"), job("--set cells={main,east}")}) == 3


def test_prometheus_reads_every_process_once() -> None:
    (monitor,) = of_kind(CHART_IN_FULL, "PodMonitor")
    spec = monitor["spec"]
    read = {
        name
        for name, _, template in workloads(CHART_IN_FULL)
        if selects(spec["selector"], template["metadata"]["labels"])
    }
    assert read == SETTINGS.keys()
    (endpoint,) = spec["podMetricsEndpoints"]
    for name, container in containers(CHART_IN_FULL):
        if name.partition("/")[0] in read:
            assert {"name": endpoint["port"], "containerPort": 7500} in container["ports"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_rules_and_the_dashboard_are_those_of_the_tree(tmp_path: Path) -> None:
    (rule,) = of_kind(CHART_IN_FULL, "PrometheusRule")
    alarms = ROOT / "deploy/prometheus/alarms.yaml"
    assert rule["spec"] == yaml.safe_load(alarms.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    go_tool("promtool", "check", "rules", file)
    dashboard = named(CHART_IN_FULL, "ConfigMap", "yardmaster-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"] == {
        "yardmaster.json": (ROOT / "deploy/grafana/yardmaster.json").read_text()
    }


def test_without_monitoring_nothing_needs_the_operator() -> None:
    assert not list(of_kind(CHART, *OPERATOR))
