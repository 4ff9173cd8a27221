"""The OpenAPI document: the document of FastAPI, completed with facts that FastAPI does not know.

This module adds three parts: the schemas of bodies and problems, which the endpoints handle
themselves; the descriptions and examples of parameters and fields (see descriptions.py); and the
rules that the models of bodies check in code.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_gateway.http.bodies import BODY_PREFIX
from yardmaster_gateway.reference.descriptions import ANSWERS, FIELDS, PARAMETERS
from yardmaster_runtime.distribution import installed_version
from yardmaster_schemas.api import (
    CancelBody,
    CellConfig,
    DepartmentConfig,
    Enrollment,
    JobPatch,
    JobSpec,
    NewUser,
    NodePatch,
    NodeSlots,
    PauseBody,
    PoolConfig,
    Problem,
    ProjectConfig,
    Quota,
    ResumeBody,
    RolesChange,
    RulesSwitch,
    TokenOrder,
)

Json = dict[str, Any]
_REFS: Final = "#/components/schemas/"
_ROLE: Final = {"role": "user", "scope": "project", "name": "nlp"}
#: Each body model, with an example.
BODIES: Final[Mapping[type, Json]] = {
    JobSpec: {
        "project": "default",
        "name": "train",
        "resources": {"gpus": 2, "cpus": 8, "memory": "64Gi"},
        "replicas": 2,
        "run": {"command": ["python3", "train.py"]},
    },
    JobPatch: {"priority": 10},
    CancelBody: {"reason": "wrong data"},
    PauseBody: {"reason": "another job has a deadline"},
    ResumeBody: {},
    NodePatch: {"state": "cordoned", "reason": "new driver"},
    NodeSlots: {"disabled": [0], "stop": True, "reason": "memory errors"},
    RulesSwitch: {"rules": 2},
    NewUser: {"name": "ana", "roles": [_ROLE]},
    RolesChange: {"roles": [_ROLE]},
    TokenOrder: {"overlap_s": 60},
    CellConfig: {"user_tasks": 50_000},
    PoolConfig: {"policy": {"name": "priority"}},
    DepartmentConfig: {"quotas": {"default": {"limit_milli": 32_000}}},
    ProjectConfig: {"department": "default", "limit_milli": 8000},
    Quota: {"limit_milli": 8000},
    Enrollment: {"pool": "default", "gpus": 8},
}


def document_of(app: FastAPI) -> Json:
    """The OpenAPI document of an app's routes."""
    found: Json = get_openapi(
        title="Yardmaster",
        version=installed_version(),
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
    _describe_answers(schemas)
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
        (body.__name__, "validation", TypeAdapter(body)) for body in BODIES
    ]
    _, schemas_of_bodies = TypeAdapter.json_schemas(
        adapters, ref_template=f"{_REFS}{BODY_PREFIX}{{model}}"
    )
    for name, schema in schemas_of_bodies["$defs"].items():
        for part in _parts(schema):
            if "patternProperties" in part:
                part.setdefault("additionalProperties", False)
        schemas[f"{BODY_PREFIX}{name}"] = schema
    for model, texts in FIELDS.items():
        properties = schemas[f"{BODY_PREFIX}{model.__name__}"]["properties"]
        for field, (description, example) in texts.items():
            properties[field] |= {"description": description, "examples": [example]}
    for body, example in BODIES.items():
        schemas[f"{BODY_PREFIX}{body.__name__}"]["example"] = example
    _add_rules({name.removeprefix(BODY_PREFIX): schema for name, schema in schemas.items()})


def _describe_answers(schemas: Json) -> None:
    """Add the texts of the fields of answers, by model and field, else by field."""
    for model, schema in schemas.items():
        if model.startswith(BODY_PREFIX):
            continue
        for field, form in schema.get("properties", {}).items():
            texts = ANSWERS.get(f"{model}.{field}") or ANSWERS[field]
            form["description"], form["examples"] = texts[0], [texts[1]]
    for model, schema in schemas.items():
        if not model.startswith(BODY_PREFIX):
            for form in schema.get("properties", {}).values():
                form["examples"] = [_complete(schemas, form, each) for each in form["examples"]]


def _complete(schemas: Json, form: Json, example: Any) -> Any:
    """The example with the required fields that its text leaves out, from their own examples."""
    for branch in form.get("anyOf", (form,)):
        found = schemas[branch["$ref"].removeprefix(_REFS)] if "$ref" in branch else branch
        if isinstance(example, list) and "items" in found:
            return [_complete(schemas, found["items"], each) for each in example]
        if isinstance(example, dict) and "properties" in found:
            fields = found["properties"]
            first = {name: fields[name]["examples"][0] for name in found.get("required", ())}
            return {
                name: _complete(schemas, fields[name], value) if name in fields else value
                for name, value in (first | example).items()
            }
    return example


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
    bodies["Quota"]["not"] = {
        "required": ["deserved_unlimited", "deserved_milli"],
        "properties": {"deserved_unlimited": {"const": True}, "deserved_milli": {"not": null}},
    }
    # Not supported (see quota_checks.py).
    weight = bodies["DepartmentConfig"]["properties"]["weight"]
    kept = {key: weight[key] for key in ("description", "examples")}
    bodies["DepartmentConfig"]["properties"]["weight"] = {"enum": [1], "default": 1, **kept}


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
        name = parameter["name"]
        own = PARAMETERS.get(f"{operation['operationId']}.{name}")
        description, example = own or PARAMETERS[name]
        parameter["description"] = description
        parameter["example"] = example


def _parts(schema: object) -> Iterator[Json]:
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from _parts(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _parts(inner)
