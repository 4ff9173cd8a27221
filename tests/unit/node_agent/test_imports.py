"""The packages that the host of an agent has to install."""

import subprocess
import sys

UNWANTED = ("uvicorn", "fastapi", "starlette", "plotly", "pyarrow")
#: Imports every module that an agent's process can import, also those that it imports late.
IMPORT_ALL = f"""
import importlib, pkgutil, sys
for name in ("yardmaster_node_agent", "yardmaster_runtime", "yardmaster_eventlog"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
print(sorted({{name.partition(".")[0] for name in sys.modules}} & set({UNWANTED})))
"""


def test_an_agents_process_imports_no_web_framework_and_no_plotting_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
