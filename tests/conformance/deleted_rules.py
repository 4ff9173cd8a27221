"""Delete each rule of the policy `quota` from a copy of the code, and see which scenarios fail.

`make rules`; arguments select the rules whose names contain one of them. Exits with 1 if a rule is
deleted and nothing fails, or if its code has changed so that the change that deletes it does not
apply. It prints the tables in docs/explanation/conformance.md.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import cache_from_source
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yardmaster_core
from tests.conformance.rules import RULES, Rule

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = "tests/conformance/scenarios/quota.jsonl"
#: How the ids of its scenarios begin.
PREFIX: Final = "quota/"
#: They run where no scenario fails.
TESTS: Final = "tests/conformance/test_quota_rules.py"
#: Scenarios, and tests, that are named in a row.
MOST_NAMED: Final = 3
FAILED: Final = re.compile(r"^(?:failed|FAILED) (\S+?):?(?: |$)", re.MULTILINE)

CONFORMANCE: Final = """
import sys, yardmaster_core
assert yardmaster_core.__file__.startswith(sys.argv[1]), yardmaster_core.__file__
from yardmaster_cli.main import run
sys.exit(run(["conformance", sys.argv[2]]))
"""


def failures(core: Path) -> list[str]:
    """Return the scenarios that fail with the package in the folder `core`, else the tests."""
    found = _run(core, "-c", CONFORMANCE, str(core), SCENARIOS)
    if not found:
        found = _run(core, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", TESTS)
    return [name.split("::")[-1].removeprefix(PREFIX) for name in found]


def _run(core: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(core.parent)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{arguments[0]} exited with {done.returncode}:\n{done.stderr}")
    return FAILED.findall(done.stdout)


class CoreCopy:
    """A copy of the core's package, from which a rule is deleted at a time."""

    def __init__(self, folder: Path) -> None:
        self._source = Path(yardmaster_core.__file__).parent
        self.core = folder / "yardmaster_core"
        shutil.copytree(self._source, self.core)

    def without(self, rule: Rule) -> None:
        """Delete a rule.

        Raises:
            ValueError: the change does not apply to the code.
        """
        path = self.core / rule.file
        path.write_text(rule.deleted_from(path.read_text()))
        self._forget_compiled(rule)

    def restore(self, rule: Rule) -> None:
        """Put a deleted rule back."""
        shutil.copyfile(self._source / rule.file, self.core / rule.file)
        self._forget_compiled(rule)

    def _forget_compiled(self, rule: Rule) -> None:
        # Python compares times of whole seconds.
        Path(cache_from_source(str(self.core / rule.file))).unlink(missing_ok=True)


def main(words: Sequence[str]) -> int:
    """Print the rows of each file, for the page of the documentation; return the exit code."""
    selected = [rule for rule in RULES if not words or any(word in rule.name for word in words)]
    unnoticed = []
    with TemporaryDirectory() as folder:
        copy = CoreCopy(Path(folder))
        if failed := failures(copy.core):
            raise SystemExit(f"without a change fail {named(failed)}")
        for file, rules in groupby(selected, attrgetter("file")):
            print(f"\n`libs/core/yardmaster_core/{file}`:\n")
            print("| rule | without it fail |\n| --- | --- |")
            for rule in rules:
                copy.without(rule)
                failed = failures(copy.core)
                copy.restore(rule)
                print(f"| {rule.name} | {named(failed) or 'none'} |", flush=True)
                if not failed:
                    unnoticed.append(rule.name)
    print(f"\n{len(selected)} rules deleted one by one; unnoticed: {unnoticed or 'none'}")
    return int(bool(unnoticed))


def named(failed: Sequence[str]) -> str:
    """Return the names of some scenarios or tests, and the number of the others."""
    shown = [f"`{name}`" for name in failed[:MOST_NAMED]]
    more = len(failed) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
