"""Samples of every event version, and Hypothesis strategies for them, made from the JSON Schemas.

A new event needs no change here, unless it has a new pattern or a rule between fields.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st

from yardmaster_eventlog.codec import adapter
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.fields import USER_GRANT
from yardmaster_schemas.generate import event_schema
from yardmaster_schemas.image_names import PREFIX
from yardmaster_schemas.topics import TOPICS

Json = dict[str, Any]
NOW_MS: Final = 1_767_225_600_123

#: Sample values by field name.
BY_NAME: Final[Mapping[str, Any]] = {
    "node": "gpu-07",
    "pool": "h100",
    "pools": ["h100", "a100"],
    "project": "nlp",
    "department": "research",
    "cell": "main",
    "machine": "scheduler",
    "rule": "better_priority",
    "node_type": "sxm",
    "node_types": ["sxm"],
    "avoid_nodes": ["gpu-03"],
    "disabled": [0, 3],
    "placement": "best_fit",
    "address": "gpu-07.cluster.example",
    "uri": "s3://runs/4kq7/step-12000",
    "checkpoint_uri": "s3://models/base",
    "priority": 42,
    "attempt": 2,
    "replica": 1,
    "gpu_milli": 1000,
    "exit_code": 3,
    "permille": 420,
    "pid": 4711,
    "topic": "node-events",
    "request_type": "CancelRequested",
    "command": ["python", "train.py", "--lr", "0.1"],
    "text": "step 12000, loss 0.31\n",
    "user": "Ada",
    "users": ["1500:1500"],
    "labels": {"team": "alignment"},
    "env": {"NCCL_DEBUG": "WARN"},
    "secrets": {"HF_TOKEN": "nlp/hf"},
    "params": [{"lr": 0.1, "seed": 1}, {"lr": 0.01, "seed": None}],
    "options": {"preemption": True, "levels": [1, 2]},
    "numbers": {"asked_milli": 8000, "free_milli": 2500},
    "method": "token",
    "issuer": "local",
    "groups": ["ml-platform"],
    "principal": "u-5f2d1e0b7c44",
    "marks": "0123456789abcdef" * 2,
    "decision_marks": "fedcba9876543210",
}
BY_PATTERN: Final[Mapping[str, str]] = {
    r"^(file|s3|gs|az|abfs|hdfs|https|nfs)://[A-Za-z0-9._~/+=:-]+$": "s3://runs/nlp",
    r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$": "vision",
    r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?(:rw)?$": "scratch:rw",
    r"^[a-z0-9.:\[\]/_-]+$": "docker.io/library/python",
    r"^[a-z0-9.:\[\]-]+(/[a-z0-9._-]+)+$": "docker.io/library/python",
    USER_GRANT: "1500:1500",
    PREFIX.pattern: "registry.example.org/team/",
    r"^[0-9a-z]{12}$": "4kq7w2mz9c1f",
    r"^[0-9a-z]{12}\.(0|[1-9][0-9]{0,3})$": "4kq7w2mz9c1f.3",
    r"^[a-z_]{1,20}/[a-z0-9][a-z0-9._-]{0,90}$": "gateway/gw-1",
    r"^[a-z_]{1,20}/[a-z0-9][a-z0-9._-]{0,90}/[0-9]{1,16}/[0-9]{1,16}$": "gateway/gw-1/3/17",
    r"^[0-9a-f]{12}$": "5f0c1e2d3a4b",
    r"^[0-9a-f]{16}$": "00ff00ff00ff00ff",
    r"^[0-9a-f]{32}$": "00112233445566778899aabbccddeeff",
    r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$": "git.example.org:8443",
    r"^[0-9a-f]{40}$": "0123456789" * 4,
    r"^https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9_~+.-]+)+$": (
        "https://git.example.org/team/repo"
    ),
    r"^[0-9a-f]{64}$": "0123456789abcdef" * 4,
    r"^sha256:[0-9a-f]{64}$": "sha256:" + "0123456789abcdef" * 4,
    r"^[0-9a-f]{128}$": "0123456789abcdef" * 8,
    r"^[a-z][a-z0-9_]{0,40}$": "token_1",
    r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$": (
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}$": "u-5f2d1e0b7c44",
    r"^(project/)?[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}$": "project/vision",
    r"^[0-9a-f-]{8,36}$": "3f0c6a52-8d11-4b0e-9a6c-5f2d1e0b7c44",
    r"^[0-9a-f-]{1,64}$": "4711-12345",
    r"^[0-9A-Za-z:-]{1,64}$": "3f0c6a52-8d11-4b0e-9a6c-5f2d1e0b7c44",
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": "NCCL_DEBUG",
    r"^[A-Z][A-Za-z]{1,40}$": "TaskSubmitted",
    r"^[^\x00-\x1f\x7f]+$": "out/**",
    r"^(/([^/\x00-\x1f\x7f.]|\.[^/\x00-\x1f\x7f.]|\.\.[^/\x00-\x1f\x7f])"
    r"[^/\x00-\x1f\x7f]*)+$": "/data",
    r"^[a-z0-9][a-z0-9._-]{0,90}$": "4kq7w2mz9c1f",
}


#: By topic: the source of a record, and its actor. Elsewhere: an agent.
WRITERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "details": ("gateway/gw-1", "user", "u-5f2d1e0b7c44"),
    "requests": ("gateway/gw-1", "user", "u-5f2d1e0b7c44"),
    "admissions": ("quota/main.5f0c1e2d3a4b", "service", "quota"),
    "decisions": ("scheduler/main.5f0c1e2d3a4b", "service", "scheduler"),
    "quarantine": ("scheduler/main.5f0c1e2d3a4b", "service", "scheduler"),
}


def _exited(body: Json) -> None:
    if body.get("exit_code") is not None:
        body["signal"] = None
    elif body.get("signal") is None:
        body["exit_code"] = 0


def _run(body: Json) -> None:
    if body.get("command"):
        body["script"] = None
    elif body.get("script") is None:
        body["script"] = "exit 0"
    if body.get("image") is None:
        body["pull"] = None


def _resources(body: Json) -> None:
    if body.get("gpu_milli"):
        body.pop("gpu_memory_mib", None)
    if not body.get("gpus") or not (body.get("gpu_milli") or body.get("gpu_memory_mib")):
        body["gpus"] = body["gpu_milli"] = body["gpu_memory_mib"] = 0


def _options(body: Json) -> None:
    body["options"] = BY_NAME["options"]


def _layout(body: Json) -> None:
    replicas = {body.get("replicas_min", 1), body.get("replicas_max", 1)}
    resources = body.get("resources", {})
    by_memory = resources.get("gpu_memory_mib", 0)
    if replicas != {1} or by_memory or resources.get("gpu_milli", 0) not in (0, 1000):
        body.pop("layout", None)


def _ascending(body: Json) -> None:
    if "disabled" in body:
        body["disabled"] = sorted(set(body["disabled"]))


#: Rules between fields that JSON Schema does not state, by the name of the definition.
REPAIRS: Final[Mapping[str, Callable[[Json], None]]] = {
    "TaskExited": _exited,
    "Run": _run,
    "Resources": _resources,
    "PolicyRef": _options,
    "SubmittedSpec": _layout,
    "NodeSlotsChangeRequested": _ascending,
    "NodeSlotsChanged": _ascending,
}


def schema(cls: type[Event]) -> Json:
    """The generated schema; cached."""
    return _schema(cls.TYPE, cls.VERSION)


@cache
def _schema(type_: str, version: int) -> Json:
    return event_schema(EVENTS[type_, version])


def sample(cls: type[Event], *, full: bool = True) -> Envelope[Any]:
    """One record of an event: with every field, or with the required fields only."""
    walk = _Sampler(schema(cls)["$defs"], full=full)
    plain = walk.of(schema(cls), "")
    topic = cls.TOPICS[-1]
    source, kind, who = WRITERS.get(topic, ("node/gpu-07.5f0c1e2d3a4b", "node", "gpu-07"))
    plain |= {"source": source, "actor": {"kind": kind, "id": who}}
    if kind != "user":
        plain["auth"] = None
    envelope: Envelope[Any] = adapter(cls.TYPE, cls.VERSION).validate_json(json.dumps(plain))
    return envelope


def key_of(cls: type[Event]) -> str:
    """A key for the topic that the event is written to first."""
    keys = {"cell": "main", "job": "4kq7w2mz9c1f", "node": "gpu-07", "task": "4kq7w2mz9c1f.3"}
    return keys.get(TOPICS[cls.TOPICS[0]].key, "node-events")


class _Sampler:
    def __init__(self, definitions: Json, *, full: bool) -> None:
        self.definitions = definitions
        self.full = full

    def of(self, node: Json, name: str) -> Any:
        if "$ref" in node:
            target = node["$ref"].rpartition("/")[2]
            value = self.of(self.definitions[target], name)
            if target in REPAIRS:
                REPAIRS[target](value)
            return value
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return node["enum"][-1]
        if "anyOf" in node:
            some = [each for each in node["anyOf"] if each.get("type") != "null"]
            return self.of(some[0], name)
        if name in BY_NAME and isinstance(BY_NAME[name], _PYTHON[node["type"]]):
            return BY_NAME[name]
        match node["type"]:
            case "object" if "properties" in node:
                required = node.get("required", ())
                return {
                    field: self.of(inner, field)
                    for field, inner in node["properties"].items()
                    if self.full or field in required
                }
            case "object":
                names, values = _entries(node)
                return {self.of(names, ""): self.of(values, "")}
            case "array":
                return [self.of(node["items"], name.removesuffix("s"))]
            case "boolean":
                return True
            case "integer":
                usual = NOW_MS if name.endswith("_ms") else 7
                high = node.get("maximum", node.get("exclusiveMaximum", 2**53) - 1)
                return max(node["minimum"], min(high, usual))
            case "string" if "pattern" in node:
                return BY_PATTERN[node["pattern"]]
            case "string":
                return "words"
            case other:
                raise AssertionError(f"{name}: no sample of a {other}")


def _entries(node: Json) -> tuple[Json, Json]:
    """The schemas of a mapping's keys and values."""
    if "patternProperties" in node:
        ((pattern, values),) = node["patternProperties"].items()
        return {"type": "string", "pattern": pattern}, values
    return {"type": "string", **node.get("propertyNames", {})}, node["additionalProperties"]


_PYTHON: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
}


# Strategies

_TEXT: Final = st.characters(codec="utf-8")


def envelopes(cls: type[Event]) -> st.SearchStrategy[Envelope[Any]]:
    """Any record that an event's schema allows, including limit values."""
    return _envelopes(cls.TYPE, cls.VERSION)


@cache
def _envelopes(type_: str, version: int) -> st.SearchStrategy[Envelope[Any]]:
    whole = _schema(type_, version)
    build = adapter(type_, version).validate_json
    plain = _strategy(whole, _Definitions(whole["$defs"]))
    return plain.map(lambda body: build(json.dumps(body)))


def any_envelope() -> st.SearchStrategy[Envelope[Any]]:
    """Any record of any event version."""
    return st.sampled_from(sorted(EVENTS)).flatmap(lambda key: _envelopes(*key))


class _Definitions:
    def __init__(self, definitions: Json) -> None:
        self.definitions = definitions
        self.made: dict[str, st.SearchStrategy[Any]] = {}

    def of(self, ref: str) -> st.SearchStrategy[Any]:
        name = ref.rpartition("/")[2]
        if name not in self.made:
            plain = _strategy(self.definitions[name], self)
            self.made[name] = plain.map(lambda body: _repaired(name, body))
        return self.made[name]


def _repaired(name: str, body: Any) -> Any:
    if name in REPAIRS:
        body = dict(body)
        REPAIRS[name](body)
    return body


def _strategy(node: Json, definitions: _Definitions) -> st.SearchStrategy[Any]:
    if "$ref" in node:
        return definitions.of(node["$ref"])
    if "const" in node:
        return st.just(node["const"])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if "anyOf" in node:
        return st.one_of([_strategy(each, definitions) for each in node["anyOf"]])
    match node.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            high = node.get("maximum", node.get("exclusiveMaximum", 2**53) - 1)
            return st.integers(node["minimum"], high)
        case "string" if "pattern" in node:
            longest = node.get("maxLength", 4096)
            text: st.SearchStrategy[str] = st.from_regex(str(node["pattern"]), fullmatch=True)
            return text.map(lambda s: s.rstrip("\n")).filter(lambda s: len(s) <= longest)
        case "string":
            return st.text(_TEXT, max_size=min(40, node.get("maxLength", 40)))
        case "array":
            inner = _strategy(node["items"], definitions)
            low = node.get("minItems", 0)
            return st.lists(inner, min_size=low, max_size=min(low + 2, node["maxItems"]))
        case "object" if "properties" in node:
            required = node.get("required", ())
            fields = {n: _strategy(f, definitions) for n, f in node["properties"].items()}
            return st.fixed_dictionaries(
                {n: s for n, s in fields.items() if n in required},
                optional={n: s for n, s in fields.items() if n not in required},
            )
        case "object":
            names, values = (_strategy(each, definitions) for each in _entries(node))
            return st.dictionaries(names, values, max_size=2)
        case _:
            return st.integers(-9, 9) | st.booleans() | st.none()
