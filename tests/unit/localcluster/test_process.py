"""Processes of a local cluster."""

import sys
from pathlib import Path

from yardmaster_localcluster.process import path_with_python


def test_tasks_find_this_python_first() -> None:
    here = str(Path(sys.executable).parent)
    assert path_with_python({"PATH": "/usr/bin"}) == f"{here}:/usr/bin"
    assert path_with_python({"PATH": f"{here}:/usr/bin"}) == f"{here}:/usr/bin"
