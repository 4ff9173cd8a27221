"""A JSON Schema in words, for pages that people read."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter

from yardmaster_schemas.fields import MAX_INT, Name
from yardmaster_schemas.quantities import DURATION_PATTERN, MEMORY_PATTERN

Json = dict[str, Any]
#: The names of well-known patterns; other strings are described by their length.
_NAMED: Final = {
    DURATION_PATTERN: "duration",
    MEMORY_PATTERN: "memory",
    TypeAdapter(Name).json_schema()["pattern"]: "name",
}
_NULL: Final = {"type": "null"}


def in_words(schema: Json, definitions: Mapping[str, Json] = MappingProxyType({})) -> str:
    """Describe the values that a schema allows: `integer, 1 to 64`, a model's name, or all values.

    A reference to an enumeration in `definitions` is replaced by its values.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        named = definitions.get(name, {})
        return in_words(named) if "enum" in named or "const" in named else name
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(v) if v is None else str(v) for v in schema["enum"])
    forms = schema.get("anyOf", schema.get("oneOf"))
    if forms is not None:
        words = [in_words(form, definitions) for form in forms if form != _NULL]
        # pydantic puts the limits of a union next to its forms.
        limits: Json = {key: schema[key] for key in ("ge", "gt", "le", "lt") if key in schema}
        if set(words) == {"integer", "number"}:
            words = ["number"]
        return " or ".join(dict.fromkeys(words)) + _range(limits)
    if schema.get("pattern") in _NAMED:
        return _NAMED[schema["pattern"]]
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = _inner(schema.get("items", {}), definitions)
        return f"list of {items}{_most(schema, 'maxItems', 'items')}"
    if kind == "object":
        return f"mapping{_values(schema, definitions)}{_most(schema, 'maxProperties', 'entries')}"
    if kind == "string":
        form = f" ({schema['format']})" if "format" in schema else ""
        return f"string{form}{_most(schema, 'maxLength', 'characters')}"
    return kind + _range(schema)


def _values(schema: Json, definitions: Mapping[str, Json]) -> str:
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    found = [_inner(each, definitions) for each in inner if isinstance(each, dict)]
    return f" to {found[0]}" if found else ""


def _inner(schema: Json, definitions: Mapping[str, Json]) -> str:
    words = in_words(schema, definitions)
    return f"({words})" if " " in words else words


def _most(schema: Json, key: str, what: str) -> str:
    return f", at most {schema[key]:,} {what}" if key in schema else ""


def _range(schema: Json) -> str:
    low, above = _first(schema, "minimum", "ge"), _first(schema, "exclusiveMinimum", "gt")
    high, below = _first(schema, "maximum", "le"), _first(schema, "exclusiveMaximum", "lt")
    # The limits that all integers have (exact in every JSON reader) are left out.
    low, high = (None if n in (-MAX_INT, MAX_INT) else n for n in (low, high))
    start = _number(low) if above is None else f"above {_number(above)}"
    end = _number(high) if below is None else f"below {_number(below)}"
    if start is not None and end is not None:
        return f", {start} to {end}"
    if start is not None:
        return f", {start}" if above is not None else f", at least {start}"
    return "" if end is None else f", at most {end}"


def _number(value: float | None) -> str | None:
    """A limit in digits; without decimals, which FastAPI adds to limits of integers (64.0)."""
    if value is None:
        return None
    return f"{int(value) if value == int(value) else value:,}"


def _first(schema: Json, *keys: str) -> Any:
    return next((schema[key] for key in keys if key in schema), None)
