"""Delete each rule of the policy `quota` from a copy of the code, and see which scenarios fail.

`make rules`. Exits with 1 if a rule is deleted and nothing fails, or if its code has changed so
that the change that deletes it does not apply. It prints the rows of the table in
docs/explanation/conformance.md.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yardmaster_core
from tests.conformance.rules import RULES, Rule

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "tests" / "conformance" / "scenarios"
#: Our own first: the others are named only where none of ours fails.
FILES: Final = ("quota", "runai_doc", "kai_fairshare", "kai")
TESTS: Final = "tests/conformance/test_quota_rules.py"
#: Scenarios of a file that are named in a row.
MOST_NAMED: Final = 3
FAILED: Final = re.compile(r"^(?:failed|FAILED) (\S+?):? ", re.MULTILINE)

CONFORMANCE: Final = """
import sys, yardmaster_core
assert yardmaster_core.__file__.startswith(sys.argv[1]), yardmaster_core.__file__
from yardmaster_cli.main import run
for path in sys.argv[2:]:
    run(["conformance", path])
"""


def failures(core: Path, files: Sequence[str]) -> list[str]:
    """Return the scenarios of these files that fail with the package in `core`, else the tests."""
    paths = [str(SCENARIOS / f"{name}.jsonl") for name in files]
    found = _run(core, "-c", CONFORMANCE, str(core), *paths)
    return found or [
        name.split("::")[-1] for name in _run(core, "-m", "pytest", "-q", "-n", "0", TESTS)
    ]


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
