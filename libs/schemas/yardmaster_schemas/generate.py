"""Generates the JSON Schema of every event version and the AsyncAPI document from the models.

`python -m yardmaster_schemas.generate` writes them into `libs/schemas/schemas/`; with `--check` it
writes nothing and exits 1 when the tree differs. The files:

    events/<Type>.v<N>.json   the whole envelope with its body, JSON Schema 2020-12
    reasons.json              every code with the numbers it carries
    index.json                topics, and the events of each
    asyncapi.json             channels, messages, senders and receivers (AsyncAPI 3)
    published.json            a digest of each released schema's meaning, descriptions apart

An event in `published.json` cannot change: models are closed, so any change of a schema (except its
descriptions) would make readers and writers of the same version disagree. Add a new version of the
event instead. A release adds its event versions to that file (`--publish`); before the first
release the file does not exist.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from yardmaster_schemas import reasons
from yardmaster_schemas.about import API_UNITS, abouts
from yardmaster_schemas.asyncapi import document
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.requests import CONFIGURATIONS
from yardmaster_schemas.topics import TOPICS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FOLDER: Final = Path(__file__).parents[1] / "schemas"
PUBLISHED: Final = "published.json"
Json = dict[str, Any]


def file_of(cls: type[Event]) -> str:
    """Return the path of an event version's schema, relative to the folder."""
    return f"events/{cls.TYPE}.v{cls.VERSION}.json"


def event_schema(cls: type[Event]) -> Json:
    """Return the JSON Schema of an event's envelope, which is the value of a record."""
    adapter: TypeAdapter[Any] = TypeAdapter(Envelope[cls])  # type: ignore[valid-type]
    schema = adapter.json_schema(ref_template="#/$defs/{model}")
    definitions = schema.pop("$defs", {})
    body = definitions.pop(cls.__name__)
    properties = schema["properties"]
    properties["type"] = {"const": cls.TYPE}
    properties["version"] = {"const": cls.VERSION}
    properties["data"] = {"$ref": f"#/$defs/{cls.TYPE}"}
    definitions[cls.TYPE] = body
    for definition in definitions.values():
        _describe_fields(definition)
    for model in CONFIGURATIONS:
        if model.__name__ in definitions:
            fields = definitions[model.__name__]["properties"]
            for name, each in abouts(model).items():
                fields[name]["description"] = each.written(API_UNITS, "null")
    schema["description"] = cleandoc(Envelope.__doc__ or "")
    _describe_fields(schema)
    schema = _plain(schema)
    return {
        "$schema": DIALECT,
        "$id": f"urn:yardmaster:event:{cls.TYPE}:{cls.VERSION}",
        **schema,
        "title": f"{cls.TYPE} version {cls.VERSION}",
        "description": cleandoc(cls.__doc__ or ""),
        "$defs": {name: _plain(definitions[name]) for name in sorted(definitions)},
    }


def _describe_fields(schema: Json) -> None:
    """Describe each field with the sentences of its class's docstring that name it."""
    text = " ".join(schema.get("description", "").split())
    sentences = re.split(r"(?<=[.;:?])\s+(?=[A-Z`])", text)
    for name, field in schema.get("properties", {}).items():
        said = " ".join(s.rstrip(";") for s in sentences if f"`{name}`" in s)
        if said:
            field["description"] = said


def _plain(schema: Any) -> Any:
    """Remove the titles, which only repeat the fields' names."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: Json = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: _plain(field) for name, field in value.items()}
        elif key != "title":
            kept[key] = value if key in ("default", "enum", "const") else _plain(value)
    if "patternProperties" in kept:
        kept["additionalProperties"] = False  # the models refuse any other key
    return kept


def meaning(schema: Any, *, names: bool = False) -> Any:
    """Remove titles and descriptions; `names`: the keys are names of fields or models."""
    if isinstance(schema, list):
        return [meaning(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: meaning(value, names=key in ("properties", "$defs"))
        for key, value in sorted(schema.items())
        if names or key not in ("title", "description")
    }


def digest(schema: Json) -> str:
    """Return the digest of a schema's meaning, 64 hex digits."""
    text = json.dumps(meaning(schema), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def reasons_document() -> Json:
    """Return every code of `reasons.py`, with the numbers of waits and stops."""
    numbers = {type(code): {} for code in reasons.NUMBERS}  # type: dict[type[Any], Json]
    for code, names in reasons.NUMBERS.items():
        numbers[type(code)][code.value] = list(names)
    return {
        "wait": [
            {
                "code": code.value,
                "class": code.wait_class.value,
                "numbers": numbers[reasons.WaitCode].get(code.value, []),
            }
            for code in reasons.WaitCode
        ],
        "stop": [
            {"code": code.value, "numbers": numbers[reasons.StopCode].get(code.value, [])}
            for code in reasons.StopCode
        ],
        "end": [code.value for code in reasons.EndCode],
        "admission": [code.value for code in reasons.AdmissionCode],
        "refusal": [code.value for code in reasons.RefusalCode],
    }


def index() -> Json:
    """Return the topics with their events and the paths of the events' schemas."""
    return {
        name: {
            f"{cls.TYPE}.v{cls.VERSION}": file_of(cls)
            for _, cls in sorted(EVENTS.items())
            if name in cls.TOPICS
        }
        for name in TOPICS
    }


@cache
def _schemas() -> dict[str, Json]:
    """Return the schema of every event version, by `<Type>.v<N>`."""
    return {f"{t}.v{v}": event_schema(cls) for (t, v), cls in sorted(EVENTS.items())}


def documents() -> dict[str, str]:
    """Return all files except `published.json`, by their path in the folder."""
    everything: dict[str, Json] = {
        **{f"events/{name}.json": schema for name, schema in _schemas().items()},
        "reasons.json": reasons_document(),
        "index.json": index(),
        "asyncapi.json": document({(c.TYPE, c.VERSION): file_of(c) for c in EVENTS.values()}),
    }
    return {name: _text(content) for name, content in everything.items()}


def _text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def broken(published: Mapping[str, str]) -> list[str]:
    """Return the versions whose published meaning has changed, or that were removed."""
    now = digests()
    return sorted(name for name, known in published.items() if now.get(name) != known)


def digests() -> dict[str, str]:
    """Return the digest of every event version's meaning, by `<Type>.v<N>`."""
    return {name: digest(schema) for name, schema in _schemas().items()}


def published_in(folder: Path) -> dict[str, str]:
    """Return the published digests, by `<Type>.v<N>`."""
    path = folder / PUBLISHED
    if not path.exists():
        return {}
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return known


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the files; return 1 when a version changed or a file differs."""
    parser = argparse.ArgumentParser(prog="python -m yardmaster_schemas.generate")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when files differ")
    parser.add_argument(
        "--publish", action="store_true", help="note each version as released: it cannot change"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the schemas")
    options = parser.parse_args(argv)
    folder: Path = options.folder
    published = published_in(folder)
    if changed := broken(published):
        print(
            f"published schemas changed: {', '.join(changed)}. Existing records must stay "
            "readable: make a new version of the event.",
            file=sys.stderr,
        )
        return 1
    if options.publish:
        published |= digests()
    files = documents()
    if published:
        files[PUBLISHED] = _text(dict(sorted(published.items())))
    there = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("**/*.json"))
    }
    differing = sorted(n for n in files.keys() | there.keys() if files.get(n) != there.get(n))
    if options.check:
        if differing:
            print(
                f"out of date: {', '.join(differing)}; run `make schemas`",
                file=sys.stderr,
            )
        return 1 if differing else 0
    for name in differing:
        path = folder / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name], encoding="utf-8")
        else:
            path.unlink()
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
