"""kustomize, helm and promtool for tests: the machine's own, or those of `make tools`."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
#: go_tool.sh: the tool is missing.
MISSING: Final = 3


def go_tool(tool: str, *arguments: str | Path, expect: int = 0) -> str:
    """Run a tool in the root of the tree and return its output; skip the test without the tool.

    Raises: AssertionError with what it printed, when it does not exit with `expect`.
    """
    done = subprocess.run(
        [ROOT / "deploy" / "ci" / "go_tool.sh", tool, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == MISSING and "go_tool.sh:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr
