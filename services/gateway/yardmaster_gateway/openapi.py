"""The OpenAPI document: FastAPI's, and what FastAPI cannot know of it.

Bodies and problems, which endpoints handle themselves; what parameters mean, with examples; and the
rules of bodies that their models check in code.
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
#: Each body, with an example.
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
    HoldBody: {"reason": "makes way for a deadline"},
    NodePatch: {"state": "cordoned", "reason": "new driver"},
    NodeSlots: {"disabled": [0], "stop": True, "reason": "memory errors"},
    PoolConfig: {"policy": {"name": "priority"}},
    DepartmentConfig: {"quotas": {"default": {"limit_milli": 32_000}}},
    ProjectConfig: {"department": "default", "limit_milli": 8000},
    Quota: {"limit_milli": 8000},
    Enrolment: {"pool": "default", "gpus": 8},
}
_LISTED: Final = "several with commas between them."
#: What a parameter means, and an example where that helps.
_PARAMETERS: Final[Mapping[str, tuple[str, Any]]] = {
    "Idempotency-Key": (
        "The same key and body again give the same answer and record nothing.",
        "0b9a3f5e-train-1",
    ),
    "If-Match": ("The ETag of what is to be changed, or * for any.", "*"),
    "If-None-Match": ("* to make what must not exist yet.", None),
    "last-event-id": ("The id of the last event that was received: continue after it.", None),
    "yard-min-position": ("As `min_position`, which counts if both are given.", None),
    "min_position": (
        "Answer from views that cover at least this position, after a wait; 410 if it is another "
        "log's.",
        None,
    ),
    "after": ("A position: continue after it.", None),
    "cell": ("The name of the cell.", "main"),
    "number": ("The number of a cycle, from 1.", "1"),
    "job_id": ("The id of a job.", "4kq7w2mz9c1f"),
    "task_id": ("The id of a task: the job's id and the task's index.", "4kq7w2mz9c1f.0"),
    "request_id": ("The id of a request, from a 202.", "main.12"),
    "name": ("The name of the node, pool, project or department.", "default"),
    "attempt": ("The number of an attempt, from 1; without it the newest.", None),
    "bucket": ("How to cut the period.", None),
    "by": ("What to sum up by.", None),
    "cursor": ("`next_cursor` of the page before.", None),
    "department": (f"Only of this department; {_LISTED}", None),
    "follow": ("Continue with what is written from now on, as a stream.", None),
    "from": ("Start of the period, RFC 3339 in UTC.", None),
    "to": ("End of the period, RFC 3339 in UTC; without it now.", None),
    "kind": (f"Only of this kind; {_LISTED}", None),
    "kinds": (f"What to watch; {_LISTED}", None),
    "limit": ("The longest page.", None),
    "node": (f"Only on this node; {_LISTED}", None),
    "phase": (f"Only in this phase; {_LISTED}", None),
    "pieces": ("Give what there is piece by piece, as server-sent events.", None),
    "pool": (f"A pool; as a filter {_LISTED}", "default"),
    "project": (f"Only of this project; {_LISTED}", None),
    "ref": ("The beginning of an id.", None),
    "replica": ("The number of a replica, from 0.", None),
    "since": ("Only what was submitted from this time on, RFC 3339.", None),
    "sort": ("Order by time of submission; with - the newest first.", None),
    "state": (f"Only in this state; {_LISTED}", None),
    "tail": ("Only so many last lines.", None),
    "timeout_s": ("The longest wait for `wait_for`, in seconds.", None),
    "user": (f"Only of this user; {_LISTED}", None),
    "wait_for": ("Answer when the task has reached this phase, or `timeout_s` is over.", None),
    "wait_s": ("The longest wait for a verdict, in seconds.", None),
}


def document_of(app: FastAPI) -> Json:
    """The document of an app's routes."""
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
            # Parameters that cannot be read are 400; 422 is about bodies, and founded with them.
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
    _, given = TypeAdapter.json_schemas(adapters, ref_template=f"{_REFS}{BODY_PREFIX}{{model}}")
    for name, schema in given["$defs"].items():
        for part in _parts(schema):
            if "patternProperties" in part:
                part.setdefault("additionalProperties", False)
        schemas[f"{BODY_PREFIX}{name}"] = schema
    for body, example in _BODIES.items():
        schemas[f"{BODY_PREFIX}{body.__name__}"]["example"] = example
    _add_rules({name.removeprefix(BODY_PREFIX): schema for name, schema in schemas.items()})


def _add_rules(bodies: Json) -> None:
    """State what the models check in code, as far as a schema can."""
    for name in ("priority", "weight"):
        _never_null(bodies["JobPatch"]["properties"], name)
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


def _never_null(properties: Json, name: str) -> None:
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
            # What is not given is left out; there is no way to write null here.
            properties = {"schema": schema}
            _never_null(properties, "schema")
        if parameter["name"] == "If-Match" and "If-None-Match" not in names:
            parameter["required"] = True
        about, example = _PARAMETERS[parameter["name"]]
        parameter["description"] = about
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
