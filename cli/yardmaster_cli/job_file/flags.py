"""The flags of `submit`: a job file and flags become the body of the request."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from yardmaster.job_file.read import (
    CONTEXT,
    WORKING_DIR,
    check,
    resolve_context,
    resolve_folder,
)
from yardmaster.yaml_tree import Path, Tree, overlay, read, scalar
from yardmaster_cli.errors import BadUsage
from yardmaster_schemas.job_file import JobSpec

#: What to do about a missing key.
_HINTS: Final[Mapping[Path, str]] = {
    ("run",): "give a command after --, or run.command in the file",
    ("project",): "name one with -p, in the file, or in your context",
}


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
    #: The name of the argument, if it is not the name of the flag.
    argument: str | None = None

    @property
    def parameter(self) -> str:
        """The name of the argument of the command."""
        return self.argument or self.name.replace("-", "_")


def _replicas(text: str) -> Any:
    low, colon, high = text.partition(":")
    return {"min": scalar(low), "max": scalar(high)} if colon else scalar(text)


def _mount(text: str) -> Any:
    """Read `SOURCE:TARGET`, as Docker's `--volume`; `:rw` at the end asks to write."""
    source, colon, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not colon or mode not in ("", "ro", "rw"):
        raise BadUsage(
            f"--mount {text}: expected SOURCE:TARGET or SOURCE:TARGET:rw",
            hint="SOURCE is a name that the operator chose, TARGET a path: datasets:/data",
        )
    mount: dict[str, Any] = {"source": source, "target": target}
    return mount | {"read_only": False} if mode == "rw" else mount


def _run_as(text: str) -> Any:
    """Read `UID:GID`, as Docker's `--user`."""
    uid, _, gid = text.partition(":")
    if not (uid.isascii() and uid.isdecimal() and gid.isascii() and gid.isdecimal()):
        raise BadUsage(
            f"--run-as {text}: expected UID:GID, two numbers",
            hint="names may be other accounts on other nodes; id -u and id -g print the numbers",
        )
    return {"uid": int(uid), "gid": int(gid)}


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
    Flag(
        *("gpu-memory", ("resources", "gpu_memory")),
        "Memory of each GPU, instead of a fraction: 20Gi.",
        "SIZE",
        text=True,
    ),
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
    Flag("pull", ("run", "pull"), "When to pull it: missing, always or never.", "WHEN", text=True),
    Flag(
        "mount",
        ("run", "mounts"),
        "Folder that the operator named, at a path in the container: datasets:/data; :rw to write.",
        "SOURCE:TARGET",
        many=True,
        read=_mount,
    ),
    Flag(
        "run-as",
        ("run", "run_as"),
        "User and group to run as, by number; an operator must have allowed it.",
        "UID:GID",
        read=_run_as,
    ),
    Flag("shm", ("run", "shm"), "Size of /dev/shm in the container: 16Gi.", "SIZE", text=True),
    Flag(
        "script", ("run", "script"), "Script for sh -eu, instead of a command.", "TEXT", text=True
    ),
    Flag("working-dir", WORKING_DIR, "Working directory.", "DIR", text=True),
    # Shared options name a server context `--context`; see decision 29.
    Flag(
        "context",
        CONTEXT,
        "Folder with the code: upload it and run in a copy. (A server context comes before submit: "
        "yard --context NAME submit.)",
        "DIR",
        text=True,
        argument="context_folder",
    ),
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
    context_base: str = "",
    server_contexts: Collection[str] = (),
) -> JobSpec:
    """Build the job of a file's text (None: no file), with flags, `--set` and a command applied.

    Args:
        flags: values by `Flag.parameter`.
        project: the default project.
        folder: the default working directory of a job without an image and without a context.
        file_folder: the folder of the file, to which a relative working directory in the file is
            relative; None: the working directory is unchanged.
        context_base: the folder to which a relative `run.context` in the file is relative.
        server_contexts: the names of the configured servers, which users may mean by `--context`.

    Raises:
        BadUsage: a flag is not like NAME=VALUE.
        InputError: all errors, each with its line or flag.
    """
    tree = read(text, source) if text is not None else Tree(source)
    resolve_context(tree, context_base)
    place = tree.places.get(WORKING_DIR)
    for flag in FLAGS:
        _put_flag(tree, flag, flags.get(flag.parameter))
    if flags.get("preemptible") is not None:
        tree.put(("preemptible",), flags["preemptible"], "--preemptible")
    overlay(tree, sets)
    if file_folder is not None and tree.places.get(WORKING_DIR) == place:
        resolve_folder(tree, file_folder)
    if command:
        tree.put(("run", "command"), list(command), "command line")
    if tree.values.get("project") is None and project is not None:
        tree.put(("project",), project, "settings")
    run = tree.values.get("run")
    if folder is not None and isinstance(run, dict) and not _placed(run):
        tree.put(WORKING_DIR, folder, "current folder")
    hints = dict(_HINTS)
    named = flags.get("context_folder")
    if named in server_contexts:
        hints[CONTEXT] = f"for the server {named}, write: yard --context {named} submit ..."
    return check(tree, hints)


def _placed(run: Mapping[str, Any]) -> bool:
    """Whether a job runs elsewhere than in the current folder."""
    return bool(run.keys() & {"working_dir", "image"}) or run.get("context") is not None


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
