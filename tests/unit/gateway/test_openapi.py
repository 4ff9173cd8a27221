"""The OpenAPI document describes everything that it names, with examples that are valid."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from yardmaster_gateway.app import document
from yardmaster_gateway.http.bodies import BODY_PREFIX
from yardmaster_gateway.reference.descriptions import ANSWERS, FIELDS, PARAMETERS
from yardmaster_gateway.reference.openapi import BODIES


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, found in document()["paths"].items():
        for method, operation in found.items():
            yield f"{method.upper()} {path}", operation


def check(schema: dict[str, Any], value: Any) -> None:
    """Check that a schema of the document allows a value."""
    whole = {**schema, "components": document()["components"]}
    errors = list(jsonschema.Draft202012Validator(whole).iter_errors(value))
    assert errors == [], f"{value!r}: {[error.message for error in errors]}"


@pytest.mark.parametrize(("title", "operation"), list(operations()))
def test_an_operation_and_its_parameters_are_described_with_an_example(
    title: str, operation: dict[str, Any]
) -> None:
    assert operation["description"].strip().endswith(".")
    for parameter in operation.get("parameters", ()):
        assert parameter["description"].endswith(".")
        check(parameter["schema"], parameter["example"])


@pytest.mark.parametrize("model", sorted(document()["components"]["schemas"]))
def test_every_field_of_a_body_is_described_with_a_valid_example(model: str) -> None:
    for field, schema in document()["components"]["schemas"][model].get("properties", {}).items():
        assert schema["description"].endswith("."), field
        assert schema["examples"], field
        form = {key: value for key, value in schema.items() if key != "examples"}
        for example in schema["examples"]:
            check(form, example)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_example_of_a_request_body_is_valid(body: type) -> None:
    schema = document()["components"]["schemas"][f"{BODY_PREFIX}{body.__name__}"]
    check(schema, schema["example"])


def test_every_text_describes_something_in_the_document() -> None:
    schemas = document()["components"]["schemas"]
    fields = {name for schema in schemas.values() for name in schema.get("properties", ())}
    of_models = {
        f"{model}.{field}"
        for model, schema in schemas.items()
        for field in schema.get("properties", ())
    }
    assert ANSWERS.keys() <= fields | of_models
    for model, texts in FIELDS.items():
        given = schemas[f"{BODY_PREFIX}{model.__name__}"]["properties"]
        assert texts.keys() == given.keys()
    parameters = {
        name
        for _, operation in operations()
        for parameter in operation.get("parameters", ())
        for name in (parameter["name"], f"{operation['operationId']}.{parameter['name']}")
    }
    assert PARAMETERS.keys() <= parameters
