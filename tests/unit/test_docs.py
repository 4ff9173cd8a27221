"""The documentation names only what exists: paths, commands, options, settings, codes."""

import ast
import importlib.util
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import yaml

from tests.support.prose import one_sentence_a_line, paragraphs
from yardmaster_cli.errors import Exit
from yardmaster_core.scheduling.planner.policy import Policy, no_shares
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_core.testing import Cell
from yardmaster_gateway.identity.authorization import Action, Binding, is_allowed
from yardmaster_schemas.events.users import RoleName, Scope
from yardmaster_schemas.job_file import JobSpec
from yardmaster_schemas.reasons import (
    NUMBERS,
    AdmissionCode,
    EndCode,
    RefusalCode,
    StopCode,
    WaitCode,
)

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(
    [
        *DOCS.rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *(ROOT / folder / "README.md" for folder in ("deploy", "bench")),
    ]
)
#: A decision describes the tree of its day, so its paths and names may be gone.
PRESENT: Final = [
    *(page for page in PAGES if page.parent.name != "decisions"),
    ROOT / "deploy/prometheus/alarms.yaml",  # the page of metrics shows its texts
]
#: Every Markdown page of the tree.
WRITTEN: Final = sorted({*PAGES, *(ROOT / "changes").glob("*.md"), *(ROOT / "tests").rglob("*.md")})
FOLDERS: Final = r"(?:libs|services|cli|tests|bench|deploy|docs|examples|changes|\.ci)"
PATH: Final = re.compile(rf"(?<![\w./~-])({FOLDERS}/[\w./*<>-]*[\w*>])")
CODE: Final = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
#: `yard` and the words after it, up to the end of the command.
COMMAND: Final = re.compile(r"(?<![\w./-])yard((?:[ ][^\s`|;)]+(?:\|[\w-]+)*)+)")
#: One test of a file.
NAMED_TEST: Final = re.compile(r"(tests/[\w./]+\.py)::(\w+)")
#: A file and what it defines: `path` (`name`), or `path` (`Class.name`).
NAMED_DEFINITION: Final = re.compile(r"`([\w./-]+\.py)` \(`([\w.]+)`\)")
#: The first table of a section, if the scheduler played it.
EXAMPLE: Final = re.compile(
    r"\A[^|]*?<!-- generated: (example-[a-z-]+) -->\n(.*?)<!-- end: \1 -->", re.DOTALL
)
SETTING: Final = re.compile(r"\bYARD_[A-Z_]*[A-Z]\b(?!_)")


#: Keys that must be given together with another one.
REQUIRED_TOO: Final[Mapping[str, Mapping[str, Any]]] = {
    "run.pull": {"image": "team/train:1"},
    "resources.gpus.count": {"fraction": 0.5},
    "resources.gpus.fraction": {"count": 1},
    "replicas.min": {"max": 2},
    "replicas.max": {"min": 2},
    "tasks.max_concurrent": {"count": 3},
    "run.artifacts": {"context": "."},
    "run.mounts": {"image": "trainer"},
    "run.shm": {"image": "trainer"},
    "run.context.digest": {"packed_bytes": 1},
    "run.git.url": {"commit": "0f" * 20},
    "run.git.commit": {"url": "https://git.example.org/team/repo"},
    "run.git.secret": {"url": "https://git.example.org/team/repo", "commit": "0f" * 20},
    "run.run_as.uid": {"gid": 100},
    "run.run_as.gid": {"uid": 1500},
    "run.context.packed_bytes": {"digest": "0" * 64},
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def generated() -> ModuleType:
    """The module that writes the generated parts of reference pages."""
    spec = importlib.util.spec_from_file_location("docs_generated", DOCS / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_each_line_of_prose_is_one_sentence(page: Path) -> None:
    for paragraph in paragraphs(page.read_text()):
        assert paragraph == one_sentence_a_line(paragraph)


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_path_in_the_docs_exists(page: Path) -> None:
    text = page.read_text()
    shown = set(re.findall(r'^```\w+ title="(\S+)"$', text, re.MULTILINE))
    for path in PATH.findall(text):
        if path in shown:
            continue  # the page shows the file, for the reader to create
        pattern = re.sub(r"<[^>]*>", "*", path)
        if pattern.startswith("bench/results/"):
            continue  # what `make bench` writes
        assert any(ROOT.glob(pattern)) or "<" in path, path


def test_every_page_that_the_sources_name_exists() -> None:
    sources = [
        path
        for folder in ("libs", "services", "cli", "tests", "bench", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".yaml", ".sh") and path.is_file()
    ]
    for source in [*sources, ROOT / "pyproject.toml", ROOT / "Makefile"]:
        for page in re.findall(r"(?<![\w-])docs/[\w/.-]+\.md", source.read_text()):
            assert (ROOT / page).is_file(), (name(source), page)


def commands_of(text: str) -> Iterator[list[str]]:
    """The `yard` commands in the code of a page, as words."""
    for code in CODE.findall(text):
        if code.startswith("```") and not re.match(r"```(sh|shell|console)\n", code):
            continue
        for line in code.splitlines():
            typed = line.partition(" #")[0]
            if code.startswith("```console") and not typed.startswith("$ "):
                continue
            for found in COMMAND.finditer(typed.replace("\\", "")):
                words = found[1].partition(" -- ")[0].removesuffix(" --")
                yield shlex.split(words.replace("'", "").replace('"', ""))


@cache
def options() -> dict[str, set[str]]:
    """The options of each command, by the words that call it; of a group those of its list."""
    found: dict[str, set[str]] = {}
    for words, command, context in generated().commands():
        found[words] = {
            option
            for each in command.get_params(context)
            for option in (*each.opts, *each.secondary_opts)
        }
        if words.endswith(" ls"):
            found[words.removesuffix(" ls")] |= found[words]
    return found


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_yard_command_in_the_docs_exists_with_its_options(page: Path) -> None:
    known = options()
    for words in commands_of(page.read_text()):
        path = "yard"
        for word in words:
            first = word.partition("|")[0].rstrip(".,:")
            if f"{path} {first}" not in known:
                break
            path += f" {first}"
        first = words[0].rstrip(".,:")
        assert path != "yard" or first.startswith("-") or first.isupper(), words
        for word in words:
            if word.startswith("-") and word != "-" and not re.match(r"-\d", word):
                flag = word.partition("=")[0].rstrip(".,:")
                assert flag in known[path] | known["yard"], (words, flag)


@cache
def settings() -> frozenset[str]:
    """The variables of all services."""
    return frozenset(
        f"{prefix}{each.variable}"
        for model in generated().models().values()
        for each in generated().settings_of(model)
        for prefix in (model.model_config["env_prefix"], "YARD_")
    )


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_setting_in_the_docs_exists(page: Path) -> None:
    for setting in SETTING.findall(page.read_text()):
        assert setting in settings() or setting in in_the_sources(), setting


def test_every_setting_has_a_meaning() -> None:
    """A `#:` comment above its field; the settings page shows it."""
    for model in generated().models().values():
        for each in generated().settings_of(model):
            assert each.about, (model.__name__, each.variable)


@cache
def in_the_sources() -> frozenset[str]:
    """The variables that a source file names: of tasks, of `yard`, of compose."""
    environment = ROOT / "services/node_agent/yardmaster_node_agent/environment.py"
    of_tasks = re.findall(r'^ +"([A-Z_]+)":', environment.read_text(), re.MULTILINE)
    return frozenset(f"YARD_{variable}" for variable in of_tasks) | frozenset(
        setting
        for folder in ("libs", "services", "cli", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".sh") and path.is_file()
        for setting in SETTING.findall(path.read_text())
    )


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_make_target_in_the_docs_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for code in CODE.findall(page.read_text()):
        for target in re.findall(r"(?:^|[\s`$])make ([a-z][a-z-]*)", code):
            assert target in targets, target


def test_every_process_in_the_docs_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    text = (DOCS / "how-to/operate.md").read_text()
    named = set(re.findall(r"^\| `(yardmaster-[a-z-]+)`", text, re.MULTILINE))
    assert named == {script for script in scripts if script.startswith("yardmaster-")}


def table(page: str, title: str) -> dict[str, list[str]]:
    """The rows of the last table under a title, by the code in their first column."""
    text = (DOCS / page).read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.replace("\\|", "/").splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_every_reason_is_in_the_docs_with_its_numbers() -> None:
    page = "reference/reasons.md"
    waits = table(page, "Why a task waits")
    stops = table(page, "Why an attempt was stopped")
    policies = {name: stops.pop(name) for name in {*stops} & {p.name for p in POLICIES.values()}}
    codes: Mapping[type[StrEnum], set[str]] = {
        WaitCode: set(waits) - {"never", "held", "not_now"},
        StopCode: set(stops),
        EndCode: set(table(page, "Why a task ended or was requeued"))
        | (set(stops) - {StopCode.GANG_INCOMPLETE.value}),
        AdmissionCode: set(table(page, "Why quota refused a request")),
        RefusalCode: set(table(page, "Why a record was refused")),
    }
    for kind, documented in codes.items():
        assert {code.value for code in kind} == documented, kind
    for wait in WaitCode:
        assert waits[wait.value][0] == wait.wait_class.value, wait
        assert re.findall(r"`(\w+)`", waits[wait.value][2]) == list(NUMBERS[wait]), wait
    for stop in StopCode:
        assert re.findall(r"`(\w+)`", stops[stop.value][1]) == list(NUMBERS[stop]), stop
    explained = (DOCS / page).read_text().partition("## The numbers")[2]
    rows = re.findall(r"^\| (`.+?`) \|", explained, re.MULTILINE)
    of_policies = re.findall(r"`(\w+)`", " ".join(row[1] for row in policies.values()))
    assert set(re.findall(r"\w+", " ".join(rows))) == {
        *(number for numbers in NUMBERS.values() for number in numbers),
        *of_policies,
    }


def test_every_policy_and_option_is_in_the_docs_with_its_default() -> None:
    text = (DOCS / "reference/policies.md").read_text()
    for policy in POLICIES.values():
        assert f"`{policy.name}`" in text
        for option in fields(policy.options):
            default = str(option.default).lower() if option.type == "bool" else str(option.default)
            shown = f"| `{option.name}` | {default.lower()} |"
            assert shown in text.replace(f"| `{default}` |", f"| {default} |"), shown


def test_the_section_of_each_policy_opens_with_an_example_that_the_scheduler_played() -> None:
    text = (DOCS / "reference/policies.md").read_text()
    sections = text.split("\n## ")[1:]
    for policy in POLICIES.values():
        (example,) = (
            found[2]
            for section in sections
            if (found := EXAMPLE.search(section))
            and (f"`{policy.name}`" in found[2] or section.startswith(f"{policy.name}\n"))
        )
        assert "| GPUs in use |" in example, policy.name


def test_every_field_of_a_policy_is_in_the_guide() -> None:
    text = (DOCS / "how-to/add-a-policy.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$", text, re.MULTILINE)
    documented = [field for row, _ in rows for field in re.findall(r"\w+", row)]
    assert documented == [field.name for field in fields(Policy)]
    holds = dict(rows)
    for part in fields(Policy):
        if is_dataclass(part.default):
            named = re.findall(r"`(\w+)`", holds[f"`{part.name}`"])
            assert {field.name for field in fields(part.default)} <= set(named), part.name


def job_keys() -> dict[str, dict[str, Any]]:
    """The schema of each key of a job file, those of nested mappings with a dot."""
    found = generated().job_keys(JobSpec.model_json_schema())
    return {key: schema for key, schema, _, _ in found}


def test_every_key_of_a_job_file_is_in_the_docs() -> None:
    table = generated().TABLES["job-file"]()
    documented = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert documented == list(job_keys())
    assert set(JobSpec.model_fields) == {key.partition(".")[0] for key in documented}


@pytest.mark.parametrize("key", sorted(job_keys()))
def test_every_example_of_a_key_of_a_job_file_is_a_valid_job(key: str) -> None:
    schema = job_keys()[key]
    assert schema["description"].endswith(".")
    assert schema["examples"]
    for example in schema["examples"]:
        job: dict[str, Any] = {"project": "nlp", "run": {"command": ["true"]}}
        *path, last = key.split(".")
        inner = job
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = example
        for needed, value in REQUIRED_TOO.get(key, {}).items():
            inner[needed] = value
        inner.update({"command": None} if key == "run.script" else {})
        if key == "role":
            job["kind"] = "interactive"
        JobSpec.model_validate_json(json.dumps(job))


def test_the_docs_say_what_each_role_allows() -> None:
    for role in RoleName:
        allowed = ", ".join(
            action.value
            for action in Action
            if is_allowed([Binding(role, Scope.CELL, "main")], action)
            # Reading the log depends on the scope alone; the page says so.
            and (action is not Action.READ_LOG or role is RoleName.OPERATOR)
        )
        assert table("how-to/users.md", "Roles")[role.value][0] == allowed


def test_every_request_of_the_agents_api_is_in_the_docs() -> None:
    source = (ROOT / "services/node_agent/yardmaster_node_agent/api.py").read_text()
    served = re.findall(r'case \("(\w+)", "(/v1/\w+)"\)', source)
    text = (DOCS / "reference/task-environment.md").read_text()
    assert served == re.findall(r"^\| `(\w+) (/v1/\w+)` \|", text, re.MULTILINE)


def test_a_task_has_the_documented_variables_and_no_other() -> None:
    module = generated()
    assert module.environment_of_a_task().keys() == module.MEANINGS.keys()


def test_every_exit_code_is_in_the_docs() -> None:
    text = (DOCS / "reference/cli.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert codes == [int(code) for code in Exit]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_generated_parts_of_a_page_are_what_the_program_says(page: Path) -> None:
    text = page.read_text()
    assert text == generated().regenerated(text), "run: make reference"


def test_every_generated_part_is_on_one_page() -> None:
    module = generated()
    parts = [found for page in PAGES for found in module.PART.findall(page.read_text())]
    assert sorted(parts) == sorted(module.TABLES)


def rows_of(text: str) -> Iterator[list[str]]:
    """The rows of all tables of a page, without titles and rules."""
    lines = text.splitlines()
    for above, line in pairwise(["", *lines]):
        if above.startswith("|") and line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def test_every_fact_about_another_system_has_a_source() -> None:
    text = (DOCS / "explanation/comparison.md").read_text()
    sources = dict(re.findall(r"^\[\^([\w-]+)\]: (.*)$", text, re.MULTILINE))
    assert all("(https://" in source for source in sources.values())
    facts = 0
    for row in rows_of(text):
        # The first table has a row for each system, the others a column.
        if row[0] == "Yardmaster":
            continue
        for cell in row[1:] if len(row) == 4 else row[2:]:
            facts += 1
            cited = re.findall(r"\[\^([\w-]+)\]", cell)
            assert set(cited) <= set(sources), cell
            assert cited or cell == "not found", (row[0], cell)
    assert facts > 90


def test_the_comparison_says_whether_a_policy_reclaims_quotas() -> None:
    text = (DOCS / "explanation/comparison.md").read_text()
    lacks = "| Guaranteed quota that others borrow until it is reclaimed | **no**" in text
    assert lacks == ("quota" not in {policy.name for policy in POLICIES.values()})


def test_every_named_test_exists() -> None:
    named = [
        (page, file, test)
        for page in PRESENT
        for file, test in NAMED_TEST.findall(page.read_text())
    ]
    missing = [
        f"{page.name}: {file}::{test}"
        for page, file, test in named
        if not re.search(rf"^\s*(?:async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert named
    assert missing == []


def defines(path: Path, name: str) -> bool:
    """Whether a module defines a function, a class, a constant or, as `Class.name`, a method."""
    body: Sequence[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    if statement.name == part:
                        body = statement.body
                        break
                case ast.AnnAssign(target=ast.Name(id=target)) if target == part:
                    body = ()
                    break
                case ast.Assign(targets=[ast.Name(id=target)]) if target == part:
                    body = ()
                    break
        else:
            return False
    return True


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_every_file_in_the_docs_defines_what_the_page_says(page: Path) -> None:
    named = NAMED_DEFINITION.findall(page.read_text())
    missing = [(path, what) for path, what in named if not defines(ROOT / path, what)]
    assert missing == []


def test_each_hop_of_a_submit_names_a_file_and_what_it_defines() -> None:
    text = (DOCS / "explanation/cycle.md").read_text()
    hops = re.findall(r"^\| \d+ \|.*$", text, re.MULTILINE)
    assert len(hops) > 10
    assert [hop for hop in hops if not NAMED_DEFINITION.search(hop)] == []


def test_the_readme_says_how_long_its_gang_trains() -> None:
    command = yaml.safe_load((ROOT / "examples/gang.yaml").read_text())["run"]["command"]
    steps = int(command[command.index("--steps") + 1])
    program = (ROOT / "examples/train_gang.py").read_text()
    (pause_s,) = re.findall(r'"--pause", type=float, default=([\d.]+)', program)
    found = re.search(r"The gang trains for about (\d+) seconds", (ROOT / "README.md").read_text())
    assert found
    assert int(found[1]) == steps * float(pause_s)


def test_the_page_on_monitoring_counts_the_alarms() -> None:
    alarms = yaml.safe_load((ROOT / "deploy/prometheus/alarms.yaml").read_text())
    count = sum(len(group["rules"]) for group in alarms["groups"])
    assert f"SUCCESS: {count} rules found" in (DOCS / "how-to/monitor.md").read_text()


@pytest.mark.parametrize("page", ["how-to/monitor.md", "reference/metrics.md"])
def test_the_policies_with_a_share_for_each_project_are_named(page: str) -> None:
    (line,) = (
        line
        for line in (DOCS / page).read_text().splitlines()
        if "share exists under" in line or "`yard_scheduler_project_share{" in line
    )
    with_shares = {one.name for one in POLICIES.values() if one.shares.of_projects is not no_shares}
    assert {name for name, _ in POLICIES if f"`{name}`" in line} == with_shares


def test_a_preempted_task_waits_with_its_last_attempt_on_the_page_about_audits() -> None:
    page = (DOCS / "how-to/audit-a-decision.md").read_text()
    shown = re.findall(r"^(\w+\.0) default pending +60 +(\d+) -", page, re.MULTILINE)
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=60)
    cell.cycle()
    cell.starts("low")
    cell.submit("top", priority=5)
    cell.cycle()
    cell.ends("low")
    cell.run_until_idle()
    assert cell.phase("low") == "pending"
    assert shown
    assert {int(attempt) for _, attempt in shown} == {cell.task("low").attempt}
