"""The rules for all code that reading its syntax can check; ruff's banned-api checks the rest.

Port adapters, the only modules that may touch the world, are those that `pyproject.toml` frees from
TID251.
"""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

ORPHANS = {"create_task", "ensure_future", "wait", "as_completed", "shield"}
VERBS = {"get", "post", "put", "patch", "delete", "head", "options", "websocket"}
EMPTY_WORDS = {"utils", "common", "base", "manager", "structs"}
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS = {
    "list",
    "dict",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
}


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the distributions: its path from the root, and its syntax."""
    found = sorted(
        path for part in ("libs", "services", "cli") for path in (ROOT / part).glob("**/*.py")
    )
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in found}


@cache
def port_globs() -> tuple[str, ...]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    freed = config["tool"]["ruff"]["lint"]["per-file-ignores"]
    return tuple(
        each for glob, rules in freed.items() if "TID251" in rules for each in expanded(glob)
    )


def expanded(glob: str) -> Iterator[str]:
    braces = re.search(r"\{([^}]*)\}", glob)
    if braces is None:
        yield glob
        return
    for choice in braces[1].split(","):
        yield glob[: braces.start()] + choice + glob[braces.end() :]


def outside_the_ports() -> Iterator[tuple[str, ast.Module]]:
    for path, tree in sources().items():
        if not any(fnmatch(path, glob) for glob in port_globs()):
            yield path, tree


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Every call, with what is called as source text: `asyncio.wait`, `open`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def tree_files() -> Iterator[Path]:
    """The text files of the checkout, without environments, caches and what was built."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            name
            for name in names
            if name in {".ci", ".github"} or not name.startswith((".", "__pycache__", "build"))
        ]
        yield from (Path(folder) / name for name in files)


def test_there_is_code_to_check() -> None:
    assert len(sources()) > 10
    assert len(port_globs()) > 10


def test_every_asyncio_task_has_an_owner() -> None:
    banned = {f"{owner}{name}" for name in ORPHANS for owner in ("asyncio.", "loop.")}
    banned |= {f"asyncio.get_{how}_loop().create_task" for how in ("running", "event")}
    found = [
        f"{path}:{call.lineno} {name}"
        for path, tree in outside_the_ports()
        for call, name in calls(tree)
        if name in banned
    ]
    found += [
        f"{path}:{node.lineno} from asyncio import {alias.name}"
        for path, tree in outside_the_ports()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio"
        for alias in node.names
        if alias.name in ORPHANS
    ]
    assert found == []


def test_files_are_opened_in_ports_only() -> None:
    found = [
        f"{path}:{call.lineno}"
        for path, tree in outside_the_ports()
        for call, name in calls(tree)
        if name == "open"
    ]
    assert found == []


def test_nothing_rests_on_atexit() -> None:
    found = [
        f"{path}:{call.lineno}"
        for path, tree in sources().items()
        for call, name in calls(tree)
        if name.startswith("atexit.")
    ]
    assert found == []


def test_endpoints_are_async() -> None:
    def is_route(decorator: ast.expr) -> bool:
        return (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and decorator.func.attr in VERBS
            and ast.unparse(decorator.func.value).split(".")[-1].endswith(("router", "app"))
        )

    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(is_route, node.decorator_list))
    ]
    assert found == []


def test_services_keep_no_globals() -> None:
    """Two fit in one process: module-level containers are Final, `global` is unused."""
    found = []
    for path, tree in sources().items():
        if not path.startswith("services/"):
            continue
        found += [
            f"{path}:{node.lineno} global"
            for node in ast.walk(tree)
            if isinstance(node, ast.Global)
        ]
        found += [
            f"{path}:{node.lineno} {ast.unparse(node)[:60]}"
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable_global(node)
        ]
    assert found == []


def is_mutable_global(node: ast.Assign | ast.AnnAssign) -> bool:
    if isinstance(node, ast.AnnAssign) and "Final" in ast.unparse(node.annotation):
        return False
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return False
    if isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).split(".")[-1] in MUTABLE_CALLS
    return isinstance(node.value, MUTABLE)


def test_the_core_orders_and_digests_by_no_address() -> None:
    found = [
        f"{path}:{call.lineno} {name}"
        for path, tree in sources().items()
        if path.startswith("libs/core/")
        for call, name in calls(tree)
        if name in {"hash", "id"}
    ]
    assert found == []


def test_modules_are_named_for_what_they_hold() -> None:
    names = {path: Path(path) for path in sources()}
    assert [path for path, at in names.items() if EMPTY_WORDS & {at.stem, at.parent.name}] == []


def test_every_public_module_has_a_docstring() -> None:
    found = [
        path
        for path, tree in sources().items()
        if (not Path(path).stem.startswith("_") or path.endswith("__init__.py"))
        and not ast.get_docstring(tree)
    ]
    assert found == []


def test_every_folder_of_a_package_is_a_package() -> None:
    """Import-linter and mypy pass over a folder without `__init__.py`."""
    folders = {parent for path in sources() for parent in Path(path).parents[:-1]}
    missing = [
        str(folder)
        for folder in sorted(folders)
        if re.search(r"(^|/)yardmaster", folder.as_posix())
        and not (ROOT / folder / "__init__.py").exists()
    ]
    assert missing == []


def test_every_package_is_in_the_distribution_and_typed() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for part in ("libs/*", "services/*", "cli")
        for path in ROOT.glob(f"{part}/yardmaster*/__init__.py")
    }
    assert packages == set(wheel["targets"]["wheel"]["packages"])
    assert {str(Path(path).parent) for path in packages} == set(wheel["dev-mode-dirs"])
    for package in packages:
        assert (ROOT / package / "py.typed").exists(), package


def test_nothing_refers_to_a_path_of_someones_machine() -> None:
    # NVIDIA documents the default of the pipes of its MPS daemon, which the settings show.
    pattern = re.compile(r"(?<![\w.$})-])/(?:work|home|root|tmp(?!/nvidia-mps)|Users)/")
    found = []
    for path in tree_files():
        # In a worktree, `.git` is a file with a path.
        if path == Path(__file__) or path == ROOT / ".git":
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert found == []


#: Class names that several packages declare on purpose, by the reason.
SHARED_NAMES = {
    "the same thing at each layer: in events or the API, in each machine's state, in the views, in "
    "the audit, which shares no code with the machines, and in a simulation": (
        *("Attempt", "Cell", "Checkpoint", "Demand", "Department", "Division", "Enrolled", "Job"),
        *("Node", "NodeState", "Outcome", "Phase", "Pool", "Project", "QueuedTasks"),
        *("ReplicaState", "Shares", "Task", "TaskGroup", "TaskGroups", "Wait", "Waits"),
    ),
    "the formats in which other schedulers are compared, each with the words of its scheduler": (
        *("Case", "Config", "Expected", "Group", "Held", "Plan", "Queue", "Step", "Workload"),
    ),
    "each package has its own: a port with the methods that it needs, its settings, its metrics": (
        *("Chance", "Client", "Clock", "Count", "Cursor", "Draft", "Finding", "Fold", "Head"),
        *("Health", "Ports", "Report", "Server", "Settings", "WorkMetrics", "Write"),
    ),
    "an error of a library that a service reports as its own": (
        *("BadCursor", "CheckpointRefused", "StartFailed"),
    ),
    "words of the agent (its machine, processes and output) that mean another thing in the log, "
    "the gateway or the state machines": (
        *("Assignment", "Host", "Launch", "Machine", "Output", "Piece", "Process"),
    ),
    "a word of two fields, each with its own package": ("Fence", "Preemption", "Request"),
}


def test_a_class_name_is_declared_once_unless_a_reason_is_given() -> None:
    places: dict[str, set[str]] = {}
    for path, tree in sources().items():
        if not path.startswith(("libs/", "services/")):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(path)
    allowed = {name for names in SHARED_NAMES.values() for name in names}
    found = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    assert not {name: paths for name, paths in found.items() if name not in allowed}
