"""Read a job from a dict, a text or a file as a `JobSpec`; errors name the line and the key.

`schemas.job_file.JobSpec` defines the keys. This module adds the origin of each value to its
errors, and the nearest known key to the error of an unknown key.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from yardmaster.control_characters import plain
from yardmaster.errors import InputError
from yardmaster.job_file.expected import expected, limit
from yardmaster.yaml_tree import NotAMapping, Path, Tree, nearest, read, tree_of, unknown_key
from yardmaster_schemas.job_file import (
    GpuFractions,
    JobCheckpoint,
    JobResources,
    JobRun,
    JobSpec,
    JobStop,
    JobTasks,
    ReplicaRange,
)
from yardmaster_schemas.job_folders import JobContext, JobGit

#: A job as `Client.submit` accepts it: a model, its keys, YAML or JSON text, or the path of a file.
JobSource = JobSpec | Mapping[str, Any] | str | os.PathLike[str]

#: The model of the keys at a path; users choose the keys at other paths (env, labels).
_MODELS: Final[Mapping[Path, type[BaseModel]]] = {
    (): JobSpec,
    ("resources",): JobResources,
    ("resources", "gpus"): GpuFractions,
    ("replicas",): ReplicaRange,
    ("tasks",): JobTasks,
    ("stop",): JobStop,
    ("checkpoint",): JobCheckpoint,
    ("run",): JobRun,
    ("run", "context"): JobContext,
    ("run", "git"): JobGit,
}
WORKING_DIR: Final[Path] = ("run", "working_dir")
CONTEXT: Final[Path] = ("run", "context")
#: The longest part of a wrong value that an error repeats, in characters.
SHOWN: Final = 64
#: Keys whose values need a unit.
_AMOUNTS: Final = frozenset(
    (key,) for key in ("memory", "grace", "min_runtime", "time_limit", "runtime_estimate")
)
#: Names of union branches in the locations of pydantic; they are not keys of the file.
_BRANCHES: Final = frozenset(
    {
        *("number", "fractions", "range", "word", "str", "int", "float", "bool"),
        *("constrained-str", "constrained-int", "JobContext"),
    }
)
#: What to do about a missing key.
_MISSING: Final[Mapping[Path, str]] = {
    ("run",): "give run.command or run.script",
    ("project",): "name one in the job, in YARD_PROJECT or in your context",
}


def read_job(job: JobSource, *, project: str | None = None, folder: str | None = None) -> JobSpec:
    """Return the model of a job; a job that names no project gets `project`.

    A relative working directory is relative to the folder of the job's file, or without a file to
    `folder`. If `folder` is None, the nodes do not see the files of this machine, and the working
    directory is unchanged. The folder of `run.context` is on this machine in any case: a relative
    path is relative to the job's file, or without a file to the current folder.

    Raises:
        InputError: the job is wrong. The error has a line for each problem, which names the line
            of the file and the key.
    """
    if isinstance(job, JobSpec):
        named = job.run.working_dir
        run = job.run
        elsewhere = any(one is not None for one in (run.image, run.context, run.git))
        if folder is None or named is None or elsewhere:
            return job
        path = os.path.normpath(os.path.join(folder, named))
        return job.model_copy(update={"run": job.run.model_copy(update={"working_dir": path})})
    tree = _tree(job)
    of_file = os.path.dirname(job) if isinstance(job, os.PathLike) else ""
    resolve_context(tree, os.fspath(of_file))
    if folder is not None:
        resolve_folder(tree, os.path.join(folder, os.fspath(of_file)))
    if tree.values.get("project") is None and project is not None:
        tree.put(("project",), project, "settings")
    return check(tree)


def _tree(job: Any) -> Tree:
    if isinstance(job, Mapping):
        return tree_of(job, "job")
    if isinstance(job, str):
        try:
            return read(job, "job")
        except NotAMapping as error:
            hint = "a text is a job file itself; to read a file, pass its pathlib.Path"
            raise InputError(error.problem, hint=hint) from None
    if not isinstance(job, os.PathLike):
        kinds = "a dict, a text, a pathlib.Path or a JobSpec"
        raise InputError(f"job: expected {kinds}, not {type(job).__name__}")
    return read(read_file(job), os.fspath(job))


def resolve_folder(tree: Tree, folder: str) -> None:
    """Make a relative working directory relative to `folder`.

    In an image, a context or a commit, the working directory is not one of this machine, and is
    unchanged.
    """
    run = tree.values.get("run")
    if not isinstance(run, Mapping) or "image" in run:
        return
    if run.get("context") is None and run.get("git") is None:
        _resolve(tree, WORKING_DIR, folder)


def resolve_context(tree: Tree, folder: str) -> None:
    """Make the relative path of a context relative to `folder`."""
    if isinstance(tree.values.get("run"), Mapping):
        _resolve(tree, CONTEXT, folder)


def _resolve(tree: Tree, path: Path, folder: str) -> None:
    named = tree.values["run"].get(path[-1])
    if isinstance(named, str) and named:
        place = tree.places.get(path, tree.source)
        tree.put(path, os.path.normpath(os.path.join(folder, named)), place)


def where_to_look(missing: FilePath) -> str:
    """Where to look for a file that does not exist."""
    folder = missing.parent
    if not folder.is_dir():
        return f"there is no folder {folder.absolute()}"
    # Names are compared without their suffixes, because equal suffixes make all names similar.
    names = {FilePath(name).stem: name for name in sorted(os.listdir(folder))}
    like = nearest(missing.stem, names)
    if like is None:
        return f"files are read in {folder.absolute()}"
    return f"did you mean {folder / names[like]}?"


def read_file(path: str | os.PathLike[str]) -> str:
    """The text of a file that must be UTF-8.

    Raises:
        InputError: the file cannot be read, or is not UTF-8.
    """
    name = os.fspath(path)
    try:
        raw = FilePath(path).read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{name}: there is no such file", hint=where_to_look(FilePath(path))
        ) from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder", hint="name a file in it") from None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}:{line}: not UTF-8 text (byte 0x{raw[error.start]:02x})",
            hint="save the file as UTF-8",
        ) from None


def check(tree: Tree, hints: Mapping[Path, str] = _MISSING) -> JobSpec:
    """Validate a tree; `hints` say what to do about a missing key.

    Raises:
        InputError: all errors, each with its line or flag.
    """
    _words(tree)
    try:
        text = json.dumps(tree.values)
    except (TypeError, ValueError):
        raise InputError(
            f"{tree.source}: a value is not a number, text, list or mapping",
            hint="put quotes around dates and times",
        ) from None
    try:
        spec = JobSpec.model_validate_json(text)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    else:
        context = spec.run.context
        if isinstance(context, str) and not os.path.isdir(context):
            what = "is not a folder" if os.path.exists(context) else "does not exist"
            raise tree.error(CONTEXT, f"{os.path.abspath(context)} {what}", hints.get(CONTEXT))
        return spec
    # A value that may have several forms has an error for each of them.
    by_path: dict[Path, list[Mapping[str, Any]]] = {}
    for each in errors:
        path = tuple(part for part in each["loc"] if not _branch(tree, each["loc"], part))
        by_path.setdefault(path, []).append(each)
    found = [_explained(tree, path, items, hints) for path, items in by_path.items()]
    if len(found) == 1:
        raise found[0]
    raise InputError("\n".join(map(str, found)))


def _explained(
    tree: Tree, path: Path, items: Sequence[Mapping[str, Any]], hints: Mapping[Path, str]
) -> InputError:
    """The error of the value at a path, from pydantic's errors about it."""
    item = items[0]
    if item["type"] == "extra_forbidden":
        known = _MODELS.get(path[:-1])
        return unknown_key(tree, path, known.model_fields if known else ())
    words = expected(path, [each["type"] for each in items])
    if words is not None:
        place = tuple(part for part in path if part != "[key]")
        return tree.error(place, f"expected {words}{_instead(tree, path)}")
    what = limit(item["type"], item.get("ctx", {}))
    if what is None:
        what = str(item["msg"]).removeprefix("Value error, ")
    elif what.startswith("must "):
        what += _instead(tree, path)
    if item["type"] == "missing":
        what = "is missing"
    hint = hints.get(path) if item["type"] == "missing" else None
    if path[-1:] in _AMOUNTS:
        hint = "write a unit: 512Mi, 256Gi; 90s, 20m, 12h"
    return tree.error(path, what, hint)


def _instead(tree: Tree, path: Path) -> str:
    """The end of an error that repeats the wrong value (`, not abc`), if the value is a scalar."""
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


def _words(tree: Tree) -> None:
    """Convert numbers in labels, commands and environment variables of the tree to text."""
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
