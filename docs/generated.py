"""Write the generated parts of reference pages from the program itself.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` and is what `TABLES[NAME]`
returns. `make reference` writes the parts of all pages again. They are committed, so that a reader
of the repository sees them; a test compares them with the program.
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

from docs.policy_examples import EXAMPLES
from yardmaster_schemas import api
from yardmaster_schemas.words import in_words

DOCS: Final = Path(__file__).parent
#: A generated part of a page, with its two markers.
PART: Final = re.compile(r"<!-- generated: ([a-z-]+) -->\n.*?<!-- end: \1 -->", re.DOTALL)
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


def regenerated(page: str) -> str:
    """The text of a page with each generated part as the program says now."""

    def part(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- generated: {name} -->\n\n{TABLES[name]().strip()}\n\n<!-- end: {name} -->"

    return PART.sub(part, page)


def main() -> None:
    """Write the generated parts of all pages again."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if (new := regenerated(text)) != text:
            page.write_text(new)
            print(f"wrote {page.relative_to(DOCS.parent)}")


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
    from yardmaster_cli.key_values import CELL, DEPARTMENT, POOL, PROJECT, listed
    from yardmaster_schemas.api import (
        CellConfig,
        DepartmentConfig,
        PoolConfig,
        ProjectConfig,
        Quota,
    )
    from yardmaster_schemas.events.requests import PolicyRef

    kinds = (
        ("The cell", CELL, CellConfig),
        ("Pools", POOL, PoolConfig),
        ("Projects", PROJECT, ProjectConfig),
    )
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
        return next((f"`{word}`" for word in ("none", "unlimited") if word in form.split("|")), "")
    if value is True and form == "on|off":
        return "`on`"
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
            sections.append(_operation(api, title, about, operation))
    return "\n".join([*lines, "", *sections])


def bodies() -> str:
    """Every field of the bodies of requests and answers."""
    from yardmaster_gateway.app import document

    models = document()["components"]["schemas"]
    return "\n".join(line for name in models for line in _model(name, models))


def _model(name: str, models: Json) -> Iterator[str]:
    model = models[name]
    yield from (f"### `{name}`", "", model.get("description", "").strip(), "")
    if "enum" in model:
        yield from (f"One of: {in_words(model)}", "")
    if not model.get("properties"):
        return
    yield "| field | type | default | meaning | example |"
    yield "| --- | --- | --- | --- | --- |"
    for field, schema in model["properties"].items():
        needed = " (required)" if field in model.get("required", ()) else ""
        default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
        cells = (_type(schema, models), default, schema["description"])
        example = f"`{json.dumps(schema['examples'][0])}`"
        yield f"| `{field}`{needed} | {' | '.join(map(_cell, cells))} | {_cell(example)} |"
    yield ""


def problems() -> str:
    """The code, status and hint of every problem document."""
    from yardmaster_gateway.http.problems import KINDS

    lines = ["| code | status | what to do |", "| --- | --- | --- |"]
    for code, kind in KINDS.items():
        lines.append(f"| `{code}` | {kind.status} | {_cell(kind.hint or '')} |")
    return "\n".join(lines)


def _type(schema: Json, models: Json) -> str:
    """The type in words, with links to models."""

    def link(found: re.Match[str]) -> str:
        name = found[0]
        return f"[`{name}`](#{name.lower()})" if name in models else name

    return re.sub(r"[A-Z]\w+", link, in_words(schema))


def _anchor(title: str) -> str:
    """The anchor that both MkDocs and a repository's Markdown viewer give a heading."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def _operation(api: Json, title: str, about: str, operation: Json) -> str:
    lines = [f"### `{title}`", "", about.strip(), ""]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["| parameter | in | type | meaning | example |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for each in parameters:
            needed = " (required)" if each.get("required") else ""
            meaning = _cell(each.get("description", ""))
            kind = _cell(_type(each["schema"], api["components"]["schemas"]))
            cells = (each["in"], kind, meaning, f"`{each['example']}`")
            lines.append(f"| `{each['name']}`{needed} | {' | '.join(cells)} |")
        lines.append("")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if kind != "application/json":
            lines += [f"Body: {kind}.", ""]
            continue
        body = in_words(content.get("schema", {}))
        example = json.dumps(api["components"]["schemas"][body]["example"], indent=2)
        shown = _type(content.get("schema", {}), api["components"]["schemas"])
        lines += [f"Body ({kind}): {shown}, for example:", "", "```json", example, "```", ""]
    lines += ["| status | answer |", "| --- | --- |"]
    for status, answer in operation["responses"].items():
        schemas = [each.get("schema", {}) for each in answer.get("content", {}).values()]
        types = {_type(schema, api["components"]["schemas"]) for schema in schemas}
        said = ", ".join(sorted(types - {"any"}))
        text = _cell(answer.get("description", ""))
        lines.append(f"| {status} | {text}{': ' if text and said else ''}{said} |")
    return "\n".join([*lines, ""])


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
        value = value.replace("GpuFractions", "`{count, fraction}`")
        value = value.replace("JobContext", "`{digest, packed_bytes}`")
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


# --- sizes of a cluster -------------------------------------------------------------------------

#: What to size, how its value is computed from the ones before it, and how many decimals to show.
SIZES: Final = (
    ("tasks per day", "tasks", "nodes * 8 * 24 / 4", 0),
    ("submits per second at the peak, 10 times the average", "submits", "10 * tasks / 86400", 1),
    ("partitions, without Kafka's own", "partitions", "nodes + 8 * cells", 0),
    ("heartbeats per second", "heartbeats", "nodes / 2", 0),
    ("disk of each broker for the log, GB per year", "log", "365 * tasks * (8 + 1.4 * 4) / 1e6", 0),
    ("disk of each broker for heartbeats, GB", "recent", "heartbeats * 7200 * 0.6 / 1e6", 1),
    ("disk of each broker for output, GB", "output", "7 * tasks * 100 / 1e6", 0),
    (
        "`maxmemory` of Redis, GB for each month of the log",
        "redis",
        "2 * 30 * tasks * (2.7 + 0.9 * 4) / 1e6",
        1,
    ),
    ("cores of gateways at the peak", "gateways", "0.009 * submits", 2),
)
NODES: Final = (100, 1_000, 5_000)


def sizing() -> str:
    """A table of the needs of clusters of several sizes, computed by the formulas that it shows."""
    heads = [f"{nodes:,} nodes" for nodes in NODES]
    lines = [f"| what | formula | {' | '.join(heads)} |", f"| --- | --- |{' ---: |' * len(heads)}"]
    known: list[dict[str, float]] = [{"nodes": nodes, "cells": 1} for nodes in NODES]
    for what, name, formula, decimals in SIZES:
        for values in known:
            values[name] = eval(formula, {}, values)
        cells = [f"{values[name]:,.{decimals}f}" for values in known]
        lines.append(f"| {what} | `{name} = {formula}` | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- inside a task ------------------------------------------------------------------------------

#: What the variables of a task mean. A missing or unknown name fails the build.
MEANINGS: Final = {
    "YARD_JOB_ID": "the job",
    "YARD_JOB_NAME": "the name of the job",
    "YARD_USER": "the user who submitted the job",
    "YARD_PROJECT": "the project of the job",
    "YARD_POOL": "the pool in which the task runs",
    "YARD_NODE": "the node on which this replica runs",
    "YARD_TASK_ID": "the task",
    "YARD_TASK_INDEX": "the number of the task in its job, from 0",
    "YARD_TASK_COUNT": "how many tasks the job has",
    "YARD_ATTEMPT": "the number of this attempt, from 1",
    "YARD_REPLICA": "the number of this replica, from 0",
    "YARD_REPLICAS": "how many replicas the task has",
    "YARD_PARAMS": "the point of the search, as JSON; `{}` without a search",
    "YARD_CHECKPOINT_URI": "the last checkpoint of any attempt; empty without one",
    "YARD_CHECKPOINT_STEP": "its step; empty without one",
    "YARD_CHECKPOINT_FILE": "file that the task writes to report a checkpoint",
    "YARD_STOP_FILE": "file that exists as soon as the task is asked to stop",
    "YARD_GRACE_S": "seconds between the stop signal and the kill",
    "YARD_AGENT_URL": "address of the agent's API for this replica",
    "YARD_AGENT_SOCKET": "Unix socket of that API; only in a container with its own network",
    "YARD_AGENT_TOKEN": "token for that API, of this attempt and replica only",
    "YARD_GPU_MILLI": "thousandths that it has of each of its GPUs",
    "YARD_GPU_MEMORY_MIB": "memory that it may use of each of its GPUs; 0 if unknown",
    "CUDA_VISIBLE_DEVICES": "its GPUs; empty without one",
    "CUDA_DEVICE_ORDER": "GPUs are numbered by their place on the bus",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "only for fractions of a GPU under MPS: the percentage",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "only for fractions of a GPU under MPS: the memory of each",
    "CUDA_MPS_PIPE_DIRECTORY": "only for fractions of a GPU under MPS: the pipes of its daemon",
    "CUDA_MPS_LOG_DIRECTORY": "only for fractions of a GPU under MPS: the logs of its daemon",
    "PYTHONUNBUFFERED": "Python prints at once, so that `yard logs -f` shows it; a job may set it",
    "RANK": "the same as `YARD_REPLICA`",
    "WORLD_SIZE": "the same as `YARD_REPLICAS`",
    "LOCAL_RANK": "0; only where a replica has at most one GPU",
    "MASTER_ADDR": "address of the node of replica 0; 127.0.0.1 with one replica",
    "MASTER_PORT": "port of replica 0, reserved for this attempt; a free one with one replica",
    "PET_NNODES": "for `torchrun`: how many replicas",
    "PET_NODE_RANK": "for `torchrun`: the number of this replica",
    "PET_NPROC_PER_NODE": "for `torchrun`: processes of this replica, one for each GPU",
    "PET_MASTER_ADDR": "for `torchrun`: the same as `MASTER_ADDR`",
    "PET_MASTER_PORT": "for `torchrun`: the same as `MASTER_PORT`",
}


def task_environment() -> str:
    """Every variable of a task, with its value in an example."""
    values = environment_of_a_task()
    if values.keys() != MEANINGS.keys():
        raise ValueError(f"describe these variables: {sorted(values.keys() ^ MEANINGS.keys())}")
    lines = ["| variable | example | meaning |", "| --- | --- | --- |"]
    for name, meaning in MEANINGS.items():
        lines.append(f"| `{name}` | {_plain(values[name])} | {meaning} |")
    return "\n".join(lines)


def environment_of_a_task() -> dict[str, str]:
    """The variables that the agent sets for replica 1 of a gang of two, and those under MPS."""
    from yardmaster_node_agent.agent_state import Assignment, ReplicaKey
    from yardmaster_node_agent.devices import MpsControl
    from yardmaster_node_agent.environment import NodeFacts
    from yardmaster_node_agent.environment import task_environment as environment
    from yardmaster_node_agent.executors.port import Paths
    from yardmaster_node_agent.fraction_limits import MpsLimiter
    from yardmaster_node_agent.settings import MPS_PIPES
    from yardmaster_schemas.events.decisions import Checkpoint
    from yardmaster_schemas.events.details import JobDetailedV1, Run
    from yardmaster_schemas.events.requests import DetailsRef

    task = "4kq7w2mz9c1f.2"
    folder = f"/var/lib/yardmaster/tasks/{task}-2-1"
    gang = Assignment(
        key=ReplicaKey(task_id=task, attempt=2, replica=1),
        cause="scheduler/main.d3b7877bd11b/1/55",
        decision=55,
        project="nlp",
        pool="h100",
        tasks=6,
        replicas=2,
        slots=(3,),
        gpu_milli=1000,
        cpu_milli=4000,
        memory_mib=65_536,
        master_addr="10.0.0.7",
        master_port=29_601,
        details=DetailsRef(offset=3, digest="0" * 64),
        checkpoint=Checkpoint(uri="s3://runs/4kq7/step-12000", step=12_000),
        grace_s=120,
    )
    params = tuple({"lr": rate, "seed": seed} for rate in (0.1, 0.01) for seed in (1, 2, 3))
    details = JobDetailedV1(
        job_id="4kq7w2mz9c1f",
        salt="0" * 32,
        name="llm-sft",
        user="ana",
        run=Run(command=("python3", "train.py")),
        params=params,
    )
    facts = NodeFacts(
        node="gpu-09",
        agent_url="http://127.0.0.1:40123",
        devices=("0", "1", "2", "3"),
        gpu_memory_mib=81_920,
        limiter=MpsLimiter(
            daemon=MpsControl(MPS_PIPES),
            log_directory=Path("/var/log/nvidia-mps"),
            gpu_memory_mib=81_920,
        ),
        passed={},
    )
    found: dict[str, str] = {}
    for assignment in (dataclasses.replace(gang, gpu_milli=500), gang):
        found |= environment(
            assignment,
            details,
            {},
            token="k3J0...",
            paths=Paths(f"{folder}/stop", f"{folder}/checkpoint"),
            facts=facts,
            free_port=40_124,
        )
    return found


def task_sdk() -> str:
    """Every call of the SDK inside a task, as its docstring describes it."""
    from yardmaster import task

    lines = ["| call | what it does |", "| --- | --- |"]
    for name in task.__all__:
        call = getattr(task, name)
        if inspect.isfunction(call):
            signature = re.sub(r"yardmaster\.task\.", "", str(inspect.signature(call)))
            text = re.sub(r"```.*?```", "", inspect.getdoc(call) or "", flags=re.DOTALL)
            lines.append(f"| `{name}{_cell(signature)}` | {_cell(text)} |")
    return "\n".join(lines)


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


# --- the Python client --------------------------------------------------------------------------


def client_methods() -> Iterator[tuple[str, Callable[..., object]]]:
    """The public methods of `yardmaster.Client`, in the order of their definition."""
    from yardmaster.client import Client

    # The connection first, then jobs and waits, then operators' objects, then the log.
    order = ("Connection", "JobCalls", "Waits", "OperatorCalls", "Client")
    classes = {cls.__name__: cls for cls in Client.__mro__}
    for owner in order:
        for name, found in vars(classes[owner]).items():
            if not name.startswith("_"):
                yield name, getattr(Client, name) if isinstance(found, classmethod) else found


def python_client() -> str:
    """The signature and the docstring of `Client` and of each of its methods."""
    from yardmaster.client import Client

    sections = [_documented("Client", Client, "## The client")]
    sections.append("## Its methods")
    for name, method in client_methods():
        sections.append(_documented(name, method, f"### `{name}`"))
    return "\n\n".join(sections)


def client_results() -> str:
    """The classes that the client's methods return or yield, with the fields of each."""
    from yardmaster import job_calls, transport

    text = "\n".join(inspect.getsource(method) for _, method in client_methods())
    named = set(re.findall(r"\b[A-Z]\w+", " ".join(re.findall(r"-> (.+):\n", text))))
    lines = ["| class | what it is | fields |", "| --- | --- | --- |"]
    for found in (job_calls.Piece, transport.Change):
        properties = [name for name, of in vars(found).items() if isinstance(of, property)]
        fields = [*(field.name for field in dataclasses.fields(found)), *properties]
        about = (inspect.getdoc(found) or "").partition("\n\n")[0]
        names = ", ".join(f"`{field}`" for field in fields)
        lines.append(f"| `{found.__name__}` | {_cell(about)} | {names} |")
    for name in sorted(named):
        model = getattr(api, name, None)
        if isinstance(model, type) and issubclass(model, BaseModel):
            about = (inspect.getdoc(model) or "").partition("\n\n")[0]
            fields = ", ".join(f"`{field}`" for field in model.model_fields)
            lines.append(f"| `{name}` | {_cell(about)} | {fields} |")
    return "\n".join(lines)


def client_errors() -> str:
    """The errors of the client: the attributes of each, and when it is raised."""
    from yardmaster import errors

    lines = ["| error | base | attributes |", "| --- | --- | --- |"]
    for name, found in vars(errors).items():
        if isinstance(found, type) and found.__module__ == errors.__name__:
            attributes = [
                f"`{each}`" for each in re.findall(r"self\.(\w+) = ", inspect.getsource(found))
            ]
            properties = [f"`{key}`" for key, of in vars(found).items() if isinstance(of, property)]
            base = ", ".join(f"`{each.__name__}`" for each in found.__bases__)
            lines.append(f"| `{name}` | {base} | {', '.join([*attributes, *properties])} |")
    return "\n".join(lines)


def _documented(name: str, found: Callable[..., object], title: str) -> str:
    """A section with the signature, as the source writes it, and the docstring."""
    source = textwrap.dedent(inspect.getsource(found.__init__ if inspect.isclass(found) else found))
    definition = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    arguments = definition.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        del arguments.args[0]
    returns = f" -> {ast.unparse(definition.returns)}" if not inspect.isclass(found) else ""
    return f"{title}\n\n```python\n{_wrapped(name, arguments, returns)}\n```\n\n{_sections(found)}"


def _wrapped(name: str, arguments: ast.arguments, returns: str) -> str:
    """A signature on one line, or with an argument a line where it is longer than 96 characters."""
    parts = list[str]()
    required = len(arguments.args) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*[None] * required, *arguments.defaults]
    for each, default in zip(arguments.args, defaults, strict=True):
        parts.append(_argument(each, default))
    if arguments.vararg is not None:
        parts.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(_argument(each, default))
    if arguments.kwarg is not None:
        parts.append(f"**{ast.unparse(arguments.kwarg)}")
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= 96:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}"


def _sections(found: Callable[..., object]) -> str:
    """A docstring as Markdown: its arguments and errors become lists."""
    lines, fenced, listed = [], False, False
    for line in inspect.cleandoc(found.__doc__ or "").splitlines():
        fenced ^= line.startswith("```")
        one_line = re.fullmatch(r"(Raises): (.+)", line)
        entry = re.fullmatch(r" {4}([\w.]+): (.+)", line)
        if not fenced and line in ("Args:", "Raises:"):
            listed = True
            lines += ["", "Arguments:" if line == "Args:" else "Errors:", ""]
        elif not fenced and one_line:
            lines += ["", f"Errors: {one_line[2]}"]
        elif listed and entry:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            listed = listed and line.startswith(" ")
            lines.append(line)
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text as a cell of a table: one line, no bar that ends the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "alarms": alarms,
    "bodies": bodies,
    "cli": cli,
    "client-errors": client_errors,
    "client-results": client_results,
    "job-file": job_file,
    "keys": keys,
    "problems": problems,
    "python-client": python_client,
    "rest": rest,
    "settings": settings,
    "sizing": sizing,
    "task-environment": task_environment,
    "task-sdk": task_sdk,
    **EXAMPLES,
}


if __name__ == "__main__":
    main()
