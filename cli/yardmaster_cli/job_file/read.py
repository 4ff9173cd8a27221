"""Job files and the flags of `submit`: a file and flags become the body of the request.

`schemas.job_file.JobSpec` defines the keys. This module adds the line of the file, or the flag, to
its errors, and the nearest known key to the error of an unknown key.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from pydantic import BaseModel, ValidationError

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.job_file.expected import expected
from yardmaster_cli.output.cells import plain
from yardmaster_cli.yaml_tree import Path, Tree, overlay, read, scalar, unknown_key
from yardmaster_schemas.job_file import (
    GpuShares,
    JobCheckpoint,
    JobResources,
    JobRun,
    JobSpec,
    JobStop,
    JobTasks,
    ReplicaRange,
)

#: The model of the keys at a path; users choose the keys at other paths (env, labels).
_MODELS: Final[Mapping[Path, type[BaseModel]]] = {
    (): JobSpec,
    ("resources",): JobResources,
    ("resources", "gpus"): GpuShares,
    ("replicas",): ReplicaRange,
    ("tasks",): JobTasks,
    ("stop",): JobStop,
    ("checkpoint",): JobCheckpoint,
    ("run",): JobRun,
}
#: The longest part of a wrong value that an error repeats, in characters.
SHOWN: Final = 64
#: Keys whose values need a unit.
_AMOUNTS: Final = frozenset(
    (key,) for key in ("memory", "grace", "min_runtime", "time_limit", "runtime_estimate")
)
#: Names of union branches in the locations of pydantic; they are not keys of the file.
_BRANCHES: Final = frozenset({"number", "shares", "range", "word", "str", "int", "float", "bool"})


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of `submit` and the key of the job file that it sets."""

    name: str
    path: Path
    about: str
    metavar: str = "VALUE"
    many: bool = False
    pairs: bool = False
    text: bool = False
    short: str | None = None
    read: Callable[[str], Any] = scalar

    @property
    def parameter(self) -> str:
        """The name of the argument of the command."""
        return self.name.replace("-", "_")


def _replicas(text: str) -> Any:
    low, colon, high = text.partition(":")
    return {"min": scalar(low), "max": scalar(high)} if colon else scalar(text)


FLAGS: Final = (
    Flag("name", ("name",), "Name of the job.", text=True),
    Flag("project", ("project",), "Project of the job.", "NAME", text=True, short="p"),
    Flag("kind", ("kind",), "training, interactive or inference.", "KIND", text=True),
    Flag("role", ("role",), "Role of an interactive job: notebook, shell, ...", "ROLE", text=True),
    Flag("priority", ("priority",), "1 to 99; a smaller number is a higher priority.", "N"),
    Flag("weight", ("weight",), "Weight in fair sharing.", "N"),
    Flag("max-slots", ("max_slots",), "Limit of the job's running GPUs.", "N"),
    Flag(
        "pool",
        ("pools",),
        "Pool to run in; repeat for alternatives.",
        "NAME",
        many=True,
        text=True,
    ),
    Flag("node-type", ("node_types",), "Type of node to run on.", "NAME", many=True, text=True),
    Flag(
        "avoid-node",
        ("avoid_nodes",),
        "Node to avoid; repeat for several.",
        "NAME",
        many=True,
        text=True,
    ),
    Flag("gpus", ("resources", "gpus"), "GPUs per replica: 8, 0.5.", "N"),
    Flag("cpus", ("resources", "cpus"), "CPUs per replica (default: 1).", "N"),
    Flag("memory", ("resources", "memory"), "Memory per replica: 256Gi.", "SIZE", text=True),
    Flag(
        "replicas",
        ("replicas",),
        "Size of the gang; auto: as many nodes as --gpus need.",
        "N",
        read=_replicas,
    ),
    Flag("tasks", ("tasks", "count"), "Number of tasks of an array.", "N"),
    Flag(
        "matrix",
        ("tasks", "matrix"),
        "Axis of a search: lr=[0.1,0.01].",
        "AXIS=[...]",
        pairs=True,
    ),
    Flag("max-concurrent", ("tasks", "max_concurrent"), "Most tasks that run at once.", "N"),
    Flag(
        "min-runtime",
        ("min_runtime",),
        "Run at least this long before a preemption: 20m.",
        "TIME",
        text=True,
    ),
    Flag(
        "runtime-estimate",
        ("runtime_estimate",),
        "Estimated running time without preemptions: 8h.",
        "TIME",
        text=True,
    ),
    Flag("time-limit", ("time_limit",), "Longest running time: 12h.", "TIME", text=True),
    Flag("max-restarts", ("max_restarts",), "Most restarts after failures.", "N"),
    Flag(
        "unschedulable",
        ("unschedulable",),
        "wait or fail, if the job can never fit.",
        "WHAT",
        text=True,
    ),
    Flag("signal", ("stop", "signal"), "Signal that requests a stop.", "SIGNAL", text=True),
    Flag("grace", ("stop", "grace"), "Time between the signal and SIGKILL: 2m.", "TIME", text=True),
    Flag(
        "exit-zero",
        ("stop", "exit_zero"),
        "Meaning of exit 0 after a stop: stopped or finished.",
        "WHAT",
        text=True,
    ),
    Flag("start-from", ("checkpoint", "start_from"), "Checkpoint to start from.", "URI", text=True),
    Flag("image", ("run", "image"), "Container image.", "IMAGE", text=True),
    Flag(
        "script", ("run", "script"), "Script for sh -eu, instead of a command.", "TEXT", text=True
    ),
    Flag("working-dir", ("run", "working_dir"), "Working directory.", "DIR", text=True),
    Flag(
        "env",
        ("run", "env"),
        "Environment variable; stored in the log, so no secrets.",
        "NAME=VALUE",
        pairs=True,
        text=True,
    ),
    Flag(
        "secret",
        ("run", "secrets"),
        "Environment variable from a secret.",
        "NAME=REF",
        pairs=True,
        text=True,
    ),
    Flag("label", ("labels",), "Label.", "NAME=VALUE", pairs=True, text=True),
)


def flag_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of the job file to a command."""
    for flag in reversed(FLAGS):
        names = [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else []), flag.parameter]
        function = click.option(
            *names, metavar=flag.metavar, help=flag.about, multiple=flag.many or flag.pairs
        )(function)
    return click.option(
        "--preemptible/--no-preemptible",
        "preemptible",
        default=None,
        help="Allow preemption (default: for training only).",
    )(function)


def build(
    text: str | None,
    source: str,
    *,
    flags: Mapping[str, Any],
    sets: Iterable[str] = (),
    command: Sequence[str] = (),
    project: str | None = None,
    folder: str | None = None,
    file_folder: str | None = None,
) -> JobSpec:
    """Build the job of a file's text (None: no file), with flags, `--set` and a command applied.

    Args:
        flags: values by `Flag.parameter`.
        project: the default project.
        folder: the default working directory of a job without an image.
        file_folder: a relative working directory in the file is relative to it; None: unchanged.

    Raises:
        BadUsage: all errors, each with its line or flag.
    """
    tree = read(text, source) if text is not None else Tree(source)
    if file_folder is not None:
        _resolve_folder(tree, file_folder)
    for flag in FLAGS:
        _put_flag(tree, flag, flags.get(flag.parameter))
    if flags.get("preemptible") is not None:
        tree.put(("preemptible",), flags["preemptible"], "--preemptible")
    overlay(tree, sets)
    if command:
        tree.put(("run", "command"), list(command), "command line")
    if tree.values.get("project") is None and project is not None:
        tree.put(("project",), project, "settings")
    run = tree.values.get("run")
    if folder is not None and isinstance(run, dict) and not run.keys() & {"working_dir", "image"}:
        tree.put(("run", "working_dir"), folder, "current folder")
    _words(tree)
    return check(tree)


def _resolve_folder(tree: Tree, file_folder: str) -> None:
    """Make the working directory in the file an absolute path."""
    run = tree.values.get("run")
    named = run.get("working_dir") if isinstance(run, dict) and "image" not in run else None
    if isinstance(named, str) and named:
        place = tree.places.get(("run", "working_dir"), tree.source)
        tree.put(("run", "working_dir"), os.path.normpath(os.path.join(file_folder, named)), place)


def _put_flag(tree: Tree, flag: Flag, given: Any) -> None:
    if given is None or given == ():
        return
    place = f"--{flag.name}"
    turn: Callable[[str], Any] = str if flag.text else flag.read
    if flag.pairs:
        for item in given:
            key, equals, value = item.partition("=")
            if not equals or not key:
                raise BadUsage(f"{place} {item}: expected {flag.metavar}")
            tree.put((*flag.path, key), turn(value), place)
    elif flag.many:
        tree.put(flag.path, [turn(item) for item in given], place)
    else:
        tree.put(flag.path, turn(given), place)


def _words(tree: Tree) -> None:
    """Convert numbers in labels, commands and variables to text."""
    labels = tree.values.get("labels")
    if isinstance(labels, dict):
        tree.values["labels"] = {key: _word(item) for key, item in labels.items()}
    run = tree.values.get("run")
    if not isinstance(run, dict):
        return
    if isinstance(run.get("command"), list):
        run["command"] = [_word(item) for item in run["command"]]
    if isinstance(run.get("env"), dict):
        run["env"] = {key: _word(item) for key, item in run["env"].items()}


def _word(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def check(tree: Tree) -> JobSpec:
    """Validate a tree.

    Raises:
        BadUsage: all errors, each with its line or flag.
    """
    try:
        text = json.dumps(tree.values)
    except (TypeError, ValueError):
        raise BadUsage(
            f"{tree.source}: a value is not a number, text, list or mapping",
            hint="put quotes around dates and times",
        ) from None
    try:
        return JobSpec.model_validate_json(text)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    # One error for each message: a union reports an error for each of its branches.
    found = list({one.message: one for one in (_explained(tree, each) for each in errors)}.values())
    if len(found) == 1:
        raise found[0]
    # Several errors: each line ends with its hint.
    lines = [one.message + (f" ({one.hint})" if one.hint else "") for one in found]
    raise BadUsage("\nerror: ".join(lines))


def _explained(tree: Tree, item: Mapping[str, Any]) -> BadUsage:
    path: Path = tuple(part for part in item["loc"] if not _branch(tree, item["loc"], part))
    if item["type"] == "extra_forbidden":
        known = _MODELS.get(path[:-1])
        return unknown_key(tree, path, known.model_fields if known else ())
    words = expected(path, item["type"])
    if words is not None:
        place = tuple(part for part in path if part != "[key]")
        return tree.error(place, f"expected {words}{_instead(tree, path)}")
    what = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if item["type"] == "missing":
        what = "is missing"
    elif item["msg"].startswith("Input should be "):
        what = f"should be {what}"
    hint = None
    if path == ("run",) and item["type"] == "missing":
        hint = "give a command after --, or run.command in the file"
    elif path == ("project",) and item["type"] == "missing":
        hint = "name one with -p, in the file, or in your context"
    elif path[-1:] in _AMOUNTS:
        hint = "write a unit: 512Mi, 256Gi; 90s, 20m, 12h"
    return tree.error(path, what, hint)


def _instead(tree: Tree, path: Path) -> str:
    """`, not abc`: the wrong value, if it is a scalar."""
    if path[-1:] == ("[key]",):
        return f", not {plain(str(path[-2]))[:SHOWN]}"
    value: Any = tree.values
    try:
        for part in path:
            value = value[part]
    except (KeyError, IndexError, TypeError):
        return ""
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    return f", not {plain(str(value))[:SHOWN]}" if isinstance(value, str | int | float) else ""


def _branch(tree: Tree, loc: Sequence[Any], part: Any) -> bool:
    """Whether `part` of an error's location names a branch of a union, not a key of the file."""
    if part not in _BRANCHES:
        return False
    at = list(loc).index(part)
    return tuple(loc[: at + 1]) not in tree.places
