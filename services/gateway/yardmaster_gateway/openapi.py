"""The OpenAPI document: that of FastAPI, completed with what FastAPI does not know.

This module adds the schemas of bodies and problems, which the endpoints handle themselves, the
descriptions and examples of parameters, and the rules that the models of bodies check in code.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_gateway import about
from yardmaster_gateway.bodies import BODY_PREFIX
from yardmaster_schemas.api import (
    CancelBody,
    DepartmentConfig,
    Enrolment,
    HoldBody,
    JobPatch,
    JobSpec,
    NodePatch,
    NodeSlots,
    PoolConfig,
    Problem,
    ProjectConfig,
    Quota,
)

Json = dict[str, Any]
_REFS: Final = "#/components/schemas/"
#: Each body model, with an example.
_BODIES: Final[Mapping[type, Json]] = {
    JobSpec: {
        "project": "default",
        "name": "train",
        "resources": {"gpus": 2, "cpus": 8, "memory": "64Gi"},
        "replicas": 2,
        "run": {"command": ["python3", "train.py"]},
    },
    JobPatch: {"priority": 10},
    CancelBody: {"reason": "wrong data"},
    HoldBody: {"reason": "another job has a deadline"},
    NodePatch: {"state": "cordoned", "reason": "new driver"},
    NodeSlots: {"disabled": [0], "stop": True, "reason": "memory errors"},
    PoolConfig: {"policy": {"name": "priority"}},
    DepartmentConfig: {"quotas": {"default": {"limit_milli": 32_000}}},
    ProjectConfig: {"department": "default", "limit_milli": 8000},
    Quota: {"limit_milli": 8000},
    Enrolment: {"pool": "default", "gpus": 8},
}
_LISTED: Final = "separate several values with commas."
#: The description of each parameter, and an example where it helps.
_PARAMETERS: Final[Mapping[str, tuple[str, Any]]] = {
    "Idempotency-Key": (
        "A repetition with the same key and body returns the same answer and records nothing.",
        "0b9a3f5e-train-1",
    ),
    "If-Match": ("The ETag of the object to change, or * for any version.", "*"),
    "If-None-Match": ("Send * to create an object that must not exist yet.", None),
    "last-event-id": ("The id of the last received event; the stream continues after it.", None),
    "yard-min-position": ("The same as `min_position`, which takes precedence.", None),
    "min_position": (
        "Wait until the views cover at least this position. The answer is 410 if it belongs to "
        "another log.",
        None,
    ),
    "after": ("Continue after this position.", None),
    "cell": ("The name of the cell.", "main"),
    "number": ("The number of a cycle, starting at 1.", "1"),
    "job_id": ("The id of a job.", "4kq7w2mz9c1f"),
    "task_id": ("The id of a task: the job's id and the task's index.", "4kq7w2mz9c1f.0"),
    "request_id": ("The id of a request, from an answer with status 202.", "main.12"),
    "name": ("The name of the node, pool, project or department.", "default"),
    "attempt": ("The number of an attempt, starting at 1. Default: the newest.", None),
    "bucket": ("The length of the buckets into which the period is divided.", None),
    "by": ("Group the sums by project, user or pool.", None),
    "cursor": ("The `next_cursor` of the previous page.", None),
    "department": (f"Only projects of this department; {_LISTED}", None),
    "follow": ("Stream new output until the task has ended.", None),
    "from": ("The start of the period, RFC 3339 in UTC. Default: 30 days before its end.", None),
    "to": ("The end of the period, RFC 3339 in UTC. Default: now.", None),
    "kind": (f"Only this kind; {_LISTED}", None),
    "kinds": (f"The kinds of objects to watch; {_LISTED}", None),
    "limit": ("The largest number of items in the answer.", None),
    "node": (f"Only tasks on this node; {_LISTED}", None),
    "phase": (f"Only in this phase; {_LISTED}", None),
    "pieces": ("Return the output in pieces, as server-sent events.", None),
    "pool": (f"The name of a pool. As a filter, {_LISTED}", "default"),
    "project": (f"Only of this project; {_LISTED}", None),
    "ref": ("Only ids that start with this text.", None),
    "replica": ("The number of a replica, starting at 0.", None),
    "since": ("Only jobs submitted at or after this time, RFC 3339.", None),
    "sort": ("Sort by time of submission; with the prefix -, the newest first.", None),
    "state": (f"Only in this state; {_LISTED}", None),
    "tail": ("Return only the last lines of the output, this many.", None),
    "timeout_s": ("The longest time to wait for `wait_for`, in seconds.", None),
    "user": (f"Only of this user; {_LISTED}", None),
    "wait_for": ("Wait until the task has reached this phase, or `timeout_s` is over.", None),
    "wait_s": ("The longest time to wait for the decision of quota, in seconds.", None),
}


def document_of(app: FastAPI) -> Json:
    """The OpenAPI document of an app's routes."""
    found: Json = get_openapi(
        title="Yardmaster",
        version=about.software_version(),
        description="Submit, watch and operate work on shared GPU clusters.",
        routes=app.routes,
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    _add_bodies(schemas)
    problem = Problem.model_json_schema(mode="serialization", ref_template=f"{_REFS}{{model}}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            # Invalid parameters are answered with 400. 422 is for bodies, and documented there.
            content = operation["responses"].get("422", {}).get("content", {})
            if "application/json" in content:
                del operation["responses"]["422"]
            if path.startswith("/v1/"):
                operation["security"] = [{"bearer": []}]
            _describe(operation)
    return found


def _add_bodies(schemas: Json) -> None:
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [
        (body.__name__, "validation", TypeAdapter(body)) for body in _BODIES
    ]
    _, schemas_of_bodies = TypeAdapter.json_schemas(
        adapters, ref_template=f"{_REFS}{BODY_PREFIX}{{model}}"
    )
    for name, schema in schemas_of_bodies["$defs"].items():
        for part in _parts(schema):
            if "patternProperties" in part:
                part.setdefault("additionalProperties", False)
        schemas[f"{BODY_PREFIX}{name}"] = schema
    for body, example in _BODIES.items():
        schemas[f"{BODY_PREFIX}{body.__name__}"]["example"] = example
    _add_rules({name.removeprefix(BODY_PREFIX): schema for name, schema in schemas.items()})


def _add_rules(bodies: Json) -> None:
    """Add the rules that the models check in code, as far as JSON Schema can express them."""
    for name in ("priority", "weight"):
        _remove_null(bodies["JobPatch"]["properties"], name)
    null = {"type": "null"}
    bodies["JobRun"]["oneOf"] = [
        {"required": [one], "properties": {one: {"not": null}, other: null}}
        for one, other in (("command", "script"), ("script", "command"))
    ]
    bodies["NodePatch"]["oneOf"] = [
        {
            "required": ["deadline_at"],
            "properties": {"state": {"const": "draining"}, "deadline_at": {"not": null}},
        },
        {"properties": {"state": {"enum": ["ready", "cordoned"]}, "deadline_at": null}},
    ]
    bodies["PolicyRef"]["properties"]["name"]["enum"] = sorted({name for name, _ in POLICIES})
    # Not supported yet (see unsupported.py).
    bodies["Quota"]["properties"]["deserved_milli"] = {"enum": [None, 0], "default": None}
    bodies["Quota"]["properties"]["over_quota_weight"] = {"enum": [1], "default": 1}
    bodies["DepartmentConfig"]["properties"]["weight"] = {"enum": [1], "default": 1}


def _remove_null(properties: Json, name: str) -> None:
    schema = properties[name]
    (form,) = [one for one in schema.pop("anyOf") if one != {"type": "null"}]
    schema.pop("default", None)
    schema.update(form)


def _describe(operation: Json) -> None:
    parameters = operation.get("parameters", [])
    names = {parameter["name"] for parameter in parameters}
    for parameter in parameters:
        schema = parameter["schema"]
        if {"type": "null"} in schema.get("anyOf", ()):
            # A parameter is optional, but it cannot be null.
            properties = {"schema": schema}
            _remove_null(properties, "schema")
        if parameter["name"] == "If-Match" and "If-None-Match" not in names:
            parameter["required"] = True
        description, example = _PARAMETERS[parameter["name"]]
        parameter["description"] = description
        if example is not None:
            parameter["example"] = example


def _parts(schema: object) -> Iterator[Json]:
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from _parts(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _parts(inner)
