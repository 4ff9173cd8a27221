"""The Kubernetes objects that kustomize and Helm render from deploy, as tests read them.

A source is a folder of deploy/k8s, or `CHART` with options of `helm template`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import yaml

from tests.support.go_tools import ROOT, go_tool

BASE: Final = "deploy/k8s/base"
THREE_BROKERS: Final = "deploy/k8s/overlays/three-brokers"
CHART: Final = "deploy/helm/yardmaster"
CHART_OF_THREE: Final = f"{CHART} --set kafka.brokers=3"
CHART_IN_FULL: Final = f"{CHART} --values {CHART}/ci/full-values.yaml"
WORKLOADS: Final = {"Deployment", "StatefulSet", "DaemonSet", "Job"}
COMPONENT: Final = "app.kubernetes.io/component"

Resource = Mapping[str, Any]


@cache
def rendered(source: str) -> tuple[Resource, ...]:
    """Every object of a source, in the order in which it is applied."""
    if source.startswith(CHART):
        text = go_tool("helm", "template", "yardmaster", *source.split())
    else:
        text = go_tool("kustomize", "build", ROOT / source)
    return tuple(one for one in yaml.safe_load_all(text) if one is not None)


def of_kind(source: str, *kinds: str) -> Iterator[Resource]:
    yield from (one for one in rendered(source) if one["kind"] in kinds)


def named(source: str, kind: str, name: str) -> Resource:
    return next(one for one in of_kind(source, kind) if one["metadata"]["name"] == name)


def workloads(source: str) -> Iterator[tuple[str, Resource, Resource]]:
    """Every workload: its component, itself, its pods' template."""
    for one in of_kind(source, *WORKLOADS):
        yield one["metadata"]["labels"][COMPONENT], one, one["spec"]["template"]


def containers(source: str) -> Iterator[tuple[str, Resource]]:
    for name, _, template in workloads(source):
        for one in [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]:
            yield f"{name}/{one['name']}", one


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As Kubernetes matches labels; operators other than In are not used here."""
    wanted = selector.get("matchLabels", {}).items()
    within = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in within)
    return all(labels.get(key) == value for key, value in wanted) and all(
        labels.get(one["key"]) in one["values"] for one in within
    )


def settings_of(source: str, name: str) -> dict[str, str]:
    """The ConfigMap of this name; kustomize appends a hash of its content."""
    return next(
        one["data"]
        for one in of_kind(source, "ConfigMap")
        if re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?", one["metadata"]["name"])
    )
