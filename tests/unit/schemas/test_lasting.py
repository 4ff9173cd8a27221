"""Topics that are kept forever hold no free text and nothing unbounded."""

import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.support.events import schema
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.errors import MalformedRecord
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_schemas.fields import (
    MAX_DEPTH,
    MAX_INT,
    MAX_OPTION_DEPTH,
    MAX_OPTION_ITEMS,
    MAX_OPTIONS,
    CheckpointUri,
)
from yardmaster_schemas.plain import load
from yardmaster_schemas.topics import TOPICS

#: The parser of `re` itself, which has no public name.
_parser = importlib.import_module("re._parser")
_constants = importlib.import_module("re._constants")

FOREVER = sorted(t.name for t in TOPICS.values() if t.retention_ms is None and not t.compacted)
LASTING = [
    pytest.param(cls, id=f"{t}.v{v}")
    for (t, v), cls in sorted(EVENTS.items())
    if set(cls.TOPICS) & set(FOREVER)
]
#: A name is no longer than this; hexadecimal digits are no text, however many.
LONGEST_NAME = 256
LONGEST = 1024 * 1024
#: The one thing that users write freely (within a URI's alphabet) and that lasts.
EXCEPTIONS = {
    TypeAdapter(CheckpointUri).json_schema()["pattern"]: 1024,
}

Found = tuple[str, str]


def problems(document: dict[str, Any]) -> Iterator[Found]:
    definitions = document["$defs"]

    def walk(node: Any, path: str, depth: int) -> Iterator[Found]:
        if depth > MAX_DEPTH:
            yield path, "nested deeper than 16"
            return
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name == "JsonValue":
                if not path.endswith(".options.*"):
                    yield path, "any JSON"
                elif depth + MAX_OPTION_DEPTH > MAX_DEPTH:
                    yield path, "options nested deeper than 16"
                return
            yield from walk(definitions[name], path, depth)
            return
        for each in node.get("anyOf", ()):
            yield from walk(each, path, depth)
        if "anyOf" in node or "const" in node or "enum" in node:
            return
        match node.get("type"):
            case "null" | "boolean":
                pass
            case "integer":
                yield from integer(node, path)
            case "string":
                yield from string(node, path)
            case "array":
                if "maxItems" not in node:
                    yield path, "a sequence without a bound"
                yield from walk(node["items"], f"{path}[]", depth + 1)
            case "object" if "properties" in node:
                if node.get("additionalProperties") is not False:
                    yield path, "an open model"
                for name, field in node["properties"].items():
                    yield from walk(field, f"{path}.{name}", depth + 1)
            case "object":
                yield from mapping(node, path, depth)
            case other:
                yield path, f"a {other}"

    def mapping(node: Any, path: str, depth: int) -> Iterator[Found]:
        if "maxProperties" not in node:
            yield path, "a mapping without a bound"
        entries = [({"pattern": p}, v) for p, v in node.get("patternProperties", {}).items()]
        if isinstance(node.get("additionalProperties"), dict):
            entries.append((node.get("propertyNames", {}), node["additionalProperties"]))
        for keys, values in entries:
            # An enumeration of keys is as closed as one of values.
            yield from walk({"type": "string", **keys}, f"{path} (key)", depth)
            yield from walk(values, f"{path}.*", depth + 1)

    yield from walk(document, "", 1)


def integer(node: Any, path: str) -> Iterator[Found]:
    low = node.get("minimum", -(2**99))
    high = node.get("maximum", node.get("exclusiveMaximum", 2**99) - 1)
    if low < -MAX_INT or high > MAX_INT:
        yield path, "an integer that other readers cannot hold"


def string(node: Any, path: str) -> Iterator[Found]:
    pattern = node.get("pattern")
    if pattern is None:
        yield path, "free text"
        return
    if not (pattern.startswith("^") and pattern.endswith("$")):
        yield path, "a pattern that is not anchored"
    widest = min(int(_parser.parse(pattern).getwidth()[1]), node.get("maxLength", LONGEST + 1))
    letters = alphabet(pattern)
    allowed = LONGEST if letters <= set("0123456789abcdef") else LONGEST_NAME
    if widest > EXCEPTIONS.get(pattern, allowed):
        yield path, f"a string of up to {widest} characters"
    if letters & set(" \t\n\r\"'<>\\") or any(ord(c) > 127 for c in letters):
        yield path, "a pattern that lets words through"


def alphabet(pattern: str) -> set[str]:
    """All characters that a pattern may take."""

    def walk(items: Any) -> Iterator[str]:
        for op, value in items:
            if op is _constants.LITERAL:
                yield chr(value)
            elif op is _constants.RANGE:
                yield from map(chr, range(value[0], value[1] + 1))
            elif op is _constants.IN:
                yield from walk(value)
            elif op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
                yield from walk(value[2])
            elif op is _constants.SUBPATTERN:
                yield from walk(value[3])
            elif op is _constants.BRANCH:
                for branch in value[1]:
                    yield from walk(branch)
            elif op is not _constants.AT:
                yield " "  # a class, a dot, a negation: nothing bounded

    return set(walk(_parser.parse(pattern)))


def test_the_topics_kept_forever_are_those_that_decisions_read() -> None:
    assert FOREVER == ["admissions", "cuts", "decisions", "node-events", "requests"]


@pytest.mark.parametrize("cls", LASTING)
def test_no_field_kept_forever_is_free_text_or_unbounded(cls: type[Event]) -> None:
    found = [f"{cls.TYPE}.v{cls.VERSION}{path}: {what}" for path, what in problems(schema(cls))]
    assert found == []


@pytest.mark.parametrize(
    ("node", "word"),
    [
        ({"type": "string"}, "free text"),
        ({"type": "string", "maxLength": 10}, "free text"),
        ({"type": "string", "pattern": "^.{0,9}$"}, "words"),
        ({"type": "string", "pattern": "^[^x]{0,9}$"}, "words"),
        ({"type": "string", "pattern": "^[a-z ]{0,9}$"}, "words"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "characters"),
        ({"type": "string", "pattern": "[a-z]"}, "anchored"),
        ({"type": "number"}, "a number"),
        ({"type": "integer"}, "integer"),
        ({"type": "integer", "minimum": 0}, "integer"),
        ({"type": "array", "items": {"type": "boolean"}}, "sequence"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "mapping"),
        ({"type": "object", "maxProperties": 1, "additionalProperties": {"const": 1}}, "free text"),
        ({"type": "object", "properties": {}}, "open"),
        ({"$ref": "#/$defs/JsonValue"}, "any JSON"),
        ({}, "a None"),
    ],
)
def test_the_lint_finds(node: dict[str, Any], word: str) -> None:
    document = {"$defs": {"JsonValue": {}}, "additionalProperties": False} | {
        "type": "object",
        "properties": {"planted": node},
    }
    found = [what for path, what in problems(document) if path.startswith(".planted")]
    assert found
    assert word in " ".join(found)


def test_the_lint_finds_deep_nesting() -> None:
    node: dict[str, Any] = {"type": "boolean"}
    for _ in range(MAX_DEPTH):
        node = {"type": "array", "maxItems": 1, "items": node}
    document = {"$defs": {}, "type": "object", "additionalProperties": False}
    assert any(
        "deeper" in what for _, what in problems({**document, "properties": {"planted": node}})
    )


def test_details_and_expiring_topics_may_hold_text() -> None:
    """Otherwise the lint would check nothing that can fail."""
    texts = [what for _, what in problems(schema(EVENTS["JobDetailed", 1]))]
    assert "free text" in texts


NESTED: Any = 1
for _ in range(MAX_OPTION_DEPTH):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"a": "please run mine first"}, "not a name"),
        ({"a": "x" * 65}, "not a name"),
        ({"a": "ünïcode"}, "not a name"),
        ({"a b": 1}, "pattern"),
        ({"a": {"b c": 1}}, "not an option name"),
        ({"a": {f"k{i}": i for i in range(MAX_OPTIONS + 1)}}, "more than"),
        ({f"k{i}": i for i in range(MAX_OPTIONS + 1)}, "at most 64"),
        ({"a": list(range(MAX_OPTION_ITEMS + 1))}, "a list of more"),
        ({"a": 0.5}, "not floats"),
        ({"a": 2**53}, "2^53"),
        ({"a": -(2**53)}, "2^53"),
        ({"a": NESTED}, "nested deeper"),
    ],
)
def test_policy_options_are_bounded(options: Any, word: str) -> None:
    with pytest.raises(MalformedRecord, match=re.escape(word)):
        load(PolicyRef, {"name": "priority", "options": options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preemption": True, "levels": [1, 2, None], "mode": "max_min", "by": {"h100": 3}},
        {"a": list(range(MAX_OPTION_ITEMS))},
        {"a": MAX_INT, "b": -MAX_INT},
        {"a": NESTED[0]},
    ],
)
def test_policy_options_at_their_bounds_pass(options: Any) -> None:
    assert load(PolicyRef, {"name": "priority", "options": options}).options == options
