"""Scripts that read as specifications: the inputs of a cell and its decisions.

`make golden` rewrites the traces: commit a difference only when you understand it.
"""

import difflib
import os
from pathlib import Path

import pytest

from tests.golden.script import run
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import fold

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_decisions_of_a_cell_equal_the_trace_of_its_script(path: Path) -> None:
    written = path.read_text()
    found, cell = run(written)
    assert_sound(cell.state)
    assert fold(cell.steps).digest() == cell.state.digest()
    if os.environ.get("YARDMASTER_GOLDEN") == "rewrite":
        path.write_text(found)
        return
    difference = difflib.unified_diff(
        written.splitlines(), found.splitlines(), "as written", "as decided", lineterm=""
    )
    assert written == found, "\n".join(["", *difference])


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 12
