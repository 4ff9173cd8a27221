"""MkDocs hook: write the tables of reference pages from the program itself, at each build.

A page contains `<!-- generated: NAME -->`; the build replaces it with what `TABLES[NAME]` returns,
so a table cannot be older than the code.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic_settings import BaseSettings

from yardmaster_schemas.words import in_words

MARKER: Final = re.compile(r"<!-- generated: ([a-z-]+) -->")
#: The module with the settings of each service.
SERVICES: Final = {
    "gateway": "yardmaster_gateway.settings",
    "quota": "yardmaster_quota.main",
    "scheduler": "yardmaster_scheduler.settings",
    "views": "yardmaster_views.settings",
    "node agent": "yardmaster_node_agent.settings",
}
ALARMS: Final = Path(__file__).parents[1] / "deploy/prometheus/alarms.yaml"
Json = dict[str, Any]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers of a page (a hook of MkDocs)."""
    return MARKER.sub(lambda found: TABLES[found[1]](), markdown)


# --- the yard command ---------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command of `yard` by the words that call it, groups before their commands."""
    from yardmaster_cli.main import yard

    def walk(
        words: str, command: click.Command, context: click.Context
    ) -> Iterator[tuple[str, click.Command, click.Context]]:
        yield words, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                if child is not None and not child.hidden:
                    below = click.Context(
                        child, parent=context, info_name=name, **child.context_settings
                    )
                    yield from walk(f"{words} {name}", child, below)

    root = click.Context(yard, info_name="yard", terminal_width=96, **yard.context_settings)
    yield from walk("yard", yard, root)


def cli() -> str:
    """The help of every command, as `--help` prints it on a terminal of 96 columns."""
    sections = []
    for words, command, context in commands():
        depth = "##" if words.count(" ") < 2 else "###"
        sections.append(f"{depth} `{words}`\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)


def keys() -> str:
    """A table of the keys of pools, projects and departments for each kind, with defaults."""
    from yardmaster_cli.key_values import DEPARTMENT, POOL, PROJECT, listed
    from yardmaster_schemas.api import DepartmentConfig, PoolConfig, ProjectConfig, Quota
    from yardmaster_schemas.events.requests import PolicyRef

    kinds = (("Pools", POOL, PoolConfig), ("Projects", PROJECT, ProjectConfig))
    lines = []
    for title, known, model in (*kinds, ("Departments", DEPARTMENT, DepartmentConfig)):
        lines += ["", f"### {title}", "", "| key | default | meaning |", "| --- | --- | --- |"]
        for name, key in listed(known).items():
            # The last part is a field of the configuration, of its policy or of one of its quotas.
            owner = {"policy": PolicyRef, "quotas": Quota}.get(key.path[0], model)
            defaults = {field.name: field.default for field in dataclasses.fields(owner)}
            default = _default(defaults.get(key.path[-1], ()), key.value)
            lines.append(f"| `{name}={_cell(key.value)}` | {default} | {_cell(key.about)} |")
    return "\n".join(lines[1:])


def _default(value: object, form: str) -> str:
    """The default of a key, as a user writes it; empty if it is no value."""
    if value is None:
        return "`none`" if "none" in form else ""
    if value == () or value is dataclasses.MISSING:
        return ""
    return f"`{value}s`" if form == "TIME" else _plain(value)


# --- the REST API -------------------------------------------------------------------------------


def rest() -> str:
    """Every operation of the gateway's OpenAPI document, with parameters, body and answers."""
    from yardmaster_gateway.app import document

    api = document()
    lines = ["| method and path | what it does |", "| --- | --- |"]
    sections = []
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            title = f"{method.upper()} {path}"
            # FastAPI derives the summary from the function's name; the docstring says more.
            about = operation.get("description") or operation.get("summary", "")
            first = _cell(about.partition("\n\n")[0])
            lines.append(f"| [`{title}`](#{_anchor(title)}) | {first} |")
            sections.append(_operation(title, about, operation))
    return "\n".join([*lines, "", *sections])


def problems() -> str:
    """The code, status and hint of every problem document."""
    from yardmaster_gateway.problems import KINDS

    lines = ["| code | status | what to do |", "| --- | --- | --- |"]
    for code, kind in KINDS.items():
        lines.append(f"| `{code}` | {kind.status} | {_cell(kind.hint or '')} |")
    return "\n".join(lines)


def _operation(title: str, about: str, operation: Json) -> str:
    lines = [f"### `{title}` {{ #{_anchor(title)} }}", "", about.strip(), ""]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | type | meaning |", "| --- | --- | --- | --- |"]
        for each in parameters:
            needed = " (required)" if each.get("required") else ""
            meaning = _cell(each.get("description", ""))
            kind = _cell(in_words(each["schema"]))
            lines.append(f"| `{each['name']}`{needed} | {each['in']} | {kind} | {meaning} |")
        lines.append("")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Body ({kind}): `{in_words(content.get('schema', {}))}`.", ""]
    lines += ["| status | answer |", "| --- | --- |"]
    for status, answer in operation["responses"].items():
        schemas = {in_words(each.get("schema", {})) for each in answer.get("content", {}).values()}
        said = ", ".join(f"`{each}`" for each in sorted(schemas - {"any"}))
        text = _cell(answer.get("description", ""))
        lines.append(f"| {status} | {text}{': ' if text and said else ''}{said} |")
    return "\n".join([*lines, ""])


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


# --- the job file -------------------------------------------------------------------------------


def job_file() -> str:
    """Every key of a job file, those of nested mappings with a dot."""
    from yardmaster_schemas.job_file import JobSpec

    lines = ["| key | value | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
    for key, schema, required, definitions in job_keys(JobSpec.model_json_schema()):
        value = _cell(in_words(schema, definitions)).replace("ReplicaRange", "`{min, max}`")
        about, _, rule = schema["description"].partition(" Default: ")
        default = "required" if required else rule.removesuffix(".")
        if not default:
            default = _plain(schema.get("default"))
        examples = ", ".join(f"`{as_yaml(each)}`" for each in schema["examples"])
        value = value.replace("GpuShares", "`{count, fraction}`")
        lines.append(f"| `{key}` | {value} | {default} | {_cell(about)} | {examples} |")
    return "\n".join(lines)


def job_keys(
    model: Json, prefix: str = "", definitions: Json | None = None
) -> Iterator[tuple[str, Json, bool, Json]]:
    """The keys of a job file with their schema, whether they are required, and all definitions.

    A mapping with a fixed set of keys is replaced by these; one of several forms is kept, and its
    keys follow it.
    """
    known: Json = model.get("$defs", {}) if definitions is None else definitions
    for key, schema in model["properties"].items():
        forms = schema.get("anyOf", schema.get("oneOf", [schema]))
        named = [str(form.get("$ref", "")).rpartition("/")[2] for form in forms]
        inner = [known[name] for name in named if "properties" in known.get(name, {})]
        others = [form for form in forms if form != {"type": "null"}]
        if not inner or len(others) > 1:
            required = key in model.get("required", ()) and not prefix
            yield f"{prefix}{key}", schema, required, known
        for each in inner:
            yield from job_keys(each, f"{prefix}{key}.", known)


def as_yaml(value: object) -> str:
    """A value on one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


# --- settings -----------------------------------------------------------------------------------


def models() -> Mapping[str, type[BaseSettings]]:
    """The settings of each service, by the service's name."""
    return {
        name: next(
            found
            for found in vars(importlib.import_module(module)).values()
            if isinstance(found, type)
            and issubclass(found, BaseSettings)
            and found.__module__ == module
        )
        for name, module in SERVICES.items()
    }


class Setting(BaseModel):
    """One setting: its variable without the prefix, and what the model says of it."""

    variable: str
    kind: str
    default: str
    about: str


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """The settings of a model, those of nested models under `OUTER__INNER`."""
    comments = _comments(model)
    properties = TypeAdapter(model).json_schema()["properties"]
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(inner, f"{prefix}{name.upper()}__")
            continue
        default = "(required)"
        if not field.is_required():
            default = _plain(field.get_default(call_default_factory=True))
        yield Setting(
            variable=f"{prefix}{name.upper()}",
            kind=in_words(properties[name]),
            default=default,
            about=comments.get(name, ""),
        )


def _plain(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, tuple | list | dict):
        return f"`{json.dumps(value)}`" if value else ""
    return f"`{value}`" if not isinstance(value, bool) else f"`{str(value).lower()}`"


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The `#:` comment above each field of a model and of the models that it extends."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls in (BaseModel, BaseSettings):
            continue
        lines = inspect.getsource(cls).splitlines()
        (tree,) = ast.parse(textwrap.dedent("\n".join(lines))).body
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                above = []
                line = node.lineno - 2
                while line >= 0 and lines[line].strip().startswith("#:"):
                    above.append(lines[line].strip().removeprefix("#:").strip())
                    line -= 1
                if above:
                    found[node.target.id] = " ".join(reversed(above))
    return found


def settings() -> str:
    """A table of the settings that several services have, then one table a service."""
    services: dict[tuple[str, ...], list[str]] = {}
    for service, model in models().items():
        for each in settings_of(model):
            row = (each.variable, each.kind, each.default, each.about)
            services.setdefault(row, []).append(service)
    lines = ["## Several services", ""]
    lines += ["| variable | services | type | default | meaning |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for (variable, kind, default, about), users in services.items():
        if len(users) > 1:
            who = "all" if len(users) == len(SERVICES) else ", ".join(users)
            lines.append(
                f"| `YARD_{variable}` | {who} | {_cell(kind)} | {default} | {_cell(about)} |"
            )
    for service, model in models().items():
        prefix = str(model.model_config["env_prefix"])
        own = [row for row, users in services.items() if users == [service]]
        if own:
            lines += ["", f"## {service.capitalize()}", ""]
            lines += ["| variable | type | default | meaning |", "| --- | --- | --- | --- |"]
        for variable, kind, default, about in own:
            lines.append(f"| `{prefix}{variable}` | {_cell(kind)} | {default} | {_cell(about)} |")
    return "\n".join(lines)


# --- alarms -------------------------------------------------------------------------------------


def alarms() -> str:
    """A table of the alarms of `ALARMS`, a row each; rules of one name are one alarm."""
    rows: dict[str, list[Json]] = {}
    for group in yaml.safe_load(ALARMS.read_text())["groups"]:
        for rule in group["rules"]:
            rows.setdefault(rule["alert"], []).append(rule)
    lines = ["| alarm | severity | condition | meaning | what to do |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, rules in rows.items():
        conditions = [
            f"`{' '.join(rule['expr'].split())}`" + (f" for {rule['for']}" if "for" in rule else "")
            for rule in rules
        ]
        first = rules[0]
        texts = (first["annotations"][key] for key in ("description", "remedy"))
        meaning, remedy = (_cell(_linked(text)) for text in texts)
        condition = _cell("; or ".join(conditions))
        lines.append(
            f"| `{name}` | {first['labels']['severity']} | {condition} | {meaning} | {remedy} |"
        )
    return "\n".join(lines)


def _linked(text: str) -> str:
    """Text with links instead of the paths of pages, as a page of `docs/reference` writes them."""
    return re.sub(r"\bdocs/([\w/-]+\.md(?:#[\w-]+)?)", r"[\1](../\1)", text)


def _cell(text: str) -> str:
    """Text as a cell of a table: one line, no bar that ends the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "alarms": alarms,
    "cli": cli,
    "job-file": job_file,
    "keys": keys,
    "problems": problems,
    "rest": rest,
    "settings": settings,
}
