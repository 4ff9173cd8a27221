"""kustomize, helm and promtool for tests: the machine's own, or built by deploy/ci/go_tool.sh."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
#: Building a tool takes minutes where `.ci/run` has not built it; the timeout of a test is higher.
LIMIT_S: Final = 280
#: go_tool.sh: the tool is missing and cannot be built here.
MISSING: Final = 3
#: `timeout` ended the script and what it had started.
TIMED_OUT: Final = 124


def go_tool(tool: str, *arguments: str | Path, expect: int = 0) -> str:
    """Run a tool in the root of the tree and return its output; skip the test without the tool.

    Raises: AssertionError with what it printed, when it does not exit with `expect`.
    """
    done = subprocess.run(
        ["timeout", str(LIMIT_S), ROOT / "deploy" / "ci" / "go_tool.sh", tool, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == MISSING and "go_tool.sh:" in done.stderr:
        pytest.skip(done.stderr.strip())
    if done.returncode == TIMED_OUT:
        pytest.fail(f"no result in {LIMIT_S} s; if {tool} is missing: go_tool.sh build {tool}")
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr
