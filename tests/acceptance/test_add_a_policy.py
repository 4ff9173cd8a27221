"""A policy is added as docs/how-to/add-a-policy.md says: a file, a row and a test suffice."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.readme import clean_copy
from yardmaster_core.scheduling.policies import POLICIES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/how-to/add-a-policy.md"
PACKAGE: Final = Path("libs/core/yardmaster_core/scheduling/policies/__init__.py")
NAME: Final = "non_preemptible_first"

pytestmark = pytest.mark.timeout(300)


def files_of_the_page() -> dict[str, str]:
    """The files that the page shows, by path."""
    return dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```$', PAGE.read_text(), re.M | re.S))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to which the policy of the page was added."""
    tree = tmp_path_factory.mktemp("walk") / "yardmaster"
    clean_copy(ROOT, tree)
    for path, text in files_of_the_page().items():
        assert not (tree / path).exists()
        (tree / path).write_text(text)
    text = PAGE.read_text()
    (imported,) = re.findall(r"^```python\n(from .*)\n```$", text, re.M)
    registry = (tree / PACKAGE).read_text()
    *_, value = imported.split()
    found = registry.replace("for p in (PRIORITY,", f"for p in (PRIORITY, {value},")
    assert found != registry
    first = "from yardmaster_core.scheduling.policies.fitgpp"
    (tree / PACKAGE).write_text(found.replace(first, f"{imported}\n{first}", 1))
    return tree


def run(tree: Path, *command: str) -> str:
    """Run a module of Python with the packages of the copied tree; return its output."""
    env = {**os.environ, "PYTHONPATH": f"{tree / 'libs/core'}:{tree}", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        env=env,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_page_adds_two_files_and_a_row() -> None:
    assert sorted(files_of_the_page()) == [
        f"{PACKAGE.parent}/{NAME}.py",
        f"tests/unit/core/scheduling/policies/test_{NAME}.py",
    ]
    assert NAME not in {policy.name for policy in POLICIES.values()}


def test_its_own_test_passes(tree: Path) -> None:
    path = f"tests/unit/core/scheduling/policies/test_{NAME}.py"
    assert "2 passed" in run(tree, "pytest", "-q", "-p", "no:cacheprovider", path)


def test_its_files_are_in_the_style_of_the_tree(tree: Path) -> None:
    paths = list(files_of_the_page())
    run(tree, "ruff", "check", "--no-cache", *paths)
    run(tree, "ruff", "format", "--no-cache", "--check", *paths)


def test_random_histories_under_it_have_all_properties(tree: Path) -> None:
    said = run(tree, "tests.histories", "--seeds", "0:60", "--jobs", "1")
    assert "0 break a property" in said


def test_the_simulator_runs_it_and_its_log_is_verified(tree: Path, tmp_path: Path) -> None:
    yard, out = "yardmaster_cli.main", tmp_path / "out"
    policies = ("--policy", NAME, "--policy", "fifo")
    said = run(
        tree, yard, "simulate", *policies, "--jobs", "150", "--nodes", "2x8", "--out", str(out)
    )
    (row,) = re.findall(rf"^{NAME} .*", said, re.M)
    assert not row.endswith(" 0.00"), f"it preempted no task: {row}"
    proved = run(tree, yard, "replay", "verify", "--log", str(out / f"{NAME}-0.db"))
    assert "ok: every recorded decision was reproduced" in proved
